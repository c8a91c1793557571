"""Super-learners: members compute one gradient together; one of them, the leader, runs a strategy.

    G_s = sum_i n_i g_i(w_s) / sum_i n_i        over the members i of super-learner s, summed behind the backward pass

Every member keeps a replica of the leader's weights and optimizer and takes the same steps with the same G_s. Changes
that averaging with other super-learners *adds* to the leader's weights are broadcast to the members beside the next
gradient and land on all replicas, including the leader's, one step late. Weights that averaging *sets* (lock-step
strategies), and those after a step with another gradient than G_s, are broadcast before the next gradient begins. A
message of a few numbers opens every step: the kind of step and its minibatches.

Zhang et al. 2019 (H-ADPSGD). The super-learner is the unit of failure: a lost member takes all of it down.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.group import Group, PeerLost
from murmur.core.learner import Draw, Gradient, Learner
from murmur.core.membership import Preparation, StoppedGracefully
from murmur.core.moments import Moments
from murmur.core.pairwise import POLL_SECONDS
from murmur.core.source import Piece
from murmur.core.weights import Weights

STEP, AHEAD = "step", "ahead"  # tags of messages from the leader
DELTA, WHOLE = "delta", "whole"  # tags of its broadcasts
COMING_SECONDS = 60.0  # for which a member that is started again waits for the others
END, IN_TURN, CLAIMED, AGAIN = 0.0, 1.0, 2.0, 3.0  # kinds of steps


class Opening(NamedTuple):
    """Message of a leader to its members before a step.

    Attributes:
        kind: Kind of the step.
        steps: Gradients that the leader has drawn so far, without this one.
        start, stop: Positions of the minibatches of its claim.
        stepped: True if members repeat the leader's step with the latest gradient of the super-learner.
        alone: Staleness of a step that the leader has taken since its latest gradient and members do not repeat, or -1.
        restarted: True if the optimizer has been reset since.
        due: True if a broadcast of the changes by averaging begins with this step, to land before the next one.
        whole: True if a broadcast of the whole weights comes before this step.
        times: Factor of the strategy on the learning rates.
        decay_times: Factor of the strategy on the weight decay.
        piece, pieces: Piece of the minibatch that members compute, and number of pieces.
        saved: Minibatches completed at the checkpoint that the leader has written since its latest step, or -1.
    """

    kind: float
    steps: float
    start: float
    stop: float
    stepped: float
    alone: float
    restarted: float
    due: float
    whole: float
    times: float
    decay_times: float
    piece: float
    pieces: float
    saved: float


# The numbers of a header after these hold a new assignment: turn, minibatches done, learners.
HEADER_NUMBERS = len(Opening._fields)


class LeaderWeights(Weights):
    """The leader's live weights w_s: its replica, plus additions that have not landed on the replicas yet.

    Attributes:
        strayed: True if the replica has changed in a way that members cannot repeat by themselves.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.strayed = False
        self._due: Tensor | None = None
        self._landing: Tensor | None = None

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        with self.section():
            w = super().snapshot(out)
            for part in (self._landing, self._due):
                if part is not None:
                    w.add_(part)
            return w

    def add_(self, delta: Tensor, alpha: float = 1.0) -> None:
        with self.section():
            self.version += 1
            self._due = delta * alpha if self._due is None else self._due.add_(delta, alpha=alpha)

    def set_(self, w: Tensor) -> None:
        with self.section():
            self._due = self._landing = None
            self.strayed = True
            super().set_(w)

    def turn(self) -> Tensor | None:
        """Between two gradients, apply the additions of the turn before; return those that the members get now.

        If the replica has strayed, all additions land at once, and None is returned: the members get the whole weights.
        """
        with self.section():
            landing, self._landing, self._due = self._landing, self._due, None
            if landing is not None:
                super().add_(landing)
            if self.strayed and self._landing is not None:
                super().add_(self._landing)
                self._landing = None
            return self._landing


class Leader(Learner):
    """A leader as the strategy among super-learners sees it: one learner, with the gradient of the super-learner."""

    def __init__(self, me: Learner, super_learner: Group, leaders: Group, first: Sequence[int]) -> None:
        super().__init__(me.seat, LeaderWeights(me.weights.layout), me.source, me.lock_step, me.outer)
        self.super_learner, self.group, self.keepers = super_learner, leaders, first
        self.unit = super_learner.size
        leaders.adds_beside = False  # one backward pass can feed one sum
        self._live: LeaderWeights = self.weights  # type: ignore[assignment]
        self._own_gradient: Tensor | None = None
        self._stepped = self._restarted = False
        self._alone = -1
        self._apart = me.apart  # True after a step of its optimizer that those of the members have not taken
        self._live.strayed = me.apart
        self._averaged_moments: Moments | None = None  # members, which keep moments of their own, cannot follow
        self._assigned: tuple[float, ...] = ()
        self._sending: list[Awaitable[Tensor]] = []

    def assign(self, done: int, among: int) -> None:
        """Assign all minibatches after the first `done` to the members of the first `among` live super-learners."""
        to = [member for rank in self.group.live[:among] for member in self.members(rank)]
        self.source.assignment = self.source.assignment.anew(self.steps, done, to)
        self._assigned = (self.steps, done, *to)

    def restart(self) -> None:
        super().restart()
        self._restarted, self._apart = True, False

    def descend(self, g: Tensor, staleness: int | None = None) -> None:
        staleness = self.age if staleness is None else staleness
        super().descend(g, staleness)
        own = not (self._apart or self._averaged_moments is not None)
        if g is self._own_gradient and not self._stepped and own:
            self._stepped = True  # the members repeat it
        else:
            self._live.strayed = self._apart = True
            self._alone = staleness if self.training else -1

    @property
    def moments(self) -> Moments:
        """Moments of the leader's optimizer. Once a strategy uses them, the members get its weights after each step."""
        self._averaged_moments = super().moments
        return self._averaged_moments

    def end(self) -> None:
        """End the run of the members, with the leader's weights."""
        self._live.strayed = True
        self._live.turn()
        self._post(self._opening(END), self._live.snapshot())  # a leader that ends takes part in no broadcast

    def _open(self, kind: float, steps: int = 0, claim: range = range(0)) -> None:
        due = self._live.turn()
        whole = self._live.snapshot() if self._live.strayed else None
        opening = self._opening(kind, steps, claim)
        self._post(opening._replace(due=due is not None, whole=whole is not None), self.weights.layout.empty()[:0])
        given = ((DELTA, due), (WHOLE, whole))
        self._sending = [self.super_learner.start_broadcast(x, 0, tag) for tag, x in given if x is not None]
        self._stepped = self._restarted = self._live.strayed = False
        self._alone = -1
        self._assigned = ()

    def _opening(self, kind: float, steps: int = 0, claim: range = range(0)) -> Opening:
        saved, self.saved = -1 if self.saved is None else self.saved, None
        return Opening(
            *(kind, steps, claim.start, claim.stop),
            stepped=self._stepped,
            alone=self._alone,
            restarted=self._restarted,
            due=False,
            whole=False,
            times=self.source.times,
            decay_times=self.source.decay_times,
            piece=self.source.piece.number,
            pieces=self.source.piece.of,
            saved=saved,
        )

    def _post(self, opening: Opening, w: Tensor) -> None:
        for member in range(1, self.super_learner.size):  # without compression: members end with the same bits
            self.super_learner.plain.post(w, member, STEP, (*opening, *self._assigned))

    async def draw(self, before_backward: Callable[[float], None] | None) -> Gradient | None:  # noqa: ARG002
        self._open(IN_TURN, self.steps)
        return await self._of_super_learner(super().draw)

    async def draw_again(self, before_backward: Callable[[float], None] | None) -> Gradient | None:  # noqa: ARG002
        self._open(AGAIN, self.steps)
        return await self._of_super_learner(super().draw_again)

    async def _of_claim(self, claim: range) -> Gradient:
        self.group.membership.expect(self.averager.pace_seconds, self._preparation())
        self._open(CLAIMED, self.steps - 1, claim)
        gradient = await self._of_super_learner(partial(self.compute, self.source.assignment.at(claim.start)))
        assert gradient is not None  # the leader's own minibatch is the first of the claim
        return gradient

    def _preparation(self) -> Preparation:
        """Preparation by all members for a claim held ahead."""
        mine = self.source.preparation
        if not self.seat.works_beside:
            return mine

        def begin(claim: range) -> None:
            mine.begin(claim)
            for member in range(1, len(claim)):
                self.super_learner.post(torch.empty(0), member, AHEAD, (claim[member],))

        return Preparation(mine.seconds, begin)

    async def _of_super_learner(self, draw: Draw) -> Gradient | None:
        before = self.fresh_samples
        gradient = await draw(None) if self.super_learner.size == 1 else await self.averaged(self.super_learner, draw)
        for sent in self._sending:
            await sent
        if gradient is None or gradient.samples == 0:
            return None
        self.fresh_samples = before + gradient.samples
        self._present, self._own_gradient = gradient.present, gradient.g
        return gradient


async def form_again(me: Learner, members: Sequence[int]) -> Group:
    """Form the group of a super-learner that is started again, once all its members are there.

    Its name holds the members' incarnations: those that have not noticed the loss yet belong to another group.

    Raises:
        PeerLost: A member has not come within `COMING_SECONDS`.
    """
    deadline = me.seat.now + COMING_SECONDS
    while True:
        here = me.group.membership.view(fresh=True).incarnations
        absent = [member for member in members if member not in here]
        if not absent:
            formed = me.group.among(members, f"members {[(member, here[member]) for member in members]}")
            try:
                await formed.meet("all members are there")
            except PeerLost as lost:
                formed.close()
                absent = [member for member in members if member == lost.learner] or list(members)
            else:
                return formed
        if me.seat.now > deadline:
            raise PeerLost(
                f"learner {absent[0]} has not come within {COMING_SECONDS:.0f} s, and its super-learner of learners"
                f" {list(members)} cannot be started again without it",
                absent[0],
            )
        await me.seat.sleep(POLL_SECONDS)


class Replica:
    """A member's side of the leader's broadcasts."""

    def __init__(self, weights: Weights, super_learner: Group) -> None:
        self._weights, self._super_learner = weights, super_learner
        self._room = {tag: weights.layout.empty() for tag in (DELTA, WHOLE)}  # written by some broadcasts
        self._due: Awaitable[Tensor] | None = None

    async def catch_up(self, opening: Opening, w: Tensor) -> None:
        """Bring the weights to those of the leader at an opening, and take part in the broadcasts that begin with it.

        Args:
            opening: The leader's message.
            w: Weights sent with it, at the end; else empty.
        """
        if self._due is not None:
            self._weights.add_(await self._due)
        self._due = self._begin(DELTA) if opening.due else None
        if opening.whole:
            w = await self._begin(WHOLE)
        if len(w):
            self._weights.set_(w)

    def _begin(self, tag: str) -> Awaitable[Tensor]:
        return self._super_learner.start_broadcast(self._room[tag], 0, tag)


async def follow(me: Learner, super_learner: Group) -> None:
    """Run a member: compute gradients as the leader's messages say, and keep a replica of its weights.

    Raises:
        StoppedGracefully: The leader has stopped on request.
    """
    me.lock_step = True  # a member goes in step with its leader
    preparing = me.spawn(_prepare(me, super_learner), "shares ahead") if me.seat.works_beside else None
    try:
        await _follow(me, super_learner)
    finally:
        if preparing is not None:
            super_learner.post(torch.empty(0), super_learner.rank, AHEAD)
    if preparing is not None:
        await preparing


async def _follow(me: Learner, super_learner: Group) -> None:
    mean: Gradient | None = None
    replica = Replica(me.weights, super_learner)
    while True:
        w, _, header = await super_learner.plain.recv(0, STEP)
        opening, assigned = Opening(*header[:HEADER_NUMBERS]), [int(number) for number in header[HEADER_NUMBERS:]]
        if opening.stepped and mean is not None:
            me.repeat(mean)
        if opening.alone >= 0 and mean is not None:
            me.source.followed(int(opening.alone))
        if opening.restarted:
            me.restart()
        await replica.catch_up(opening, w)
        if opening.saved >= 0 and opening.kind != CLAIMED:
            await me.saved_by_leader(int(opening.saved))
        if opening.kind == END:
            if opening.saved >= 0:
                raise StoppedGracefully(int(opening.saved))
            return
        me.source.times, me.source.decay_times, me.steps = opening.times, opening.decay_times, int(opening.steps)
        if assigned:
            me.source.assignment = me.source.assignment.anew(assigned[0], assigned[1], assigned[2:])
        me.source.piece = Piece(int(opening.piece), int(opening.pieces))
        claim = range(int(opening.start), int(opening.stop))
        draw = {IN_TURN: me.draw, AGAIN: me.draw_again}.get(
            opening.kind, partial(_share, me, claim, super_learner.rank)
        )
        mean = await me.averaged(super_learner, draw)


async def _share(
    me: Learner, claim: range, rank: int, before_backward: Callable[[float], None] | None
) -> Gradient | None:
    """Compute the minibatch at this member's rank of the claim, if there is one."""
    me.steps += 1
    me.source.claimed(claim, me.steps)
    return await me.compute(me.source.assignment.at(claim[rank]), before_backward) if rank < len(claim) else None


async def _prepare(me: Learner, super_learner: Group) -> None:
    """Prepare this member's minibatches of claims that the leader holds ahead, until it posts the end to itself."""
    while (message := await super_learner.poll(AHEAD, math.inf)) is not None and message.header:
        n = int(message.header[0])
        me.source.preparation.begin(range(n, n + 1))
