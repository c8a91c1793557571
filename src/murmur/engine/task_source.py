"""Gradients of a Task and steps of a local optimizer: the source of a `Learner` in the engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from murmur.core.assignment import Assignment
from murmur.core.buffers import Buffers
from murmur.core.facts import training_learners
from murmur.core.flat import Layout
from murmur.core.learner import Gradient, Learner, Progress
from murmur.core.membership import Preparation
from murmur.core.model_mode import evaluating, into_training
from murmur.core.moments import Moments
from murmur.core.source import SKIPPED_SAMPLES, WHOLE, Computed
from murmur.core.torch_private import foreach_copy_
from murmur.core.trace import COMMUNICATING, COMPUTE, DATA, WAITING
from murmur.core.world import Seat
from murmur.engine.bad_numbers import BadNumbers
from murmur.engine.checkpoints.position import Log, Position
from murmur.engine.clock import TrainingClock
from murmur.engine.counters import Counters
from murmur.engine.cover import Cover, wanted
from murmur.engine.experiment import Experiment
from murmur.engine.prefetch import Prefetch, lane_to, to_device
from murmur.engine.record import Observer, Record
from murmur.engine.seeds import seed_of, seed_torch
from murmur.engine.task import Task, data_of

log = logging.getLogger(__name__)
Boundary = Callable[[Learner], Any]


class TaskSource:
    """Gradients of minibatches n = first + turn * L + rank of a task; steps of one optimizer; one record a step.

    L counts the learners that take gradients.

    Attributes:
        model: Model of this learner; its trainable tensors are the live weights.
        first: Number of minibatches completed before this launch (0, or the checkpoint's).
        total: Number of minibatches of the whole budget.
        drawn: Number of gradients that this learner has computed in this launch.
        cover: Sums over the minibatches of those gradients, for the check at the end.
        heldout: Held-out losses of the consensus at the evaluation points so far, if the schedule needs them.
        counters: Counters of this learner.
        alive: Number of live learners, where they do not go in step; None before the first boundary.
        numbers: Checks of its gradients, steps and weights for numbers that are not finite.
        log: Minibatches that it has claimed.
        files: Files of its records and trace.
    """

    def __init__(self, experiment: Experiment, seat: Seat, observers: Sequence[Observer]) -> None:
        experiment = experiment.scaled(seat.group.size)
        self.experiment, self.seat, self.observers = experiment, seat, tuple(observers)
        self.task: Task = experiment.task
        self.first = self._turn = self.drawn = 0
        self.times = self.decay_times = 1.0
        self.recorded, self.piece = True, WHOLE
        self.rule = experiment.rule
        self.total = experiment.total
        size = seat.group.size
        self._servers = size - training_learners(experiment.strategy, size)  # the first ranks
        self.assignment = Assignment(tuple(range(self._servers, size)), self.total)
        with seat.exclusive():
            seed_torch(seed_of(experiment.seed, "model"), seat.device)
            self.model = self.task.model().to(seat.device)
        self.layout = Layout.trainable(self.model)
        self._kept = Buffers(self.model, experiment.buffers).begin(None)
        self.optimizer = experiment.optimizer(self.model)
        self.moments = Moments(self.optimizer, self.layout)
        self._moved: Mapping[int, int] = {}
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._betas = [group.get("betas") for group in self.optimizer.param_groups]
        self._decays = [group.get("weight_decay", 0.0) for group in self.optimizer.param_groups]
        self._g = self.layout.empty()
        self._claimed = 0  # minibatches claimed by all learners, as far as this one's claims show
        self.counters = Counters(experiment.most_skipped)
        self.log = Log()
        self.numbers = BadNumbers(self.layout, self.counters, size)
        self.alive: int | None = None
        self.heldout: tuple[float, ...] = ()
        self._natural = getattr(self.optimizer, "preconditioning", None)
        self._probe: Any = None
        self.cover = Cover()
        self.files = ExitStack()
        self._boundaries: list[Boundary] = []
        self.clock = TrainingClock(seat)
        ahead = experiment.prefetch if seat.works_beside else 0
        self._minibatches = Prefetch(experiment.minibatch, ahead, lane_to(seat.device))
        self._computed_by_others = 0.0  # seconds of gradients that were heard of since the previous record
        self._foreseen: list[int] | None = None  # None: numbers are claimed, and unknown before

    @cached_property
    def data(self) -> dict[str, Any]:
        """Digest and amount of the task's data, for checkpoints."""
        return data_of(self.task)

    @property
    def buffers(self) -> Layout:
        """Floating-point buffers that the model has now; its `forward` may assign others to the same names."""
        return Layout.buffers(self.model)

    @property
    def averaged(self) -> Tensor:
        """For each element of the vector of buffers, True if a mean over the learners stands for it."""
        names, buffers = {id(x): name for name, x in self.model.named_buffers()}, self.buffers
        found = torch.zeros(buffers.numel, dtype=torch.bool, device=buffers.device)
        for x, view in zip(buffers.tensors, buffers.views(found), strict=True):
            view.fill_(self._kept.rules.get(names[id(x)]) == "mean")
        return found

    def next_index(self, steps: int) -> int | None:
        self._turn, rank = steps, self.seat.group.rank
        later = (self.assignment.number(steps + k, rank) for k in range(1, self._minibatches.ahead + 1))
        self._foreseen = [n for n in later if n is not None]
        return self.assignment.number(steps, rank)

    def reached(self, steps: int) -> int:
        return self.assignment.reached(steps)

    @property
    def to_do(self) -> Computed:
        """Minibatches that this launch has to compute."""
        return Computed(self.total - self.first, wanted(self.first, self.total, self._moved))

    def computed(self) -> Computed:
        """Return the minibatches that this learner has computed in this launch."""
        return Computed(self.cover.count, self.cover.fingerprint)

    def begin_at(self, position: Position) -> None:
        """Set the position from which this launch resumes."""
        self._moved = position.moved
        self.first = position.done
        self.assignment = replace(self.assignment.anew(0, position.done, self.assignment.to), moved=position.moved)

    def over(self, steps: int) -> bool:
        return self.reached(steps) == self.total

    def restart(self) -> None:
        self.optimizer.state.clear()
        self.numbers.restarted()

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.total

    def claimed(self, claim: range, steps: int) -> None:
        self._turn = steps
        self.log.begin(claim)
        self._claimed = max(self._claimed, claim.stop)

    @property
    def preparation(self) -> Preparation:
        def begin(claim: range) -> None:
            self._minibatches.begin(self.assignment.at(claim.start))

        return Preparation(self._minibatches.seconds, begin)

    def heard(self, loss: float, compute_seconds: float) -> None:
        self.counters.loss = loss
        self._computed_by_others += compute_seconds
        self.log.finish()

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Return the gradient of the mean loss of minibatch n.

        Random numbers inside the model (dropout) are seeded by n too, so that a minibatch has the same gradient at the
        same weights on every learner. With `before_backward` the vector stays empty: hooks take the gradient.

        A minibatch whose loss is not finite is skipped: it has no gradient, and almost no weight in any mean.

        Raises:
            FloatingPointError: Too many minibatches in a row were skipped; the model has diverged.
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
        self.optimizer.zero_grad(set_to_none=True)
        drawn = Gradient(self._g, present, samples, value)
        drawn = self.numbers.judge(n, drawn, before_backward is None)
        self._leave_out(drawn.samples == SKIPPED_SAMPLES)
        self._computed(n)
        return drawn

    def _leave_out(self, skipped: bool) -> None:
        """Undo the running statistics and Fisher estimates of a minibatch if it is skipped."""
        if skipped:
            self._kept.restore()
        if self._natural is not None:
            self._natural.end_minibatch(skipped)

    def empty(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Return the gradient of a piece of minibatch n that has no samples: zeros, with almost no weight."""
        if before_backward is not None:
            before_backward(SKIPPED_SAMPLES)
        self._computed(n)
        self._g.zero_()
        return Gradient(self._g, [False] * len(self.layout.tensors), SKIPPED_SAMPLES, self.counters.loss)

    def _computed(self, n: int) -> None:
        """Count minibatch n, with the first of its pieces."""
        if self.piece.number > 0:
            return
        self.drawn += 1
        self.cover.add(n)

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

    def on_host(self, n: int) -> Any:
        """Return minibatch n, or the piece of it that is due, where it was made; None if that has no samples."""
        with self.seat.trace.span(DATA, f"minibatch {n}"):
            return self.experiment.minibatch(n, *self.piece)

    def given(
        self, n: int, parts: Sequence[Tensor | None], samples: float, loss: float, total: float | None = None
    ) -> Gradient:
        """Return the gradient of minibatch n that was computed elsewhere at this learner's weights.

        Args:
            n: Minibatch.
            parts: Gradient of each trainable tensor; None if it has none.
            samples: Samples of the minibatch.
            loss: Loss per sample.
            total: Sum of the gradient's elements, which shows whether they are finite; None: it is added up here.

        Raises:
            FloatingPointError: As for `draw`.
        """
        self._computed(n)
        kept = [part if math.isfinite(loss) else None for part in parts]
        there = [(view, part) for view, part in zip(self.layout.views(self._g), kept, strict=True) if part is not None]
        if len(there) < len(kept):
            self._g.zero_()
        if there:
            foreach_copy_([view for view, _ in there], [part for _, part in there])
        drawn = Gradient(self._g, [part is not None for part in kept], samples, loss)
        return self.numbers.judge(n, drawn, total is None or not math.isfinite(total))

    def close(self) -> None:
        """End the preparation of minibatches, and close the files of this learner."""
        self._minibatches.close()
        self.files.close()

    def nothing(self) -> Gradient:
        return Gradient(torch.zeros_like(self._g), [False] * len(self.layout.tensors), 0.0, math.nan)

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        self._set_rates()
        if not self.numbers.allow_step(g):
            return
        self.layout.hand_gradients(g, present)
        if self.experiment.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.layout.tensors, self.experiment.max_gradient_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._record_step(staleness)

    def followed(self, staleness: int) -> None:
        self._set_rates()
        self._record_step(staleness)

    def _set_rates(self) -> None:
        """Set the optimizer's rates, betas and weight decays of the present step."""
        at = self.progress()
        factor = self.experiment.schedule(at) * self.times * self.rule.factor(at.fraction, at.learners)
        for group, rate, decay, betas in zip(
            self.optimizer.param_groups, self._rates, self._decays, self._betas, strict=True
        ):
            group["lr"] = rate * factor * (1.0 if betas is None else self.rule.noisy)
            if betas is not None:
                group["betas"] = self.rule.betas(betas, at.learners)
            if decay:
                group["weight_decay"] = decay * self.decay_times
        self.counters.rate = self.optimizer.param_groups[0]["lr"]

    def _record_step(self, staleness: int) -> None:
        if self.observers and self.recorded:
            self.observe(self._step_record(staleness))

    def progress(self) -> Progress:
        return self.progress_at(self._claimed or self.reached(self._turn))

    def progress_at(self, minibatches: int) -> Progress:
        """Return the progress of the run after a number of minibatches of all learners."""
        epoch = minibatches / self.experiment.per_epoch
        learners = len(self.assignment.to) if self.alive is None else self.alive
        return Progress(
            minibatches=minibatches,
            samples=epoch * self.task.samples_per_epoch,
            epoch=epoch,
            fraction=minibatches / max(1, self.total),
            loss=self.counters.loss,
            rate=self.counters.rate,
            learners=learners,
            growth=self.rule.growth(learners),
            heldout=None if self._claimed else self.heldout,
        )

    def evaluate(self, w: Tensor) -> Mapping[str, float]:
        return self.evaluate_with(w, self.buffers.gather())

    def evaluate_with(self, w: Tensor, buffers: Tensor) -> Mapping[str, float]:
        """Return held-out figures of weights and buffers, computed on a model of their own."""
        with self.seat.exclusive(), torch.no_grad():
            if self._probe is None or Layout.buffers(self._probe).numel != self.buffers.numel:
                self._probe = deepcopy(self.model)  # with the frozen tensors of training
            Layout.integers(self._probe).scatter(Layout.integers(self.model).gather())
            Layout.trainable(self._probe).scatter(w)
            if len(buffers):
                Layout.buffers(self._probe).scatter(buffers)
            with evaluating(self._probe):
                return self.task.evaluate(self._probe)

    async def boundary(self, me: Learner) -> None:
        self.numbers.end_round(self.restart)
        if not me.lock_step:
            training = [rank for rank in me.view if rank >= self._servers]
            self.alive = max(1, sum(len(me.members(rank)) for rank in training))
        for boundary in self._boundaries:
            await boundary(me)

    def at_boundary(self, boundary: Boundary) -> None:
        """Await this at every boundary from now on, after those added before."""
        self._boundaries.append(boundary)

    def add_observer(self, observer: Observer) -> None:
        """Hand every further record to this observer too."""
        self.observers = (*self.observers, observer)

    def observe(self, record: Record) -> None:
        """Hand a record to every observer."""
        for observer in self.observers:
            observer(record)

    def _step_record(self, staleness: int) -> Record:
        at = self.progress()
        spent = self.clock.since_last()
        others, self._computed_by_others = self._computed_by_others, 0.0
        return Record(
            kind="step",
            learner=self.seat.group.rank,
            step=self.counters.steps + self._turn,
            minibatches=at.minibatches,
            samples=at.samples,
            epoch=at.epoch,
            seconds=self.clock.seconds,
            loss=at.loss,
            rate=at.rate,
            skipped=self.counters.skipped,
            replaced=self.counters.replaced,
            staleness=staleness,
            compute_seconds=spent.get(COMPUTE, 0.0) + others,
            data_seconds=spent.get(DATA, 0.0),
            waiting_seconds=spent.get(WAITING, 0.0),
            communicating_seconds=spent.get(COMMUNICATING, 0.0),
        )
