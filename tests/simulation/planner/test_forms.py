"""The planner's closed forms against the strategies on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from murmur.core.facts import Form, Planner
from murmur.core.learner import Learner, Strategy
from murmur.core.mixing import randomized_ring, ring
from murmur.simulation.planner.forms import form_of
from murmur.simulation.planner.setting import ClusterSetting
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies import (
    ADPSGD,
    ASGD,
    BMUF,
    EASGD,
    KAVG,
    A2CiD2,
    AdaptiveKAVG,
    DecoupledDiLoCo,
    DelayByOne,
    DiLoCo,
    Downpour,
    GossipPGA,
    NoLoCo,
    ParameterAveraging,
    QuasiGlobal,
    SlowMo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.strategies.parameter_averaging import Jobs
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.presets import preset
from tests.support.grids import thinned
from tests.support.named import named

FAST = Link(50e-6, 12.5e9)
SLOW = Link(50e-6, 0.5e9)
BYTES = 100e6
STRATEGIES: list[Strategy] = [
    SyncSGD(),
    KAVG(4),
    BMUF(8),
    SlowMo(8),
    DiLoCo(8),
    StreamingDiLoCo(8, 2, 1),
    StreamingDiLoCo(7, 3, 2),
    GossipPGA(8),
    NoLoCo(8),
    NoLoCo(1),
    DelayByOne(),
    ADPSGD(ring),
    ADPSGD(randomized_ring),
    A2CiD2(),
    QuasiGlobal(),
    ASGD(),
    ASGD(servers=2),
    ASGD(servers=4),
    Downpour(),
    Downpour(servers=2),
    EASGD(4),
    EASGD(4, servers=1),
    DecoupledDiLoCo(8, 4),
    DecoupledDiLoCo(4, 2, servers=1),
    SuperLearners(ADPSGD(), 4),
    SuperLearners(SyncSGD(), 2),
]
CLUSTERS = {
    "fast, equal": Cluster(8, ConstantSeconds(0.1), FAST, message_bytes=BYTES),
    "slow, equal": Cluster(8, ConstantSeconds(0.1), SLOW, message_bytes=BYTES),
    "jitter": Cluster(8, LognormalSeconds(0.1, 0.3), FAST, message_bytes=BYTES),
    "straggler": Cluster(8, ConstantSeconds(0.1, {5: 10.0}), FAST, message_bytes=BYTES),
    "nodes": Cluster(8, ConstantSeconds(0.1), FAST, message_bytes=BYTES, learners_per_node=4, allreduce="hierarchical"),
    "host copies, slow sums": Cluster(
        8, ConstantSeconds(0.1), FAST, message_bytes=BYTES, copy_bytes_per_second=6e9, reduce_bytes_per_second=8e9
    ),
}


def by_chance(strategy: Strategy, where: str) -> bool:
    """True for learners that wait for a server, or others each time, over a card that they share, which has no form."""
    return isinstance(strategy, ASGD | NoLoCo) and where == "nodes"


CASES = [case for case in thinned(STRATEGIES, list(CLUSTERS)) if not by_chance(*case.values)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("strategy", "where"), CASES)
def test_closed_form_is_what_the_simulator_takes(strategy: Strategy, where: str) -> None:
    cluster = CLUSTERS[where]
    minibatches = 8 * 96
    found = time_strategy(strategy, cluster, minibatches)
    form = form_of(strategy, ClusterSetting.of(cluster))
    assert form.seconds == pytest.approx(found.seconds_per_minibatch, rel=0.06)


@pytest.mark.parametrize(
    "strategy",
    [Downpour(), Downpour(4, 4), EASGD(2), Downpour(servers=1), Downpour(servers=2), EASGD(2, servers=3)],
    ids=named,
)
@pytest.mark.parametrize("where", ["fast, equal", "slow, equal", "jitter", "nodes"])
def test_exchanges_with_a_sharded_server_that_cards_carry(strategy: Strategy, where: str) -> None:
    cluster = CLUSTERS[where]
    found = time_strategy(strategy, cluster, 8 * 192)
    carried = form_of(strategy, ClusterSetting.of(cluster)).rounds
    assert carried == pytest.approx(sum(found.exchanges) / sum(found.gradients), rel=0.06)


@pytest.mark.parametrize("jobs", [Jobs(), Jobs(8), Jobs(2, 6, reach=0.5)], ids=named)
@pytest.mark.parametrize("where", ["fast, equal", "jitter", "straggler"])
def test_a_ramp_of_learners(jobs: Jobs, where: str) -> None:
    """25 minibatches of ten frames between two averages; J changes with the part of the budget that is used."""
    cluster, strategy = CLUSTERS[where], ParameterAveraging(250.0, jobs)
    found = time_strategy(strategy, cluster, 8 * 2000, samples=10.0)
    form = form_of(strategy, ClusterSetting.of(cluster, samples=10.0))
    assert form.seconds == pytest.approx(found.seconds_per_minibatch, rel=0.06)


def test_counting_samples_needs_their_number() -> None:
    with pytest.raises(ValueError, match="needs the samples of a minibatch"):
        form_of(ParameterAveraging(), ClusterSetting.of(CLUSTERS["fast, equal"]))


@pytest.fixture
def _nan_in_new_memory() -> Iterator[None]:
    """PyTorch fills uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_nan_in_new_memory")
@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_no_time_depends_on_uninitialised_memory(strategy: Strategy) -> None:
    assert torch.empty(1).isnan()
    poisoned = time_strategy(strategy, CLUSTERS["straggler"], 160)
    torch.use_deterministic_algorithms(False)
    assert poisoned == time_strategy(strategy, CLUSTERS["straggler"], 160)


@pytest.mark.parametrize("strategy", [SuperLearners(ADPSGD(), 8), SuperLearners(KAVG(4), 8)], ids=named)
def test_wide_nodes_of_devices(strategy: Strategy) -> None:
    """Sums and broadcasts of eight devices stay inside their node; leaders copy to their hosts for each other."""
    cluster = preset("v100-ethernet").cluster(16, LognormalSeconds(0.07, 0.1), 165e6)
    found = time_strategy(strategy, cluster, 16 * 200)
    assert form_of(strategy, ClusterSetting.of(cluster)).seconds == pytest.approx(found.seconds_per_minibatch, rel=0.06)


def test_what_binds_is_named() -> None:
    def binds(strategy: Strategy, where: str) -> str:
        return form_of(strategy, ClusterSetting.of(CLUSTERS[where])).binds

    assert binds(SyncSGD(), "slow, equal") == "network"
    assert binds(SyncSGD(), "fast, equal") == "compute"
    assert binds(SyncSGD(), "straggler") == "slowest learner"
    assert binds(ADPSGD(), "straggler") == "compute"
    assert binds(ASGD(), "slow, equal") == "server's card"
    assert binds(ASGD(servers=4), "slow, equal") == "compute"
    assert binds(DelayByOne(), "slow, equal") == "network"


def test_rounds_that_the_network_carries() -> None:
    """A slow link does not delay gradients, but fewer rounds of averaging fit beside them."""
    assert form_of(ADPSGD(), ClusterSetting.of(CLUSTERS["slow, equal"])).rounds == pytest.approx(1 / 5)
    assert form_of(ADPSGD(), ClusterSetting.of(CLUSTERS["fast, equal"])).rounds == pytest.approx(1.0)
    assert form_of(ADPSGD(), ClusterSetting.of(replace(CLUSTERS["fast, equal"], learners=1))).rounds == 1.0


def test_one_learner_is_alone() -> None:
    cluster = Cluster(1, ConstantSeconds(0.25), FAST, message_bytes=BYTES)
    for strategy in (SyncSGD(), KAVG(4), DelayByOne(), ADPSGD(), ASGD(), EASGD(servers=2)):
        assert form_of(strategy, ClusterSetting.of(cluster)).seconds == pytest.approx(0.25)


def test_two_learners_and_a_server() -> None:
    cluster = replace(CLUSTERS["slow, equal"], learners=2)
    found = time_strategy(ASGD(), cluster, 200)
    assert form_of(ASGD(), ClusterSetting.of(cluster)).seconds == pytest.approx(found.seconds_per_minibatch, rel=0.06)


def test_what_cannot_be_planned_is_refused() -> None:
    setting = ClusterSetting.of(CLUSTERS["fast, equal"])
    with pytest.raises(ValueError, match="AdaptiveKAVG has no closed form"):
        form_of(AdaptiveKAVG(), setting)
    with pytest.raises(ValueError, match=r"DelayByOne\(mixing=ring\) has no closed form"):
        form_of(DelayByOne(ring), setting)
    with pytest.raises(ValueError, match=r"SuperLearners\(node_size=3\) does not divide 8 learners"):
        form_of(SuperLearners(ADPSGD(), 3), setting)
    with pytest.raises(ValueError, match="neighbours of mixing=random_pairs have no closed form on nodes"):
        form_of(NoLoCo(), ClusterSetting.of(CLUSTERS["nodes"]))
    with pytest.raises(ValueError, match="as they happen to use it together or in turn"):
        form_of(ASGD(), ClusterSetting.of(CLUSTERS["nodes"]))
    with pytest.raises(ValueError, match=r"needs Cluster.message_bytes"):
        ClusterSetting.of(Cluster(2))
    with pytest.raises(ValueError, match=r"needs Cluster.message_bytes"):
        time_strategy(SyncSGD(), Cluster(2), 10)
    with pytest.raises(ValueError, match="at least 1 minibatch, got 0"):
        time_strategy(SyncSGD(), Cluster(2, message_bytes=1.0), 0)


@dataclass(frozen=True)
class EveryThird:
    """A user's strategy that declares its facts."""

    lock_step: ClassVar[bool] = True
    sets_weights_every: ClassVar[float] = 3

    async def __call__(self, me: Learner) -> None:
        while me.training:
            async for g in me.gradients(at_most=3):
                me.descend(g)
            me.weights.set_(await me.group.mean(me.weights.snapshot(), weight=me.fresh_samples))

    def planned(self, planner: Planner) -> Form:
        return planner.every(3, vectors=4)


@pytest.mark.parametrize("where", ["fast, equal", "nodes"])
def test_a_users_strategy_is_planned_like_that_of_the_package(where: str) -> None:
    setting = ClusterSetting.of(CLUSTERS[where])
    assert form_of(EveryThird(), setting) == form_of(KAVG(3), setting)
    assert form_of(SuperLearners(EveryThird(), 2), setting) == form_of(SuperLearners(KAVG(3), 2), setting)
