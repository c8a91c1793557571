"""Number of rounds of edge-wise averaging that fit beside a gradient.

A round is due every median gradient time t; an exchange that is still under way is left out of it. Let x = s / t, where
s is the time of an exchange, in which the busiest port on its way serves a whole round. Then there are

    constant times, the same edges in every round       1 / ceil(x)             all begin together
    constant times, x <= 1                              1
    the same edges                                      (1 + x^p)^(-1/p)        p = 2.2
    other edges in every round                          (1 + (c x)^p)^(-1/p)    p = 5, c = 1.1

rounds per t: a soft minimum of 1 and 1 / x. Learners that are not in lock-step find a port busy, or have just missed
their neighbour, long before x reaches 1. p sets the softness of this corner; it is softer if an exchange waits only for
the previous one on the same edge. c accounts for the uneven load of ports chosen at random. Both are fitted to the
simulator with one learner per node. Fixed edges work side by side, so their rates are averaged; in a changing mixing
each exchange delays the next one, so their times are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.core.mixing import Mixing, Row
from murmur.worlds.virtual.cluster import Cluster

Numbers = NDArray[np.float64]
Edges = NDArray[np.int64]
SAME_EDGES, NEW_EDGES, UNEVEN = 2.2, 5.0, 1.1
SAMPLED = 256  # rows of mixing matrices that sample the load of a changing mixing; at least one round


@dataclass(frozen=True)
class Rounds:
    """Rounds of averaging beside gradients.

    Attributes:
        per_gradient: Rounds per gradient of a median learner that the network carries.
        seconds: Seconds of the longest exchange while all learners average.
    """

    per_gradient: float
    seconds: float
    neighbours: float


def rounds_of(mixing: Mixing, cluster: Cluster, times: Numbers) -> Rounds:
    """Rounds of a mixing on a cluster with drawn compute times `times` (draws, learners), in seconds."""
    learners = range(cluster.learners)
    fixed = not changes(mixing, learners)
    drawn = range(1 if fixed else max(1, SAMPLED // len(learners)))
    matrices = [[mixing(k, learners, i) for i in learners] for k in drawn]
    neighbours = sum(len(row) - 1 for rows in matrices for row in rows) / len(drawn) / len(learners)
    if len(learners) == 1 or neighbours == 0:
        return Rounds(1.0, 0.0, 0.0)
    tick, mean = float(np.median(np.median(times, axis=0))), float(np.median(times.mean(0)))
    seconds = exchange_seconds(cluster, matrices, fixed)
    rates = _rates(seconds / tick, bool(np.ptp(times) == 0), fixed)
    carried = rates.mean() if fixed else 1 / (1 / rates).mean()
    return Rounds(float(carried) * mean / tick, float(seconds.max()), neighbours)


def _rates(x: Numbers, constant: bool, fixed: bool) -> Numbers:
    if constant and fixed:
        return 1 / np.maximum(1, np.ceil(x - 1e-9))
    soft = _soft(x, SAME_EDGES) if fixed else _soft(UNEVEN * x, NEW_EDGES)
    return np.where(x <= 1, 1.0, soft) if constant else soft


def _soft(x: Numbers, p: float) -> Numbers:
    """Soft minimum of 1 and 1 / x."""
    found: Numbers = (1 + x**p) ** (-1 / p)
    return found


def changes(mixing: Mixing, learners: Sequence[int]) -> bool:
    """True if a mixing has other edges in other rounds."""
    return any(mixing(0, learners, i) != mixing(k, learners, i) for k in (1, 2, 3) for i in learners[:4])


def edges_of(matrices: Sequence[Sequence[Row]]) -> Edges:
    """Return the directed edges of some rounds, (edges, 2): source and destination."""
    edges = [(i, j) for rows in matrices for i, row in enumerate(rows) for j in row if j != i]
    return np.asarray(edges, dtype=np.int64).reshape(-1, 2)


def exchange_seconds(cluster: Cluster, matrices: Sequence[Sequence[Row]], fixed: bool) -> Numbers:
    """Seconds of an exchange for every directed edge of the rounds.

    They are the latency, the time of the busiest port on the way for an average round, and, if the next exchange of an
    edge waits for the present one, the copies between device and host.
    """
    edges, rounds = edges_of(matrices), len(matrices)
    latency, port, _ = _ways(cluster, edges, rounds)
    source, to = edges.T
    sent = np.bincount(source, minlength=cluster.learners) / rounds
    copies = (
        (cluster.message_bytes or 0.0) / cluster.copy_bytes_per_second * (np.maximum(sent[source], sent[to]) + fixed)
    )
    found: Numbers = latency + (port + copies if fixed else np.maximum(port, copies))
    return found


def lock_step_seconds(cluster: Cluster, rows: Sequence[Row]) -> Numbers:
    """Seconds of an exchange for every directed edge of one round that all learners begin together.

    A learner copies its n vectors to the host one after another, in the order of its neighbours: the k-th leaves after
    k copies. So a port has served all after max_k (k c + p_k), c: seconds of a copy, p_k: of the port for the vectors
    k to n of its learners. Another copy follows; with n + 1 copies and one vector that is the least.
    """
    edges = edges_of([rows])
    source, to = edges.T
    sent = np.bincount(source, minlength=cluster.learners)
    order = np.arange(len(edges)) - (np.cumsum(sent) - sent)[source] + 1  # place of a vector among its learner's
    copy = (cluster.message_bytes or 0.0) / cluster.copy_bytes_per_second
    latency, _, alone = _ways(cluster, edges, 1)
    served = np.zeros(len(edges))
    for k in range(1, int(sent.max(initial=0)) + 1):
        _, port, _ = _ways(cluster, edges, 1, order >= k)
        served = np.maximum(served, np.where(port > 0, k * copy + port, 0.0))
    copies = (np.maximum(sent[source], sent[to]) + 1) * copy
    found: Numbers = latency + np.maximum(served + copy, alone + copies)
    return found


def _ways(
    cluster: Cluster, edges: Edges, rounds: int, counted: NDArray[np.bool_] | None = None
) -> tuple[Numbers, Numbers, Numbers]:
    """Return latency, seconds of the busiest port on the way for an average round, and seconds of one vector alone.

    `counted`: edges whose vectors count for the ports; None: all.
    """
    size, width, count = cluster.message_bytes or 0.0, cluster.learners_per_node, cluster.learners
    source, to = edges.T
    here, there = source // width, to // width
    counted = np.ones(len(edges), dtype=np.bool_) if counted is None else counted
    crosses, nodes = here != there, [cluster.links.get(n, cluster.link) for n in range(count)]
    vector = size / np.asarray([card.bytes_per_second for card in nodes])
    latencies = np.asarray([card.latency_seconds for card in nodes])
    alone = size / cluster.inside.bytes_per_second

    def busy(ends: Edges, over: NDArray[np.bool_]) -> Numbers:
        return np.bincount(ends[over & counted], minlength=count)[ends] / rounds

    cards = np.maximum(busy(here, crosses) * vector[here], busy(there, crosses) * vector[there])
    inside = np.maximum(busy(source, ~crosses), busy(to, ~crosses)) * alone
    latency = np.where(crosses, np.maximum(latencies[here], latencies[there]), cluster.inside.latency_seconds)
    one = np.where(crosses, np.maximum(vector[here], vector[there]), alone)
    return latency, np.where(crosses, cards, inside), one
