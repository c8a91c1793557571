"""A learner as a strategy sees it, by convention under the name `me`.

A strategy is a coroutine written from one learner's point of view, `async def strategy(me)`. `await` means only "the
world may let time pass here"; the same text runs on a virtual clock, in threads and in processes.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from threading import RLock
from typing import Any, TypeVar

from torch import Tensor

from murmur.core.group import Group, Message, PeerLost
from murmur.core.mean_gradient import Draw, MeanGradients
from murmur.core.moments import Moments
from murmur.core.pairwise import PairwiseAverager
from murmur.core.pending_gradient import PendingGradient
from murmur.core.source import WHOLE, Gradient, Piece, Progress, Source
from murmur.core.weights import Weights
from murmur.core.world import Seat

__all__ = ["Draw", "Gradient", "Learner", "Progress", "Source", "Strategy"]
T = TypeVar("T")
ALONE_SECONDS = 60.0  # for which a server without workers waits; one that is started again needs less


class Learner:
    """One learner: its place in the world, its live weights, its gradients.

    Attributes:
        lock_step: All learners take their gradients and means together, as the strategy declares (`Facts.lock_step`).
        group: Learners that it works with.
        weights: Its live weights w_i.
        steps: Gradients drawn so far (turns, for a learner that had none left).
        fresh_samples: Samples of the gradients drawn since the latest `gradients()` or `gradient()` began.
        outer: Vectors of the strategy that a checkpoint must hold (block momentum); empty at a first start.
        outer_then: Those vectors before an exchange that is under way; a resumed run begins the exchange anew.
        apart: True if learners begin with weights or optimizers of different steps (those of saved loops).
        unit: Minibatches in one gradient (for a super-learner, the number of its members).
        keepers: For each rank of `group`, the position in the world of the learner that keeps its checkpoints.
        follows: True if it has ended as a member of a super-learner, represented by the leader.
        latest: Positions of the minibatches of its latest claim.
        saved: Minibatches completed at its latest checkpoint.
        told: Minibatches completed at the checkpoint that its leader has just saved.
        rest: Brings all that the strategy has under way to its end, before a graceful stop saves; None: nothing is.
        steady: Lock held while its state is saved; an activity that changes several parts of the state holds it too.
    """

    def __init__(
        self,
        seat: Seat,
        weights: Weights,
        source: Source,
        lock_step: bool = True,
        outer: dict[str, Tensor] | None = None,
    ) -> None:
        self.seat, self.weights, self.source, self.lock_step = seat, weights, source, lock_step
        self.group: Group = seat.group
        seat.holds(weights)
        self.steps, self.latest = 0, range(0)
        self.fresh_samples = 0.0
        self.outer: dict[str, Tensor] = {} if outer is None else outer
        self.outer_then: dict[str, Tensor] | None = None
        self.unit, self.follows, self.apart = 1, False, False
        self.keepers: Sequence[int] = range(sys.maxsize)  # learners may be added
        self.saved: int | None = None
        self.told: int | None = None
        self._version = self._consensuses = 0
        self._drawn: int | None = None
        self._present: list[bool] = [True] * len(weights.layout.tensors)
        self._means = MeanGradients(seat, weights, source)
        self._averager: PairwiseAverager | None = None
        self._joining = RLock()
        self.steady = RLock()
        self.rest: Callable[[], Awaitable[None]] | None = None

    @property
    def averager(self) -> PairwiseAverager:
        """This learner's pairwise averager.

        Raises:
            RuntimeError: The strategy has not declared `lock_step = False`.
        """
        if self.lock_step:
            raise RuntimeError("pairwise averaging and claims are for strategies that declare lock_step = False")
        with self._joining:  # the first uses, of gradients and of averaging, may come from two threads at once
            if self._averager is None:
                self._averager = PairwiseAverager(self.group, self.weights, lambda: self.seat.now)
                self._averager.behind = self.seat.late
            return self._averager

    @property
    def averager_in_use(self) -> PairwiseAverager | None:
        """This learner's pairwise averager; None before its first use."""
        return self._averager

    @property
    def turns_done(self) -> int:
        """Number of turns of the lock-step run that are complete, those before a resume included."""
        return self.progress.minibatches // len(self.source.assignment.to)

    @property
    def leads(self) -> bool:
        """True for the first live learner, which alone evaluates and saves the model."""
        return self.group.rank == self.group.live[0] if self.lock_step else self.averager.leads

    @property
    def view(self) -> tuple[int, ...]:
        """Ranks of the live learners."""
        return self.group.live if self.lock_step else self.averager.live

    @property
    def training(self) -> bool:
        """False once a mean over the group has found no samples left; all learners see it in the same round."""
        return self.group.total_weight > 0

    @property
    def progress(self) -> Progress:
        """Progress of the whole run."""
        return self.source.progress()

    @property
    def reached(self) -> Progress:
        """Progress of the run at the moment when every learner has taken as many gradients as this one.

        It is the same for all learners between rounds.
        """
        return self.source.progress_at(self.source.reached(self.steps))

    @property
    def moments(self) -> Moments:
        """Moments of this learner's optimizer, which a strategy may average."""
        return self.source.moments

    @property
    def outer_to_keep(self) -> dict[str, Tensor]:
        """Vectors of the strategy to save: with the present weights, a resumed run begins from them."""
        return self.outer if self.outer_then is None else self.outer_then

    async def gradient(self) -> Tensor:
        """Return one gradient g_i(w_i), shape (P,); zeros with `fresh_samples == 0` when the budget is spent.

        Average it with `weight=me.fresh_samples`; `me.training` then turns False for all learners at once.
        """
        await self.source.boundary(self)
        self.fresh_samples = 0.0
        drawn = await self.draw(None) or self.source.nothing()
        self._present = drawn.present
        return drawn.g

    async def turns(self) -> AsyncIterator[Tensor]:
        """Yield gradients g_i(w_i) while *any* learner has a minibatch, so that all learners take equally many turns.

        A learner without a minibatch gets zeros, and `fresh_samples == 0`.
        """
        await self.seat.ready(self.weights, self.group)
        while not self.source.over(self.steps):
            yield await self.gradient()
            await self.seat.ready(self.weights, self.group)

    async def gradients(
        self, at_most: int | None = None, mean_over: Group | None = None, pieces: int = 1
    ) -> AsyncIterator[Tensor]:
        """Yield gradients g_i(w_i), each of shape (P,) and valid until the next one, while the budget lasts.

        Args:
            at_most: Largest number of minibatches to take.
            mean_over: Yield the mean of this group's gradients instead, weighted by samples. Where the world allows
                it, the sum overlaps the backward pass. The iteration ends for all members at once.
            pieces: Cut each minibatch into so many pieces of about equal size, and yield one gradient for each, at the
                weights of its own moment; not with `mean_over`. An empty piece has zeros, and almost no fresh samples.

        Raises:
            ValueError: A number is below 1, or the source of the gradients cannot cut minibatches.
        """
        if (at_most is not None and at_most < 1) or pieces < 1 or (pieces > 1 and mean_over is not None):
            raise ValueError(f"gradients() needs at_most >= 1 and pieces >= 1, got at_most={at_most}, pieces={pieces}")
        self.fresh_samples = 0.0
        taken = 0
        while at_most is None or taken < at_most:
            if taken == 0 or mean_over is not None:
                await self.between_rounds()
            self.source.piece = Piece(0, pieces)
            g = await (self._own() if mean_over is None else self._mean(mean_over))
            taken += 1
            if g is None:
                self.steps += (at_most or taken) - taken  # all learners count turns without a minibatch too
                return
            yield g
            for number in range(1, pieces):
                self.source.piece = Piece(number, pieces)
                further = await self.draw_again(None) or self.source.nothing()
                self._present = further.present
                yield further.g
            self.source.piece = WHOLE

    async def between_rounds(self) -> None:
        """Evaluate, save checkpoints and admit late learners, right after an average. `gradients` begins with it."""
        await self.source.boundary(self)
        await self.group.welcome()

    async def claimed_gradients(self) -> AsyncIterator[Tensor]:
        """Yield gradients g_i(phi_i), shape (P,), of minibatches claimed first come, first served.

        Ends when every minibatch of the budget is done. The unfinished minibatch of a lost learner goes to another one.
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
        """Answer requests for this learner's weights until the budget is spent; runs beside the gradients."""
        async for _ in self.rounds():
            pass

    async def messages(self, tag: str) -> AsyncIterator[Message]:
        """Yield the vectors posted to this learner under a tag, in order of arrival, until the budget is used up.

        This is the work of a server.

        Raises:
            PeerLost: No learner that trains has been there for `ALONE_SECONDS`, or another server is lost.
        """
        self.seat.begin()
        last_seen = self.seat.now
        while (
            message := await self.group.poll(tag, self.averager.poll_seconds)
        ) is not None or not self.group.membership.spent:
            self.averager.check_parts()
            await self.source.boundary(self)
            if message is not None:
                yield message
            if self.group.size == 1 or {*self.view} - {self.group.rank, *self.averager.servers}:
                last_seen = self.seat.now
            elif self.seat.now - last_seen > ALONE_SECONDS:
                raise PeerLost(f"all other learners are lost, and none has come back within {ALONE_SECONDS:.0f} s")
        self.averager.done()

    def credit(self, claim: range, loss: float, compute_seconds: float) -> None:
        """Count another learner's gradient, of this claim and with this loss, as the one of the next step.

        Its seconds are added to those that this learner computed.
        """
        self.steps += 1
        self.source.claimed(claim, self.steps)
        self.source.heard(loss, compute_seconds)
        self._present = [False] * len(self._present)  # a tensor counts as present if its part of g is not zero

    def members(self, rank: int) -> range:
        """Positions in the world of the learners behind a rank of `group`: one learner, or all of a super-learner."""
        following = rank + 1
        return range(
            self.keepers[rank], self.keepers[following] if following < len(self.keepers) else self.seat.group.size
        )

    def rounds(self) -> AsyncIterator[int]:
        """Yield rounds k = 0, 1, 2, ... of averaging beside the gradients; see `PairwiseAverager.rounds`."""
        return self.averager.rounds()

    def gossip(self, row: Mapping[int, float]) -> None:
        """w_i <- w_i + T_ij (x_j - x_i) for each neighbour j of the row, once its answer arrives. Never waits."""
        self.averager.gossip(row)

    async def consensus(self) -> Tensor:
        """Return the mean of all live learners' weights, shape (P,), the same bits for all. All must call it."""
        if self.lock_step:
            return await self.group.mean(self.weights.snapshot())
        self._consensuses += 1
        return await self.averager.consensus(self.weights.snapshot(), f"weights {self._consensuses}")

    def assign(self, done: int, among: int) -> None:
        """Assign all minibatches after the first `done` to the first `among` live learners, from this turn on."""
        self.source.assignment = self.source.assignment.anew(self.steps, done, self.group.live[:among])

    @property
    def age(self) -> int:
        """Number of changes of w_i since its latest gradient was begun."""
        return self.weights.version - self._version

    def descend(self, g: Tensor, staleness: int | None = None) -> None:
        """w_i <- w_i + the local optimizer's step for g (plain SGD: - alpha g). Does nothing after the end of training.

        A tensor that had no gradient and whose part of g is zero is left alone, as in a plain PyTorch loop.

        Args:
            g: Gradient, shape (P,).
            staleness: Recorded staleness; by default the age of the gradient.
        """
        if not self.training:
            return
        staleness = self.age if staleness is None else staleness
        present = self._present
        if not all(present):
            views = self.weights.layout.views(g)
            present = [there or bool(view.any()) for there, view in zip(present, views, strict=True)]
        self.weights.step(lambda: self.source.apply(g, present, staleness))

    def repeat(self, mean: Gradient) -> None:
        """Take the step that another learner with the same weights has taken, with the mean gradient of both."""
        self._present = mean.present
        self.descend(mean.g)

    async def saved_by_leader(self, minibatches: int) -> None:
        """Pass the boundary at which this learner's leader has saved, after `minibatches` of all learners."""
        self.told = minibatches
        await self.source.boundary(self)
        self.told = None

    def restart(self) -> None:
        """Reset the local optimizer (momentum, second moments, step counts) but not its settings."""
        self.source.restart()

    def spawn(self, activity: Coroutine[Any, Any, T], what: str = "background") -> Awaitable[T]:
        """Start an activity beside the gradients. If it fails, the learner's next gradient raises."""
        return self.seat.spawn(activity, what)

    def evaluate(self, w: Tensor | None = None) -> Mapping[str, float]:
        """Return held-out figures of the weights w (P,); of this learner's weights by default."""
        return self.source.evaluate(self.weights.snapshot() if w is None else w)

    async def draw(self, before_backward: Callable[[float], None] | None) -> Gradient | None:
        """Compute the gradient of this learner's minibatch of the turn; None if it has none."""
        await self.seat.ready(self.weights, self.group, before_backward)
        n = self._drawn = self.source.next_index(self.steps)
        self.steps += 1
        if n is None:
            self._version = self.weights.version  # the others take their gradients of this turn at the same weights
            return None
        return await self.compute(n, before_backward)

    async def draw_again(self, before_backward: Callable[[float], None] | None) -> Gradient | None:
        """Compute another gradient of the minibatch of `draw`, at the present weights; None if there was none."""
        return None if self._drawn is None else await self.compute(self._drawn, before_backward)

    async def compute(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Compute the gradient of minibatch n at the present weights, unaffected by changes that land meanwhile."""

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
        """Return the members' mean gradient, or None when no member has samples left."""
        self.fresh_samples = 0.0
        if group.size == 1:
            g = await self._own()
            group.total_weight = self.fresh_samples
            return g
        mean = await self.averaged(group, self.draw)
        self._present = mean.present
        return mean.g if group.total_weight > 0 else None

    async def averaged(self, group: Group, draw: Draw) -> Gradient:
        """Return the mean of the gradients that members of a group draw, weighted by samples (0 if there were none)."""
        return await self._means.over(group, draw)

    def continue_as(self, other: Learner) -> None:
        """Go on with group, weights, averager and steps of the learner that a strategy made of this one."""
        self.group, self.weights, self.steps, self._averager, self.keepers = (
            other.group,
            other.weights,
            other.steps,
            other.averager_in_use,
            other.keepers,
        )


Strategy = Callable[[Learner], Coroutine[Any, Any, None]]
