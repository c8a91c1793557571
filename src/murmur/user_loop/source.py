"""Source of a user loop: its .grad fields are the gradients g_i, and its optimizer takes the steps."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from murmur.core.assignment import Assignment
from murmur.core.buffers import Buffers
from murmur.core.flat import Layout
from murmur.core.group import Group
from murmur.core.learner import Gradient, Learner, Progress
from murmur.core.membership import NOTHING, Preparation
from murmur.core.model_mode import evaluating
from murmur.core.moments import Moments
from murmur.core.source import SKIPPED_SAMPLES, WHOLE
from murmur.core.world import drive
from murmur.engine.bad_numbers import BadNumbers
from murmur.engine.counters import Counters
from murmur.engine.scaling import Scaled
from murmur.user_loop.group import JoinedGroup
from murmur.user_loop.last_backward import Behind
from murmur.user_loop.loop import Loop, Offer

log = logging.getLogger(__name__)
Evaluate = Callable[[nn.Module], Mapping[str, float]]
LEASE_SECONDS = 10.0  # what a loop does between steps is not known
BEFORE = "add and unfreeze parameters before the block of murmur.join, or end the block on all learners and join again"


@dataclass(frozen=True)
class Plan:
    """Facts that some strategies need and a loop cannot show; most strategies need none.

    Attributes:
        total_steps: Steps of all learners together, for strategies that follow the used fraction of the budget.
        samples_per_step: Average samples per step of one learner.
        evaluate: Returns held-out figures of a model in evaluation mode, including "loss".
        scaling: Rule by which rate and betas follow the number of learners (`murmur.scaling(strategy)`); the optimizer
            has the settings of one learner. Needs `total_steps`.
        timeout_seconds: Time that learners wait for a busy one (in an evaluation of its own) before they give up.
        most_skipped: Number of consecutive steps left out for a non-finite loss or gradient that ends the run.
        lease_seconds: Silence after which a learner whose process still runs counts as lost; ten median steps if they
            last longer. A host that stalls is silent, and so is a call that holds Python's lock (`json.load` of a large
            file); a learner that computes or waits is not. The end of a process is noticed at once.
    """

    total_steps: int | None = None
    samples_per_step: float = 1.0
    evaluate: Evaluate | None = None
    scaling: Scaled | None = None
    timeout_seconds: float = 1800.0
    most_skipped: int = 10
    lease_seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        if self.total_steps is not None and self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1 or None, got {self.total_steps}")
        if self.scaling is not None and self.total_steps is None:
            raise ValueError("Plan(scaling=...) warms rates up over a share of the run: give total_steps too")
        if not (self.samples_per_step > 0 and 0 < self.timeout_seconds < math.inf):
            raise ValueError(f"samples_per_step and timeout_seconds must be positive and finite, got {self}")
        if not 0 < self.lease_seconds < math.inf:
            raise ValueError(f"lease_seconds must be positive and finite, got {self.lease_seconds}")
        if self.most_skipped < 1:
            raise ValueError(f"most_skipped must be at least 1, got {self.most_skipped}")


def positive(samples: float) -> float:
    """Check that a number of samples is positive and finite, and return it.

    Raises:
        TypeError: It is a closure.
        ValueError: It is not positive and finite.
    """
    if callable(samples):
        raise TypeError(
            "step() takes the number of samples, not a closure: compute the gradients first (loss.backward()), then"
            " call me.step(samples)"
        )
    if not 0 < samples < math.inf:
        raise ValueError(f"samples must be positive and finite, got {samples}")
    return float(samples)


class LoopSource:
    """Source of gradients from a user's loop.

    Attributes:
        stepping: True while the strategy steps the optimizer.
        behind: State of the step's last backward pass.
        counters: Counters of this learner.
        drawn: Number of gradients of the loop that were used.
        numbers: Checks of its gradients, steps and weights for numbers that are not finite.

    Args:
        layout: Trainable tensors of the model.
        model: Model of the loop.
        optimizer: Optimizer of the loop.
        plan: Facts that a loop cannot show.
        loop: State of the loop.
        group: Group of all learners.
        buffers: The model's buffers.
    """

    def __init__(
        self,
        layout: Layout,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        loop: Loop,
        group: JoinedGroup,
        buffers: Buffers,
    ) -> None:
        self.model, self.optimizer, self.plan, self.loop, self.group = model, optimizer, plan, loop, group
        self.layout, self.buffers = layout, buffers
        self.assignment = Assignment(tuple(range(group.size)))
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._known = {id(p) for p in model.parameters()}
        self._rate_is_checked = False
        self.moments = Moments(optimizer, layout)
        self.behind = Behind(self.layout)
        self.times = self.decay_times = 1.0
        self.piece = WHOLE
        self.recorded = True
        self.stepping = False
        self._g = self.layout.empty()
        self._turn = self._claimed = self.drawn = 0
        self.counters = Counters(plan.most_skipped)
        self.numbers = BadNumbers(layout, self.counters, group.size)
        self._failed: Exception | None = None
        self._probe: tuple[nn.Module, Buffers] | None = None
        self._together: dict[str, Group] = {}

    def check_gradients(self) -> None:
        """Check that only parameters that were trainable at the start have gradients, and that those are dense.

        Raises:
            RuntimeError: Another one has a gradient, or a sparse one; names it. Or the optimizer has got further ones.
        """
        if any(id(p) not in self._known for group in self.optimizer.param_groups for p in group["params"]):
            raise RuntimeError(
                "the optimizer has parameters that the model did not have when the loop joined, and they would not be"
                f" averaged: {BEFORE}"
            )
        for name, p in self._trainable:
            if p.grad is not None and p.grad.layout != torch.strided:
                raise RuntimeError(
                    f"the gradient of {name} is sparse, but vectors of gradients are dense: make the embedding with"
                    " sparse=False"
                )
        for name, p in self._frozen:
            if p.grad is not None:
                raise RuntimeError(f"{name} was frozen when the loop joined and has a gradient now: {BEFORE}")

    def next_index(self, steps: int) -> int | None:
        self._turn = steps
        return None if self.loop.over else self.assignment.number(steps, self.group.rank)

    def reached(self, steps: int) -> int:
        return self.assignment.reached(steps)

    def over(self, steps: int) -> bool:  # noqa: ARG002 - the loops announce it themselves
        """True if all loops are over; all learners of the strategy's group call it together."""
        group = self.loop.group.plain
        if group.name not in self._together:
            twin = group.split([range(group.size)])
            assert twin is not None
            self._together[group.name] = twin
        twin = self._together[group.name]
        more = not (isinstance(twin, JoinedGroup) and self.loop.over and twin.over_for(twin.rank))
        drive(twin.mean(self._g.new_zeros(1), weight=float(more)))
        return twin.total_weight == 0

    @property
    def span(self) -> tuple[int, int]:
        return 0, sys.maxsize

    def claimed(self, claim: range, steps: int) -> None:
        self._turn = steps
        self._claimed = max(self._claimed, claim.stop)

    @property
    def preparation(self) -> Preparation:
        return NOTHING  # the loop brings its own data

    def heard(self, loss: float, compute_seconds: float) -> None:  # noqa: ARG002 - there are no records
        self.counters.loss = loss

    def followed(self, staleness: int) -> None:
        pass  # there are no records

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Return the gradient that the loop offers; an empty one if the loop is over or skipped the step.

        With `before_backward` it stays in the .grad fields, where the sums read it or have read it already. What they
        have read is checked in the mean.

        Raises:
            FloatingPointError: Too many gradients in a row were not finite.
        """
        if self.piece.of > 1:
            raise ValueError("the strategy wants minibatches in pieces, but a loop offers the gradients of whole ones")
        offer, begun = self.loop.take(), self.behind.take()
        if offer is not None and begun and before_backward is not None:
            self.counters.loss = math.nan if offer.loss is None else offer.loss
            self.drawn += 1
            return Gradient(self._g, self._present(), offer.samples, self.counters.loss)
        drawn = self._offered(n, offer)
        if drawn.samples == SKIPPED_SAMPLES:
            self.clear()
            if self.buffers.spoiled:  # running statistics of a bad minibatch would stay bad for ever
                self.buffers.restore()
        else:
            self.drawn += 1
        if before_backward is not None and not begun:
            if offer is not None and offer.scale != 1.0:
                self.layout.hand_gradients(drawn.g, drawn.present)
            before_backward(drawn.samples)
        return drawn

    def _offered(self, n: int, offer: Offer | None) -> Gradient:
        """Return the gradient of an offer, unscaled; one without weight if there is none or it is not finite."""
        if offer is None or offer.skipped:
            self._g.zero_()
            return Gradient(self._g, [False] * len(self.layout.tensors), SKIPPED_SAMPLES, self.counters.loss)
        _, present = self.layout.gather_gradients(self._g)
        if offer.scale != 1.0:
            self._g.div_(offer.scale)
        if offer.loss is None:
            return self.numbers.judge_without_loss(n, Gradient(self._g, present, offer.samples, math.nan))
        return self.numbers.judge(n, Gradient(self._g, present, offer.samples, offer.loss), whole=True)

    def _present(self) -> list[bool]:
        return [t.grad is not None for t in self.layout.tensors]

    def nothing(self) -> Gradient:
        return Gradient(torch.zeros_like(self._g), [False] * len(self.layout.tensors), 0.0, math.nan)

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:  # noqa: ARG002 - nothing is recorded
        if not self.numbers.allow_step(g):
            self.clear()
            return
        self._check_rate()
        self.layout.hand_gradients(g, present)
        self.stepping = True
        try:
            with self._settings():
                self.counters.rate = float(self.optimizer.param_groups[0]["lr"])
                self.optimizer.step()
        except Exception as error:
            if self.group.size > 1:
                raise  # the others have taken the step: the strategy ends here
            self._failed = self._failed or error
        finally:
            self.stepping = False
        self.clear()

    def surface(self) -> None:
        """Raise the error of the optimizer, or of one of its hooks, in the latest call of one learner alone.

        It is raised behind the call, so that the strategy goes on with the next one, as the loop without it would.
        """
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _check_rate(self) -> None:
        """Warn if this learner takes the others' steps alone, so that a scheduler in its loop is never called."""
        if self._rate_is_checked:
            return
        self._rate_is_checked = True
        waits = self.loop.offer is not None  # a step of the loop that no strategy takes
        if waits and any("initial_lr" in group for group in self.optimizer.param_groups):
            log.warning(
                "learner %d serves until the end of the run: a scheduler in its loop does not change the rate %g",
                self.group.rank,
                float(self.optimizer.param_groups[0]["lr"]),
            )

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Change settings of the optimizer inside the block; they belong to the loop and its scheduler."""
        groups = self.optimizer.param_groups
        names = ("lr", "betas", "weight_decay")
        before: list[dict[str, Any]] = [{name: group[name] for name in names if name in group} for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * self._times(group)
            if self.decay_times != 1 and "weight_decay" in group:
                group["weight_decay"] *= self.decay_times
            if self.plan.scaling is not None and "betas" in group:
                group["betas"] = self.plan.scaling.betas(group["betas"], self.group.size)
        try:
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)

    def _times(self, group: Mapping[str, Any]) -> float:
        """Factor on the rate of a group of parameters."""
        rule = self.plan.scaling
        if rule is None:
            return self.times
        noisy = rule.noisy if "betas" in group else 1.0
        return self.times * noisy * rule.factor(self.progress().fraction, self.group.size)

    def clear(self) -> None:
        """Clear the gradients for the next step."""
        for tensor in self.layout.tensors:
            tensor.grad = None

    def restart(self) -> None:
        self.optimizer.state.clear()
        self.numbers.restarted()

    def progress(self) -> Progress:
        return self._progress(self._claimed or self.reached(self._turn))

    def progress_at(self, minibatches: int) -> Progress:
        """Return the progress of the run after so many steps of all learners.

        Raises:
            ValueError: The plan does not give the total steps.
        """
        if self.plan.total_steps is None:
            raise ValueError(
                "this strategy follows the used fraction of the budget, which a loop does not show: set"
                " join(..., plan=Plan(total_steps=...)) to the steps of all learners together"
            )
        return self._progress(minibatches)

    def _progress(self, steps: int) -> Progress:
        fraction = math.nan if self.plan.total_steps is None else min(1.0, steps / self.plan.total_steps)
        training = len(self.assignment.to)
        return Progress(
            steps,
            steps * self.plan.samples_per_step,
            fraction,
            fraction,
            self.counters.loss,
            self.counters.rate,
            growth=float(training) if self.plan.scaling is None else self.plan.scaling.growth(training),
        )

    def evaluate(self, w: Tensor) -> Mapping[str, float]:
        """Return held-out figures of weights w (P,) with this learner's buffers, on a copy of the model."""
        if self.plan.evaluate is None:
            raise ValueError(
                "this strategy uses held-out figures: set join(..., plan=Plan(evaluate=...)) to a function of the"
                ' model that returns {"loss": ...}'
            )
        with torch.no_grad():
            if self._probe is None:
                copied = deepcopy(self.model)
                self._probe = copied, Buffers(copied, {}).begin(None)
            probe, buffers = self._probe
            Layout.trainable(probe).scatter(w)
            buffers.put(self.buffers.loose())
            with evaluating(probe):
                return self.plan.evaluate(probe)

    async def boundary(self, me: Learner) -> None:  # noqa: ARG002 - a loop has no records
        """Check the weights after a round. The loop evaluates and saves checkpoints itself."""
        self.numbers.end_round(self.restart)
