"""How many rounds of edge-wise averaging fit beside a gradient.

A round is due every median gradient time t; an exchange that is still under way is left out of it. With x = s / t, s
the seconds from the beginning of an exchange to its end, in which the busiest port on its way serves a whole round,

    constant times, the same edges in every round       1 / ceil(x)             all begin together
    constant times, x <= 1                              1
    the same edges                                      (1 + x^p)^(-1/p)        p = 2.2
    other edges in every round                          (1 + (c x)^p)^(-1/p)    p = 5, c = 1.1

rounds a t: a soft minimum of 1 and 1 / x. Learners that are not in step find a port busy, or have just missed their
neighbour, long before x is 1; p says how soft that corner is, softer where an exchange can only wait for the one before
it on the same edge. c: ports that are chosen at random are not evenly busy. Both are fitted to the simulator, on one
learner a node. Edges that stay work side by side, so that their rates average; an exchange of a changing mixing holds
a place that the next one waits for, so that their times do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.core.mixing import Mixing, Row
from murmur.worlds.virtual.cluster import Cluster

Numbers = NDArray[np.float64]
SAME_EDGES, NEW_EDGES, UNEVEN = 2.2, 5.0, 1.1
SAMPLED = 256  # rows of mixing matrices that a changing mixing's load is taken from, at least one round


@dataclass(frozen=True)
class Rounds:
    """Of averaging, beside gradients.

    Attributes:
        per_gradient: that the network carries, of a learner in the middle.
        seconds: of the longest exchange while everybody averages.
        neighbours: of a row, on average.
    """

    per_gradient: float
    seconds: float
    neighbours: float


def rounds_of(mixing: Mixing, cluster: Cluster, times: Numbers) -> Rounds:
    """Rounds of a mixing on a cluster whose compute times are drawn in `times` (draws, learners), seconds."""
    learners = range(cluster.learners)
    fixed = all(mixing(0, learners, i) == mixing(k, learners, i) for k in (1, 2, 3) for i in learners[:4])
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
    """A soft minimum of 1 and 1 / x."""
    found: Numbers = (1 + x**p) ** (-1 / p)
    return found


def exchange_seconds(cluster: Cluster, matrices: Sequence[Sequence[Row]], fixed: bool) -> Numbers:
    """Of every directed edge of the rounds: what the busiest port on its way needs for an average round, latency, and,
    where the next exchange of an edge waits for the present one, copies between device and host.
    """
    size, width = cluster.message_bytes or 0.0, cluster.learners_per_node
    edges = np.asarray([(i, j) for rows in matrices for i, row in enumerate(rows) for j in row if j != i])
    source, to = edges[:, 0], edges[:, 1]
    here, there = source // width, to // width
    crosses, rounds = here != there, len(matrices)
    speeds = np.asarray([cluster.links.get(n, cluster.link).bytes_per_second for n in range(cluster.learners)])
    cards = np.bincount(here[crosses], minlength=cluster.learners) * size / speeds / rounds
    inside = np.bincount(source[~crosses], minlength=cluster.learners) * size / cluster.inside.bytes_per_second / rounds
    sent = np.bincount(source, minlength=cluster.learners) / rounds
    copies = size / cluster.copy_bytes_per_second * (np.maximum(sent[source], sent[to]) + fixed)
    port = np.where(crosses, np.maximum(cards[here], cards[there]), np.maximum(inside[source], inside[to]))
    latency = np.where(crosses, cluster.link.latency_seconds, cluster.inside.latency_seconds)
    found: Numbers = latency + (port + copies if fixed else np.maximum(port, copies))
    return found
