"""The closed forms against the simulator where clusters are uneven: slow cards, shared cards, copies, moments."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest

import murmur.strategies
from murmur.core.facts import Planned
from murmur.core.learner import Strategy
from murmur.core.mixing import exponential, pairwise, random_pairs, randomized_ring, ring
from murmur.simulation.planner.forms import form_of
from murmur.simulation.planner.setting import ClusterSetting
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies import (
    ADPSGD,
    ASGD,
    BMUF,
    EASGD,
    KAVG,
    DelayByOne,
    Downpour,
    GossipPGA,
    QuasiGlobal,
    SuperLearners,
    SyncSGD,
)
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.presets import preset
from tests.support.grids import thinned
from tests.support.named import named

SLOW = Link(50e-6, 0.125e9)
EVEN = Cluster(8, ConstantSeconds(0.07), Link(50e-6, 1.25e9), message_bytes=16e6)
LARGE = replace(EVEN, message_bytes=165e6)
CLUSTERS = {
    "slow first card": replace(EVEN, links={0: SLOW}),
    "slow last card": replace(EVEN, links={7: SLOW}),
    "latency": replace(EVEN, learners=16, link=Link(1e-3, 1.25e9)),
    "jitter": replace(EVEN, learners=16, compute=LognormalSeconds(0.07, 0.3)),
    "shared cards": replace(
        EVEN,
        learners_per_node=4,
        link=Link(50e-6, 5e9),
        allreduce="hierarchical",
        copy_bytes_per_second=8e9,
    ),
    "v100": preset("v100-ethernet").cluster(16, ConstantSeconds(0.07), 165e6),
    "workstations": preset("workstations-1g").cluster(8, LognormalSeconds(0.3, 0.1), 165e6),
    "p100": preset("p100-fdr").cluster(16, LognormalSeconds(0.1, 0.2), 50e6),
}
WITH_SERVERS: list[Strategy] = [ASGD(), ASGD(servers=3), SuperLearners(ASGD(), 2)]
WITH_SUPER_LEARNERS: list[Strategy] = [
    SuperLearners(outer, width)
    for width in (2, 4)
    for outer in (SyncSGD(), KAVG(4), KAVG(4, moments="averaged"), DelayByOne(), GossipPGA(4), BMUF(4), QuasiGlobal())
]
STEPS = 32


def pace(strategy: Strategy, cluster: Cluster) -> float:
    """Seconds of a minibatch in the simulator, without the beginning and the end of a run."""
    few, many = (time_strategy(strategy, cluster, steps * cluster.learners, 256.0) for steps in (STEPS, 3 * STEPS))
    return (many.seconds - few.seconds) / (many.minibatches - few.minibatches)


def agrees(strategy: Strategy, cluster: Cluster) -> None:
    form = form_of(strategy, ClusterSetting.of(cluster, 256.0))
    assert form.seconds == pytest.approx(pace(strategy, cluster), rel=0.06)


def averaging() -> list[Any]:
    """Every strategy of the package that has a form, in each way in which it averages moments."""
    kinds = [kind for kind in vars(murmur.strategies).values() if isinstance(kind, type) and issubclass(kind, Planned)]
    made = []
    for kind, way in product(kinds, ("averaged", "at_outer")):
        if "moments" in {f.name for f in fields(kind)}:
            with suppress(ValueError):  # it does not have this way
                made.append(kind(moments=way))
    return made


@pytest.mark.parametrize("strategy", averaging(), ids=named)
def test_averaged_moments_take_the_time_of_three_vectors(strategy: Any) -> None:
    agrees(strategy, LARGE)
    local, moved = (form_of(each, ClusterSetting.of(LARGE)) for each in (replace(strategy, moments="local"), strategy))
    assert moved.vectors > local.vectors
    assert moved.seconds / (moved.rounds or 1.0) > 1.05 * local.seconds / (local.rounds or 1.0)


def test_rounds_of_averaged_moments() -> None:
    strategy = ADPSGD(moments="averaged")
    found, form = time_strategy(strategy, LARGE, 8 * 96), form_of(strategy, ClusterSetting.of(LARGE))
    assert form.rounds == pytest.approx(sum(found.exchanges) / 2 / found.minibatches, rel=0.15)


@pytest.mark.parametrize(("strategy", "where"), thinned(WITH_SERVERS, list(CLUSTERS)))
def test_servers(strategy: Strategy, where: str) -> None:
    agrees(strategy, CLUSTERS[where])


@pytest.mark.parametrize(("strategy", "where"), thinned(WITH_SUPER_LEARNERS, list(CLUSTERS)))
def test_super_learners(strategy: Strategy, where: str) -> None:
    agrees(strategy, CLUSTERS[where])


@pytest.mark.parametrize(
    ("mixing", "where"),
    thinned([ring, randomized_ring, pairwise, exponential, random_pairs], ["slow first card", "latency", "jitter"]),
)
def test_gossip_with_exact_means(mixing: Any, where: str) -> None:
    agrees(GossipPGA(8, mixing), CLUSTERS[where])


@pytest.mark.parametrize(
    ("strategy", "where"),
    thinned([GossipPGA(8), GossipPGA(4, pairwise, "at_outer")], ["shared cards", "v100", "workstations", "p100"]),
)
def test_gossip_on_nodes(strategy: Strategy, where: str) -> None:
    agrees(strategy, CLUSTERS[where])


@pytest.mark.parametrize(
    ("strategy", "where"),
    thinned([EASGD(1), EASGD(2, servers=2), Downpour()], ["slow first card", "slow last card", "workstations"]),
)
def test_exchanges_that_a_slow_card_carries(strategy: Strategy, where: str) -> None:
    found = time_strategy(strategy, CLUSTERS[where], 8 * 120)
    form = form_of(strategy, ClusterSetting.of(CLUSTERS[where]))
    assert form.rounds == pytest.approx(sum(found.exchanges) / sum(found.gradients), rel=0.1)


def test_what_has_no_form_on_shared_cards_is_refused() -> None:
    setting = ClusterSetting.of(CLUSTERS["v100"])
    with pytest.raises(ValueError, match="neighbours of mixing=random_pairs have no closed form on nodes whose"):
        form_of(GossipPGA(8, random_pairs), setting)
    with pytest.raises(ValueError, match=r"SuperLearners\(node_size=3\) on nodes of 4 learners has no closed form"):
        form_of(SuperLearners(KAVG(4), 3), ClusterSetting.of(replace(CLUSTERS["shared cards"], learners=12)))
