"""What a strategy sees as `me`: one learner's gradients, weights and companions.

A strategy is a coroutine written from one learner's point of view, `async def strategy(me)`. `await` means only "the
world may let time pass here"; the same text runs on a virtual clock, in threads and in processes.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from threading import RLock
from typing import Any, TypeVar

from torch import Tensor

from murmur.core.group import Group, Message
from murmur.core.mean_gradient import Draw, MeanGradients
from murmur.core.pairwise import PairwiseAverager
from murmur.core.pending_gradient import PendingGradient
from murmur.core.source import Gradient, Progress, Source
from murmur.core.weights import Weights
from murmur.core.world import Seat

__all__ = ["Draw", "Gradient", "Learner", "Progress", "Source", "Strategy"]
T = TypeVar("T")


class Learner:
    """One learner: its place in the world, its live weights, its gradients.

    Attributes:
        group: the learners it works with.
        weights: its live model w_i.
        steps: gradients drawn so far (turns, for a learner that had none left).
        fresh_samples: samples of the gradients drawn since the latest `gradients()` or `gradient()` began.
        outer: vectors of the strategy's own that a checkpoint must hold (block momentum); empty at a first start.
        outer_then: what they were before an exchange that is under way, and that a resumed run begins anew.
        unit: minibatches that one gradient is made of (for a super-learner the size of its node).
        keepers: for each rank of `group` the position in the world of the learner that keeps its checkpoints.
        follows: whether it has ended as a member of a node whose leader speaks for it.
        latest: positions of the minibatches of its latest claim.
        saved: minibatches behind at its latest checkpoint; `told`: at the one its leader has saved just now.
    """

    def __init__(self, seat: Seat, weights: Weights, source: Source) -> None:
        self.seat, self.weights, self.source = seat, weights, source
        self.group: Group = seat.group
        self.steps, self.latest = 0, range(0)
        self.fresh_samples = 0.0
        self.outer: dict[str, Tensor] = {}
        self.outer_then: dict[str, Tensor] | None = None
        self.unit, self.follows = 1, False
        self.keepers: Sequence[int] = range(sys.maxsize)  # learners may be added
        self.saved: int | None = None
        self.told: int | None = None
        self._version = self._consensuses = 0
        self._present: list[bool] = [True] * len(weights.layout.tensors)
        self._means = MeanGradients(seat, weights, source)
        self._averager: PairwiseAverager | None = None
        self._joining = RLock()

    @property
    def averager(self) -> PairwiseAverager:
        """This learner's side of edge-wise averaging; its first use takes the learner out of lock-step."""
        with self._joining:  # gradients and averaging, two threads perhaps, come here at the same moment
            if self._averager is None:
                self._averager = PairwiseAverager(self.group, self.weights, lambda: self.seat.now)
            return self._averager

    @property
    def in_step(self) -> bool:
        """Whether all learners take their gradients and means together."""
        return self._averager is None

    @property
    def leads(self) -> bool:
        """Whether this learner does what only one should: evaluation, the saved model. The first of the living."""
        return self.group.rank == self.group.live[0] if self._averager is None else self._averager.leads

    @property
    def view(self) -> tuple[int, ...]:
        """Ranks of the live learners."""
        return self.averager.live

    @property
    def training(self) -> bool:
        """False once a mean over the group has shown that nobody has samples left: for all in the same round."""
        return self.group.total_weight > 0

    @property
    def progress(self) -> Progress:
        """Where the whole run stands."""
        return self.source.progress()

    @property
    def reached(self) -> Progress:
        """Where the run stands once every learner has taken as many gradients as this one: between rounds, for all."""
        return self.source.progress_at(self.source.reached(self.steps))

    async def gradient(self) -> Tensor:
        """One gradient g_i(w_i), shape (P,); zeros with `fresh_samples == 0` when the budget is spent.

        Average it with `weight=me.fresh_samples`; `me.training` then turns False for all learners at once.
        """
        await self.source.boundary(self)
        self.fresh_samples = 0.0
        drawn = await self.draw(None) or self.source.nothing()
        self._present = drawn.present
        return drawn.g

    async def turns(self) -> AsyncIterator[Tensor]:
        """Gradients g_i(w_i) as long as *any* learner has a minibatch: every learner counts equally many turns.

        One that has none left gets zeros, and `fresh_samples == 0`.
        """
        await self.seat.ready(self.weights, self.group)
        while not self.source.over(self.steps):
            yield await self.gradient()
            await self.seat.ready(self.weights, self.group)

    async def gradients(self, at_most: int | None = None, mean_over: Group | None = None) -> AsyncIterator[Tensor]:
        """Gradients g_i(w_i), each of shape (P,) and valid until the next one, while the budget lasts.

        Args:
            at_most: end after so many.
            mean_over: yield the mean of the group's gradients instead, weighted by samples and, where the world can,
                added up behind the backward pass. It ends for all members at once.
        """
        if at_most is not None and at_most < 1:
            raise ValueError(f"gradients(at_most) must be at least 1, got {at_most}")
        self.fresh_samples = 0.0
        taken = 0
        while at_most is None or taken < at_most:
            if taken == 0 or mean_over is not None:
                await self.between_rounds()
            g = await (self._own() if mean_over is None else self._mean(mean_over))
            taken += 1
            if g is None:
                self.steps += (at_most or taken) - taken  # turns without a minibatch count too: for all alike
                return
            yield g

    async def between_rounds(self) -> None:
        """Where nothing local is un-averaged: evaluation, checkpoints, who came late. `gradients` begins with it."""
        await self.source.boundary(self)
        await self.group.welcome()

    async def claimed_gradients(self) -> AsyncIterator[Tensor]:
        """Gradients g_i(phi_i), shape (P,), of minibatches claimed first come, first served.

        Ends when every minibatch of the budget has been done; what a lost learner was at is done by another one.
        """
        if self.seat.late:
            await self.averager.catch_up()
        while (claim := await self._claim()) is not None:
            self.fresh_samples = 0.0
            self.steps += 1
            self.latest = claim
            self.source.claimed(claim, self.steps)
            await self.source.boundary(self)
            began = self.seat.now
            gradient = await self._of_claim(claim)
            self.averager.took(self.seat.now - began)
            yield gradient.g
        self.averager.done()

    async def _claim(self) -> range | None:
        membership = self.group.membership
        await self.seat.ready(self.weights, self.group)
        while (claim := membership.claim(*self.source.span, self.unit)) is None and not membership.spent:
            await self.seat.sleep(self.averager.poll_seconds)
        return claim

    async def _of_claim(self, claim: range) -> Gradient:
        self.group.membership.expect(self.averager.pace_seconds, self.source.preparation)
        return await self.compute(self.source.assignment.at(claim.start), None)

    async def answer(self) -> None:
        """Answer who asks for this learner's weights, until the budget is used up; to be run beside the gradients."""
        async for _ in self.rounds():
            pass

    async def messages(self, tag: str) -> AsyncIterator[Message]:
        """Vectors posted here under a tag, in order of arrival, until the budget is used up: a server's work."""
        self.seat.begin()
        while (
            message := await self.group.poll(tag, self.averager.poll_seconds)
        ) is not None or not self.group.membership.spent:
            await self.source.boundary(self)
            if message is not None:
                yield message
        self.averager.done()

    def credit(self, claim: range, loss: float) -> None:
        """The next step is made of another learner's gradient, of this claim and with this loss."""
        self.steps += 1
        self.source.claimed(claim, self.steps)
        self.source.heard(loss)
        self._present = [False] * len(self._present)  # what is not zero is there

    def members(self, rank: int) -> range:
        """Positions in the world of the learners that a rank of `group` speaks for: itself, or all of its node."""
        following = rank + 1
        return range(
            self.keepers[rank], self.keepers[following] if following < len(self.keepers) else self.seat.group.size
        )

    def rounds(self) -> AsyncIterator[int]:
        """Rounds k = 0, 1, 2, ... of averaging beside the gradients; see `PairwiseAverager.rounds`."""
        return self.averager.rounds()

    def gossip(self, row: Mapping[int, float]) -> None:
        """w_i <- w_i + T_ij (x_j - x_i) for each neighbour j of the row, when j's answer comes. Never waits."""
        self.averager.gossip(row)

    async def consensus(self) -> Tensor:
        """The mean of all (live) learners' weights, shape (P,), the same bits for all; all must ask."""
        if self._averager is None:
            return await self.group.mean(self.weights.snapshot())
        self._consensuses += 1
        return await self._averager.consensus(self.weights.snapshot(), f"weights {self._consensuses}")

    def deal(self, done: int, among: int) -> None:
        """From now on what comes after the first `done` minibatches goes to the first `among` live learners."""
        self.source.assignment = self.source.assignment.anew(self.steps, done, self.group.live[:among])

    def descend(self, g: Tensor, staleness: int | None = None) -> None:
        """w_i <- w_i + what the local optimizer makes of g (plain SGD: - alpha g). After the end of training: nothing.

        A tensor that had no gradient and whose part of g is zero is left alone, as in a plain PyTorch loop. Recorded as
        staleness is the number of changes of w_i since the gradient was begun, unless another one is given.
        """
        if not self.training:
            return
        staleness = self.weights.version - self._version if staleness is None else staleness
        present = self._present
        if not all(present):
            views = self.weights.layout.views(g)
            present = [there or bool(view.any()) for there, view in zip(present, views, strict=True)]
        self.weights.step(lambda: self.source.apply(g, present, staleness))

    def repeat(self, mean: Gradient) -> None:
        """Take the step that another learner of the same weights has taken with a gradient of both."""
        self._present = mean.present
        self.descend(mean.g)

    def restart(self) -> None:
        """The local optimizer forgets everything but its settings: momentum, second moments, step counts."""
        self.source.restart()

    def spawn(self, activity: Coroutine[Any, Any, T], what: str = "background") -> Awaitable[T]:
        """Start an activity beside the gradients; if it fails, the learner's next gradient raises."""
        return self.seat.spawn(activity, what)

    async def evaluate(self) -> Mapping[str, float]:
        """Held-out figures of this learner's weights."""
        return self.source.evaluate(self.weights.snapshot())

    async def draw(self, before_backward: Callable[[float], None] | None) -> Gradient | None:
        """The gradient of this learner's minibatch of the turn; None if it has none."""
        await self.seat.ready(self.weights, self.group, before_backward)
        n = self.source.next_index(self.steps)
        self.steps += 1
        if n is None:
            self._version = self.weights.version  # the others' gradient of this turn is taken at weights like these
            return None
        return await self.compute(n, before_backward)

    async def compute(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """The gradient of minibatch n at the present weights, whatever lands meanwhile."""

        await self.seat.ready(self.weights, self.group, before_backward)
        self.seat.begin()
        pending = PendingGradient(self.source, n, self.weights, before_backward)
        gradient = await self.seat.work(pending)
        self._version = pending.version
        self.fresh_samples += gradient.samples
        self._present = gradient.present
        return gradient

    async def _own(self) -> Tensor | None:
        drawn = await self.draw(None)
        return None if drawn is None else drawn.g

    async def _mean(self, group: Group) -> Tensor | None:
        """The members' mean gradient, or None when nobody has samples left."""
        self.fresh_samples = 0.0
        if group.size == 1:
            g = await self._own()
            group.total_weight = self.fresh_samples
            return g
        mean = await self.averaged(group, self.draw)
        self._present = mean.present
        return mean.g if group.total_weight > 0 else None

    async def averaged(self, group: Group, draw: Draw) -> Gradient:
        """The mean over a group of the gradients its members draw, weighted by samples; 0 samples: nobody had any."""
        return await self._means.over(group, draw)

    def continue_as(self, other: Learner) -> None:
        """Go on as the learner that a strategy has made of this one: with its group, weights and flock."""
        self.group, self.weights, self._averager, self.keepers = (
            other.group,
            other.weights,
            other._averager,
            other.keepers,
        )


Strategy = Callable[[Learner], Coroutine[Any, Any, None]]
