"""Gradients of a Task and steps of a local optimizer: the source of a `Learner` in the engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from murmur.core.assignment import Assignment, Turns
from murmur.core.buffers import Buffers
from murmur.core.facts import training_learners
from murmur.core.flat import Layout, is_finite
from murmur.core.learner import Gradient, Learner, Progress
from murmur.core.membership import Preparation
from murmur.core.model_mode import into_training
from murmur.core.source import SKIPPED_SAMPLES, WHOLE, Computed
from murmur.core.torch_private import foreach_copy_
from murmur.core.trace import DATA
from murmur.core.world import Seat
from murmur.engine.checkpoints.position import Log, Position
from murmur.engine.counters import Counters
from murmur.engine.cover import wanted, with_one
from murmur.engine.experiment import Experiment
from murmur.engine.prefetch import Prefetch, to_device
from murmur.engine.record import Observer
from murmur.engine.recorder import Recorder
from murmur.engine.source import HeldOut, LearnerSource
from murmur.engine.task import Task, data_of, seed_of, seed_torch

log = logging.getLogger(__name__)
Boundary = Callable[[Learner], Any]


class TaskSource(LearnerSource):
    """Gradients of minibatches n = first + turn * L + rank of a task, for the L learners that take gradients.

    Attributes:
        model: Model of this learner; its trainable tensors are the live weights.
        position: Position at which this launch begins.
        first: Number of minibatches completed before it.
        total: Number of minibatches of the whole budget.
        computed: Minibatches that it has computed in this launch.
        heldout: Held-out losses of the consensus at the evaluation points so far, if the schedule needs them.
        alive: Number of live learners, where they do not go in step; None before the first boundary.
        log: Minibatches that it has claimed.
    """

    def __init__(self, experiment: Experiment, seat: Seat, observers: Sequence[Observer]) -> None:
        experiment = experiment.scaled(seat.group.size)
        self.experiment, self.seat = experiment, seat
        self.task: Task = experiment.task
        self.first, self.total = 0, experiment.total
        size = seat.group.size
        self._servers = size - training_learners(experiment.strategy, size)  # the first ranks
        turns = Turns(Assignment(tuple(range(self._servers, size)), self.total), seat.group.rank)
        with seat.exclusive():
            seed_torch(seed_of(experiment.seed, "model"), seat.device)
            self.model = experiment.model().to(seat.device)
        layout = Layout.trainable(self.model)
        self._kept = Buffers(self.model, experiment.buffers).begin(None)
        optimizer = experiment.optimizer(self.model)
        recorder = Recorder(seat, Counters(experiment.most_skipped), observers)
        super().__init__(layout, optimizer, experiment.rule, turns, recorder, experiment.max_gradient_norm)
        self._settings = self.local_optimizer.settings
        self._natural = getattr(optimizer, "preconditioning", None)
        self.position = Position()
        self.log = Log()
        self.alive: int | None = None
        self.heldout: tuple[float, ...] = ()
        self._evaluated = HeldOut(self.model, self.task.evaluate)
        self.computed = Computed()
        self._boundaries: list[Boundary] = []
        ahead = experiment.prefetch if seat.works_beside else 0
        self._minibatches = Prefetch(experiment.minibatch, ahead, seat.device)
        self._foreseen: list[int] | None = None  # None: numbers are claimed, and unknown before

    @cached_property
    def data(self) -> dict[str, Any]:
        return data_of(self.task)

    @property
    def buffers(self) -> Layout:
        """Floating-point buffers that the model has now; its `forward` may assign others to the same names."""
        return Layout.buffers(self.model)

    @property
    def averaged(self) -> Tensor:
        """For each element of the vector of buffers, True if a mean over the learners stands for it."""
        found = torch.zeros(self.buffers.numel, dtype=torch.bool, device=self.buffers.device)
        for name, _, view in self._cut(found):
            view.fill_(self._kept.rules.get(name) == "mean")
        return found

    def _cut(self, vector: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """Name, tensor and part of a vector of each floating-point buffer."""
        names, buffers = {id(x): name for name, x in self.model.named_buffers()}, self.buffers
        return [(names[id(x)], x, view) for x, view in zip(buffers.tensors, buffers.views(vector), strict=True)]

    def next_index(self, steps: int) -> int | None:
        later = (self.turns.number(steps + k) for k in range(1, self._minibatches.ahead + 1))
        self._foreseen = [n for n in later if n is not None]
        return self.turns.begin(steps)

    @property
    def to_do(self) -> Computed:
        return Computed(self.total - self.first, wanted(self.first, self.total, self.position.moved))

    def begin_at(self, position: Position) -> None:
        self.position, self.first = position, position.done
        given = self.turns.assignment
        self.turns.assignment = replace(given.anew(0, position.done, given.to), moved=position.moved)

    def over(self, steps: int) -> bool:
        return self.turns.reached(steps) == self.total

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.total

    def claimed(self, claim: range, steps: int) -> None:
        self.turns.claim(claim, steps)
        self.log.begin(claim)

    @property
    def preparation(self) -> Preparation:
        def begin(claim: range) -> None:
            self._minibatches.begin(self.turns.assignment.at(claim.start))

        return Preparation(self._minibatches.seconds, begin)

    def heard(self, loss: float, compute_seconds: float) -> None:
        super().heard(loss, compute_seconds)
        self.log.finish()

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Return the gradient of the mean loss of minibatch n; one without weight if the minibatch is skipped.

        Random numbers inside the model (dropout) are seeded by n too, so that a minibatch has the same gradient at the
        same weights on every learner. With `before_backward` the vector stays empty: hooks take the gradient.
        """
        minibatch = self.minibatch(n)
        if minibatch is None:
            return self.empty(n, before_backward)
        seed_torch(seed_of(self.experiment.seed, "minibatch", n), self.seat.device)
        into_training(self.model)
        self._kept.keep()
        with self._natural or nullcontext():
            loss = self.task.loss(self.model, minibatch)
            mean = loss.total / loss.samples
            value = float(mean.detach())
            usable = math.isfinite(value)
            samples = loss.samples if usable else SKIPPED_SAMPLES
            if before_backward is not None:
                before_backward(samples)
            if usable:
                if self._natural is not None:
                    self._natural.samples = samples
                mean.backward()  # type: ignore[no-untyped-call]
        present = [t.grad is not None for t in self.layout.tensors]
        if before_backward is None:
            self.layout.gather_gradients(self._g)
        self.layout.clear_gradients()
        drawn = Gradient(self._g, present, samples, value)
        drawn = self.numbers.judge(n, drawn, before_backward is not None or is_finite(self._g))
        self._leave_out(drawn.samples == SKIPPED_SAMPLES)
        self._computed(n)
        return drawn

    def _leave_out(self, skipped: bool) -> None:
        if skipped:
            self._kept.restore()
        if self._natural is not None:
            self._natural.end_minibatch(skipped)

    def empty(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        if before_backward is not None:
            before_backward(SKIPPED_SAMPLES)
        self._computed(n)
        return self.numbers.weightless(self._g)

    def _computed(self, n: int) -> None:
        if self.piece.number > 0:
            return
        self.recorder.drawn += 1
        self.computed = with_one(self.computed, n)

    def minibatch(self, n: int) -> Any:
        """Return minibatch n, or the piece of it that is due; None if that has no samples.

        The following minibatches are prepared in the background if that saves time.
        """
        with self.seat.trace.span(DATA, f"minibatch {n}"):
            minibatch = (
                self._minibatches.get(n)
                if self.piece == WHOLE
                else to_device(self.experiment.minibatch(n, *self.piece), self.seat.device)
            )
        if self._foreseen is not None:
            self._minibatches.expect(self._foreseen)
        return minibatch

    def given(
        self, n: int, parts: Sequence[Tensor | None], samples: float, loss: float, total: float | None = None
    ) -> Gradient:
        """Return the gradient of minibatch n that was computed elsewhere at this learner's weights.

        `parts` are those of the trainable tensors. Their sum `total` shows if they are finite; None: it is made here.
        """
        self._computed(n)
        kept = [part if math.isfinite(loss) else None for part in parts]
        there = [(view, part) for view, part in zip(self.layout.views(self._g), kept, strict=True) if part is not None]
        if len(there) < len(kept):
            self._g.zero_()
        if there:
            foreach_copy_([view for view, _ in there], [part for _, part in there])
        drawn = Gradient(self._g, [part is not None for part in kept], samples, loss)
        return self.numbers.judge(n, drawn, (total is not None and math.isfinite(total)) or is_finite(self._g))

    def close(self) -> None:
        self._minibatches.close()
        self.recorder.close()

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        self._scale()
        if self.numbers.allow_step(is_finite(g)):
            self.local_optimizer.step(g, present)
            self.layout.clear_gradients()
            super().followed(staleness)

    def followed(self, staleness: int) -> None:
        self._scale()
        super().followed(staleness)

    def _scale(self) -> None:
        at = self.progress()
        factor = self.experiment.schedule(at)
        self.counters.rate = self.local_optimizer.scale(self._settings, factor, at.fraction, at.learners)

    def progress(self) -> Progress:
        return self.progress_at(self.turns.minibatches)

    def progress_at(self, minibatches: int) -> Progress:
        epoch = minibatches / self.experiment.per_epoch
        learners = len(self.turns.assignment.to) if self.alive is None else self.alive
        return Progress(
            minibatches=minibatches,
            samples=epoch * self.task.samples_per_epoch,
            epoch=epoch,
            fraction=minibatches / max(1, self.total),
            loss=self.counters.loss,
            rate=self.counters.rate,
            learners=learners,
            growth=self.experiment.rule.growth(learners),
            heldout=None if self.turns.claimed else self.heldout,
        )

    def evaluate(self, w: Tensor) -> Mapping[str, float]:
        return self.evaluate_with(w, self.buffers.gather())

    def evaluate_with(self, w: Tensor, buffers: Tensor) -> Mapping[str, float]:
        """Return held-out figures of weights and buffers, computed on a model of their own."""
        named = {name: view.to(x.dtype) for name, x, view in self._cut(buffers)}
        with self.seat.exclusive():
            return self._evaluated.of(w, self._kept.loose() | named)

    async def boundary(self, me: Learner) -> None:
        await super().boundary(me)
        if not me.lock_step:
            training = [rank for rank in me.view if rank >= self._servers]
            self.alive = max(1, sum(len(me.role.members(rank)) for rank in training))
        for boundary in self._boundaries:
            await boundary(me)

    def at_boundary(self, boundary: Boundary) -> None:
        self._boundaries.append(boundary)
