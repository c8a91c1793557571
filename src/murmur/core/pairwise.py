"""Edge-wise averaging: each pair of neighbours averages by itself, and no learner waits for another.

    w_i  <-  w_i + T_ij (x_j - x_i)          x: the snapshots that i and j have posted to each other

A round posts one snapshot to every neighbour with which no exchange is under way. A learner that receives a snapshot
without having posted one answers at once with its own. So at most one exchange is under way on an edge, the m-th
snapshot of i pairs with the m-th of j, both ends add opposite terms, and the mean of all weights never moves, whatever
the delays. With equal speeds a round is exactly W T. A slow edge delays no other. A learner that dies may leave half an
exchange behind: an error of at most T_ij |x_j - x_i|. Lian et al. 2018 (arXiv 1710.06952), Cui et al. 2021 (arXiv
2110.11199).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

import torch
from torch import Tensor

from murmur.core.flat import is_finite
from murmur.core.group import Barrier, Group, Message, PeerLost, weighted_mean
from murmur.core.membership import RunOver, View
from murmur.core.moments import Moments, WeightsAndMoments
from murmur.core.weights import Weights
from murmur.core.world import Seat

ASK = 1.0  # kind of a request, first in its header; the number after it comes first in the header of the answer
GOSSIP, SNAPSHOT = "gossip", "snapshot"  # tags of requests and of answers
ANSWER_SECONDS = 5.0  # until a request is repeated; each further wait is twice as long


class WeightRequest:
    """Successive requests of one learner for the weights of others.

    Unanswered ones are repeated, for messages to a lost learner are dropped.

    Attributes:
        number: Number of the latest request.
    """

    def __init__(self, group: Group, now: Callable[[], float]) -> None:
        self._group, self._now, self.number = group, now, 0
        self._patience = self._again_at = 0.0

    def begin(self) -> None:
        """Begin a request for weights at about this moment; `ask` sends it."""
        self.number += 1
        self._patience, self._again_at = 0.0, self._now()

    def ask(self, silent: Sequence[int]) -> None:
        """Send the request to these ranks, at first and again whenever that is due."""
        if self._now() < self._again_at:
            return
        self._patience = 2 * self._patience or ANSWER_SECONDS
        self._again_at = self._now() + self._patience
        for rank in silent:
            if rank != self._group.rank:
                self._group.post(torch.empty(0), rank, GOSSIP, (ASK, self.number))

    async def poll(self, seconds: float) -> Message | None:
        """Return an answer, perhaps to an earlier request; None if none arrives within `seconds`."""
        return await self._group.plain.poll(SNAPSHOT, seconds)


SWAP, WAKE, DONE = 0.0, 2.0, 3.0  # kinds of messages; ASK = 1.0 is the fourth
CONSENSUS = "consensus"
SETTLED = "settled"  # barrier at which no exchange is under way any more
MOST_BEGUN = 1 + 1e-9
POLL_SECONDS = 0.25  # longest delay before a change of the view is noticed while no message arrives


class Exchanged(Protocol):
    """Vector that exchanges read and change: weights, weights and moments, or a strategy's own."""

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        """Return a copy of w_i, shape (P,), in `out` if it is given."""

    def pull_(self, theirs: Tensor, mine: Tensor, alpha: float) -> None:
        """w_i <- w_i + alpha (theirs - mine), now or before anything else reads or changes w_i.

        The two vectors are not changed afterwards.
        """

    def set_(self, w: Tensor) -> None:
        """w_i <- w."""


@dataclass
class Edge:
    """State of the edge to one neighbour.

    Attributes:
        incarnation: Incarnation of the neighbour; a new incarnation gets a new edge.
        answered: True if the neighbour began the latest exchange, which then counts as this end's next round.
    """

    incarnation: int
    answered: bool = False


class PairwiseAverager:
    """One learner's side of edge-wise averaging, of consensus, and of the end of a run without lock-step.

    Attributes:
        holders: Ranks whose weights make up the model (only the server of a parameter server); None: all learners.
        parts: Part of the model's vector (P,) that each holder keeps, in order of rank; None: each keeps all of it.
        takers: Ranks that take the steps of the model (only the servers of `ASGD`); None: all learners.
        servers: Ranks that take no gradients.
        shown: Returns what evaluations and late learners get from this learner: its weights (P,) or their part, and
            moments if they are exchanged.
        pace_seconds: Median time of this learner's latest gradients with their steps, the duration of a round; 0 before
            the first.
        exchanged: Vector that neighbours exchange; a strategy may put another one in place of the weights.
        behind: True from a late start until this learner has taken over the weights of another one. Until then it has
            nothing to give: it answers an exchange with the sender's own snapshot.
        exchanges: Exchanges completed so far.
        dropped: Messages from learners that are gone, or for an earlier incarnation of this one.
    """

    def __init__(self, group: Group, weights: Weights, now: Callable[[], float]) -> None:
        self.group, self.weights, self.now = group, weights, now
        self.holders: tuple[int, ...] | None = None
        self.parts: tuple[slice, ...] | None = None
        self.takers: tuple[int, ...] | None = None
        self.servers = range(0)
        self.shown: Callable[[], Tensor] = weights.snapshot
        self.exchanged: Exchanged = weights
        self.behind = False
        self.exchanges = self.dropped = 0
        self._edges: dict[int, Edge] = {}
        self._begun: dict[int, tuple[Tensor, float]] = {}  # snapshots posted but not yet answered, and their T_ij
        self._changing = RLock()  # averaging and gradients both refresh the view, which may end edges
        self._seen: View = group.membership.view()
        self._took: deque[float] = deque(maxlen=15)
        self.pace_seconds = 0.0
        self._closing = False
        self._posted: tuple[int, torch.dtype] | None = None  # length and type of the latest snapshot
        self._request = WeightRequest(group, now)

    def carry(self, moments: Moments) -> None:
        """Exchange moments with the weights from now on, and give them to late learners too; all learners do."""
        moments.check()
        both = WeightsAndMoments(self.weights, moments)
        both.declare_to(self.group)
        self.exchanged, self.shown, self._posted = both, both.snapshot, None

    @property
    def leads(self) -> bool:
        """True for the first live learner while the run has not ended; it alone evaluates and saves the model."""
        return self.held_by[0] == self.group.rank and self._seen.left == 0

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks of the live learners, including this one."""
        live = self._refresh().live
        return live if self.group.rank in live else tuple(sorted({*live, self.group.rank}))

    @property
    def held_by(self) -> tuple[int, ...]:
        """Ranks of the live learners whose weights make up the model.

        Raises:
            PeerLost: All of them are gone, or one that keeps a part of the model.
        """
        live = self.live
        held = live if self.holders is None else tuple(j for j in live if j in self.holders)
        if not held:
            raise PeerLost(f"the learners {self.holders} that held the model are gone")
        self.check_parts()
        return held

    def check_parts(self) -> None:
        """Raise `PeerLost` if the holder of a part of a model that is cut over holders is lost."""
        live = self.live
        lost = [] if self.parts is None else [j for j in self.holders or () if j not in live]
        if lost:
            raise PeerLost(f"learner {lost[0]}, which held a part of the parameters, is lost", lost[0])

    @property
    def poll_seconds(self) -> float:
        """Interval at which unannounced changes are polled."""
        return min(POLL_SECONDS, max(self.pace_seconds / 4, 1e-3)) if self._took else POLL_SECONDS

    def note_gradient_seconds(self, seconds: float) -> None:
        """Record the duration of a gradient and of the step before it; the first one starts the rounds."""
        self._took.append(seconds)
        self.pace_seconds = statistics.median(self._took)
        if len(self._took) == 1:
            self._tell_self(WAKE)

    def done(self) -> None:
        """End the rounds: the budget is spent and this learner takes no more gradients."""
        self._tell_self(DONE)

    async def rounds(self) -> AsyncIterator[int]:
        """Yield k = 0, 1, 2, ..., one round per median gradient time, and answer neighbours in between.

        Ends when the budget is spent and every exchange between live learners is complete on both ends.
        """
        k, due = 0, float("inf")
        while not self._closing:
            message = await self.group.poll(GOSSIP, max(0.0, due - self.now()))
            if message is not None:
                self._take(message)
                if message.header[0] == WAKE:
                    due = self.now()
                del message  # its vector may lie in memory that the sender waits for
                continue
            yield k
            k, due = k + 1, due + self.pace_seconds
            due = max(due, self.now())  # missed rounds (a stopped process) are not made up for
        await self._settle()

    async def answer(self) -> None:
        """Answer requests for this learner's weights until the budget is spent; runs beside the gradients."""
        async for _ in self.rounds():
            pass

    def gossip(self, row: Mapping[int, float]) -> None:
        """Begin an exchange with every neighbour of row i of T_k with which none is under way. Never waits.

        The weights T_ij of the exchanges that this end has begun never sum to more than 1. Old snapshots with a larger
        sum would carry the weights past the neighbours' and back, with growing oscillations.
        """
        self._refresh()
        x: Tensor | None = None
        with self._changing:
            for j, weight in row.items():
                edge = self._edge(j)
                if edge is None:
                    continue
                begun = sum(weight for _, weight in self._begun.values())
                if j not in self._begun and not edge.answered and begun + weight <= MOST_BEGUN:
                    x = self._snapshot() if x is None else x
                    if not is_finite(x):
                        return  # the next exchange that a neighbour begins brings finite weights
                    self._post(j, edge, x, weight)
                edge.answered = False

    def _snapshot(self) -> Tensor:
        """Return w_i as neighbours get it, in memory from which `post` need not copy it if there is any."""
        room = None if self._posted is None else self.group.post_room(*self._posted)
        x = self.exchanged.snapshot(room)
        self._posted = x.numel(), x.dtype
        return self.group.as_sent(x)

    def _post(self, j: int, edge: Edge, x: Tensor, weight: float) -> None:
        self._begun[j] = x, weight
        self.group.post(x, j, GOSSIP, (SWAP, self._incarnation(self.group.rank), edge.incarnation, weight))

    def _take(self, message: Message) -> None:
        kind = message.header[0]
        if kind == DONE:
            self._closing = True
        elif kind == ASK:
            self.group.plain.post(self.shown(), message.source, SNAPSHOT, message.header[1:2])
        elif kind == SWAP:
            self._swap(message)

    def _swap(self, message: Message) -> None:
        _, theirs, ours, weight = message.header
        if theirs > self._incarnation(message.source) or ours > self._incarnation(self.group.rank):
            self._refresh(fresh=True)
        with self._changing:
            edge = self._edge(message.source)
            if edge is None or theirs != edge.incarnation or ours != self._incarnation(self.group.rank):
                self.dropped += 1
                return
            if message.source not in self._begun:
                answer = self._snapshot()
                if self.behind or not is_finite(answer):
                    answer = message.x
                    self.exchanged.set_(answer)
                self._post(message.source, edge, answer, weight)
                edge.answered = True
            posted, own = self._begun.pop(message.source)
            # Both ends must use the same weight; in a symmetric T they do already.
            self.exchanged.pull_(message.x, posted, (own + weight) / 2)
            self.exchanges += 1

    def _incarnation(self, j: int) -> int:
        """Incarnation of a live learner; -1 for one considered dead (this learner itself, after a long pause)."""
        return self._seen.incarnations.get(j, -1)

    def _edge(self, j: int) -> Edge | None:
        if j == self.group.rank or j not in self._seen.incarnations:
            return None
        if j not in self._edges:
            self._edges[j] = Edge(self._incarnation(j))
        return self._edges[j]

    def _refresh(self, fresh: bool = False) -> View:
        """Update and return the view; end the edges to learners that are gone or have a new incarnation."""
        view, me = self.group.membership.view(fresh), self.group.rank
        with self._changing:
            before = self._seen
            if view is before or view.number < before.number:
                return before
            self._seen = view
            same = view.incarnations.get(me) == before.incarnations.get(me)
            kept = {j: e for j, e in self._edges.items() if view.incarnations.get(j) == e.incarnation}
            self._edges = kept if same else {}
            self._begun = {j: b for j, b in self._begun.items() if j in self._edges}
            return view

    async def _settle(self) -> None:
        """Answer until no live learner has an exchange under way."""
        settled, barrier = False, Barrier(self.group, SETTLED)
        while not (settled and barrier.arrive()):
            message = await self.group.poll(GOSSIP, self.poll_seconds)
            if message is not None:
                self._take(message)
                del message
            self._refresh()
            settled = barrier.missed() or not self._begun  # learners that have passed it answer no more

    async def snapshots(self) -> dict[int, Tensor]:
        """Return the weights that make up the model at about this moment, by rank.

        The other learners answer beside their gradients.

        Raises:
            RunOver: They have finished the run while this learner counted as lost.
        """
        me, barrier = self.group.rank, Barrier(self.group, SETTLED)
        self._request.begin()
        found = {me: self.shown()[: self.weights.layout.numel]} if me in self.held_by else {}
        while not found.keys() >= set(self.held_by):
            if barrier.missed():
                self.done()
                raise RunOver
            self._request.ask([j for j in self.held_by if j not in found])
            message = await self._request.poll(self.poll_seconds)
            if message is not None and message.header[0] == self._request.number:
                found[message.source] = message.x[: self.weights.layout.numel]
        return found

    async def catch_up(self) -> None:
        """Take over the weights of a live learner, or the parts of all holders, after a late start.

        Raises:
            RunOver: The other learners have finished the run.
            PeerLost: They are lost, and their weights with them.
        """
        found: dict[int, Tensor] = {}
        membership, barrier = self.group.membership, Barrier(self.group, SETTLED)
        self._request.begin()
        while not (membership.view().left > 0 or membership.over or barrier.missed()):  # all is done, or others ended
            if membership.view().live == (self.group.rank,):
                raise PeerLost("all other learners are lost, and none is left that has the weights of the model")
            self._request.ask([j for j in self.held_by if j not in found])
            message = await self._request.poll(POLL_SECONDS)
            if message is not None and is_finite(message.x):
                found[message.source] = message.x
                if self.parts is None or len(found) == len(self.parts):
                    with self._changing:
                        self.exchanged.set_(message.x if self.parts is None else self.joined(found))
                        self.behind = False
                    return
        self.done()
        raise RunOver

    def joined(self, found: Mapping[int, Tensor]) -> Tensor:
        """Return the vector (P,) made of the parts of all holders, by rank."""
        return torch.cat([found[holder] for holder in sorted(found)])

    async def consensus(self, x: Tensor, barrier: str) -> Tensor:
        """Return the model made of the learners' vectors x (P,), the same bits for all. Every call has its own barrier.

        That is the mean of the holders' vectors, or a vector of their parts. The first holder computes it. If it dies,
        the next holder takes over, with the same result if a learner has received it. A mean leaves out vectors that
        are not finite.

        Raises:
            FloatingPointError: No vector is finite.
            PeerLost: Holders are gone, as for `held_by`.
            RunOver: The others have agreed while this learner counted as lost.
        """

        def made(given: Sequence[Tensor], what: str) -> Tensor:
            parts = self.parts
            whole = given if parts is None else [torch.cat([x[part] for x, part in zip(given, parts, strict=True)])]
            return _mean_of_finite(whole, what)

        return await self._agree(x, barrier, lambda: self.held_by, made)

    async def mean_of_trained(self, x: Tensor, barrier: str) -> Tensor:
        """Return the mean of the vectors x of the live learners that take gradients, the same bits for all.

        If only a few learners hold the model, and train too, it is the mean of theirs. Raises as `consensus` does.
        """
        return await self.agreed_by_trained(x, barrier, _mean_of_finite)

    async def agreed_by_trained(
        self, x: Tensor, barrier: str, made: Callable[[Sequence[Tensor], str], Tensor]
    ) -> Tensor:
        """Return the vector made of the vectors x of the same learners, in order of rank. Raises as `consensus` does.

        Args:
            x: Vector of this learner.
            barrier: Name of the vector.
            made: Makes the result of all vectors and the name.
        """
        return await self._agree(x, barrier, self._trained, made)

    def _trained(self) -> tuple[int, ...]:
        holders = () if self.holders is None else self.holders
        held = self.held_by
        return tuple(j for j in self.live if j not in self.servers) if set(holders) & set(self.servers) else held

    async def _agree(
        self,
        x: Tensor,
        name: str,
        counted: Callable[[], tuple[int, ...]],
        made: Callable[[Sequence[Tensor], str], Tensor],
    ) -> Tensor:
        """Return what the first rank of `counted` has made of the vectors of these ranks, in their order."""
        group, me, tag = self.group.plain, self.group.rank, f"{CONSENSUS} {name}"
        given, asked, barrier = {me: x}, me, Barrier(self.group, name)
        result: Tensor | None = None
        while result is None or not barrier.arrive():
            if result is None:
                barrier.check()
            held = counted()
            if held[0] == me:
                if result is None and given.keys() >= set(held):
                    parts = [given[j] for j in sorted(given) if self.holders is None or j in held]
                    result = made(parts, name)
                if result is not None:
                    self._answer_all(given, result, tag)
            elif asked != held[0]:
                asked = held[0]
                group.post(*(x, asked, tag, (SWAP,)) if result is None else (result, asked, tag, (DONE,)))
            if result is None or not barrier.arrive():
                message = await group.poll(tag, self.poll_seconds)
                if message is not None and message.header[0] == DONE:
                    result = message.x
                elif message is not None:
                    given[message.source] = message.x
        return result

    def _answer_all(self, given: dict[int, Tensor], result: Tensor, tag: str) -> None:
        """Post the result to the others that have given their vectors, once."""
        for j in given.keys() - {self.group.rank}:
            self.group.plain.post(result, j, tag, (DONE,))
            del given[j]

    async def meet(self, barrier: str, seat: Seat) -> None:
        """Wait until all live learners have arrived at a barrier; raise what an activity of this one has raised."""
        met = Barrier(self.group, barrier)
        while not met.arrive():
            await seat.sleep(self.poll_seconds)

    def _tell_self(self, kind: float) -> None:
        self.group.post(torch.empty(0), self.group.rank, GOSSIP, (kind,))


def _mean_of_finite(parts: Sequence[Tensor], barrier: str) -> Tensor:
    finite = [part for part in parts if is_finite(part)]
    if not finite:
        raise FloatingPointError(
            f"{barrier}: no learner has finite values: training has diverged. Lower the learning rate"
        )
    return weighted_mean(finite, [1.0] * len(finite))
