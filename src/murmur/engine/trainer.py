"""Trainer: runs a strategy on a task in a world; gives a consensus model and records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from torch import nn

from murmur.core.counted import are, counted
from murmur.core.errors import IncompleteRun
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.group import Group, WorldMismatch
from murmur.core.learner import Learner
from murmur.core.membership import ENDED, RunOver, StoppedGracefully, View
from murmur.core.weights import Weights
from murmur.core.world import Seat, World
from murmur.elastic.regrouping import run_strategy
from murmur.elastic.rendezvous import POLL_SECONDS, LeftBehind
from murmur.engine import cover
from murmur.engine.checkpoints.checkpoint import Checkpoints
from murmur.engine.checkpoints.position import cut_of, write_start
from murmur.engine.counters import tell_bad_numbers
from murmur.engine.evaluation_points import EvaluationPoints
from murmur.engine.experiment import Experiment
from murmur.engine.graceful_stop import Asked
from murmur.engine.record import Observer, forget_records
from murmur.engine.recorder import wait_for_spans
from murmur.engine.resume import Resume, join_late, resume
from murmur.engine.run_files import begin_trace, finish_trace, keep_trace
from murmur.engine.source import warn_of_optimizer
from murmur.engine.stragglers import EVERY_SECONDS, Pace
from murmur.engine.task import outputs_of
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Result of training: the consensus model, its held-out figures (if `leads`), completed minibatches.

    `leads` is true on one learner: the first of those that lived to the end. `stopped` is true after a request to stop,
    and `found` if an earlier launch had written the model. `unfinished` is the error if minibatches are left.
    """

    learner: int
    leads: bool
    model: nn.Module
    figures: dict[str, float]
    minibatches: int
    stopped: bool = False
    found: bool = False
    unfinished: IncompleteRun | None = None


@dataclass(frozen=True)
class Trainer:
    """Trains an experiment in a world.

    Attributes:
        experiment: Task, strategy, budget and settings.
        world: World of the learners.
        out: Folder for records, trace and checkpoints; None writes nothing.
        observers: Function that returns further observers of a learner's records, given its seat.
        resume: Continue from the newest complete checkpoint in `out`.
        asked: Returns True after a request to stop this process. All learners pass it, or none does.
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
        """Train to the end of the budget. A run that is finished already is not computed again.

        Returns:
            The outcome of the learner of this process that leads, or of its first one.

        Raises:
            WorldMismatch: Learners run different experiments.
            PeerLost: A learner is lost.
            FloatingPointError: Losses, gradients or weights were not finite too many times in a row.
            StoppedGracefully: The run was stopped on request, and has saved a checkpoint.
            IncompleteRun: The learners have not computed every minibatch of the budget; only those that a lost learner
                had computed since its last exchange may have been computed again.
        """
        outcomes = self.world.run(self._train)
        stopped = [o.minibatches for o in outcomes if o.stopped]
        if stopped:
            raise StoppedGracefully(max(stopped))
        for outcome in outcomes:
            if outcome.unfinished is not None:
                raise outcome.unfinished
        return next((o for o in outcomes if o.leads), outcomes[0])

    async def _train(self, seat: Seat) -> Outcome:
        cut = cut_of(self.out) if self.out is not None and (self.resume or seat.late) else None
        experiment = self.experiment.scaled(seat.group.size, cut)
        if not seat.late:
            await agree(seat.group, experiment.digest(), experiment.cut, outputs_of(experiment.task))
        began = seat.group.membership.view()  # all have come; one may be lost, and be started again, in what follows
        source = TaskSource(experiment, seat, self.observers(seat))
        if seat.group.rank == 0:
            warn_of_optimizer(experiment.strategy, source.local_optimizer.moments)
        with closing(source):
            try:
                return await self._run(seat, source, began)
            except StoppedGracefully as stopped:
                cover.leave(seat.group)
                seat.waits = False
                source.recorder.end_trace()
                return outcome_of(source, stopped=stopped)
            except IncompleteRun as error:
                if not error.lost:
                    raise
                seat.waits = False  # all that live find it, and end
                source.recorder.end_trace()
                return outcome_of(source, unfinished=error)

    async def _run(self, seat: Seat, source: TaskSource, began: View) -> Outcome:
        points = EvaluationPoints(source, self.out, self.asked)
        resumed = await self._resume(seat, source, points)
        if resumed is not None and source.first >= source.total:
            return await self._finish(seat, source, points)
        me = await self._begin(seat, source, points, resumed)
        return outcome_of(source, figures=await self._train_to_end(me, source, points, began))

    async def _train_to_end(
        self, me: Learner, source: TaskSource, points: EvaluationPoints, began: View
    ) -> Mapping[str, float] | None:
        seat = me.seat
        try:
            if source.first < source.total:
                strategy = self.experiment.strategy
                await run_strategy(strategy, me, lambda: source.buffers, points.skip_to, began, lambda: source.computed)
        except RunOver:
            cover.leave(seat.group)
            _miss(seat)
            return None
        source.counters.share(seat.group)
        await cover.check(me, source.computed, source.to_do)
        if me.role.follows:
            points.checkpointer.save(me, source.total)
            seat.waits = False
            source.recorder.end_trace(seat.group)
            return None
        try:
            return await self._end(me, source, points)
        except (LeftBehind, RunOver):  # the others have ended, or will, without this learner
            _miss(seat)
            return None

    async def _finish(self, seat: Seat, source: TaskSource, points: EvaluationPoints) -> Outcome:
        """End a run whose minibatches are all done: learner 0 writes the model, if an earlier launch has not."""
        if seat.group.rank > 0 or self.out is None:
            return outcome_of(source)
        figures = points.checkpointer.read_model()
        if figures is not None:
            done = f"all {counted(source.total, 'minibatch')} {are(source.total)} done"
            log.info("%s is finished: %s, and nothing is computed again", self.out, done)
            return outcome_of(source, figures=figures, found=True)
        records = self.out / "records.jsonl"
        _forget_after(records, source.total, source)
        source.recorder.write(records)
        return outcome_of(source, figures=points.evaluate_again())

    async def _begin(self, seat: Seat, source: TaskSource, points: EvaluationPoints, resumed: Resume | None) -> Learner:
        source.at_boundary(points.boundary)
        if resumed is None and not seat.late:
            everything = Layout.everything(source.model)
            everything.scatter(await seat.group.broadcast(everything.gather()))
        if self.out is not None:
            await self._open(self.out, seat, source, None if resumed is None else resumed.mark)
        if source.recorder.observers and seat.works_beside and seat.group.size > 1:
            pace = Pace(source.recorder, source.progress, self.pace_seconds)
            source.recorder.add(pace)
            source.at_boundary(pace.boundary)
        lock_step = Facts.of(self.experiment.strategy).lock_step
        outer = None if resumed is None else resumed.outer
        me = Learner(seat, Weights(source.layout), source, lock_step, outer)
        points.begin()
        return me

    async def _resume(self, seat: Seat, source: TaskSource, points: EvaluationPoints) -> Resume | None:
        if self.out is not None and seat.late:
            join_late(source, self.out)
        if self.out is None or seat.late or not self.resume:
            return None
        resumed = await resume(source, self.out)
        if resumed is not None:
            points.go_on(resumed)
        return resumed

    async def _open(self, out: Path, seat: Seat, source: TaskSource, mark: int | None) -> None:
        """Open the files of this run, resumed at a mark; learner 0 prepares them before the others write."""
        records, trace = out / "records.jsonl", out / "trace.json"
        if seat.group.rank == 0 and not seat.late:
            if mark is None:
                Checkpoints(out / "checkpoints").clear()
            write_start(out, source.experiment.cut, outputs_of(source.experiment.task), source.position)
            _forget_after(records, mark or 0, source)
            keep_trace(trace, source.first)
            begin_trace(trace)
        if not seat.late:
            await seat.group.broadcast(torch.zeros(1))
        source.recorder.write(records, trace)

    async def _end(self, me: Learner, source: TaskSource, points: EvaluationPoints) -> Mapping[str, float] | None:
        figures = await points.end(me)
        source.recorder.end_trace(me.seat.group)
        await self._close(me)
        if figures is None and await inherits(me.seat):
            figures = points.take_over(me)
        if figures is not None:
            me.seat.group.count(ENDED, 1)
        return figures

    async def _close(self, me: Learner) -> None:
        leads = me.leads
        if not me.lock_step:
            await me.averager.meet(ENDED, me.seat)
        else:
            await me.group.meet(ENDED)  # all learners have written
        if leads:
            tell_bad_numbers(me.seat.group)
        if leads and self.out is not None:
            await wait_for_spans(me.seat.group, me.seat)
            finish_trace(self.out / "trace.json")


def outcome_of(
    source: TaskSource,
    figures: Mapping[str, float] | None = None,
    stopped: StoppedGracefully | None = None,
    found: bool = False,
    unfinished: IncompleteRun | None = None,
) -> Outcome:
    return Outcome(
        learner=source.seat.group.rank,
        leads=figures is not None,
        model=source.model,
        figures=dict(figures or {}),
        minibatches=source.total if stopped is None else stopped.minibatches,
        stopped=stopped is not None,
        found=found,
        unfinished=unfinished,
    )


def _miss(seat: Seat) -> None:
    seat.waits, seat.missed = False, True


async def inherits(seat: Seat) -> bool:
    pause = 0.0
    while seat.group.tolerates_loss and seat.group.count(ENDED) == 0:
        if seat.group.membership.view(fresh=True).live[:1] == (seat.group.rank,):
            return True
        await seat.sleep(pause)
        pause = POLL_SECONDS
    return False


async def agree(group: Group, digest: str, cut: int = 1, outputs: str = "") -> None:
    """Check that all learners run the same experiment: others would wait for messages that never come.

    `outputs` is the digest of what the model's outputs stand for, which follows from data.

    Raises:
        WorldMismatch: A learner differs from learner 0; raised on every learner.
    """
    classes = blake2b(outputs.encode(), digest_size=8).digest()
    mine = torch.tensor([*classes, *bytes.fromhex(digest), cut])
    first = await group.broadcast(mine)
    differs = torch.tensor([not torch.equal(mine[part], first[part]) for part in (slice(8, None), slice(8))])
    experiments, data = (await group.mean(differs.float())).tolist()
    if experiments > 0:
        *theirs, pieces = first[8:].tolist()
        raise WorldMismatch(
            f"learner {group.rank} runs experiment {digest} with minibatches cut in {cut}, learner 0 runs"
            f" {bytes(theirs).hex()}, cut in {pieces}, and not all are equal: start"
            " every learner with the same file, settings and version"
        )
    if data > 0:
        raise WorldMismatch(
            "the outputs of the model do not stand for the same classes (words, units, states) on all learners, since"
            " they read other data: copy one set to all hosts, with caches and the dates of files"
        )


def _forget_after(path: Path, mark: int, source: TaskSource) -> None:
    """Delete records of steps and evaluations beyond a checkpoint at a mark: they will be made again.

    A step counts the minibatches before it, and without lock-step its own too. The last one before the mark is then
    open when its learner saves, but for the end of a run. The evaluation at the end of the budget is always made again.
    """
    closed = not Facts.of(source.experiment.strategy).lock_step and source.first >= mark
    ends = {"step": mark + closed, "evaluation": mark + (0 < mark < source.total)}
    forget_records(path, ends, mark)
