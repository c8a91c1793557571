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
from murmur.core.whole_files import FinishedLines
from murmur.core.world import Seat, World
from murmur.elastic.rendezvous import POLL_SECONDS, LeftBehind
from murmur.engine import cover
from murmur.engine.checkpoints.checkpoint import Checkpoints, write_whole
from murmur.engine.checkpoints.cut import cut_of, restore_cut, write_cut
from murmur.engine.checkpoints.resume import Resume, forget_position, join_late, resume, write_outputs
from murmur.engine.counters import tell_bad_numbers
from murmur.engine.elastic_run import run_strategy
from murmur.engine.evaluation_points import EvaluationPoints
from murmur.engine.experiment import Experiment
from murmur.engine.graceful_stop import Asked
from murmur.engine.optimizer_fit import warn_of_optimizer
from murmur.engine.pace import EVERY_SECONDS, Pace
from murmur.engine.record import ChromeTrace, JsonLines, Observer, begin_trace, finish_trace, read_line
from murmur.engine.task import outputs_of
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """Result of training: the consensus model, its held-out figures (if `leads`), completed minibatches.

    `leads` is true on one learner: the first, or the first of those that lived to the end. `stopped` is true after a
    request to stop, when this learner has saved, and `found` if an earlier launch had written the model. `unfinished`
    is the error of a run in which a lost learner has left minibatches.
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
        experiment = self._scaled(seat)
        if not seat.late:
            await agree(seat.group, experiment.digest(), experiment.cut, outputs_of(experiment.task))
        began = seat.group.membership.view()  # all have come; one may be lost, and be started again, in what follows
        source = TaskSource(experiment, seat, self.observers(seat))
        if seat.group.rank == 0:
            warn_of_optimizer(experiment.strategy, source.moments)
        with closing(source):
            try:
                return await self._run(seat, source, began)
            except StoppedGracefully as stopped:
                cover.leave(seat.group)
                seat.waits = False
                end_trace(seat)
                return outcome_of(source, stopped=stopped)
            except IncompleteRun as error:
                if not error.lost:
                    raise
                seat.waits = False  # all that live find it, and end
                end_trace(seat)
                return outcome_of(source, unfinished=error)

    def _scaled(self, seat: Seat) -> Experiment:
        """Return the experiment for this number of learners; minibatches stay cut as they were when the run began."""
        begun = self.out is not None and (self.resume or seat.late)
        return self.experiment.scaled(seat.group.size, cut_of(self.out) if begun and self.out is not None else None)

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
        """Train to the end of the budget; return the figures of the model if this learner has written it."""
        seat = me.seat
        try:
            if source.first < source.total:
                await run_strategy(self.experiment.strategy, me, source, points.skip_to, began, source.computed)
        except RunOver:
            cover.leave(seat.group)
            seat.waits = False
            return None
        source.counters.share(seat.group)
        await cover.check(me, source.cover, source.to_do)
        if me.follows:
            points.save(me, source.total)
            seat.waits = False
            end_trace(seat)
            return None
        try:
            return await self._end(me, points)
        except (LeftBehind, RunOver):  # the others have ended, or will, without this learner
            seat.waits = False
            return None

    async def _finish(self, seat: Seat, source: TaskSource, points: EvaluationPoints) -> Outcome:
        """End a run whose minibatches are all done: learner 0 writes the model, if an earlier launch has not."""
        if seat.group.rank > 0 or self.out is None:
            return outcome_of(source)
        figures = points.written()
        if figures is not None:
            done = f"all {counted(source.total, 'minibatch')} {are(source.total)} done"
            log.info("%s is finished: %s, and nothing is computed again", self.out, done)
            return outcome_of(source, figures=figures, found=True)
        records = self.out / "records.jsonl"
        _forget_after(records, source.total, source)
        source.add_observer(self._lines(records, source))
        return outcome_of(source, figures=points.evaluate_again())

    async def _begin(self, seat: Seat, source: TaskSource, points: EvaluationPoints, resumed: Resume | None) -> Learner:
        """Return the learner, with the weights from which the run starts or resumes."""
        source.at_boundary(points.boundary)
        if resumed is None and not seat.late:
            everything = Layout.everything(source.model)
            everything.scatter(await seat.group.broadcast(everything.gather()))
        if self.out is not None:
            await self._open(self.out, seat, source, None if resumed is None else resumed.mark)
        if source.observers and seat.works_beside and seat.group.size > 1:
            self._watch_pace(source)
        lock_step = Facts.of(self.experiment.strategy).lock_step
        outer = None if resumed is None else resumed.outer
        me = Learner(seat, Weights(source.layout), source, lock_step, outer)
        points.begin()
        return me

    def _watch_pace(self, source: TaskSource) -> None:
        """Watch for slow learners, if seconds are real."""
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

    async def _open(self, out: Path, seat: Seat, source: TaskSource, mark: int | None) -> None:
        """Open the files of this run, resumed at a mark; learner 0 prepares them before the others write."""
        records, trace = out / "records.jsonl", out / "trace.json"
        if seat.group.rank == 0 and not seat.late:
            if mark is None:
                Checkpoints(out / "checkpoints").clear()
                forget_position(out)
                write_cut(out, source.experiment.cut)
            else:
                restore_cut(out, source.experiment.cut)
            write_outputs(out, outputs_of(source.experiment.task))
            _forget_after(records, mark or 0, source)
            if trace.exists():
                trace.replace(out / f"trace-until-{source.first}.json")
            begin_trace(trace)
        if not seat.late:
            await seat.group.broadcast(torch.zeros(1))
        source.add_observer(self._lines(records, source))
        seat.trace.sink = spans = ChromeTrace(trace)
        source.files.callback(spans.file.close)

    def _lines(self, records: Path, source: TaskSource) -> JsonLines:
        lines = JsonLines(records)
        source.files.callback(lines.file.close)
        return lines

    async def _end(self, me: Learner, points: EvaluationPoints) -> Mapping[str, float] | None:
        """End the run together with the others; one of them writes the model."""
        figures = await points.end(me)
        await self._close(me)
        if figures is None and await inherits(me.seat):
            figures = points.take_over(me)
        if figures is not None:
            me.seat.group.count(ENDED, 1)
        return figures

    async def _close(self, me: Learner) -> None:
        end_trace(me.seat)
        leads = me.leads
        if not me.lock_step:
            await me.averager.meet(ENDED, me.seat)
        else:
            await me.group.meet(ENDED)  # all learners have written
        if leads:
            tell_bad_numbers(me.seat.group)
        if leads and self.out is not None:
            finish_trace(self.out / "trace.json")


def outcome_of(
    source: TaskSource,
    figures: Mapping[str, float] | None = None,
    stopped: StoppedGracefully | None = None,
    found: bool = False,
    unfinished: IncompleteRun | None = None,
) -> Outcome:
    """Return the outcome of a learner, which leads if it has the figures of the model."""
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


def end_trace(seat: Seat) -> None:
    """Write the last events of a learner's trace; later ones are dropped."""
    sink = seat.trace.sink
    if isinstance(sink, ChromeTrace):
        seat.trace.sink = None
        sink.flush()


async def inherits(seat: Seat) -> bool:
    """True if this learner ends the run because the leader was lost after the last mean."""
    pause = 0.0
    while seat.group.tolerates_loss and seat.group.count(ENDED) == 0:
        if seat.group.membership.view(fresh=True).live[:1] == (seat.group.rank,):
            return True
        await seat.sleep(pause)
        pause = POLL_SECONDS
    return False


async def agree(group: Group, digest: str, cut: int = 1, outputs: str = "") -> None:
    """Check that all learners run the same experiment: others would wait for messages that never come.

    Args:
        group: All learners.
        digest: Digest of the experiment.
        cut: Pieces of each minibatch.
        outputs: Digest of what the model's outputs stand for, which follows from data.

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

    Damaged lines, and an unfinished last one, are deleted too.

    A step counts the minibatches before it, and without lock-step its own too. The last one before the mark is then
    open when its learner saves, but for the end of a run. The evaluation at the end of the budget is always made again.
    """
    closed = not Facts.of(source.experiment.strategy).lock_step and source.first >= mark
    ends = {"step": mark + closed, "evaluation": mark + (0 < mark < source.total)}
    if not path.exists():
        return
    kept = []
    for line in FinishedLines(path):
        record = read_line(line)
        if record is not None and record["minibatches"] < ends.get(record["kind"], mark):
            kept.append(line + b"\n")
    write_whole(path, b"".join(kept))
