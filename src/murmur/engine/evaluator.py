"""Evaluator of a run: the consensus of the learners, its held-out figures, and their recipients.

It writes only a record. Its caller keeps the seconds of an evaluation off the time axis.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from murmur.core.flat import Layout, is_finite
from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.engine.counters import ADVICE
from murmur.engine.record import Record
from murmur.engine.schedule import listens
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Consensus:
    """The model that stands for all learners at one moment.

    Attributes:
        weights: Vector of the trainable tensors.
        buffers: Vector of the floating-point buffers.
        distance: Consensus distance of the learners at that moment; None if it is not measured.
        integers: Vector of the integer buffers of the learner that leads, which have no mean; None: there are none.
    """

    weights: Tensor
    buffers: Tensor
    distance: float | None = None
    integers: Tensor | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a saved consensus model."""
        found = {"weights": self.weights, "buffers": self.buffers}
        return found if self.integers is None else {**found, "integers": self.integers}


@dataclass(frozen=True)
class Evaluation:
    """A consensus and its held-out figures.

    Attributes:
        consensus: The model.
        figures: Its figures on held-out data.
        minibatches: Number of completed minibatches.
        improves: True if the held-out loss is the lowest so far.
    """

    consensus: Consensus
    figures: Mapping[str, float]
    minibatches: int
    improves: bool


class Evaluator:
    """Evaluates the consensus of a run, on the learner that leads.

    Args:
        source: Source of the learner's gradients, with the progress of the run.

    Attributes:
        lowest: Lowest held-out loss so far.
    """

    def __init__(self, source: TaskSource) -> None:
        self._source = source
        self.lowest = math.inf
        self._groups: dict[str, Group] = {}
        if (
            source.seat.group.rank < source.seat.group.size
        ):  # a learner that was added later is not in the group of the others
            self.beside(source.seat.group)

    def beside(self, group: Group) -> Group:
        """Return a group of the same learners for evaluation alone: in full precision, and independent of averaging."""
        group = group.plain
        if group.name not in self._groups:
            twin = group.split([range(group.size)])
            assert twin is not None
            self._groups[group.name] = twin
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
        """Return the vector of this learner's buffers, with the mean of those that have one."""
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
        """Return the consensus at the end of a run in lock-step, and set weights and buffers of all learners to it.

        Raises:
            FloatingPointError: No learner has finite weights.
        """
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
        """Return the held-out figures of a consensus after a number of minibatches."""
        figures = self.figures(consensus.tensors)
        improves = figures.get("loss", math.nan) < self.lowest
        if improves:
            self.lowest = figures["loss"]
        return Evaluation(consensus, figures, minibatches, improves)

    def figures(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the held-out figures of a saved model."""
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
        self._source.observe(
            Record(
                kind="evaluation",
                learner=0,
                step=counters.steps + steps,  # includes earlier launches
                minibatches=evaluation.minibatches,
                samples=at.samples,
                epoch=at.epoch,
                seconds=self._source.clock.seconds,
                loss=loss,
                rate=at.rate,
                consensus_distance=evaluation.consensus.distance,
                figures=evaluation.figures,
            )
        )
