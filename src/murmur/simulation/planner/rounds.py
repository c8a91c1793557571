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
SAME_EDGES, NEW_EDGES, UNEVEN = 2.2, 5.0, 1.1
SAMPLED = 256  # rows of mixing matrices that sample the load of a changing mixing; at least one round


@dataclass(frozen=True)
class Rounds:
    """Rounds of averaging beside gradients.

    Attributes:
        per_gradient: Rounds per gradient of a median learner that the network carries.
        seconds: Seconds of the longest exchange while all learners average.
        neighbours: Mean number of neighbours in a row.
    """

    per_gradient: float
    seconds: float
    neighbours: float


def rounds_of(mixing: Mixing, cluster: Cluster, times: Numbers) -> Rounds:
    """Rounds of a mixing on a cluster with drawn compute times `times` (draws, learners), in seconds."""
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
    """Soft minimum of 1 and 1 / x."""
    found: Numbers = (1 + x**p) ** (-1 / p)
    return found


def exchange_seconds(cluster: Cluster, matrices: Sequence[Sequence[Row]], fixed: bool) -> Numbers:
    """Seconds of an exchange for every directed edge of the rounds.

    They are the latency, the time of the busiest port on the way for an average round, and, if the next exchange of an
    edge waits for the present one, the copies between device and host.
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
