"""A learner's gradients from a Task and its steps by a local optimizer: what stands behind `me` in the engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from murmur.engine.clock import TrainingClock
from murmur.engine.experiment import Experiment
from murmur.engine.prefetch import Prefetch, lane_to
from murmur.engine.record import Observer, Record
from murmur.engine.seeds import seed_of, seed_torch
from murmur.engine.task import Task
from murmur.flat import Layout
from murmur.learner import Gradient, Learner, Progress
from murmur.roll import Preparation
from murmur.source import SKIPPED_SAMPLES
from murmur.trace import COMMUNICATING, COMPUTE, DATA, WAITING
from murmur.world import Seat

log = logging.getLogger(__name__)
MOST_SKIPPED_IN_A_ROW = 10
Boundary = Callable[[Learner], Any]


class TaskSource:
    """Gradients of minibatches n = first + turn * L + rank of a task; steps of one optimizer; one record a step.

    Attributes:
        model: this learner's model; its trainable tensors are the live weights.
        first: minibatches that the run had done when this launch began (0, or the checkpoint's).
        total: minibatches of the whole budget.
        heldout: losses of the consensus at the marks so far, where the schedule asks for them.
        skipped: minibatches of this learner whose loss was not a finite number.
    """

    def __init__(self, experiment: Experiment, seat: Seat, observers: Sequence[Observer]) -> None:
        self.experiment, self.seat, self.observers = experiment, seat, tuple(observers)
        self.task: Task = experiment.task
        self.first = 0
        self.times = 1.0
        self._deal: tuple[int, int, int] | None = None  # turn, minibatches dealt before it, learners to deal to
        self.total = experiment.budget.total(self.task)
        with seat.exclusive():
            seed_torch(seed_of(experiment.seed, "model"), seat.device)
            self.model = self.task.model().to(seat.device)
        self.layout = Layout.trainable(self.model)
        self.buffers = Layout.buffers(self.model)
        self.optimizer = experiment.optimizer(self.model)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._g = self.layout.empty()
        self._turn = 0
        self._claimed = 0  # minibatches handed out to all learners, as far as this one's claims tell
        self._loss = self._rate = math.nan
        self.heldout: tuple[float, ...] = ()
        self.skipped = self._skipped_in_a_row = 0
        self._natural = getattr(self.optimizer, "preconditioning", None)
        self._probe: Any = None
        self.boundary_hook: Boundary | None = None
        self.clock = TrainingClock(seat)
        ahead = experiment.prefetch if seat.works_beside else 0
        self._minibatches = Prefetch(self.task.minibatch, ahead, lane_to(seat.device))
        self._foreseen: list[int] | None = None  # None: numbers are claimed, and known when they are

    def next_index(self, steps: int) -> int | None:
        self._turn = steps
        later = (self._index(steps + k) for k in range(1, self._minibatches.ahead + 1))
        self._foreseen = [n for n in later if n is not None]
        return self._index(steps)

    def _index(self, steps: int) -> int | None:
        among = self.seat.group.size if self._deal is None else self._deal[2]
        n = self.reached(steps) + self.seat.group.rank
        return n if n < self.total and self.seat.group.rank < among else None

    def reached(self, steps: int) -> int:
        since, done, among = self._deal or (0, self.first, self.seat.group.size)
        return min(self.total, done + (steps - since) * among)

    def over(self, steps: int) -> bool:
        return self.reached(steps) == self.total

    def deal(self, steps: int, done: int, among: int) -> None:
        if not 1 <= among <= self.seat.group.size:
            raise ValueError(f"minibatches can be dealt to 1 to {self.seat.group.size} learners, not to {among}")
        self._deal = (steps, done, among)

    def restart(self) -> None:
        self.optimizer.state.clear()

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.total

    def claimed(self, n: int, steps: int) -> None:
        self._turn = steps
        self._claimed = max(self._claimed, n + 1)

    def preparation(self, unit: int) -> Preparation:
        return Preparation(self._minibatches.seconds, lambda claim: self._minibatches.begin(self.first + claim * unit))

    def heard(self, loss: float) -> None:
        self._loss = loss

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """The gradient of the mean loss of minibatch n.

        Random numbers inside the model (dropout) are named by n too: a minibatch gives the same gradient at the same
        weights on whatever learner. With `before_backward` the vector stays empty: hooks carry the gradient away.

        A minibatch whose loss is not a finite number is skipped: no gradient, and next to no weight in any mean.

        Raises:
            FloatingPointError: so many minibatches in a row were skipped that the model must be broken.
        """
        with self.seat.trace.span(DATA, f"minibatch {n}"):
            minibatch = self._minibatches.get(n)
        if self._foreseen is not None:
            self._minibatches.expect(self._foreseen)
        seed_torch(seed_of(self.experiment.seed, "minibatch", n), self.seat.device)
        self.model.train()
        buffers = self.buffers.gather() if self.buffers.tensors else None
        with self._natural or nullcontext():
            loss = self.task.loss(self.model, minibatch)
            mean = loss.total / loss.samples
            value = float(mean.detach())
            usable = self._usable(n, value)
            samples = loss.samples if usable else SKIPPED_SAMPLES
            if before_backward is not None:
                before_backward(samples)
            if usable:
                self._loss = value
                if self._natural is not None:
                    self._natural.samples = samples
                mean.backward()  # type: ignore[no-untyped-call]
            elif buffers is not None:
                self.buffers.scatter(buffers)  # running statistics that have seen it
        present = [t.grad is not None for t in self.layout.tensors]
        if before_backward is None:
            self.layout.gather_gradients(self._g)
        self.optimizer.zero_grad(set_to_none=True)
        return Gradient(self._g, present, samples, self._loss)

    def _usable(self, n: int, loss: float) -> bool:
        """Whether a loss is a finite number; counts those that are not."""
        if math.isfinite(loss):
            self._skipped_in_a_row = 0
            return True
        self.skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row == MOST_SKIPPED_IN_A_ROW:
            raise FloatingPointError(
                f"minibatch {n}: the loss is {loss}, as it was of the {MOST_SKIPPED_IN_A_ROW - 1} minibatches before:"
                " training has diverged. Lower the learning rate, warm it up, or bound gradients with max_gradient_norm"
            )
        log.warning("minibatch %d is skipped: its loss is %s (%d skipped so far)", n, loss, self.skipped)
        return False

    def close(self) -> None:
        """Nothing will be drawn any more."""
        self._minibatches.close()

    def nothing(self) -> Gradient:
        return Gradient(torch.zeros_like(self._g), [False] * len(self.layout.tensors), 0.0, math.nan)

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        factor = self.experiment.schedule(self.progress()) * self.times
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._rate = self._rates[0] * factor
        self.layout.hand_gradients(g, present)
        if self.experiment.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.layout.tensors, self.experiment.max_gradient_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.observers:
            self.observe(self._step_record(staleness))

    def progress(self) -> Progress:
        return self.progress_at(self._claimed or self.reached(self._turn))

    def progress_at(self, minibatches: int) -> Progress:
        """Where the run stands after so many minibatches of all learners together."""
        epoch = minibatches / self.task.per_epoch
        return Progress(
            minibatches=minibatches,
            samples=epoch * self.task.samples_per_epoch,
            epoch=epoch,
            fraction=minibatches / max(1, self.total),
            loss=self._loss,
            rate=self._rate,
            learners=self.seat.group.size if self._deal is None else self._deal[2],
            heldout=None if self._claimed else self.heldout,
        )

    def evaluate(self, w: Tensor) -> Mapping[str, float]:
        return self.evaluate_with(w, self.buffers.gather())

    def evaluate_with(self, w: Tensor, buffers: Tensor) -> Mapping[str, float]:
        """Held-out figures of weights and buffers, on a model of its own: training does not notice."""
        with self.seat.exclusive(), torch.no_grad():
            if self._probe is None:
                self._probe = deepcopy(self.model)  # frozen tensors too are those of training
            Layout.trainable(self._probe).scatter(w)
            if self.buffers.tensors:
                Layout.buffers(self._probe).scatter(buffers)
            return self.task.evaluate(self._probe.eval())

    async def boundary(self, me: Learner) -> None:
        if self.boundary_hook is not None:
            await self.boundary_hook(me)

    def observe(self, record: Record) -> None:
        """Hand a record to every observer."""
        for observer in self.observers:
            observer(record)

    def _step_record(self, staleness: int) -> Record:
        at = self.progress()
        spent = self.clock.since_last()
        return Record(
            kind="step",
            learner=self.seat.group.rank,
            step=self._turn,
            minibatches=at.minibatches,
            samples=at.samples,
            epoch=at.epoch,
            seconds=self.clock.seconds,
            loss=at.loss,
            rate=at.rate,
            skipped=self.skipped,
            staleness=staleness,
            compute_seconds=spent.get(COMPUTE, 0.0),
            data_seconds=spent.get(DATA, 0.0),
            waiting_seconds=spent.get(WAITING, 0.0),
            communicating_seconds=spent.get(COMMUNICATING, 0.0),
        )
