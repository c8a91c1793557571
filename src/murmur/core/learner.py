"""A learner as a strategy sees it, by convention under the name `me`.

A strategy is a coroutine written from one learner's point of view, `async def strategy(me)`. `await` means only "the
world may let time pass here"; the same text runs on a virtual clock, in threads and in processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from torch import Tensor

from murmur.core.group import Group, Message, PeerLost
from murmur.core.learner_state import LeaderCheckpoints, StrategyVectors, SuperLearnerRole
from murmur.core.local_steps import LocalSteps
from murmur.core.moments import Moments
from murmur.core.pairwise import PairwiseAverager
from murmur.core.source import WHOLE, Gradient, Piece, Progress, Source, StepSettings
from murmur.core.weights import Weights
from murmur.core.world import Seat

__all__ = ["Gradient", "Learner", "Progress", "Strategy"]
T = TypeVar("T")
ALONE_SECONDS = 60.0  # for which a server without workers waits; one that is started again needs less


class Learner:
    """One learner: its place in the world, its live weights, its gradients.

    Attributes:
        lock_step: All learners take their gradients and means together, as the strategy declares (`Facts.lock_step`).
        outer: Vectors of the strategy that a checkpoint must hold (block momentum); empty at a first start.
        latest: Positions of the minibatches of its latest claim.
        local: Its own gradients and steps; those of its super-learner, if it leads one.
        role: Its role among super-learners.
        checkpoints: Checkpoints of its super-learner.
    """

    def __init__(
        self,
        seat: Seat,
        weights: Weights,
        source: Source,
        lock_step: bool = True,
        outer: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.seat, self.lock_step = seat, lock_step
        self.local = LocalSteps(seat, seat.group, weights, source)
        self.outer = StrategyVectors(outer or {})
        self.role, self.checkpoints = SuperLearnerRole(), LeaderCheckpoints()
        self.latest = range(0)
        self._consensuses = 0

    @property
    def group(self) -> Group:
        """Learners that it works with."""
        return self.local.group

    @group.setter
    def group(self, group: Group) -> None:
        self.local.group = group

    @property
    def weights(self) -> Weights:
        """Its live weights w_i."""
        return self.local.weights

    @property
    def steps(self) -> int:
        """Gradients drawn so far (turns, for a learner that had none left)."""
        return self.local.steps

    @property
    def fresh_samples(self) -> float:
        """Samples of the gradients drawn since the latest `gradients()` or `gradient()` began."""
        return self.local.fresh_samples

    @property
    def averager(self) -> PairwiseAverager:
        """This learner's pairwise averager.

        Raises:
            RuntimeError: The strategy has not declared `lock_step = False`.
        """
        if self.lock_step:
            raise RuntimeError("pairwise averaging and claims are for strategies that declare lock_step = False")
        return self.local.averager

    @property
    def settings(self) -> StepSettings:
        """Settings of the local optimizer's steps that a strategy may change."""
        return self.local.source.local_optimizer

    @property
    def moments(self) -> Moments:
        """Moments of the local optimizer, which a strategy may average."""
        return self.local.moments

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
        return self.local.source.progress()

    def progress_at(self, minibatches: int) -> Progress:
        """Return the progress of the run after so many minibatches of all learners."""
        return self.local.source.progress_at(minibatches)

    @property
    def reached(self) -> Progress:
        """Progress of the run at the moment when every learner has taken as many gradients as this one.

        It is the same for all learners between rounds.
        """
        return self.progress_at(self.local.source.turns.reached(self.steps))

    @property
    def turns_done(self) -> int:
        """Number of turns of the lock-step run that are complete, those before a resume included."""
        return self.progress.minibatches // len(self.local.source.turns.assignment.to)

    async def gradient(self) -> Tensor:
        """Return one gradient g_i(w_i), shape (P,); zeros with `fresh_samples == 0` when the budget is spent.

        Average it with `weight=me.fresh_samples`; `me.training` then turns False for all learners at once.
        """
        await self.local.source.boundary(self)
        self.local.fresh_samples = 0.0
        return self.local.usable(await self.local.draw(None))

    async def turns(self) -> AsyncIterator[Tensor]:
        """Yield gradients g_i(w_i) while *any* learner has a minibatch, so that all learners take equally many turns.

        A learner without a minibatch gets zeros, and `fresh_samples == 0`.
        """
        await self.seat.ready(self.weights, self.group)
        while not self.local.source.over(self.steps):
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
        local = self.local
        local.fresh_samples = 0.0
        taken = 0
        while at_most is None or taken < at_most:
            if taken == 0 or mean_over is not None:
                await self.between_rounds()
            local.source.piece = Piece(0, pieces)
            g = await (local.of_turn() if mean_over is None else local.mean_of_turn(mean_over))
            taken += 1
            if g is None:
                local.steps += (at_most or taken) - taken  # all learners count turns without a minibatch too
                return
            yield g
            for number in range(1, pieces):
                local.source.piece = Piece(number, pieces)
                yield local.usable(await local.draw_again(None))
            local.source.piece = WHOLE

    async def between_rounds(self) -> None:
        """Evaluate, save checkpoints and admit late learners, right after an average. `gradients` begins with it."""
        await self.local.source.boundary(self)
        await self.group.welcome()

    async def claimed_gradients(self) -> AsyncIterator[Tensor]:
        """Yield gradients g_i(phi_i), shape (P,), of minibatches claimed first come, first served.

        Ends when every minibatch of the budget is done. The unfinished minibatch of a lost learner goes to another one.
        """
        local = self.local
        if self.seat.late:
            await self.averager.catch_up()
        while (claim := await self._claim()) is not None:
            local.fresh_samples = 0.0
            local.steps += 1
            self.latest = claim
            local.source.claimed(claim, local.steps)
            await local.source.boundary(self)
            began = self.seat.now
            self.group.membership.expect(self.averager.pace_seconds, local.preparation)
            gradient = await local.of_claim(claim)
            self.averager.note_gradient_seconds(self.seat.now - began + local.beside_seconds)
            local.beside_seconds = 0.0
            yield gradient.g
        self.averager.done()

    async def _claim(self) -> range | None:
        membership, size = self.group.membership, len(self.role.members(self.group.rank))
        waited = await self.seat.ready(self.weights, self.group)
        self.local.beside_seconds += waited  # read behind the wait, during which others may change it
        while (claim := membership.claim(*self.local.source.span, size)) is None and not membership.spent:
            await self.seat.sleep(self.averager.poll_seconds)
        return claim

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
            await self.local.source.boundary(self)
            if message is not None:
                yield message
            if self.group.size == 1 or {*self.view} - {self.group.rank, *self.averager.servers}:
                last_seen = self.seat.now
            elif self.seat.now - last_seen > ALONE_SECONDS:
                raise PeerLost(f"all other learners are lost, and none has come back within {ALONE_SECONDS:.0f} s")
        self.averager.done()

    def credit(self, claim: range, loss: float, compute_seconds: float) -> list[int]:
        """Count another learner's gradient, of this claim and with this loss, as the one of the next step.

        Its seconds are added to those that this learner computed. Returns the numbers of its minibatches.
        """
        return self.local.credit(claim, loss, compute_seconds)

    def note_claims(self, end: int) -> None:
        """Note that all minibatches before the position `end` are claimed, for a server without gradients."""
        self.local.source.claimed(range(end, end), self.steps)

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
        """Assign all minibatches after the first `done` to the first `among` live learners, from this turn on.

        Among leaders these are the members of the first super-learners.
        """
        self.local.assign(done, [n for rank in self.group.live[:among] for n in self.role.members(rank)])

    def descend(self, g: Tensor, staleness: int | None = None) -> None:
        """w_i <- w_i + the local optimizer's step for g (plain SGD: - alpha g). Does nothing after the end of training.

        A tensor that had no gradient and whose part of g is zero is left alone, as in a plain PyTorch loop.

        Args:
            g: Gradient, shape (P,).
            staleness: Recorded staleness; by default the number of changes of w_i since the latest gradient was begun.
        """
        if self.training:
            self.local.descend(g, staleness)

    def restart(self) -> None:
        """Reset the local optimizer (momentum, second moments, step counts) but not its settings."""
        self.local.restart()

    def spawn(self, activity: Coroutine[Any, Any, T], what: str = "background") -> Awaitable[T]:
        """Start an activity beside the gradients. If it fails, the learner's next gradient raises."""
        return self.seat.spawn(activity, what)

    def evaluate(self, w: Tensor | None = None) -> Mapping[str, float]:
        """Return held-out figures of the weights w (P,); of this learner's weights by default."""
        return self.local.source.evaluate(self.weights.snapshot() if w is None else w)


Strategy = Callable[[Learner], Coroutine[Any, Any, None]]
