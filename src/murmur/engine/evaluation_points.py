"""Evaluation points of a run, and its end: the consensus is evaluated, then a checkpoint is written.

Lock-step strategies pass a point right after an average, all learners after the same number of gradients. Without
lock-step each learner passes it with its own claims. These seconds are kept off the time axis.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from murmur.core.errors import DamagedCheckpoint
from murmur.core.flat import Layout, is_finite
from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.engine.checkpoints.checkpoint import (
    BestCheckpoints,
    Checkpoints,
    read_pair,
    set_vectors,
    shapes_of,
    write_pair,
)
from murmur.engine.counters import ADVICE
from murmur.engine.cover import check_elastic
from murmur.engine.graceful_stop import Asked, GracefulStop
from murmur.engine.recorder import Moment
from murmur.engine.resume import Resume, pack
from murmur.engine.schedule import listens
from murmur.engine.task import outputs_of
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)


class EvaluationPoints:
    """Evaluates and saves every `evaluate_every_epochs`, and at the end of the run; stops on request."""

    def __init__(self, source: TaskSource, out: Path | None, asked: Asked | None = None) -> None:
        self._source = source
        self._evaluator = Evaluator(source)
        self.checkpointer = Checkpointer(source, self._evaluator, out)
        self._stop = None if asked is None else GracefulStop(source, asked, self.checkpointer.save)
        self._every = max(1, round(source.experiment.evaluate_every_epochs * source.experiment.per_epoch))
        self._next, self._late = self._every, source.seat.late

    def go_on(self, resume: Resume) -> None:
        self._evaluator.lowest = resume.best
        self._next = (resume.mark // self._every + 1) * self._every
        self.checkpointer.go_on(resume)

    def skip_to(self, done: int) -> None:
        """Skip the points up to `done` minibatches, for a learner that joins late."""
        self._next, self._late = (done // self._every + 1) * self._every, False
        if self._stop is not None:
            self._stop.enter()

    def begin(self) -> None:
        """Answer requests to stop at boundaries from now on; called when training begins on all learners."""
        if self._stop is not None:
            self._stop.asked()

    async def boundary(self, me: Learner) -> None:
        """Evaluate and save if a point has been passed; called between gradients, in lock-step after an average."""
        if me.checkpoints.told is not None:
            self.checkpointer.save(me, me.checkpoints.told)
        elif me.lock_step:
            await self._pass_together(me)
        else:
            await self._pass_alone(me)

    async def _pass_together(self, me: Learner) -> None:
        done = self._source.turns.reached(me.steps)
        # If some learner has no minibatch left, the end is near, and the end evaluates by itself.
        if self._next <= done <= self._source.total - me.seat.group.size:
            self._next = (done // self._every + 1) * self._every
            await self._together(me, done)
        if self._stop is not None:
            await self._stop.together(me, done, self._evaluator.beside(me.group))

    async def _together(self, me: Learner, done: int) -> Evaluation | None:
        start = self._source.recorder.clock.moment()
        consensus = await self._evaluator.together(me)
        evaluation = self._evaluate(consensus, done) if me.leads else None
        await self._evaluator.tell_schedule(me, evaluation)
        return self._conclude(me, start, done, evaluation)

    async def _pass_alone(self, me: Learner) -> None:
        claimed = self._source.progress().minibatches
        if self._late:  # the point before this moment belongs to the others
            self._next, self._late = (claimed // self._every + 1) * self._every, False
        done = claimed // self._every * self._every
        if self._next <= done < self._source.total:
            self._next = done + self._every
            start = self._source.recorder.clock.moment()
            evaluation = self._evaluate(await self._evaluator.alone(me), done) if me.leads else None
            self._conclude(me, start, done, evaluation)
        if self._stop is not None:
            await self._stop.alone(me, self._source.progress().minibatches)

    def _evaluate(self, consensus: Consensus, done: int) -> Evaluation:
        evaluation = self._evaluator.evaluate(consensus, done)
        self.checkpointer.keep(evaluation)
        return evaluation

    def _conclude(self, me: Learner, start: Moment, done: int, evaluation: Evaluation | None) -> Evaluation | None:
        """Record the evaluation on the learner that made it; then save this learner's state.

        A launch that resumes from there does not evaluate again, so that the record must come before the checkpoint.
        """
        clock = self._source.recorder.clock
        clock.leave_out(start)
        if evaluation is not None:
            self._evaluator.record(evaluation, me.steps)
        start = clock.moment()
        self.checkpointer.save(me, done)
        clock.leave_out(start)
        return evaluation

    async def end(self, me: Learner) -> Mapping[str, float] | None:
        """Evaluate and save the consensus at the end of the run; return the model's figures if this learner leads."""
        clock, total = self._source.recorder.clock, self._source.total
        start = clock.moment()
        if me.lock_step:
            consensus = await self._evaluator.last_together(me)
            check_elastic(me, self._source.to_do)
            clock.leave_out(start)
            evaluation = await self._together(me, total)
        else:
            self._source.log.finish()
            if self._stop is not None:
                await self._stop.at_end(me)
            consensus = await self._evaluator.last_alone(me)
            evaluation = self._evaluate(consensus, total) if me.leads else None
            self._conclude(me, start, total, evaluation)
        return None if evaluation is None else self._write_model(consensus, evaluation)

    def take_over(self, me: Learner) -> Mapping[str, float]:
        """Evaluate and write the model at the end if the leader is lost; return its held-out figures."""
        start, total = self._source.recorder.clock.moment(), self._source.total
        consensus = self._evaluator.consensus(me.weights.snapshot(), self._source.buffers.gather())
        evaluation = self._evaluate(consensus, total)
        self._conclude(me, start, total, evaluation)
        return self._write_model(consensus, evaluation)

    def evaluate_again(self) -> Mapping[str, float]:
        """Evaluate, record and write the model of a checkpoint of the end, whose launch ended before it did so."""
        consensus = self._evaluator.consensus(self._source.layout.gather(), self._source.buffers.gather())
        evaluation = self._evaluate(consensus, self._source.total)
        self._evaluator.record(evaluation, 0)
        return self._write_model(consensus, evaluation)

    def _write_model(self, consensus: Consensus, evaluation: Evaluation) -> Mapping[str, float]:
        self.checkpointer.write_model(consensus, evaluation.figures)
        return evaluation.figures


@dataclass(frozen=True)
class Consensus:
    """The model that stands for all learners at one moment, as vectors of weights and floating-point buffers.

    Attributes:
        distance: Consensus distance of the learners at that moment; None if it is not measured.
        integers: Integer buffers of the learner that leads, which have no mean; None: there are none.
    """

    weights: Tensor
    buffers: Tensor
    distance: float | None = None
    integers: Tensor | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        found = {"weights": self.weights, "buffers": self.buffers}
        return found if self.integers is None else {**found, "integers": self.integers}


@dataclass(frozen=True)
class Evaluation:
    """A consensus and its held-out figures; `improves` if the held-out loss is the lowest so far."""

    consensus: Consensus
    figures: Mapping[str, float]
    minibatches: int
    improves: bool


class Evaluator:
    """Evaluates the consensus of a run, on the learner that leads, and records the figures."""

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self.lowest = math.inf
        self._groups: dict[str, Group] = {}
        if source.seat.group.rank < source.seat.group.size:  # others were added later, and are not in this group
            self.beside(source.seat.group)

    def beside(self, group: Group) -> Group:
        """Return a group of the same learners for evaluation alone: in full precision, and independent of averaging."""
        group = group.plain
        if group.name not in self._groups:
            self._groups[group.name] = group.twin()
        return self._groups[group.name]

    def consensus(self, weights: Tensor, buffers: Tensor, distance: float | None = None) -> Consensus:
        """Return a consensus with these weights and buffers, and the integer buffers of this learner."""
        integers = Layout.integers(self._source.model)
        return Consensus(weights, buffers, distance, integers.gather() if integers.tensors else None)

    async def together(self, me: Learner) -> Consensus:
        """Return the consensus of learners in lock-step, on each of them: the means of their weights and buffers."""
        beside = self.beside(me.group)
        weights = await beside.mean(me.weights.snapshot())
        return self.consensus(weights, await self._buffers(beside.mean))

    async def _buffers(self, mean: Callable[[Tensor], Awaitable[Tensor]]) -> Tensor:
        buffers, averaged = self._source.buffers.gather(), self._source.averaged
        if averaged.all():
            return await mean(buffers) if len(buffers) else buffers
        if averaged.any():
            buffers[averaged] = await mean(buffers[averaged])
        return buffers

    async def alone(self, me: Learner) -> Consensus:
        """Return the consensus without lock-step: the mean of the present weights, with this learner's buffers."""
        answers = await me.averager.snapshots()
        found = list(answers.values()) if me.averager.parts is None else [me.averager.joined(answers)]
        vectors = torch.stack([w for w in found if is_finite(w)] or found)
        mean = vectors.mean(0)
        distance = float((vectors - mean).square().sum(1).mean().sqrt())
        return self.consensus(mean, self._source.buffers.gather(), distance)

    async def last_together(self, me: Learner) -> Consensus:
        """Return the consensus at the end of a run in lock-step, and set weights and buffers of all learners to it."""
        weights = await me.group.mean(me.weights.snapshot())
        if not is_finite(weights):
            raise FloatingPointError(f"no learner's weights are finite: {ADVICE}")
        buffers = await self._buffers(me.group.mean)
        self._source.buffers.scatter(buffers)
        me.weights.set_(weights)
        return self.consensus(weights, buffers)

    async def last_alone(self, me: Learner) -> Consensus:
        """Return the consensus at the end of a run without lock-step, which the strategy has left on every learner."""
        weights = me.weights.snapshot()
        buffers = await self._buffers(lambda x: me.averager.mean_of_trained(x, "buffers"))
        self._source.buffers.scatter(buffers)
        return self.consensus(weights, buffers, 0.0)

    def evaluate(self, consensus: Consensus, minibatches: int) -> Evaluation:
        figures = self.figures(consensus.tensors)
        improves = figures.get("loss", math.nan) < self.lowest
        if improves:
            self.lowest = figures["loss"]
        return Evaluation(consensus, figures, minibatches, improves)

    def figures(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        return dict(self._source.evaluate_with(tensors["weights"], tensors["buffers"]))

    async def tell_schedule(self, me: Learner, evaluation: Evaluation | None) -> None:
        """Send learner 0's held-out loss to all learners, if the schedule of the rates depends on it."""
        if not listens(self._source.experiment.schedule):
            return
        loss = math.nan if evaluation is None else evaluation.figures.get("loss", math.nan)
        told = await self.beside(me.group).broadcast(torch.tensor([loss], dtype=torch.float64))
        self._source.heldout = (*self._source.heldout, float(told))

    def record(self, evaluation: Evaluation, steps: int) -> None:
        """Hand the figures to the observers; log a warning if training has diverged. `steps` counts this launch."""
        at, counters = self._source.progress_at(evaluation.minibatches), self._source.counters
        loss = evaluation.figures.get("loss", math.nan)
        if "loss" in evaluation.figures and counters.diverges(loss, min(self.lowest, loss)):
            log.warning(
                "epoch %.2f: held-out loss %.4g, training loss %.4g after %.4g at the first minibatch: %s",
                *(at.epoch, loss, counters.recent_loss, counters.first_loss, ADVICE),
            )
        self._source.recorder.evaluation(at, steps, evaluation.figures, evaluation.consensus.distance)


class Checkpointer:
    """Saves one learner's state and, if it leads, the models of the run: best, averaged and last."""

    def __init__(self, source: TaskSource, evaluator: Evaluator, out: Path | None) -> None:
        self._source, self._evaluator, self._out = source, evaluator, out
        self._checkpoints = Checkpoints(out / "checkpoints") if out else None
        most = source.experiment.averaged_checkpoints
        self._best = BestCheckpoints(out / "checkpoints" / "marks", most) if out else None

    def save(self, me: Learner, done: int) -> None:
        """Write this learner's part of the checkpoint after `done` minibatches; the leader deletes old checkpoints."""
        if self._checkpoints is None:
            return
        self._source.recorder.flush()
        tensors, facts = pack(me, self._source, done)
        lowest = self._evaluator.lowest
        facts["best"] = lowest if math.isfinite(lowest) else None
        self._checkpoints.save(done, me.seat.group.rank, tensors, facts)
        me.checkpoints.saved = done  # a leader tells its members
        if me.leads:
            self._checkpoints.prune()

    def keep(self, evaluation: Evaluation) -> None:
        """Write an evaluated consensus if it is among the best; at the end, also the mean of the best."""
        if self._out is None or self._best is None:
            return
        tensors, done = evaluation.consensus.tensors, evaluation.minibatches
        self._best.add(tensors, evaluation.figures, done)
        if evaluation.improves:
            write_pair(self._out / "best", tensors, {"minibatches": done, **self._facts(evaluation.figures)})
        if done >= self._source.total:
            self._average(self._out, self._best, done)

    def _average(self, out: Path, best: BestCheckpoints, done: int) -> None:
        found = best.mean(self._source.averaged.cpu())
        if found is None:
            return
        tensors, marks = found
        device = self._source.layout.device
        figures = self._evaluator.figures({name: tensor.to(device) for name, tensor in tensors.items()})
        write_pair(out / "averaged", tensors, {"minibatches": done, "marks": marks, **self._facts(figures)})

    def write_model(self, consensus: Consensus, figures: Mapping[str, float]) -> None:
        if self._out is not None:
            facts = {"minibatches": self._source.total, **self._facts(figures)}
            write_pair(self._out / "model", consensus.tensors, facts)

    def read_model(self) -> Mapping[str, float] | None:
        """Set the model to the written one of the end of the run; return its held-out figures, or None without one."""
        source = self._source
        if self._out is None:
            return None
        try:
            tensors, facts = read_pair(self._out / "model")
        except DamagedCheckpoint:
            return None
        if facts.get("minibatches") != source.total:
            return None
        set_vectors(source.model, tensors)
        return dict(facts["figures"])

    def go_on(self, resume: Resume) -> None:
        """Delete models of evaluations that are made again: those after the checkpoint from which the run resumes.

        With other data than those of the checkpoint all are deleted: their losses cannot be compared with later ones.
        """
        if self._best is not None and self._source.seat.group.rank == 0:
            self._best.forget_after(-1 if resume.other_data else resume.mark)

    def _facts(self, figures: Mapping[str, float]) -> dict[str, Any]:
        experiment, tensors = self._source.experiment, shapes_of(self._source.model)
        told = {"experiment": experiment.digest(), "outputs": outputs_of(experiment.task)}
        return told | {"figures": dict(figures), "tensors": tensors}
