"""Rounds of averaging beside gradients: the form against the strategy on the virtual clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from murmur.core.mixing import Mixing, exponential, pairwise, random_pairs, randomized_ring, ring
from murmur.simulation.planner.rounds import rounds_of
from murmur.simulation.planner.setting import ClusterSetting
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies import ADPSGD
from murmur.worlds.virtual.cluster import Cluster, ComputeTime, ConstantSeconds, Link, LognormalSeconds

BYTES, SECONDS, LEARNERS = 40e6, 0.25, 12
CONSTANT, UNEVEN = ConstantSeconds(SECONDS), LognormalSeconds(SECONDS, 0.15)


def simulated(mixing: Mixing, cluster: Cluster) -> float:
    """Completed exchanges per gradient, in rounds."""
    found = time_strategy(ADPSGD(mixing), cluster, cluster.learners * 90)
    row = mixing(0, range(cluster.learners), 0)
    return sum(found.exchanges) / (len(row) - 1) / found.minibatches


def planned(mixing: Mixing, cluster: Cluster) -> float:
    return rounds_of(mixing, cluster, ClusterSetting.of(cluster).times).per_gradient


@pytest.mark.parametrize("x", [0.5, 0.9, 1.2, 1.7, 3.2])
@pytest.mark.parametrize("compute", [CONSTANT, UNEVEN], ids=["constant", "uneven"])
@pytest.mark.parametrize("mixing", [ring, randomized_ring])
def test_rings_within_a_tenth(mixing: Mixing, compute: ComputeTime, x: float) -> None:
    """x: seconds in which a card serves a round of all learners, in gradient times."""
    cluster = Cluster(LEARNERS, compute, Link(20e-6, 2 * BYTES / (x * SECONDS)), message_bytes=BYTES)
    assert planned(mixing, cluster) == pytest.approx(simulated(mixing, cluster), rel=0.1)


@pytest.mark.parametrize("mixing", [pairwise, random_pairs, exponential])
@pytest.mark.parametrize("x", [0.5, 1.1, 1.8])
def test_pairs_within_an_eighth(mixing: Mixing, x: float) -> None:
    cluster = Cluster(LEARNERS, UNEVEN, Link(20e-6, BYTES / (x * SECONDS)), message_bytes=BYTES)
    assert planned(mixing, cluster) == pytest.approx(simulated(mixing, cluster), rel=0.125)


@pytest.mark.parametrize("bytes_per_second", [0.25e9, 0.5e9, 1e9])
@pytest.mark.parametrize("mixing", [ring, randomized_ring])
def test_nodes_that_share_a_card(mixing: Mixing, bytes_per_second: float) -> None:
    """Two edges of a fixed ring leave a node, and nearly all of a random one."""
    cluster = Cluster(
        LEARNERS,
        UNEVEN,
        Link(20e-6, bytes_per_second),
        message_bytes=BYTES,
        learners_per_node=4,
        inside=Link(1e-6, 9e9),
    )
    assert planned(mixing, cluster) == pytest.approx(simulated(mixing, cluster), rel=0.1)


def test_copies_between_device_and_host_take_their_time() -> None:
    cluster = Cluster(LEARNERS, UNEVEN, Link(20e-6, 1e9), message_bytes=BYTES, copy_bytes_per_second=0.5e9)
    assert planned(ring, cluster) == pytest.approx(simulated(ring, cluster), rel=0.15)
    assert planned(ring, cluster) < planned(ring, replace(cluster, copy_bytes_per_second=float("inf")))


def test_a_mixing_without_neighbours_is_never_late() -> None:
    assert planned(lambda k, view, i: {i: 1.0}, Cluster(3, message_bytes=1e12)) == 1.0
