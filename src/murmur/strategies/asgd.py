"""Asynchronous SGD with a parameter server: first come, first served.

    server s:   holds part s of the weights, w[s],  s = 0 .. S - 1
    learner:    push g[s](phi) to every server s, pull w[s] from each;     phi <- (w[0], ..., w[S - 1])
    server s:   w[s] <- w[s] - alpha d(age) g[s],     age: updates of part s between the learner's pull and its push

d = 1 is plain ASGD; d = 1 / age is staleness-aware (Zhang et al. 2016, arXiv 1511.05950). The first S learners serve
and take no gradients; a single learner is its own server. Parts are those of `parts_of`. Dean et al. 2012, Large scale
distributed deep networks, section 4.1; the baseline of Cong et al. 2017.

A gradient that comes a second time, because its learner was lost or the run continues from a checkpoint, is applied
only to parts to which it has not been applied. Rules of the optimizer and limits on the norm of a gradient see the part
of a server alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from murmur.core.facts import Form, Planner, beside_servers
from murmur.core.flat import is_finite
from murmur.core.group import Barrier
from murmur.core.learner import Learner
from murmur.core.membership import RunOver
from murmur.core.pairwise import SETTLED
from murmur.core.trace import COMPUTE
from murmur.strategies.parameter_shards import check_counts, incarnations, keep_part, next_answer, parts_of


class AppliedMinibatches:
    """A set of numbers as disjoint ranges. There are few: numbers are applied almost in order.

    Args:
        bounds: Bounds of the ranges, as `bounds` returns them.
    """

    def __init__(self, bounds: Sequence[int] = ()) -> None:
        self._bounds = list(bounds)  # start, end, start, end, ...: strictly increasing

    def __contains__(self, number: int) -> bool:
        return bisect_right(self._bounds, number) % 2 == 1

    def add(self, numbers: Iterable[int]) -> bool:
        """Add numbers; return False if all of them were there."""
        new = [number for number in numbers if number not in self]
        for number in new:
            self._add(number)
        return bool(new)

    def _add(self, number: int) -> None:
        """Add a number that is not there: the edges of its own range cancel those of adjacent ranges."""
        for edge in (number, number + 1):
            place = bisect_right(self._bounds, edge)
            if place and self._bounds[place - 1] == edge:
                del self._bounds[place - 1]
            else:
                self._bounds.insert(place, edge)

    def bounds(self) -> Tensor:
        """Return the bounds of the ranges: start, end, start, end, ..., shape (2 ranges,), int64."""
        return torch.tensor(self._bounds, dtype=torch.int64)


PUSH, PULL = "gradient", "model"  # tags of messages to and from a server
END = -2.0  # header of what a server tells itself when no learner can pull any more
UNKNOWN = -1.0  # number of updates of weights that were not pulled: a gradient at them has age 0
APPLIED = "applied"  # name of a server's applied minibatches among the vectors of a checkpoint


def undamped(age: int) -> float:  # noqa: ARG001 - old gradients count like new ones
    return 1.0


def by_age(age: int) -> float:
    return 1 / max(1, age)


class Pulled:
    """One learner's side of the exchanges with all servers, which hold parts of the weights by rank."""

    def __init__(self, me: Learner, parts: Sequence[slice]) -> None:
        self._me, self._parts = me, parts
        self._updates = [UNKNOWN] * len(parts)  # of each part when it was pulled last
        self._computed = 0.0  # seconds of the gradients that were given

    async def pull(self) -> None:
        await self._exchange(self._me.weights.snapshot()[:0], ())

    async def push_and_pull(self, g: Tensor) -> None:
        """Give the gradient of the latest claim to the servers, then take their weights.

        Raises:
            FloatingPointError: Neither a server's weights nor this learner's are finite.
            PeerLost: A server is lost.
            RunOver: The others have ended the run while this learner counted as lost.
        """
        me = self._me
        computed = me.seat.trace.totals().get(COMPUTE, 0.0)
        seconds, self._computed = computed - self._computed, computed
        await self._exchange(g, (me.progress.loss, me.latest.start, me.latest.stop, seconds))

    async def _exchange(self, g: Tensor, header: Sequence[float]) -> None:
        me, began, settled = self._me, incarnations(self._me, range(len(self._parts))), Barrier(self._me.group, SETTLED)
        for server, part in enumerate(self._parts):
            me.group.post(g[part], server, PUSH, (self._updates[server], *header) if header else ())
        found: dict[int, Tensor] = {}
        while missing := {server: began[server] for server in began if server not in found}:
            w, server, (updates,) = await next_answer(me, PULL, missing, lambda: self._check(settled))
            if len(w) == 0:  # the server's weights are not finite: it needs this learner's
                self._give(server)
                continue
            self._updates[server], found[server] = updates, w
        me.weights.set_(torch.cat([found[server] for server in began]))

    def _give(self, server: int) -> None:
        mine = self._me.weights.snapshot()[self._parts[server]]
        if not is_finite(mine):
            raise FloatingPointError("neither the server's weights nor this learner's are finite: training diverged")
        self._me.group.post(mine, server, PUSH)

    def _check(self, settled: Barrier) -> None:
        """Raise `RunOver` if the others, while this learner counted as lost, have ended the run."""
        if settled.missed():
            self._me.averager.done()
            raise RunOver


@dataclass(frozen=True)
class ASGD:
    """Parameter server on the first `servers` ranks.

    Attributes:
        damping: Factor d on a gradient by its age: `undamped` or `by_age`.
        servers: Number of servers S, each with a part of the weights; fewer than there are learners.

    Raises:
        ValueError: `servers` is less than 1; at the start of a run, that all learners would serve.
        PeerLost: A server is lost; training goes on without a lost learner that is none.
    """

    lock_step: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True  # of learners that train; without a server the run ends
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    adds_steps: ClassVar[bool] = True
    sets_weights_every: ClassVar[float | None] = 1
    damping: Callable[[int], float] = undamped
    servers: int = 1

    def __post_init__(self) -> None:
        check_counts(servers=self.servers)

    async def __call__(self, me: Learner) -> None:
        servers = range(me.group.size - self.training_learners(me.group.size))
        holders = servers or range(1)
        parts = parts_of(me.weights.layout.numel, len(holders))
        averager = me.averager
        averager.servers, averager.parts = servers, parts
        averager.holders = averager.takers = tuple(holders)
        if me.group.rank in holders:
            mine = parts[me.group.rank]
            averager.shown = lambda: me.weights.snapshot()[mine]
        answers = me.spawn(averager.answer(), "answers")
        late = None
        if me.group.rank in servers:
            await self.serve(me, parts[me.group.rank])
            late = me.spawn(_answer_late(me, parts[me.group.rank]), "late pulls")
        else:
            await self.learn(me, parts)
        await answers
        me.weights.set_(await me.consensus())
        if late is not None:
            me.group.post(torch.empty(0), me.group.rank, PUSH, (END,))
            await late

    async def learn(self, me: Learner, parts: Sequence[slice]) -> None:
        served = Pulled(me, parts)
        if me.group.size > 1 and not me.seat.late:  # a late learner catches up, for a server may be done with pulls
            await served.pull()
        async for g in me.claimed_gradients():
            if me.group.size > 1:
                await served.push_and_pull(g)
            else:
                me.descend(g)

    async def serve(self, me: Learner, part: slice) -> None:
        keep_part(me, part)
        me.settings.recorded = me.group.rank == 0  # one record for a gradient
        applied, updates = AppliedMinibatches(me.outer[APPLIED].tolist() if APPLIED in me.outer else ()), 0
        async for g, who, header in me.messages(PUSH):
            if header:
                pulled, loss, start, stop, seconds = header
                claim, age = range(int(start), int(stop)), 0 if pulled == UNKNOWN else updates - int(pulled)
                if applied.add(me.credit(claim, loss, seconds)):
                    me.outer[APPLIED] = applied.bounds()
                    me.descend(_whole(me, g.mul_(self.damping(age)), part), staleness=age)
                    updates += 1
            else:
                _take_over(me, g, part)
            _give(me, who, part, updates)

    def training_learners(self, learners: int) -> int:
        return beside_servers(self.servers, learners)

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return 2.0 if learners > 1 else 0.0

    def planned(self, planner: Planner) -> Form:
        return planner.served(self.servers)


async def _answer_late(me: Learner, part: slice) -> None:
    """Answer pulls after the last gradient, until this learner tells itself to end.

    A learner that was considered lost may come back then. Others have done its minibatch, so its gradient is dropped;
    without an answer it would wait for ever, and all others for it.
    """
    while (message := await me.group.poll(PUSH, me.averager.poll_seconds)) is None or message.header != (END,):
        if message is not None:
            if not message.header:
                _take_over(me, message.x, part)
            _give(me, message.source, part, UNKNOWN)


def _take_over(me: Learner, mine: Tensor, part: slice) -> None:
    """Set a part of the weights that is not finite to that of a learner, if it gave one."""
    w = me.weights.snapshot()
    if len(mine) and not is_finite(w[part]):
        w[part] = mine
        me.weights.set_(w)


def _give(me: Learner, who: int, part: slice, updates: float) -> None:
    """Answer a pull with a part of the weights; with an empty one if it is not finite."""
    w = me.weights.snapshot()[part]
    me.group.post(w if is_finite(w) else w[:0], who, PULL, (updates,))


def _whole(me: Learner, g: Tensor, part: slice) -> Tensor:
    if len(g) == me.weights.layout.numel:
        return g
    whole = me.weights.layout.empty().zero_()
    whole[part] = g
    return whole
