"""Edge-wise averaging: each pair of neighbours averages by itself, nobody waits for anybody.

    w_i  <-  w_i + T_ij (x_j - x_i)          x: the snapshots that i and j have posted to each other

A round posts one snapshot to every neighbour that owes none; whoever receives one that it has not asked for answers at
once with its own. So at most one exchange is under way on an edge, the m-th snapshot of i meets the m-th of j, both
ends add opposite terms, and the mean of all weights never moves, whatever the delays. With equal speeds a round is
exactly W T. A slow edge delays nobody else. A learner that dies may leave half an exchange behind: an error of at most
T_ij |x_j - x_i|. Lian et al. 2018 (arXiv 1710.06952), Cui et al. 2021 (arXiv 2110.11199).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock

import torch
from torch import Tensor

from murmur.core.flat import is_finite
from murmur.core.group import Group, Message, PeerLost, weighted_mean
from murmur.core.membership import RunOver, View
from murmur.core.weight_request import ASK, GOSSIP, SNAPSHOT, WeightRequest
from murmur.core.weights import Weights

SWAP, WAKE, DONE = 0.0, 2.0, 3.0  # what a letter is for, if not to ask
CONSENSUS = "consensus"
MOST_BEGUN = 1 + 1e-9
POLL_SECONDS = 0.25  # at most so long until a change of the view is noticed while nothing else happens


@dataclass
class Edge:
    """What this learner knows of one neighbour.

    Attributes:
        incarnation: of the neighbour; another one makes another edge.
        answered: whether the neighbour began the latest exchange, so that this end's next round has had it already.
    """

    incarnation: int
    answered: bool = False


class PairwiseAverager:
    """One learner's side of edge-wise averaging, of consensus, and of the end of a run without lock-step.

    Attributes:
        holders: ranks whose weights make up the model; None: all learners' do (a parameter server's alone do).
        pace_seconds: the median of this learner's latest gradient times, the time of a round; 0 before the first.
        exchanges: completed so far.
        dropped: letters of learners that are gone, or meant for an earlier incarnation of this one.
    """

    def __init__(self, group: Group, weights: Weights, now: Callable[[], float]) -> None:
        self.group, self.weights, self.now = group, weights, now
        self.holders: tuple[int, ...] | None = None
        self.exchanges = self.dropped = 0
        self._edges: dict[int, Edge] = {}
        self._begun: dict[int, tuple[Tensor, float]] = {}  # snapshots that wait for a neighbour's, and their T_ij
        self._changing = RLock()  # averaging and gradients both look at the view, and edges end with it
        self._seen: View = group.membership.view()
        self._took: deque[float] = deque(maxlen=15)
        self.pace_seconds = 0.0
        self._closing = False
        self._request = WeightRequest(group, now)

    @property
    def leads(self) -> bool:
        """Whether this learner does what only one should: the first of the living does, while the run has not ended."""
        return self.held_by[0] == self.group.rank and self._seen.left == 0

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks of the live learners, this one among them."""
        live = self._refresh().live
        return live if self.group.rank in live else tuple(sorted({*live, self.group.rank}))

    @property
    def held_by(self) -> tuple[int, ...]:
        """Ranks of the live learners whose weights make up the model.

        Raises:
            PeerLost: they are all gone.
        """
        live = self.live
        held = live if self.holders is None else tuple(j for j in live if j in self.holders)
        if not held:
            raise PeerLost(f"the learners {self.holders} that held the model are gone")
        return held

    @property
    def poll_seconds(self) -> float:
        """How often something is looked at that nobody announces."""
        return min(POLL_SECONDS, max(self.pace_seconds / 4, 1e-3)) if self._took else POLL_SECONDS

    def took(self, seconds: float) -> None:
        """A gradient took so long; the first one starts the rounds."""
        self._took.append(seconds)
        self.pace_seconds = statistics.median(self._took)
        if len(self._took) == 1:
            self._tell_self(WAKE)

    def done(self) -> None:
        """This learner takes no more gradients and the budget is used up: the rounds end."""
        self._tell_self(DONE)

    async def rounds(self) -> AsyncIterator[int]:
        """k = 0, 1, 2, ..., one round a median gradient time; between them neighbours are answered.

        Ends when the budget is used up and every exchange between live learners is complete on both ends.
        """
        k, due = 0, float("inf")
        while not self._closing:
            message = await self.group.poll(GOSSIP, max(0.0, due - self.now()))
            if message is not None:
                self._take(message)
                if message.header[0] == WAKE:
                    due = self.now()
                continue
            yield k
            k, due = k + 1, due + self.pace_seconds
            due = max(due, self.now())  # rounds that were missed (a stopped process) are not made up for
        await self._settle()

    def gossip(self, row: Mapping[int, float]) -> None:
        """Begin an exchange with every neighbour of row i of T_k with which none is under way. Never waits.

        While the weights of the exchanges that this end has begun would sum to more than 1, no other is begun: old
        snapshots with a sum above 1 would carry the weights past those of the neighbours, and back, ever further.
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
                    x = self.group.as_sent(self.weights.snapshot()) if x is None else x
                    if not is_finite(x):
                        return  # the next neighbour that begins an exchange brings its own
                    self._post(j, edge, x, weight)
                edge.answered = False

    def _post(self, j: int, edge: Edge, x: Tensor, weight: float) -> None:
        self._begun[j] = x, weight
        self.group.post(x, j, GOSSIP, (SWAP, self._incarnation(self.group.rank), edge.incarnation, weight))

    def _take(self, message: Message) -> None:
        kind = message.header[0]
        if kind == DONE:
            self._closing = True
        elif kind == ASK:
            self.group.plain.post(self.weights.snapshot(), message.source, SNAPSHOT, message.header[1:2])
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
                answer = self.group.as_sent(self.weights.snapshot())
                if not is_finite(answer):
                    answer = message.x
                    self.weights.set_(answer)
                self._post(message.source, edge, answer, weight)
                edge.answered = True
            posted, own = self._begun.pop(message.source)
            # Both ends must use the same weight; in a symmetric T they do already.
            self.weights.add_(message.x - posted, alpha=(own + weight) / 2)
            self.exchanges += 1

    def _incarnation(self, j: int) -> int:
        """Of a live learner; -1 for one that is thought dead, which this one itself may be after a long stop."""
        return self._seen.incarnations.get(j, -1)

    def _edge(self, j: int) -> Edge | None:
        if j == self.group.rank or j not in self._seen.incarnations:
            return None
        if j not in self._edges:
            self._edges[j] = Edge(self._incarnation(j))
        return self._edges[j]

    def _refresh(self, fresh: bool = False) -> View:
        """The present view; edges to learners that are gone, or that came back as others, end."""
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
        settled = False
        while not (settled and self.group.membership.arrive("settled")):
            message = await self.group.poll(GOSSIP, self.poll_seconds)
            if message is not None:
                self._take(message)
            self._refresh()
            settled = not self._begun

    async def snapshots(self) -> dict[int, Tensor]:
        """The weights that make up the model at about this moment, by rank; others answer beside their gradients."""
        me = self.group.rank
        self._request.begin(self.held_by)
        found = {me: self.weights.snapshot()} if me in self.held_by else {}
        while not found.keys() >= set(self.held_by):
            message = await self._request.poll(self.poll_seconds)
            if message is not None and message.header[0] == self._request.number:
                found[message.source] = message.x
            self._request.remind([j for j in self.held_by if j not in found])
        return found

    async def catch_up(self) -> None:
        """For a learner that comes late: take over the weights of a live one.

        Raises:
            RunOver: the others have done everything.
        """
        self._request.begin(self.held_by)
        while not (self.group.membership.spent or self.live == (self.group.rank,)):
            message = await self._request.poll(POLL_SECONDS)
            if message is not None and is_finite(message.x):
                self.weights.set_(message.x)
                return
            self._request.remind(self.held_by)
        self.done()
        raise RunOver

    async def consensus(self, x: Tensor, barrier: str) -> Tensor:
        """The mean of the model's vectors x (P,), the same bits for all; every call has its own stage.

        The first of those that hold the model adds up. If it dies the next one does, with its result where somebody has
        that already. Vectors that are not finite are left out.

        Raises:
            FloatingPointError: all are.
        """
        group, me, tag = self.group.plain, self.group.rank, f"{CONSENSUS} {barrier}"
        given, asked = {me: x}, me
        result: Tensor | None = None
        while result is None or not self.group.membership.arrive(barrier):
            held = self.held_by
            if held[0] == me:
                if result is None and given.keys() >= set(held):
                    parts = [given[j] for j in sorted(given) if self.holders is None or j in held]
                    result = _mean_of_finite(parts, barrier)
                if result is not None:
                    for j in given.keys() - {me}:
                        group.post(result, j, tag, (DONE,))
                        del given[j]
            elif asked != held[0]:
                asked = held[0]
                group.post(*(x, asked, tag, (SWAP,)) if result is None else (result, asked, tag, (DONE,)))
            if result is None or not self.group.membership.arrive(barrier):
                message = await group.poll(tag, self.poll_seconds)
                if message is not None and message.header[0] == DONE:
                    result = message.x
                elif message is not None:
                    given[message.source] = message.x
        return result

    async def meet(self, barrier: str) -> None:
        """Wait until all live learners have come to a stage."""
        while not self.group.membership.arrive(barrier):
            await self.group.poll(barrier, self.poll_seconds)

    def _tell_self(self, kind: float) -> None:
        self.group.post(torch.empty(0), self.group.rank, GOSSIP, (kind,))


def _mean_of_finite(parts: Sequence[Tensor], barrier: str) -> Tensor:
    finite = [part for part in parts if is_finite(part)]
    if not finite:
        raise FloatingPointError(f"{barrier}: no learner's are finite: training has diverged. Lower the learning rate")
    return weighted_mean(finite, [1.0] * len(finite))
