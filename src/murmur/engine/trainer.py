"""Task x strategy x world -> a consensus model and records of how it came about."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from murmur.core.facts import Facts
from murmur.core.flat import Layout, is_finite
from murmur.core.group import Group, WorldMismatch
from murmur.core.learner import Learner
from murmur.core.membership import ENDED, RunOver, StoppedGracefully
from murmur.core.weights import Weights
from murmur.core.world import Seat, World
from murmur.elastic.rendezvous import POLL_SECONDS, LeftBehind
from murmur.engine import cover
from murmur.engine.checkpoints.checkpoint import Checkpoints, write_pair, write_whole
from murmur.engine.checkpoints.resume import Resume, forget_position, join_late, resume
from murmur.engine.counters import ADVICE, tell_bad_numbers
from murmur.engine.elastic_run import run_strategy
from murmur.engine.evaluation_points import EvaluationPoints, consensus_tensors
from murmur.engine.experiment import Experiment
from murmur.engine.graceful_stop import Asked
from murmur.engine.pace import EVERY_SECONDS, Pace
from murmur.engine.record import ChromeTrace, JsonLines, Observer, begin_trace, finish_trace
from murmur.engine.task_source import TaskSource


@dataclass(frozen=True)
class Outcome:
    """Result of training: the consensus model, its held-out figures (where `leads`), minibatches done.

    `leads` is true on one learner: the first, or the first of those that lived to the end. `stopped`: it was asked to
    stop, and has saved.
    """

    learner: int
    leads: bool
    model: nn.Module
    figures: dict[str, float]
    minibatches: int
    stopped: bool = False


@dataclass(frozen=True)
class Trainer:
    """Trains an experiment in a world.

    Attributes:
        experiment: Task, strategy, budget and settings.
        world: World of the learners.
        out: Folder for records, trace and checkpoints; None writes nothing.
        observers: Makes further receivers of a learner's records, from its seat.
        resume: Continue from the newest complete checkpoint in `out`.
        asked: Returns True once this process was asked to stop. All learners pass it, or none does.
        pace_seconds: Interval at which learners report their speed to the first one.
    """

    experiment: Experiment
    world: World
    out: Path | None = None
    observers: Callable[[Seat], tuple[Observer, ...]] = lambda _: ()
    resume: bool = False
    asked: Asked | None = None
    pace_seconds: float = EVERY_SECONDS

    def fit(self) -> Outcome:
        """Train to the end of the budget.

        Returns:
            The outcome of the learner of this process that leads, or of its first one.

        Raises:
            WorldMismatch: learners run different experiments.
            PeerLost: a learner is gone.
            FloatingPointError: losses, gradients or weights were not finite, again and again.
            Halted: it was asked to stop, and has saved where it can go on.
            IncompleteRun: the learners have not computed every minibatch of the budget once.
        """
        outcomes = self.world.run(self._train)
        stopped = [o.minibatches for o in outcomes if o.stopped]
        if stopped:
            raise StoppedGracefully(max(stopped))
        return next((o for o in outcomes if o.leads), outcomes[0])

    async def _train(self, seat: Seat) -> Outcome:
        if not seat.late:
            await agree(seat.group, self.experiment.digest())
        source = TaskSource(self.experiment, seat, self.observers(seat))
        with closing(source):
            try:
                return await self._run(seat, source)
            except StoppedGracefully as stopped:
                cover.leave(seat.group)
                seat.waits = False
                if isinstance(seat.trace.sink, ChromeTrace):
                    seat.trace.sink.flush()
                seat.trace.sink = None
                return Outcome(seat.group.rank, False, source.model, {}, stopped.minibatches, stopped=True)

    async def _run(self, seat: Seat, source: TaskSource) -> Outcome:
        points = EvaluationPoints(source, self.out, self.asked)
        source.at_boundary(points.boundary)
        resumed = await self._resume(seat, source, points)
        if resumed is None and not seat.late:
            everything = Layout.everything(source.model)
            everything.scatter(await seat.group.broadcast(everything.gather()))
        trace = await self._open(seat, source, resumed is not None)
        if source.observers and seat.works_beside and seat.group.size > 1:
            self._watch_pace(source)
        me = Learner(seat, Weights(source.layout), source, Facts.of(self.experiment.strategy).lock_step)
        me.outer = {} if resumed is None else resumed.outer
        points.begin()
        try:
            if source.first < source.total:
                await run_strategy(self.experiment.strategy, me, source, points.skip_to)
        except RunOver:
            cover.leave(seat.group)
            seat.waits = False
            return Outcome(seat.group.rank, False, source.model, {}, source.total)
        source.counters.share(seat.group)
        source.cover.tell(seat.group)
        await cover.check(seat, source.total - source.first, source.to_do)
        if me.follows:
            points.save(me, source.total)
            me.seat.trace.sink, me.seat.waits = None, False
            if trace is not None:
                trace.flush()
            return Outcome(seat.group.rank, False, source.model, {}, source.total)
        try:
            outcome = await self._finish(me, source, points)
            await self._close(me, trace)
            if not outcome.leads and await inherits(me.seat):
                outcome = self._conclude(me, source, points, (me.weights.snapshot(), source.buffers.gather()))
            if outcome.leads:
                me.seat.group.count(ENDED, 1)
        except (LeftBehind, RunOver):  # the others have ended, or will, without this learner
            seat.waits = False
            return Outcome(seat.group.rank, False, source.model, {}, source.total)
        return outcome

    def _watch_pace(self, source: TaskSource) -> None:
        """Find out who is slow, where seconds are real."""
        pace = Pace(source, self.pace_seconds)
        source.add_observer(pace)
        source.at_boundary(pace.boundary)

    async def _resume(self, seat: Seat, source: TaskSource, points: EvaluationPoints) -> Resume | None:
        if self.out is None:
            return None
        if seat.late:
            join_late(source, self.out)
        resumed = await resume(source, self.out) if self.resume and not seat.late else None
        if resumed is not None:
            points.go_on(resumed)
        return resumed

    async def _open(self, seat: Seat, source: TaskSource, resumed: bool) -> ChromeTrace | None:
        """Files of this run; learner 0 prepares them before the others write."""
        if self.out is None:
            return None
        records, trace = self.out / "records.jsonl", self.out / "trace.json"
        if seat.group.rank == 0 and not seat.late:
            if not resumed:
                Checkpoints(self.out / "checkpoints").clear()
                forget_position(self.out)
            _forget_after(records, source.first)
            if trace.exists():
                trace.replace(self.out / f"trace-until-{source.first}.json")
            begin_trace(trace)
        if not seat.late:
            await seat.group.broadcast(torch.zeros(1))
        source.add_observer(JsonLines(records))
        seat.trace.sink = chrome = ChromeTrace(trace)
        return chrome

    async def _close(self, me: Learner, trace: ChromeTrace | None) -> None:
        if trace is not None:
            me.seat.trace.sink = None
            trace.flush()
        leads = me.leads
        if not me.lock_step:
            await me.averager.meet(ENDED)
        else:
            await me.group.meet(ENDED)  # all learners have written
        if leads:
            tell_bad_numbers(me.seat.group)
        if leads and trace is not None:
            finish_trace(trace.path)

    async def _finish(self, me: Learner, source: TaskSource, points: EvaluationPoints) -> Outcome:
        """The consensus of all learners, evaluated once more and saved."""
        if me.lock_step:
            weights, buffers, figures = await self._average(me, source, points)
        else:
            weights, buffers, figures = await points.finish(me)
        if not figures:
            return Outcome(me.group.rank, False, source.model, {}, source.total)
        return self._conclude(me, source, points, (weights, buffers), figures)

    def _conclude(
        self,
        me: Learner,
        source: TaskSource,
        points: EvaluationPoints,
        consensus: tuple[Tensor, Tensor],
        figures: dict[str, float] | None = None,
    ) -> Outcome:
        """Write the consensus; evaluated here where it is not yet."""
        found = points.take_over(me, consensus) if figures is None else figures
        if self.out is not None:
            facts = {"minibatches": source.total, **points.facts(found)}
            write_pair(self.out / "model", consensus_tensors(*consensus), facts)
        return Outcome(me.group.rank, True, source.model, found, source.total)

    async def _average(
        self, me: Learner, source: TaskSource, points: EvaluationPoints
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        start = source.clock.moment()
        weights = await me.group.mean(me.weights.snapshot())
        if not is_finite(weights):
            raise FloatingPointError(f"no learner's weights are finite: {ADVICE}")
        buffers = source.buffers.gather()
        if source.buffers.tensors:
            buffers = await me.group.mean(buffers)
            source.buffers.scatter(buffers)
        me.weights.set_(weights)
        source.clock.leave_out(start)
        return weights, buffers, await points.evaluate(me, source.total)


async def inherits(seat: Seat) -> bool:
    """True if this learner ends the run because the leader was lost after the last mean."""
    pause = 0.0
    while seat.group.tolerates_loss and seat.group.count(ENDED) == 0:
        if seat.group.membership.view(fresh=True).live[:1] == (seat.group.rank,):
            return True
        await seat.sleep(pause)
        pause = POLL_SECONDS
    return False


async def agree(group: Group, digest: str) -> None:
    """All learners must run the same experiment, or they would wait for messages that never come.

    Raises:
        WorldMismatch: on every learner, if any one differs from learner 0.
    """
    mine = torch.frombuffer(bytearray(bytes.fromhex(digest)), dtype=torch.uint8).long()
    first = await group.broadcast(mine)
    differs = float(not torch.equal(mine, first))
    if float(await group.mean(torch.tensor([differs]))) > 0:
        theirs = bytes(first.to(torch.uint8).tolist()).hex()
        raise WorldMismatch(
            f"learner {group.rank} runs experiment {digest}, learner 0 runs {theirs}, and not all are equal: start"
            " every learner with the same file, settings and version"
        )


def _forget_after(path: Path, minibatches: int) -> None:
    """Drop records of steps that a checkpoint does not know: they will be made again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # cut off in mid-line when the process was killed
        # A step is numbered by what was done before it, an evaluation by what was done when it was made.
        if record["minibatches"] < minibatches + (record["kind"] == "evaluation"):
            kept.append(line + "\n")
    write_whole(path, "".join(kept).encode())
