"""Seconds and bytes of allreduces and broadcasts by closed forms: ring, binomial tree, and one level inside nodes.

b bytes, L learners on N nodes of n each; a hop takes a + x / B (latency a, bandwidth B) on a card, a' + x / B' inside
a node; adding x bytes takes x / R.

    ring          2 (L - 1) hops of b / L on the slowest link of the ring,  and (L - 1) / L b / R
    tree          2 (log2 n hops inside + log2 N on cards) of b,  and log2 n + log2 N times b / R   (rounded up)
    hierarchical  reduce-scatter and allgather inside: 2 (n - 1) hops of b / n,
                  between them n rings of b / n side by side over shared cards: 2 (N - 1) hops of b / N,
                  and ((n - 1) / n + (N - 1) / (N n)) b / R

    broadcast     inside one node a chain of n - 1 hops, through which the vector flows in small pieces: the latencies
                  and b / B';  among nodes the way down of the tree

A ring visits the learners of a node in succession, so one message per step crosses each card. Every step waits for the
slowest link, as all links of a ring carry equal loads. Thakur, Rabenseifner & Gropp 2005; Patarasu & Yuan 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Hop:
    """A link as a collective sees it: latency in seconds and bytes per second."""

    latency_seconds: float
    bytes_per_second: float

    def seconds(self, num_bytes: float) -> float:
        """Return the time until the last of `num_bytes` bytes has arrived."""
        return self.latency_seconds + num_bytes / self.bytes_per_second


@dataclass(frozen=True)
class Places:
    """Places of the members of a collective: learners on each node, the slowest card, links inside, adding speed."""

    per_node: tuple[int, ...]
    card: Hop
    inside: Hop
    reduce_bytes_per_second: float = float("inf")

    @property
    def learners(self) -> int:
        """Number of members."""
        return sum(self.per_node)

    @property
    def widest(self) -> int:
        """Number of members on the fullest node."""
        return max(self.per_node)


@dataclass(frozen=True)
class Cost:
    """Cost of one allreduce: seconds, bytes sent by a learner, bytes that leave through a node's card.

    In a tree members send unequally, and so do cards: these are the means over them.
    """

    seconds: float
    sent_bytes: float
    card_bytes: float


def ring(size: float, places: Places) -> Cost:
    """Reduce-scatter and allgather round one ring through all learners."""
    count, nodes = places.learners, len(places.per_node)
    part = size / count
    hops = [places.inside.seconds(part)] * (places.widest > 1) + [places.card.seconds(part)] * (nodes > 1)
    adding = (count - 1) * part / places.reduce_bytes_per_second
    sent = 2 * (count - 1) * part
    return Cost(2 * (count - 1) * max(hops) + adding, sent, sent if nodes > 1 else 0.0)


def tree(size: float, places: Places) -> Cost:
    """Reduce to one learner up a binomial tree, then broadcast down the same tree: first inside nodes, then between."""
    inside, between = _levels(places.widest), _levels(len(places.per_node))
    moving = inside * places.inside.seconds(size) + between * places.card.seconds(size)
    adding = (inside + between) * size / places.reduce_bytes_per_second
    count, nodes = places.learners, len(places.per_node)
    # Each edge of the tree carries the vector up and down, and a tree of n members has n - 1 edges.
    return Cost(2 * moving + adding, 2 * (count - 1) / count * size, 2 * (nodes - 1) / nodes * size)


def hierarchical(size: float, places: Places) -> Cost:
    """Reduce-scatter inside every node, a ring among nodes for each part, allgather inside."""
    width, nodes = places.widest, len(places.per_node)
    within = 2 * (width - 1) * places.inside.seconds(size / width) if width > 1 else 0.0
    between = 2 * (nodes - 1) * places.card.seconds(size / nodes) if nodes > 1 else 0.0  # `width` rings share a card
    added = (width - 1) / width + (nodes - 1) / (nodes * width)
    over_card = 2 * (nodes - 1) / nodes * size
    sent = 2 * (width - 1) / width * size + over_card / width
    seconds = within + between + added * size / places.reduce_bytes_per_second
    return Cost(seconds, sent, over_card)


def broadcast(size: float, places: Places) -> float:
    """Seconds of sending a vector from one learner to all: a chain inside one node, a binomial tree among nodes."""
    if len(places.per_node) == 1:
        return (places.learners - 1) * places.inside.latency_seconds + size / places.inside.bytes_per_second
    return _levels(places.widest) * places.inside.seconds(size) + _levels(len(places.per_node)) * places.card.seconds(
        size
    )


def _levels(count: int) -> int:
    return math.ceil(math.log2(count))


ALLREDUCE: Mapping[str, Callable[[float, Places], Cost]] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
}
