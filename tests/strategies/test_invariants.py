"""Invariants of every strategy of the registry."""

from __future__ import annotations

import pytest
import torch

from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.core.mixing import pairwise, randomized_ring, ring
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD, Adam, OptimizerFactory
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ADPSGD,
    ALL,
    KAVG,
    A2CiD2,
    AdaptiveKAVG,
    Compressed,
    DecoupledDiLoCo,
    DelayByOne,
    GossipPGA,
    NoLoCo,
    ParameterAveraging,
    SlowMo,
    SuperLearners,
    SyncSGD,
)
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.averaging_only import Averaging
from tests.support.grids import thinned
from tests.support.named import named
from tests.support.pool import Pool
from tests.support.tasks import Groups, OddToy, Quadratic, fit, fit_in_process, weights_of
from tests.support.unscaled import Experiment

SMALL = {
    "ParameterAveraging": ParameterAveraging(16),
    "Compressed": Compressed(KAVG(4), "bfloat16"),
    "NoLoCo": NoLoCo(4),
    "DecoupledDiLoCo": DecoupledDiLoCo(4, 2, 2),
}
RANKED = ("ParameterAveraging", "ASGD", "Downpour", "EASGD", "DecoupledDiLoCo")
AVERAGED_MOMENTS: dict[str, Strategy] = {
    "KAVG moments": KAVG(4, moments="averaged"),
    "GossipPGA moments": GossipPGA(moments="averaged"),
    "DelayByOne moments": DelayByOne(moments="averaged"),
    "ADPSGD moments": ADPSGD(moments="averaged"),
    "SuperLearners moments": SuperLearners(ADPSGD(moments="averaged")),
    "SlowMo moments": SlowMo(moments="at_outer"),
}
MADE = {**{name: SMALL.get(name) or make() for name, make in ALL.items()}, **AVERAGED_MOMENTS}
STRATEGIES = [pytest.param(made, id=name) for name, made in MADE.items()]
IN_STEP = [pytest.param(made, id=name) for name, made in MADE.items() if Facts.of(made).lock_step]
AT_OWN_PACE = [pytest.param(made, id=name) for name, made in MADE.items() if not Facts.of(made).lock_step]
EXACT_ALONE = [pytest.param(made, id=name) for name, made in MADE.items() if Facts.of(made).bitwise_alone]
TOY = ToyTask(samples=8, ragged=True, hidden=16, dropout=0.2)
TASKS = [pytest.param(TOY, id="toy"), pytest.param(OddToy(samples=4, hidden=16), id="odd")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_same_seed_same_bits(strategy: Strategy) -> None:
    experiment = Experiment(TOY, strategy, Budget(minibatches=60), SGD(0.1, momentum=0.9))
    cluster = Cluster(learners=3, compute=LognormalSeconds(sigma=1.0, seed=4))
    assert torch.equal(fit(experiment, VirtualWorld(cluster)), fit(experiment, VirtualWorld(cluster)))


@pytest.mark.parametrize(
    ("strategy", "task", "optimizer"),
    thinned(EXACT_ALONE, TASKS, [SGD(0.1, momentum=0.9), Adam(0.01, weight_decay=0.1), Groups()]),
)
def test_one_learner_is_the_plain_loop_to_the_bit(
    strategy: Strategy, task: ToyTask, optimizer: OptimizerFactory
) -> None:
    experiment = Experiment(task, strategy, Budget(minibatches=50), optimizer, evaluate_every_epochs=0.1)
    plain = plain_loop(experiment)
    assert torch.equal(fit(experiment, VirtualWorld(1)), plain)
    assert torch.equal(fit(experiment, ThreadWorld(1)), plain)


@pytest.mark.processes
@pytest.mark.parametrize("strategy", EXACT_ALONE)
def test_one_process_is_the_plain_loop_to_the_bit(strategy: Strategy, pool: Pool) -> None:
    experiment = Experiment(OddToy(samples=4, hidden=16), strategy, Budget(minibatches=50), Groups())
    assert pool.call(fit_in_process, 1, experiment)[0] == plain_loop(experiment).tolist()


@pytest.mark.parametrize(("strategy", "task"), thinned(IN_STEP, TASKS))
def test_virtual_and_threads_agree_to_the_bit(strategy: Strategy, task: ToyTask) -> None:
    experiment = Experiment(task, strategy, Budget(minibatches=61), Groups(), evaluate_every_epochs=0.3)
    assert torch.equal(fit(experiment, VirtualWorld(3)), fit(experiment, ThreadWorld(3, timeout_seconds=20)))


@pytest.mark.processes
@pytest.mark.parametrize(("strategy", "task"), thinned(IN_STEP, TASKS))
def test_processes_agree_to_rounding(strategy: Strategy, task: ToyTask, pool: Pool) -> None:
    experiment = Experiment(task, strategy, Budget(minibatches=61), Groups(), evaluate_every_epochs=0.3)
    wanted = fit(experiment, VirtualWorld(3))
    learners = [torch.tensor(w) for w in pool.call(fit_in_process, 3, experiment)]
    assert all(torch.equal(w, learners[0]) for w in learners)
    assert torch.allclose(learners[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("strategy", "minibatches", "learners"), thinned(IN_STEP, [101, 102, 103], [1, 2, 3, 4]))
@pytest.mark.timeout(30)
def test_every_budget_ends(strategy: Strategy, minibatches: int, learners: int) -> None:
    factors = {i: 1.0 + i for i in range(learners)}
    virtual = VirtualWorld(Cluster(learners=learners, compute=ConstantSeconds(0.01, factors)))
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=minibatches), SGD(0.1))
    wanted = fit(experiment, virtual)
    uneven = ThreadWorld(learners, timeout_seconds=20, delay=lambda learner: 2e-4 * learner)
    assert torch.equal(fit(experiment, uneven), wanted)


@pytest.mark.processes
@pytest.mark.parametrize(("strategy", "learners"), thinned(IN_STEP, [4, 3, 2, 1]))
@pytest.mark.timeout(60)
def test_every_budget_ends_in_processes(strategy: Strategy, learners: int, pool: Pool) -> None:
    for minibatches in (41, 42, 43):
        experiment = Experiment(Uneven(), strategy, Budget(minibatches=minibatches), SGD(0.1))
        wanted = fit(
            Experiment(Quadratic(), strategy, Budget(minibatches=minibatches), SGD(0.1)), VirtualWorld(learners)
        )
        for weights in pool.call(fit_in_process, learners, experiment):
            assert torch.allclose(torch.tensor(weights, dtype=torch.float64), wanted, rtol=1e-9)


@pytest.mark.parametrize(("strategy", "minibatches", "learners"), thinned(AT_OWN_PACE, [1, 101, 102], [4, 3, 2, 1]))
@pytest.mark.timeout(60)
def test_every_budget_ends_at_every_pace(strategy: Strategy, minibatches: int, learners: int) -> None:
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=minibatches), SGD(0.1), evaluate_every_epochs=0.1)
    factors = {i: 1.0 + i for i in range(learners)}
    fit(experiment, VirtualWorld(Cluster(learners=learners, compute=ConstantSeconds(0.01, factors))))
    world = ThreadWorld(learners, timeout_seconds=20, delay=lambda learner: 2e-4 * learner)
    ends = [weights_of(o.model) for o in world.run(Trainer(experiment, world)._train)]
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.processes
@pytest.mark.parametrize(("strategy", "learners"), thinned(AT_OWN_PACE, [4, 3, 2, 1]))
@pytest.mark.timeout(60)
def test_every_budget_ends_at_every_pace_in_processes(strategy: Strategy, learners: int, pool: Pool) -> None:
    """The noise of centres around 0 stays small, even if learners hear of each other at the end alone."""
    for minibatches in (1, 102):
        experiment = Experiment(
            Uneven(), strategy, Budget(minibatches=minibatches), SGD(0.02), evaluate_every_epochs=0.1
        )
        ends = pool.call(fit_in_process, learners, experiment)
        assert all(end == ends[0] for end in ends)
        assert minibatches == 1 or sum(w * w for w in ends[0]) < 0.5  # 0.13 expected at worst


class Uneven(Quadratic):
    """Quadratic in which every third minibatch takes longer."""

    def minibatch(self, n: int) -> tuple[torch.Tensor, float]:
        size = 120 if n % 3 == 0 else 4
        torch.randn(size, size) @ torch.randn(size, size)
        return super().minibatch(n)


@pytest.mark.parametrize("learners", [2, 3, 4])
def test_sync_sgd_is_the_large_minibatch(learners: int) -> None:
    """L learners equal one learner with the L-fold minibatch, even if minibatches differ in samples."""
    small = ToyTask(samples=9, ragged=True, hidden=16, per_epoch=12 * learners)
    large = Joined(samples=9, ragged=True, hidden=16, per_epoch=12, of=learners)
    optimizer = SGD(0.1, momentum=0.9)
    together = fit(Experiment(small, SyncSGD(), Budget(epochs=2), optimizer), VirtualWorld(learners))
    alone = plain_loop(Experiment(large, SyncSGD(), Budget(epochs=2), optimizer))
    assert torch.allclose(together, alone, rtol=1e-4, atol=1e-6)


class Joined(ToyTask):
    """Task whose minibatch n holds the samples of the toy's minibatches n L, n L + 1, ..."""

    def __init__(self, of: int, **fields: object) -> None:
        super().__init__(**fields)  # type: ignore[arg-type]
        object.__setattr__(self, "of", of)

    def minibatch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        of: int = self.of  # type: ignore[attr-defined]
        small = ToyTask(self.samples, self.ragged, self.hidden, self.dropout, self.per_epoch * of, self.seed)
        parts = [small.minibatch(n * of + i) for i in range(of)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def test_kavg_of_one_step_is_sync_sgd() -> None:
    budget, optimizer = Budget(minibatches=60), SGD(0.1)
    task = Quadratic(ragged=True)
    one = fit(Experiment(task, KAVG(1), budget, optimizer), VirtualWorld(3))
    assert torch.allclose(one, fit(Experiment(task, SyncSGD(), budget, optimizer), VirtualWorld(3)), rtol=1e-12)


@pytest.mark.parametrize(
    "strategy",
    [
        *(KAVG(4), NoLoCo(3), AdaptiveKAVG(), DelayByOne(), DelayByOne(ring), ADPSGD(), ADPSGD(randomized_ring)),
        *(A2CiD2(), A2CiD2(pairwise)),
        *(SuperLearners(ADPSGD(pairwise), 1), Compressed(ADPSGD(), "int8"), Compressed(DelayByOne(ring), "bfloat16")),
    ],
    ids=named,
)
def test_averaging_leaves_the_mean_where_it_was(strategy: Strategy) -> None:
    """Average without gradients, for the time of 400 gradients at random delays."""
    start = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    world = VirtualWorld(Cluster(learners=4, compute=LognormalSeconds(0.1, 0.8, seed=2)))
    ended = world.run(Averaging(strategy, start, 400))
    for me in ended:
        assert torch.allclose(me.weights.snapshot(), start.mean(0), rtol=0, atol=1e-10)


class Relabelled(Quadratic):
    """Quadratic in which learners 0, 1, 2, 3 get the minibatches of 2, 3, 0, 1."""

    def minibatch(self, n: int) -> tuple[torch.Tensor, float]:
        turn, rank = divmod(n, 4)
        return super().minibatch(4 * turn + (rank + 2) % 4)


@pytest.mark.parametrize("strategy", [m for n, m in MADE.items() if n not in RANKED], ids=named)
def test_relabelling_learners_changes_nothing(strategy: Strategy) -> None:
    """A ramp of learners and a server depend on ranks; all other strategies treat all numberings alike."""

    def consensus(task: Quadratic) -> torch.Tensor:
        world = VirtualWorld(Cluster(learners=4, compute=ConstantSeconds(0.1), link=Link(0.0, 1e18)))
        return fit(Experiment(task, strategy, Budget(minibatches=80), SGD(0.05)), world)

    bits = 8 if isinstance(strategy, Compressed) else 40
    assert torch.allclose(consensus(Relabelled()), consensus(Quadratic()), rtol=0, atol=2.0**-bits)
    assert not torch.equal(Relabelled().minibatch(0)[0], Quadratic().minibatch(0)[0])
