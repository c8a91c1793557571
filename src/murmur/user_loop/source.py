"""Source of a user loop: its .grad fields are the gradients g_i, and its optimizer takes the steps."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from murmur.core.assignment import Assignment, Turns
from murmur.core.buffers import Buffers
from murmur.core.flat import Layout, is_finite
from murmur.core.gradient_fields import FinitenessOfFields, GradientInFields
from murmur.core.group import Group
from murmur.core.learner import Gradient, Learner, Progress
from murmur.core.membership import NOTHING, Preparation
from murmur.core.source import SKIPPED_SAMPLES
from murmur.core.world import drive
from murmur.elastic.elastic_group import ElasticGroup
from murmur.engine.recorder import Recorder
from murmur.engine.scaling import Fixed, Scaled
from murmur.engine.source import Figures, HeldOut, LearnerSource
from murmur.engine.stragglers import Pace
from murmur.user_loop.loop import Behind, JoinedGroup, Loop, Offer
from murmur.user_loop.stop import LoopStop
from murmur.worlds.process.world import START_SECONDS

log = logging.getLogger(__name__)
LEASE_SECONDS = 10.0  # what a loop does between steps is not known


@dataclass(frozen=True)
class Plan:
    """Facts that some strategies need and a loop cannot show; most strategies need none.

    Attributes:
        total_steps: Steps of all learners together, for strategies that follow the used fraction of the budget.
        samples_per_step: Average samples per step of one learner.
        evaluate: Returns held-out figures of a model in evaluation mode, including "loss".
        scaling: Rule by which rate and betas follow the number of learners (`murmur.scaling(strategy)`); the optimizer
            has the settings of one learner. Needs `total_steps`.
        start_seconds: Time that learners wait for each other at the start of the first block.
        timeout_seconds: Time that learners wait for a busy one (in an evaluation of its own) before they give up.
        most_skipped: Number of consecutive steps left out for a non-finite loss or gradient that ends the run.
        lease_seconds: Silence after which a learner whose process still runs counts as lost; ten median steps if they
            last longer. A host that stalls is silent, and so is a call that holds Python's lock (`json.load` of a large
            file); a learner that computes or waits is not. The end of a process is noticed at once.
    """

    total_steps: int | None = None
    samples_per_step: float = 1.0
    evaluate: Figures | None = None
    scaling: Scaled | None = None
    timeout_seconds: float = 1800.0
    most_skipped: int = 10
    lease_seconds: float = LEASE_SECONDS
    start_seconds: float = START_SECONDS

    @property
    def rule(self) -> Scaled:
        return Fixed().with_cut(1, None, None) if self.scaling is None else self.scaling

    def __post_init__(self) -> None:
        if self.total_steps is not None and self.total_steps < 1:
            raise ValueError(f"total_steps must be at least 1 or None, got {self.total_steps}")
        if self.scaling is not None and self.total_steps is None:
            raise ValueError("Plan(scaling=...) warms rates up over a share of the run: give total_steps too")
        if not (self.samples_per_step > 0 and 0 < self.timeout_seconds < math.inf):
            raise ValueError(f"samples_per_step and timeout_seconds must be positive and finite, got {self}")
        if not (0 < self.lease_seconds < math.inf and 0 < self.start_seconds < math.inf):
            raise ValueError(f"lease_seconds and start_seconds must be positive and finite, got {self}")
        if self.most_skipped < 1:
            raise ValueError(f"most_skipped must be at least 1, got {self.most_skipped}")


def positive(samples: float) -> float:
    if callable(samples):
        raise TypeError(
            "step() takes the number of samples, not a closure: compute the gradients first (loss.backward()), then"
            " call me.step(samples)"
        )
    if not 0 < samples < math.inf:
        raise ValueError(f"samples must be positive and finite, got {samples}")
    return float(samples)


class LoopSource(LearnerSource):
    """Source of gradients from a user's loop.

    Attributes:
        stepping: True while the strategy steps the optimizer.
        behind: State of the step's last backward pass.
        pace: Detection of slow learners, where there are records.
        stop: Requests to stop.
    """

    def __init__(
        self,
        layout: Layout,
        optimizer: torch.optim.Optimizer,
        plan: Plan,
        loop: Loop,
        group: JoinedGroup,
        buffers: Buffers,
        recorder: Recorder,
    ) -> None:
        turns = Turns(Assignment(tuple(range(group.size))), group.rank)
        super().__init__(layout, optimizer, plan.rule, turns, recorder)
        self.plan, self.loop, self.group, self.buffers = plan, loop, group, buffers
        self.behind = Behind(self.layout)
        self._in_fields = GradientInFields.over(self.layout, self._g)
        self._finiteness = FinitenessOfFields(self.layout)
        self.stepping = self._rate_is_checked = False
        self._failed: Exception | None = None
        self._evaluated = None if plan.evaluate is None else HeldOut(buffers.model, plan.evaluate)
        self.pace: Pace | None = None
        self.stop = LoopStop(group)
        self._together: dict[str, Group] = {}

    def next_index(self, steps: int) -> int | None:
        n = self.turns.begin(steps)
        return None if self.loop.over else n

    def over(self, steps: int) -> bool:  # noqa: ARG002 - the loops announce it themselves
        """True if all loops are over; all learners of the strategy's group call it together."""
        twin = self._twin_of(self.loop.group)
        loops = twin.inner if isinstance(twin, ElasticGroup) else twin
        more = not (isinstance(loops, JoinedGroup) and self.loop.over and loops.over_for(loops.rank))
        drive(twin.mean(self._g.new_zeros(1), weight=float(more)))
        return twin.total_weight == 0

    def _twin_of(self, group: Group) -> Group:
        """Return a group of the same learners, in full precision, whose exchanges overlap those of the strategy."""
        group = group.plain
        if group.name not in self._together:
            self._together[group.name] = group.twin()
        return self._together[group.name]

    @property
    def learners(self) -> int:
        """Number of learners that take part now."""
        group = self.loop.group
        return len(group.live) if isinstance(group, ElasticGroup) else self.group.size

    @property
    def span(self) -> tuple[int, int]:
        return 0, sys.maxsize

    def claimed(self, claim: range, steps: int) -> None:
        self.turns.claim(claim, steps)

    @property
    def preparation(self) -> Preparation:
        return NOTHING  # the loop brings its own data

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Return the gradient that the loop offers; an empty one if the loop is over or skipped the step.

        With `before_backward` it stays in the .grad fields, where the sums read it or have read it already. What they
        have read is checked in the mean.
        """
        if self.piece.of > 1:
            raise ValueError("the strategy wants minibatches in pieces, but a loop offers the gradients of whole ones")
        offer, begun = self.loop.take(), self.behind.take()
        if offer is not None and begun and before_backward is not None:
            self.counters.loss = math.nan if offer.loss is None else offer.loss
            self.recorder.drawn += 1
            return Gradient(self._g, self._present(), offer.samples, self.counters.loss)
        drawn = self._offered(n, offer)
        if drawn.samples == SKIPPED_SAMPLES:
            self.layout.clear_gradients()
            if self.buffers.spoiled:  # running statistics of a bad minibatch would stay bad for ever
                self.buffers.restore()
        else:
            self.recorder.drawn += 1
        if before_backward is not None and not begun:
            if offer is not None and offer.scale != 1.0:
                self.layout.hand_gradients(drawn.g, drawn.present)
            before_backward(drawn.samples)
        return drawn

    def _offered(self, n: int, offer: Offer | None) -> Gradient:
        if offer is None or offer.skipped:
            return self.numbers.weightless(self._g)
        g: Tensor = self._g
        if offer.scale != 1.0:
            self.layout.gather_gradients(g)
            g.div_(offer.scale)
            finite = is_finite(g)
        else:
            self._in_fields.begin()
            g, finite = self._in_fields, self._finiteness.holds()
        finite = self.numbers.agreed(finite)
        drawn = Gradient(g, self._present(), offer.samples, math.nan if offer.loss is None else offer.loss)
        return (self.numbers.judge_without_loss if offer.loss is None else self.numbers.judge)(n, drawn, finite)

    def _present(self) -> list[bool]:
        return [t.grad is not None for t in self.layout.tensors]

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        unread = g is self._in_fields and self._in_fields.unread  # its elements have been checked
        if not self.numbers.allow_step(unread or self.numbers.agreed(is_finite(g))):
            self.layout.clear_gradients()
            return
        self._check_rate()
        self.stepping = True
        try:
            self._step(None if unread else g, present)
        except Exception as error:
            if self.group.size > 1:
                raise  # the others have taken the step: the strategy ends here
            self._failed = self._failed or error
        else:
            self.followed(staleness)
        finally:
            self.stepping, self._in_fields.applied = False, unread
            self.layout.clear_gradients()

    def followed(self, staleness: int) -> None:
        """Record a step. An error of an observer is raised behind the call, as the step has been taken."""
        try:
            super().followed(staleness)
        except Exception as error:
            self._failed = self._failed or error

    def release(self) -> None:
        """End the use of the .grad fields by this step of the loop."""
        self._in_fields.end()

    def clip(self, norm: float | None) -> None:
        """Set the largest norm of gradients from now on, also of those of others while this learner serves them."""
        if norm is not None and not norm > 0:
            raise ValueError(f"clip is the largest norm of a gradient and must be positive, got {norm}")
        self.local_optimizer.most_norm, self.local_optimizer.norm = norm, None

    def _step(self, g: Tensor | None, present: list[bool]) -> None:
        optimizer = self.local_optimizer
        own = optimizer.settings
        try:
            self.counters.rate = optimizer.scale(own, 1.0, self._fraction(self.turns.minibatches), self.learners)
            optimizer.step(g, present)
        finally:
            for group, values in zip(optimizer.optimizer.param_groups, own, strict=True):
                group.update(values)

    def surface(self) -> None:
        """Raise the error of an observer, or of one learner alone of the optimizer or a hook of it, in the latest call.

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
        if waits and any("initial_lr" in group for group in self.local_optimizer.optimizer.param_groups):
            log.warning(
                "learner %d serves until the end of the run: a scheduler in its loop does not change the rate %g",
                self.group.rank,
                float(self.local_optimizer.optimizer.param_groups[0]["lr"]),
            )

    def progress(self) -> Progress:
        return self.progress_after(self.turns.minibatches)

    def progress_at(self, minibatches: int) -> Progress:
        if self.plan.total_steps is None:
            raise ValueError(
                "this strategy follows the used fraction of the budget, which a loop does not show: set"
                " join(..., plan=Plan(total_steps=...)) to the steps of all learners together"
            )
        return self.progress_after(minibatches)

    def _fraction(self, steps: int) -> float:
        return math.nan if self.plan.total_steps is None else min(1.0, steps / self.plan.total_steps)

    def progress_after(self, steps: int) -> Progress:
        fraction = self._fraction(steps)
        training = len(self.turns.assignment.to)
        return Progress(
            steps,
            steps * self.plan.samples_per_step,
            fraction,
            fraction,
            self.counters.loss,
            self.counters.rate,
            growth=self.plan.rule.growth(training),
        )

    def evaluate(self, w: Tensor) -> Mapping[str, float]:
        if self._evaluated is None:
            raise ValueError(
                "this strategy uses held-out figures: set join(..., plan=Plan(evaluate=...)) to a function of the"
                ' model that returns {"loss": ...}'
            )
        return self._evaluated.of(w, self.buffers.loose())

    async def boundary(self, me: Learner) -> None:
        """Check the weights after a round. The loop evaluates and saves checkpoints itself."""
        await super().boundary(me)
        if self.pace is not None:
            await self.pace.boundary(me)
        await self.stop.boundary(me, self._twin_of)
