"""Parameter server cut into shards.

    shard s of S:   part s of the centre c, elements [P s / S, P (s + 1) / S) of (P,), held by the learner of rank s
    exchange:       a learner gives a vector x, every shard absorbs its part of x and answers with its part of c

The holder of a shard serves it beside its gradients, so that all learners train, or takes no gradients and only serves.
An exchange runs beside the gradients, and at most one of a learner is under way; one that is due earlier is left out.
Dean et al. 2012 cut a parameter server into shards on processes of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from murmur.core.facts import Form, Planner, beside_servers
from murmur.core.flat import is_finite
from murmur.core.group import Barrier, Message, PeerLost
from murmur.core.learner import Learner
from murmur.core.membership import RunOver
from murmur.core.trace import WAITING

PART = "part"  # name of the bounds of a holder's part, and of P, among the vectors of a checkpoint
CENTRE = "centre"  # name of a holder's shard among the vectors of a checkpoint
SHARDS, WAITED = "shards", "shards, waited for"  # tags: of what the activity receives, of answers that a learner awaits
GIVEN, TAKEN = "all given", "all taken"  # barriers at the end
CLAIMED = "claimed"  # tag of what learners tell those that only serve
ASK, ANSWER, END = 0.0, 1.0, 2.0  # kinds of messages
NO_ANSWER, BESIDE, AWAITED = 0.0, 1.0, 2.0  # kinds of answers asked for


def parts_of(numel: int, count: int) -> tuple[slice, ...]:
    """Return `count` parts of a vector of `numel` elements; raise ValueError if it has fewer elements."""
    if count > numel:
        raise ValueError(f"a model of {numel} elements cannot be cut in {count} parts")
    return tuple(slice(first, last) for first, last in pairwise(numel * s // count for s in range(count + 1)))


def keep_part(me: Learner, part: slice) -> None:
    """Record that this learner keeps a part of the model, in its checkpoints too.

    Raises:
        PeerLost: This learner was started again, so that the part is lost.
        ValueError: The checkpoint from which the run continues has the model cut in another way.
    """
    if me.seat.late:
        raise PeerLost(f"learner {me.group.rank} was started again: its part of the parameters is lost", me.group.rank)
    bounds = torch.tensor([part.start, part.stop, me.weights.layout.numel])
    kept = me.outer.setdefault(PART, bounds)
    if kept.tolist() != bounds.tolist():
        raise ValueError(
            f"the checkpoint of learner {me.group.rank} holds elements {_shown(kept.tolist())} of the model, but"
            f" it serves {_shown(bounds.tolist())} now: continue with the number of servers or shards of the checkpoint"
        )


async def next_answer(me: Learner, tag: str, holders: Mapping[int, int | None], check: Callable[[], None]) -> Message:
    """Return the next answer under a tag from a holder of a part.

    Args:
        me: Learner that waits.
        tag: Tag of the answers.
        holders: Ranks that are still to answer, and their incarnations when they began to serve.
        check: Raises `RunOver` if the others have passed a barrier without this learner. Holders do not answer after
            that.

    Raises:
        PeerLost: One of these holders is lost, or was lost for a while, so that it may serve no more.
    """
    came = me.seat.trace.now()
    while (message := await me.group.poll(tag, me.averager.poll_seconds)) is None:
        check()
        check_holders(me, holders)
    me.seat.trace.add(WAITING, came, me.seat.trace.now(), f"a message {tag!r}")
    return message


def incarnations(me: Learner, holders: Iterable[int]) -> dict[int, int | None]:
    """Return the present incarnations of holders; None for a lost one."""
    alive = me.group.membership.view().incarnations
    return {holder: alive.get(holder) for holder in holders}


def check_holders(me: Learner, holders: Mapping[int, int | None]) -> None:
    """Raise `PeerLost` unless all holders are there, in these incarnations."""
    alive = me.group.membership.view().incarnations
    for holder, incarnation in holders.items():
        if alive.get(holder, -1) != incarnation:
            raise PeerLost(f"learner {holder}, which held a part of the parameters, is lost", holder)


def _shown(bounds: list[int]) -> str:
    return f"{bounds[0]} to {bounds[1] - 1} of {bounds[2]}"


def check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


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


class ServedShards(ABC):
    """One learner's side of a vector that is cut into shards: the shard that it may hold, and the end of a run.

    Args:
        me: This learner.
        shards: Number of shards S beside gradients; at most one for each learner and each element counts.
        servers: Number of first ranks that only serve, with a shard each; 0: shards lie beside gradients.

    Attributes:
        holders: Ranks that hold a shard.
        serves_only: True if this learner takes no gradients.
        under_way: True while an answer is expected.

    Raises:
        PeerLost: This learner was started again, and the shard that it held is lost.
        ValueError: The checkpoint from which the run continues has other shards, or the model has fewer elements than
            `servers`.
    """

    def __init__(self, me: Learner, shards: int, servers: int) -> None:
        self.me, self.under_way = me, False
        numel = me.weights.layout.numel
        self.holders = range(servers or min(shards, me.group.size, numel))
        self.serves_only = me.group.rank < servers
        self._parts = parts_of(numel, len(self.holders))
        self._known, self._missing, self._over = me.weights.snapshot(), 0, False
        self._launch = float(me.group.count(f"launches of {me.group.rank} with shards", 1))
        averager = me.averager
        averager.servers, averager.holders, averager.parts = range(servers), tuple(self.holders), self._parts
        if me.group.rank in self.holders:
            keep_part(me, self._parts[me.group.rank])
            me.outer.setdefault(CENTRE, self._known[self._parts[me.group.rank]].clone())
            averager.shown = self.shard
        self._serving = incarnations(me, self.holders)
        me.outer.rest = _nothing if self.serves_only else self.rest

    def begin(self) -> None:
        """Begin to serve."""
        self._activity: Awaitable[None] = self.me.spawn(self._serve(), "parameter shards")
        self._answers = self.me.spawn(self.me.averager.answer(), "answers")  # with the part that is shown from now on

    @abstractmethod
    async def rest(self) -> None:
        """Bring what this learner has under way to its end."""

    @abstractmethod
    def _land(self, answer: Tensor) -> None:
        """Change the weights by an answer of all shards, shape (P,), that came beside the gradients."""

    def _absorb(self, x: Tensor) -> Tensor:  # noqa: ARG002 - not all shards absorb what comes with a question
        """Absorb a vector into the shard that this learner holds, if it is not empty; return the answer."""
        return self.shard()

    def _restart_at(self, centre: Tensor) -> None:
        """Set the weights to the centre."""
        self.me.weights.set_(centre)

    def _all_have_given(self) -> None:  # noqa: B027 - nothing is left to do where shards absorb at once
        """Note that all that learners give has arrived."""

    def _do_due(self) -> None:  # noqa: B027 - most shards act on messages alone
        """Do what has become due at the shard that this learner holds."""

    @property
    def _wait_seconds(self) -> float:
        """Longest wait for a message."""
        return self.me.averager.poll_seconds

    def shard(self) -> Tensor:
        """Return the shard that this learner holds. No exchange changes this vector."""
        with self.me.outer.steady:
            return self.me.outer[CENTRE]

    def tell(self) -> None:
        """Tell those that only serve how many minibatches are claimed: they evaluate and save at these numbers."""
        for server in self.me.averager.servers:
            self.me.group.post(torch.empty(0), server, CLAIMED, (self.me.latest.stop,))

    async def serve(self) -> None:
        """Serve until every minibatch is done, and take no gradients; then set the weights to the centre."""
        async for _, _, (claimed,) in self.me.messages(CLAIMED):
            self.me.note_claims(int(claimed))
        await self._conclude()

    async def _conclude(self) -> None:
        self._over, self.me.outer.rest = True, None
        await self.me.averager.meet(GIVEN, self.me.seat)  # raises if a lost holder has ended the activity before
        self._all_have_given()
        taken = Barrier(self.me.group, TAKEN)
        self._check(taken)
        self._restart_at(await self._awaited(None, taken))
        await self.me.averager.meet(TAKEN, self.me.seat)
        self._end_serving()
        await self._activity
        await self._answers

    async def _arrived(self, barrier: Barrier) -> None:
        """Wait for the answers that are expected, unless the others have passed a barrier without this learner."""
        self._check(barrier)
        while self.under_way:
            await self.me.seat.sleep(self.me.averager.poll_seconds)
            self._check(barrier)

    def _check(self, barrier: Barrier) -> None:
        """Raise `RunOver` if the others have passed a barrier without this learner: shards answer no more."""
        if barrier.missed():
            self._end_serving()
            self.me.averager.done()
            raise RunOver

    def _end_serving(self) -> None:
        self._tell(self.me.group.rank, END)

    def _tell(self, rank: int, kind: float) -> None:
        self.me.group.post(torch.empty(0), rank, SHARDS, (kind, NO_ANSWER, self._launch))

    def _ask(self, x: Tensor | None, answer: float) -> dict[int, Tensor]:
        """Give all shards their parts of x; return the answers that are known at once, by holder."""
        self.under_way, self._missing = answer == BESIDE, len(self.holders)
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

    async def _awaited(self, x: Tensor | None, before: Barrier) -> Tensor:
        """Exchange, and wait for the answers, which come until all have passed a barrier."""
        # At the end all holders serve on, also one that counted as lost for a while.
        serving = incarnations(self.me, self.holders) if self._over else self._serving
        answers = self._ask(x, AWAITED)
        while missing := {holder: serving[holder] for holder in self.holders if holder not in answers}:
            message = await next_answer(self.me, WAITED, missing, lambda: self._check(before))
            if message.header == (self._launch,):  # not one that an earlier launch of this learner asked for
                answers[message.source] = message.x
        return torch.cat([answers[holder] for holder in self.holders])

    async def _serve(self) -> None:
        try:
            await self._take_all()
        finally:
            self.under_way = False  # no answer lands any more

    async def _take_all(self) -> None:
        group = self.me.group
        while (message := await group.poll(SHARDS, self._wait_seconds)) is None or message.header[0] != END:
            if not self._over:
                check_holders(self.me, self._serving)
            if message is not None:
                self._take(message)
            self._do_due()

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

    def _receive(self, holder: int, x: Tensor) -> None:
        with self.me.outer.steady:
            self._known[self._parts[holder]] = x
            self._missing -= 1
            if self._missing == 0 and self.under_way:
                check_centre(self._known)
                self._land(self._known)
                self.me.averager.exchanges += 1
                self.under_way = False


def check_centre(x: Tensor) -> None:
    """Raise FloatingPointError if a part of the centre is not finite."""
    if not is_finite(x):
        raise FloatingPointError("the server's weights are not finite: training has diverged. Lower the learning rate")


class ParameterShards(ServedShards):
    """One learner's side of a sharded parameter server: its exchanges, its answers, and the shard that it may hold.

    Arguments and errors are those of `ServedShards`, with the rule of the exchanges.
    """

    def __init__(self, me: Learner, shards: int, servers: int, rule: ShardRule) -> None:
        super().__init__(me, shards, servers)
        self.rule, self._diverged = rule, False
        self.begin()

    def exchange(self, give: bool = True, take: bool = True) -> bool:
        """Begin an exchange beside the gradients; return False if one is under way.

        With `give` shards absorb a vector, with `take` they answer. A learner whose weights are not finite gives
        nothing, and takes the centre.
        """
        if self.under_way:
            return False
        with self.me.outer.steady:
            x = self._given() if give else None
            take = take or self._diverged
            if take:
                self.rule.ask()
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
        if self._diverged:
            self._restart_at(answer)
            self._diverged = False
        else:
            self.rule.land(answer)

    async def rest(self) -> None:
        """Exchange, and wait for it: the shards then have absorbed all that this learner has to give."""
        given = Barrier(self.me.group, GIVEN)
        await self._arrived(given)
        with self.me.outer.steady:
            x = self._given()
            self.rule.ask()
        answer = await self._awaited(x, given)
        with self.me.outer.steady:
            check_centre(answer)
            self._land(answer)

    async def end(self) -> None:
        """Exchange a last time, then set the weights to the centre that has absorbed the exchanges of all learners."""
        await self.rest()
        await self._conclude()

    def _restart_at(self, centre: Tensor) -> None:
        super()._restart_at(centre)
        self.rule.restart_at(centre)

    def _absorb(self, x: Tensor) -> Tensor:
        with self.me.outer.steady:
            centre = self.me.outer[CENTRE]
            if len(x) == 0:
                return centre
            self.me.outer[CENTRE], answer = self.rule.absorb(centre, x)
            return answer


async def _nothing() -> None:
    """Do nothing: a learner that only serves has nothing to give at a stop, but others give to it."""


class Sharded(ABC):
    """A strategy with a parameter server cut into shards.

    Attributes:
        shards: Number of shards that the first learners serve beside their gradients, so that all learners train.
        servers: Number of first ranks that only serve, with a shard each, in place of `shards`.
    """

    lock_step: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True  # of learners that hold no shard
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    shards: int
    servers: int

    @property
    @abstractmethod
    def exchanges(self) -> float:
        """Exchanges with the server in both directions, for a gradient of a learner."""

    @abstractmethod
    async def learn(self, me: Learner) -> None:
        """Take steps, and exchange beside them; or only serve."""

    def check_placement(self) -> None:
        """Raise ValueError if a number of shards or servers is too small, or both are given."""
        check_counts(shards=self.shards)
        if self.servers < 0:
            raise ValueError(f"servers must be at least 0, got {self.servers}")
        if self.servers > 0 and self.shards > 1:
            raise ValueError(
                f"shards={self.shards} lie beside gradients, servers={self.servers} take none:"
                " give one of the two numbers"
            )

    async def __call__(self, me: Learner) -> None:
        self.training_learners(me.group.size)  # refuses servers alone
        if me.group.size > 1:
            await self.learn(me)
            return
        answers = me.spawn(me.averager.answer(), "answers")
        async for g in me.claimed_gradients():  # the only learner needs no server
            me.descend(g)
        await answers

    def training_learners(self, learners: int) -> int:
        return beside_servers(self.servers, learners)

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        # None goes to a holder's own shard.
        return 2 * self.exchanges * (1.0 if self.servers and learners > 1 else (learners - 1) / learners)

    def planned(self, planner: Planner) -> Form:
        if self.servers:
            return planner.apart(self.servers, self.exchanges)
        return planner.sharded(self.shards, self.exchanges)
