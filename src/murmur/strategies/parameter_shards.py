"""Parameter server cut into shards, each served beside the gradients of a learner: all learners train.

    shard s of S:   elements [P s / S, P (s + 1) / S) of the centre c,  held by the learner of rank s
    exchange:       a learner gives a vector x, every shard absorbs its part of x and answers with its part of c

An exchange runs beside the gradients, and at most one of a learner is under way; one that is due earlier is left out.
Dean et al. 2012 cut a parameter server into shards; theirs are processes of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from itertools import pairwise

import torch
from torch import Tensor

from murmur.core.flat import is_finite
from murmur.core.group import Message, PeerLost
from murmur.core.learner import Learner

CENTRE = "centre"  # name of a holder's shard among the vectors of a checkpoint
SHARDS, WAITED = "shards", "shards, waited for"  # tags: of what the activity receives, of answers that a learner awaits
ASK, ANSWER, END = 0.0, 1.0, 2.0  # kinds of messages
NO_ANSWER, BESIDE, AWAITED = 0.0, 1.0, 2.0  # kinds of answers asked for


class ShardRule(ABC):
    """Effect of an exchange on the centre, and on a learner's weights."""

    @abstractmethod
    def absorb(self, centre: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new centre of a shard and its answer. The old centre stays unchanged."""

    @abstractmethod
    def give(self) -> Tensor:
        """Return the vector of an exchange that begins now, shape (P,)."""

    @abstractmethod
    def gave(self, x: Tensor) -> None:
        """Note the vector x that the shards get: that of `give`, as a compression changes it."""

    def ask(self) -> None:  # noqa: B027 - most rules need no note
        """Note that an exchange with an answer begins, after `give`."""

    def restart_at(self, centre: Tensor) -> None:  # noqa: B027 - most rules keep nothing
        """Note that the weights have been set to the centre."""

    @abstractmethod
    def land(self, answer: Tensor) -> None:
        """Change the weights by the answer to the latest exchange, shape (P,). It may land beside a gradient."""


class ParameterShards:
    """One learner's side of a sharded parameter server: its exchanges, and the shard that it may hold.

    Args:
        me: This learner.
        shards: Number of shards S; at most one for each learner counts.
        rule: Rule of the exchanges.

    Attributes:
        under_way: True while an answer is expected.

    Raises:
        PeerLost: This learner was started again, and the shard that it held is lost.
    """

    def __init__(self, me: Learner, shards: int, rule: ShardRule) -> None:
        self.me, self.rule = me, rule
        self.under_way = self._diverged = False
        self.holders = range(min(shards, me.group.size))
        ends = [me.weights.layout.numel * s // len(self.holders) for s in range(len(self.holders) + 1)]
        self._parts = [slice(first, last) for first, last in pairwise(ends)]
        self._known, self._missing, self._over = me.weights.snapshot(), 0, False
        self._launch = float(me.group.count(f"launches of {me.group.rank} with shards", 1))
        if me.group.rank in self.holders:
            if me.seat.late:
                raise PeerLost(f"learner {me.group.rank} was started again: its shard of the parameters is lost")
            me.outer.setdefault(CENTRE, self._known[self._parts[me.group.rank]].clone())
        alive = me.group.membership.view().incarnations
        self._serving = {holder: alive.get(holder) for holder in self.holders}
        me.averager.holders = (0,)
        if me.group.rank == 0:
            me.averager.shown = self.centre
        me.rest = self.rest
        self._activity: Awaitable[None] = me.spawn(self._serve(), "parameter shards")

    def centre(self) -> Tensor:
        """Return the centre as this learner knows it, shape (P,): its shard now, the others at its latest exchange."""
        with self.me.steady:
            known = self._known.clone()
            if self.me.group.rank in self.holders:
                known[self._parts[self.me.group.rank]] = self.me.outer[CENTRE]
        return known

    def exchange(self, give: bool = True, take: bool = True) -> bool:
        """Begin an exchange beside the gradients; return False if one is under way.

        A learner whose weights are not finite gives nothing, and takes the centre.

        Args:
            give: Shards absorb a vector.
            take: Shards answer.
        """
        if self.under_way:
            return False
        with self.me.steady:
            x = self._given() if give else None
            take = take or self._diverged
            if take:
                self.rule.ask()
            self.under_way, self._missing = take, len(self.holders)
            self._ask(x, BESIDE if take else NO_ANSWER)
        return True

    def _given(self) -> Tensor | None:
        """Return the vector that the shards get now; None if it is not finite."""
        x = self.rule.give()
        self._diverged = not is_finite(x)
        if self._diverged:
            return None
        parts = [x[part] for part in self._parts]
        sent = [self.me.group.as_sent(part) for part in parts]
        x = x if all(a is b for a, b in zip(sent, parts, strict=True)) else torch.cat(sent)
        self.rule.gave(x)
        return x

    def _land(self, answer: Tensor) -> None:
        if not is_finite(answer):
            raise FloatingPointError(
                "the server's weights are not finite: training has diverged. Lower the learning rate"
            )
        if self._diverged:
            self.me.weights.set_(answer)
            self.rule.restart_at(answer)
            self._diverged = False
        else:
            self.rule.land(answer)

    async def rest(self) -> None:
        """Exchange, and wait for it: the shards then have absorbed all that this learner has to give."""
        while self.under_way:
            await self.me.seat.sleep(self.me.averager.poll_seconds)
        with self.me.steady:
            x = self._given()
            self.rule.ask()
        answer = await self._awaited(x)
        with self.me.steady:
            self._land(answer)

    async def end(self) -> None:
        """Exchange a last time, then set the weights to the centre that has absorbed the exchanges of all learners."""
        await self.rest()
        self._over, self.me.rest = True, None
        await self.me.averager.meet("all given")
        centre = await self._awaited(None)
        self.me.weights.set_(centre)
        self.rule.restart_at(centre)
        await self.me.averager.meet("all taken")
        self.me.group.post(torch.empty(0), self.me.group.rank, SHARDS, (END, NO_ANSWER, self._launch))
        await self._activity

    def _ask(self, x: Tensor | None, answer: float) -> dict[int, Tensor]:
        """Give all shards their parts of x; return the answers that are known at once, by holder."""
        known: dict[int, Tensor] = {}
        for holder, part in zip(self.holders, self._parts, strict=True):
            given = torch.empty(0) if x is None else x[part]
            if holder != self.me.group.rank:
                self.me.group.post(given, holder, SHARDS, (ASK, answer, self._launch))
                continue
            known[holder] = self.me.group.as_sent(self._absorb(given))  # as the others get it
            if answer == BESIDE:
                self._receive(holder, known[holder])
        return known

    async def _awaited(self, x: Tensor | None) -> Tensor:
        answers = self._ask(x, AWAITED)
        for holder in self.holders:
            while holder not in answers:
                message = await self.me.group.recv(holder, WAITED)
                if message.header == (self._launch,):  # not one that an earlier launch of this learner asked for
                    answers[holder] = message.x
        return torch.cat([answers[holder] for holder in self.holders])

    async def _serve(self) -> None:
        try:
            await self._take_all()
        finally:
            self.under_way = False  # no answer lands any more

    async def _take_all(self) -> None:
        group = self.me.group
        while (message := await group.poll(SHARDS, self.me.averager.poll_seconds)) is None or message.header[0] != END:
            alive = group.membership.view().incarnations
            lost = [holder for holder, was in self._serving.items() if alive.get(holder) != was]
            if lost and not self._over:
                raise PeerLost(f"learner {lost[0]}, which held a shard of the parameters, is lost", lost[0])
            if message is not None:
                self._take(message)

    def _take(self, message: Message) -> None:
        kind, answer, launch = message.header
        if kind == ANSWER:
            if launch == self._launch:
                self._receive(message.source, message.x)
            return
        found = self._absorb(message.x)
        if answer != NO_ANSWER:
            tag, header = (WAITED, (launch,)) if answer == AWAITED else (SHARDS, (ANSWER, NO_ANSWER, launch))
            self.me.group.post(found, message.source, tag, header)

    def _absorb(self, x: Tensor) -> Tensor:
        """Absorb a vector into the shard that this learner holds, if it is not empty; return the answer."""
        with self.me.steady:
            centre = self.me.outer[CENTRE]
            if len(x) == 0:
                return centre
            self.me.outer[CENTRE], answer = self.rule.absorb(centre, x)
            return answer

    def _receive(self, holder: int, x: Tensor) -> None:
        with self.me.steady:
            self._known[self._parts[holder]] = x
            self._missing -= 1
            if self._missing == 0 and self.under_way:
                self._land(self._known)
                self.me.averager.exchanges += 1
                self.under_way = False


async def with_answers(me: Learner, learn: Callable[[Learner], Awaitable[None]]) -> None:
    """Train, and answer beside it the learners that ask for the weights."""
    answers = me.spawn(me.answer(), "answers")
    await learn(me)
    await answers


async def descend_alone(me: Learner) -> None:
    """Train the only learner, which needs no server."""
    async for g in me.claimed_gradients():
        me.descend(g)


def check_counts(**counts: int) -> None:
    """Check that numbers are at least 1.

    Raises:
        ValueError: One is not.
    """
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
