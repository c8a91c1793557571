"""Declared facts of strategies against the traffic and the records of the virtual world."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from murmur.core.facts import Facts, vectors_of
from murmur.core.learner import Strategy
from murmur.core.mixing import exponential, pairwise, randomized_ring, ring
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.trainer import Trainer
from murmur.strategies.a2cid2 import A2CiD2
from murmur.strategies.adaptive_kavg import AdaptiveKAVG, Stages
from murmur.strategies.adpsgd import ADPSGD
from murmur.strategies.asgd import ASGD
from murmur.strategies.bmuf import BMUF
from murmur.strategies.compressed import Compressed
from murmur.strategies.decoupled_diloco import DecoupledDiLoCo
from murmur.strategies.delay_by_one import DelayByOne
from murmur.strategies.diloco import DiLoCo
from murmur.strategies.downpour import Downpour
from murmur.strategies.easgd import EASGD
from murmur.strategies.gossip_pga import GossipPGA
from murmur.strategies.kavg import KAVG
from murmur.strategies.noloco import NoLoCo
from murmur.strategies.parameter_averaging import Jobs, ParameterAveraging
from murmur.strategies.quasi_global import QuasiGlobal
from murmur.strategies.slow_mo import SlowMo
from murmur.strategies.streaming_diloco import StreamingDiLoCo
from murmur.strategies.super_learners import SuperLearners
from murmur.strategies.sync_sgd import SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import Observed, plain_loop
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import thinned
from tests.support.named import named
from tests.support.tasks import fit
from tests.support.unscaled import Experiment

LARGE = AdaptiveKAVG(Stages((4,)), Stages((2,)))
STRATEGIES = [
    SyncSGD(),
    *(KAVG(4), KAVG(8), BMUF(4), SlowMo(4), DiLoCo(4), GossipPGA(2), AdaptiveKAVG(Stages((4,))), LARGE),
    ParameterAveraging(16, Jobs(8)),
    *(StreamingDiLoCo(4, 1, 0), StreamingDiLoCo(8, 2, 3), StreamingDiLoCo(4, 4, 1)),
    *(NoLoCo(1), NoLoCo(4)),
    *(DelayByOne(), DelayByOne(ring), DelayByOne(pairwise), DelayByOne(exponential)),
]
LOOSE = [  # strategies with unbounded staleness, or with that of an inner strategy
    Compressed(KAVG(4), "float32"),
    *(ADPSGD(), ADPSGD(randomized_ring), ADPSGD(pairwise), ASGD(), ASGD(servers=3)),
    *(A2CiD2(), A2CiD2(pairwise), QuasiGlobal()),
    *(Downpour(), Downpour(4, 2, shards=3), EASGD(2), EASGD(4, shards=2), Downpour(2, 3, servers=2), EASGD(servers=1)),
    *(DecoupledDiLoCo(4, 2), DecoupledDiLoCo(2, 1, 3, shards=2), DecoupledDiLoCo(4, 4, 2, servers=1)),
    *(SuperLearners(ADPSGD(), 2), SuperLearners(SyncSGD(), 2), SuperLearners(ADPSGD(randomized_ring), 3)),
]
PARTED = [(SuperLearners(ADPSGD(), 2), 3), (SuperLearners(SyncSGD(), 4), 5), (SuperLearners(KAVG(4), 2), 5)]
TASK = ToyTask(samples=4, hidden=64)


@pytest.mark.parametrize(("strategy", "learners"), thinned(STRATEGIES, [5, 2]))
def test_ledger_and_records_agree(strategy: Strategy, learners: int) -> None:
    facts = Facts.of(strategy)
    sent, seen = [], list[Record]()
    for turns in (8, 8 + 80):  # whole periods of every K and of every mixing
        observed, budget = Observed(strategy), Budget(minibatches=turns * learners)
        world = VirtualWorld(Cluster(learners=learners, compute=LognormalSeconds(sigma=0.5)))
        run = Experiment(TASK, observed, budget, SGD(0.05), evaluate_every_epochs=1000)
        Trainer(run, world, observers=lambda _: (seen.append,)).fit()
        sent.append(sum(world.network.sent_bytes.values()))
        assert all(torch.equal(w, observed.ends[0]) for w in observed.ends) == facts.ends_equal
    vector_bytes = 4 * observed.ends[0].numel()
    # Flags travel with gradients; an odd number of learners leaves a different one out of each matching.
    assert (sent[1] - sent[0]) / vector_bytes / (80 * learners) == pytest.approx(
        vectors_of(strategy, learners, TASK.samples), rel=0.02
    )
    assert max(record.staleness for record in seen if record.kind == "step") == facts.staleness


@pytest.mark.parametrize(("strategy", "learners"), [*thinned(LOOSE, [6, 12]), *PARTED])
def test_ledger_of_equally_fast_learners(strategy: Strategy, learners: int) -> None:
    facts = Facts.of(strategy)
    sent = []
    for turns in (8, 8 + 80):
        observed, budget = Observed(strategy), Budget(minibatches=turns * learners)
        cluster = Cluster(learners=learners, compute=ConstantSeconds(0.1), link=Link(0.0, 1e12))
        world = VirtualWorld(cluster)
        Trainer(Experiment(TASK, observed, budget, SGD(0.05), evaluate_every_epochs=1000), world).fit()
        sent.append(sum(world.network.sent_bytes.values()))
        assert all(torch.equal(w, observed.ends[0]) for w in observed.ends) == facts.ends_equal
    gradients = 80 * learners
    vectors = (sent[1] - sent[0]) / (4 * observed.ends[0].numel()) / gradients
    assert vectors == pytest.approx(vectors_of(strategy, learners, TASK.samples), rel=0.03)


@pytest.mark.parametrize("strategy", [s for s in [*STRATEGIES, *LOOSE] if s != LARGE], ids=named)
def test_alone(strategy: Strategy) -> None:
    run = Experiment(replace(TASK, dropout=0.2), strategy, Budget(minibatches=40), SGD(0.1, momentum=0.9))
    assert torch.equal(fit(run, VirtualWorld(1)), plain_loop(run)) == Facts.of(strategy).bitwise_alone
