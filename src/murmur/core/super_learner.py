"""A super-learner: the members of a node compute one gradient together; one of them, the leader, runs a strategy.

    G_s = sum_i n_i g_i(w_s) / sum_i n_i        over the members i of node s, added up behind the backward pass

Every member keeps a replica of the leader's weights and optimizer and takes the same steps with the same G_s. What
averaging with other nodes *adds* to the leader's weights travels to the members beside the next gradient and lands on
all replicas, the leader's too, one step late. What it *sets* (lock-step strategies), or a step that is not one with
G_s, is sent before the next gradient begins. A letter of a few numbers opens every step: what to do, which minibatches.

Zhang et al. 2019 (H-ADPSGD). The node is the unit of failure: a member that is lost takes its node with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.group import Group
from murmur.core.learner import Draw, Gradient, Learner
from murmur.core.membership import Preparation, StoppedGracefully
from murmur.core.weights import Weights

STEP, DELTA, AHEAD = "step", "delta", "ahead"  # tags of letters from the leader
END, IN_TURN, CLAIMED = 0.0, 1.0, 2.0  # what a step is


class Opening(NamedTuple):
    """What a leader says to its members before a step.

    Attributes:
        kind: of the step.
        steps: gradients that the leader has drawn so far, this one not counted.
        start, stop: positions of the minibatches of its claim.
        stepped: whether members repeat the leader's step with the latest gradient of the node.
        restarted: whether the optimizer has forgotten everything since.
        due: whether what averaging has added follows.
        times: factor of the strategy on the learning rates.
        saved: minibatches behind at the checkpoint that the leader has written since its latest step, or -1.
    """

    kind: float
    steps: float
    start: float
    stop: float
    stepped: float
    restarted: float
    due: float
    times: float
    saved: float


SAID = len(Opening._fields)  # numbers; those after them say to which learners minibatches are dealt, and since when


class LeaderWeights(Weights):
    """The leader's live weights w_s: its replica, and what has been added but has not landed on the replicas yet.

    Attributes:
        strayed: whether the replica has changed in a way that members cannot repeat by themselves.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.strayed = False
        self._due: Tensor | None = None
        self._landing: Tensor | None = None

    def snapshot(self) -> Tensor:
        with self._section():
            w = super().snapshot()
            for part in (self._landing, self._due):
                if part is not None:
                    w.add_(part)
            return w

    def add_(self, delta: Tensor, alpha: float = 1.0) -> None:
        with self._section():
            self.version += 1
            self._due = delta * alpha if self._due is None else self._due.add_(delta, alpha=alpha)

    def set_(self, w: Tensor) -> None:
        with self._section():
            self._due = self._landing = None
            self.strayed = True
            super().set_(w)

    def turn(self) -> Tensor | None:
        """Between two gradients: what was due at the turn before lands; gives what is due now."""
        with self._section():
            landing, self._landing, self._due = self._landing, self._due, None
            if landing is not None:
                super().add_(landing)
            return self._landing


class Leader(Learner):
    """A node's leader as the strategy among nodes sees it: one learner, whose gradient is the node's."""

    def __init__(self, me: Learner, node: Group, leaders: Group, first: Sequence[int]) -> None:
        super().__init__(me.seat, LeaderWeights(me.weights.layout), me.source)
        self.node, self.group, self.keepers = node, leaders, first
        self.unit, self.outer = node.size, me.outer
        leaders.adds_beside = False  # one backward pass can feed one sum
        self._live: LeaderWeights = self.weights  # type: ignore[assignment]
        self._of_this_node: Tensor | None = None
        self._stepped = self._restarted = False
        self._dealt: tuple[float, ...] = ()

    def deal(self, done: int, among: int) -> None:
        """What comes after the first `done` minibatches goes to the members of the first `among` live nodes."""
        to = [member for node in self.group.live[:among] for member in self.members(node)]
        self.source.assignment = self.source.assignment.anew(self.steps, done, to)
        self._dealt = (self.steps, done, *to)

    def restart(self) -> None:
        super().restart()
        self._restarted = True

    def descend(self, g: Tensor, staleness: int | None = None) -> None:
        super().descend(g, staleness)
        if g is self._of_this_node and not self._stepped:
            self._stepped = True  # the members repeat it
        else:
            self._live.strayed = True

    def end(self) -> None:
        """The members end with the leader's weights."""
        self._live.strayed = True
        self._open(END)

    def _open(self, kind: float, steps: int = 0, claim: range = range(0)) -> None:
        due = self._live.turn()
        w = self._live.snapshot() if self._live.strayed else self.weights.layout.empty()[:0]
        saved, self.saved = -1 if self.saved is None else self.saved, None
        opening = Opening(
            *(kind, steps, claim.start, claim.stop, self._stepped, self._restarted, due is not None),
            times=self.source.times,
            saved=saved,
        )
        header = (*opening, *self._dealt)
        for member in range(1, self.node.size):
            self.node.post(w, member, STEP, header)
            if due is not None:
                self.node.post(due, member, DELTA)
        self._stepped = self._restarted = self._live.strayed = False
        self._dealt = ()

    async def draw(self, before_backward: Callable[[float], None] | None) -> Gradient | None:  # noqa: ARG002
        self._open(IN_TURN, self.steps)
        return await self._of_node(super().draw)

    async def _of_claim(self, claim: range) -> Gradient:
        self.group.membership.expect(self.averager.pace_seconds, self._preparation())
        self._open(CLAIMED, self.steps - 1, claim)
        gradient = await self._of_node(partial(self.compute, self.source.assignment.at(claim.start)))
        assert gradient is not None  # the leader's own minibatch is the first of the claim
        return gradient

    def _preparation(self) -> Preparation:
        """Of a claim that is held ahead the members prepare their shares too."""
        mine = self.source.preparation
        if not self.seat.works_beside:
            return mine

        def begin(claim: range) -> None:
            mine.begin(claim)
            for member in range(1, len(claim)):
                self.node.post(torch.empty(0), member, AHEAD, (claim[member],))

        return Preparation(mine.seconds, begin)

    async def _of_node(self, draw: Draw) -> Gradient | None:
        before = self.fresh_samples
        gradient = await draw(None) if self.node.size == 1 else await self.averaged(self.node, draw)
        if gradient is None or gradient.samples == 0:
            return None
        self.fresh_samples = before + gradient.samples
        self._present, self._of_this_node = gradient.present, gradient.g
        return gradient


async def follow(me: Learner, node: Group) -> None:
    """Be a member of a node: compute what the leader's letters say, and keep a replica of its weights.

    Raises:
        Halted: the leader has stopped, as it was asked to.
    """
    preparing = me.spawn(_prepare(me, node), "shares ahead") if me.seat.works_beside else None
    try:
        await _follow(me, node)
    finally:
        if preparing is not None:
            node.post(torch.empty(0), node.rank, AHEAD)
    if preparing is not None:
        await preparing


async def _follow(me: Learner, node: Group) -> None:
    mean: Gradient | None = None
    due = False
    while True:
        w, _, header = await node.recv(0, STEP)
        opening, dealt = Opening(*header[:SAID]), [int(number) for number in header[SAID:]]
        if opening.stepped and mean is not None:
            me.repeat(mean)
        if opening.restarted:
            me.restart()
        if due:
            me.weights.add_((await node.recv(0, DELTA)).x)
        if len(w):
            me.weights.set_(w)
        if opening.saved >= 0 and opening.kind != CLAIMED:
            me.told = int(opening.saved)
            await me.source.boundary(me)
            me.told = None
        if opening.kind == END:
            if opening.saved >= 0:
                raise StoppedGracefully(int(opening.saved))
            return
        due, me.source.times, me.steps = opening.due > 0, opening.times, int(opening.steps)
        if dealt:
            me.source.assignment = me.source.assignment.anew(dealt[0], dealt[1], dealt[2:])
        claim = range(int(opening.start), int(opening.stop))
        mean = await me.averaged(node, me.draw if opening.kind == IN_TURN else partial(_share, me, claim, node.rank))


async def _share(
    me: Learner, claim: range, rank: int, before_backward: Callable[[float], None] | None
) -> Gradient | None:
    """The minibatch of a member of this rank, if the claim has so many."""
    me.steps += 1
    me.source.claimed(claim, me.steps)
    return await me.compute(me.source.assignment.at(claim[rank]), before_backward) if rank < len(claim) else None


async def _prepare(me: Learner, node: Group) -> None:
    """Prepare this member's shares of claims that the leader holds ahead, until it writes to itself that it is over."""
    while (message := await node.poll(AHEAD, math.inf)) is not None and message.header:
        n = int(message.header[0])
        me.source.preparation.begin(range(n, n + 1))
