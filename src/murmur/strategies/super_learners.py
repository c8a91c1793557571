"""Super-learners: their members take the gradients of one large learner; the super-learners run any other strategy.

    G_s = sum_i n_i g_i(w_s) / sum_i n_i      i: the members of super-learner s;      then `outer` with G_s for g

`SuperLearners(ADPSGD(), 8)` is H-ADPSGD: sums inside super-learners of eight behind the backward pass, an asynchronous
ring among them. Zhang et al. 2019. With SyncSGD as `outer` it is SyncSGD.

One of the members, the leader, runs the strategy. Every member keeps a replica of the leader's weights and optimizer
and takes the same steps with the same G_s. Changes that averaging with other super-learners *adds* to the leader's
weights are broadcast to the members beside the next gradient and land on all replicas, including the leader's, one step
late. Weights that averaging *sets* (lock-step strategies), and those after a step with another gradient than G_s, are
broadcast before the next gradient begins. A message of a few numbers opens every step: the kind of step and its
minibatches. The super-learner is the unit of failure: a lost member takes all of it down.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from murmur.core.facts import Facts, FactsOfInner, Form, Planner, layers, training_learners, vectors_of
from murmur.core.flat import Layout
from murmur.core.group import Group, PeerLost
from murmur.core.learner import Learner, Strategy
from murmur.core.local_steps import Draw, LocalSteps
from murmur.core.membership import Preparation, RunOver, StoppedGracefully
from murmur.core.moments import Moments
from murmur.core.pairwise import POLL_SECONDS
from murmur.core.source import Gradient, Piece
from murmur.core.weights import Weights
from murmur.strategies.adpsgd import ADPSGD

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

    def pull_(self, theirs: Tensor, mine: Tensor, alpha: float) -> None:
        self.add_(theirs - mine, alpha)

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


class Leader(LocalSteps):
    """Gradients and steps of a super-learner, as its leader takes them in the place of its own."""

    def __init__(self, me: Learner, super_learner: Group, leaders: Group) -> None:
        self._live = LeaderWeights(me.weights.layout)
        super().__init__(me.seat, leaders, self._live, me.local.source)
        self.super_learner, self._checkpoints = super_learner, me.checkpoints
        leaders.adds_beside = False  # one backward pass can feed one sum
        self._own_gradient: Tensor | None = None
        self._stepped = self._restarted = False
        self._alone = -1
        self._apart = me.role.apart  # True after a step of its optimizer that those of the members have not taken
        self._live.strayed = me.role.apart
        self._averaged_moments = False  # members, which keep moments of their own, cannot follow
        self._assigned: tuple[float, ...] = ()
        self._sending: list[Awaitable[Tensor]] = []

    def assign(self, done: int, to: Sequence[int]) -> None:
        super().assign(done, to)
        self._assigned = (self.steps, done, *to)

    def restart(self) -> None:
        super().restart()
        self._restarted, self._apart = True, False

    def descend(self, g: Tensor, staleness: int | None) -> None:
        staleness = self.age if staleness is None else staleness
        super().descend(g, staleness)
        if g is self._own_gradient and not (self._stepped or self._apart or self._averaged_moments):
            self._stepped = True  # the members repeat it
        else:
            self._live.strayed = self._apart = True
            self._alone = staleness

    @property
    def moments(self) -> Moments:
        """Moments of the leader's optimizer. Once a strategy uses them, the members get its weights after each step."""
        self._averaged_moments = True
        return super().moments

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
        saved = self._checkpoints.take()
        return Opening(
            *(kind, steps, claim.start, claim.stop),
            stepped=self._stepped,
            alone=self._alone,
            restarted=self._restarted,
            due=False,
            whole=False,
            times=self.source.local_optimizer.times,
            decay_times=self.source.local_optimizer.decay_times,
            piece=self.source.piece.number,
            pieces=self.source.piece.of,
            saved=-1 if saved is None else saved,
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

    async def of_claim(self, claim: range) -> Gradient:
        self._open(CLAIMED, self.steps - 1, claim)
        gradient = await self._of_super_learner(partial(self.compute, self.source.turns.assignment.at(claim.start)))
        assert gradient is not None  # the leader's own minibatch is the first of the claim
        return gradient

    @property
    def preparation(self) -> Preparation:
        """Preparation by all members for a claim held ahead."""
        mine = super().preparation
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
    preparing = me.spawn(_prepare(me.local, super_learner), "shares ahead") if me.seat.works_beside else None
    try:
        await _follow(me, me.local, super_learner)
    finally:
        if preparing is not None:
            super_learner.post(torch.empty(0), super_learner.rank, AHEAD)
    if preparing is not None:
        await preparing
    me.role.follows = True


async def _follow(me: Learner, local: LocalSteps, super_learner: Group) -> None:
    mean: Gradient | None = None
    replica, source = Replica(local.weights, super_learner), local.source
    while True:
        w, _, header = await super_learner.plain.recv(0, STEP)
        opening, assigned = Opening(*header[:HEADER_NUMBERS]), [int(number) for number in header[HEADER_NUMBERS:]]
        if opening.stepped and mean is not None:
            local.repeat(mean)
        if opening.alone >= 0 and mean is not None:
            source.followed(int(opening.alone))
        if opening.restarted:
            local.restart()
        await replica.catch_up(opening, w)
        if opening.saved >= 0 and opening.kind != CLAIMED:
            me.checkpoints.told = int(opening.saved)
            await source.boundary(me)
            me.checkpoints.told = None
        if opening.kind == END:
            if opening.saved >= 0:
                raise StoppedGracefully(int(opening.saved))
            return
        optimizer = source.local_optimizer
        optimizer.times, optimizer.decay_times, local.steps = opening.times, opening.decay_times, int(opening.steps)
        if assigned:
            source.turns.assignment = source.turns.assignment.anew(assigned[0], assigned[1], assigned[2:])
        source.piece = Piece(int(opening.piece), int(opening.pieces))
        claim = range(int(opening.start), int(opening.stop))
        share = partial(_share, local, claim, super_learner.rank)
        draw = {IN_TURN: local.draw, AGAIN: local.draw_again}.get(opening.kind, share)
        mean = await local.averaged(super_learner, draw)


async def _share(
    local: LocalSteps, claim: range, rank: int, before_backward: Callable[[float], None] | None
) -> Gradient | None:
    local.steps += 1
    local.source.claimed(claim, local.steps)
    if rank >= len(claim):
        return None
    return await local.compute(local.source.turns.assignment.at(claim[rank]), before_backward)


async def _prepare(local: LocalSteps, super_learner: Group) -> None:
    """Prepare this member's minibatches of claims that the leader holds ahead, until it posts the end to itself."""
    while (message := await super_learner.poll(AHEAD, math.inf)) is not None and message.header:
        n = int(message.header[0])
        local.source.preparation.begin(range(n, n + 1))


@dataclass(frozen=True)
class SuperLearners(FactsOfInner):
    """Super-learners that run another strategy.

    Attributes:
        outer: Strategy of the super-learners.
        node_size: Learners of a super-learner; the last one has the remainder.

    Raises:
        ValueError: `node_size` is less than 1, or `outer` runs super-learners too.
    """

    outer: Strategy = field(default_factory=ADPSGD)
    node_size: int = 2

    def __post_init__(self) -> None:
        if self.node_size < 1:
            raise ValueError(f"SuperLearners needs node_size >= 1, got {self.node_size}")
        if any(isinstance(layer, SuperLearners) for layer in layers(self.outer)):
            raise ValueError("SuperLearners stands twice in one strategy: choose one node_size, the product of both")

    async def __call__(self, me: Learner) -> None:
        size = me.group.size
        first = range(0, size, self.node_size)
        members = [range(s, min(s + self.node_size, size)) for s in first]
        super_learner = me.group.split([] if me.seat.late else members)
        if me.seat.late:
            super_learner = await form_again(me, members[me.group.rank // self.node_size])
        leaders = me.group.split([first])
        assert super_learner is not None
        if leaders is None:
            await follow(me, super_learner)
            return
        me.local = leader = Leader(me, super_learner, leaders)
        me.role.lead(first, size)
        try:
            await self.outer(me)
        except (RunOver, StoppedGracefully):
            leader.end()
            raise
        me.checkpoints.take()  # a server has told its members of no checkpoint; here it would mean a stop
        leader.end()

    @property
    def inner(self) -> Strategy:
        return self.outer

    @property
    def gradients_a_step(self) -> int | None:
        outer = Facts.of(self.outer).gradients_a_step
        return None if outer is None else outer * self.node_size

    @property
    def tolerates_loss(self) -> bool:
        outer = Facts.of(self.outer)
        return outer.tolerates_loss and not outer.lock_step  # leaders form no elastic group

    def training_learners(self, learners: int) -> int:
        """Return the learners but the members of the first super-learners, if these serve."""
        leaders = -(-learners // self.node_size)
        return learners - self.node_size * (leaders - training_learners(self.outer, leaders))

    def vectors_sent(self, learners: int, samples: float) -> float:
        """Sums inside super-learners, messages among leaders, and copies from each leader to its members.

        Members get a copy after each exchange among leaders; where exchanges only add to weights, one a gradient.
        """
        leaders = -(-learners // self.node_size)
        members = (learners - leaders) / learners  # the last super-learner may be smaller
        outer = vectors_of(self.outer, leaders, samples)  # frames between averages are those of a member
        copies = 0.0 if outer == 0 else members / (Facts.of(self.outer).sets_weights_every or 1)
        return 2 * members + outer * leaders / learners + copies

    @property
    def least_learners(self) -> int:
        return self.node_size

    def planned(self, planner: Planner) -> Form:
        return planner.nodes(self.outer, self.node_size)
