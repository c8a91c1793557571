"""DelayByOne against W_{k+1} = W_k T_k - alpha G(W_k) on the stacked matrix, and the gain of its overlap."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from murmur.core.mixing import Mixing, exponential, matrix, pairwise, randomized_ring, ring, uniform
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD, Adam, OptimizerFactory
from murmur.engine.record import Record
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.strategies.delay_by_one import DelayByOne
from murmur.strategies.kavg import KAVG
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import thinned
from tests.support.named import named
from tests.support.pool import Pool
from tests.support.tasks import Groups, OddToy, Point, Quadratic, fit, fit_in_process, weights_of
from tests.support.unscaled import Experiment

ALPHA = 0.3
MIXINGS = [uniform, ring, randomized_ring, pairwise, exponential]


@dataclass(frozen=True)
class Saturating(Quadratic):
    """Loss log cosh(w - c_n) per sample, gradient tanh(w - c_n): not linear, so the mean depends on the mixing."""

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float]) -> Loss:
        centre, weight = minibatch
        assert isinstance(model, Point)
        return Loss(weight * torch.log(torch.cosh(model.w - 3 * centre)).sum(), weight)


def oracle(mixing: Mixing, learners: int, minibatches: int) -> Tensor:
    task = Saturating()
    W = torch.zeros(learners, task.size, dtype=torch.float64)
    turns = -(-minibatches // learners)
    for k in range(turns):
        ns = [k * learners + i for i in range(learners)]
        G = torch.stack(
            [torch.tanh(w - 3 * task.centre(n)) if n < minibatches else 0 * w for w, n in zip(W, ns, strict=True)]
        )
        W = matrix(mixing, k, range(learners)) @ W - ALPHA * G
    return W.mean(0)


def unequal(learners: int) -> VirtualWorld:
    return VirtualWorld(Cluster(learners=learners, compute=LognormalSeconds(sigma=1.0), link=Link(0.03, 1e4)))


def experiment(mixing: Mixing, minibatches: int) -> Experiment:
    return Experiment(Saturating(), DelayByOne(mixing), Budget(minibatches=minibatches), SGD(ALPHA))


@pytest.mark.parametrize(("mixing", "size"), thinned(MIXINGS, [(5, 42), (3, 40), (2, 40), (3, 1), (1, 7)]))
def test_equation(mixing: Mixing, size: tuple[int, int]) -> None:
    learners, minibatches = size
    wanted = oracle(mixing, learners, minibatches)
    got = fit(experiment(mixing, minibatches), unequal(learners))
    assert torch.allclose(got, wanted, rtol=1e-11, atol=1e-12)


def test_the_oracle_tells_mixings_apart() -> None:
    ends = [oracle(mixing, 8, 40) for mixing in MIXINGS]  # on up to five learners two of them are the same
    assert all((a - b).abs().max() > 1e-3 for i, a in enumerate(ends) for b in ends[:i])


@pytest.mark.parametrize(
    ("mixing", "size"), thinned([uniform, randomized_ring], [(101, 2), (102, 3), (101, 4), (102, 4), (103, 4)])
)
def test_every_budget_ends(mixing: Mixing, size: tuple[int, int]) -> None:
    minibatches, learners = size
    cluster = Cluster(learners=learners, compute=ConstantSeconds(0.01, {i: 1.0 + i for i in range(learners)}))
    virtual = fit(experiment(mixing, minibatches), VirtualWorld(cluster))
    uneven = ThreadWorld(learners, timeout_seconds=20, delay=lambda learner: 2e-4 * learner)
    assert torch.equal(fit(experiment(mixing, minibatches), uneven), virtual)


@pytest.mark.processes
@pytest.mark.timeout(60)
@pytest.mark.parametrize("mixing", [uniform, randomized_ring])
def test_processes(mixing: Mixing, pool: Pool) -> None:
    for learners, minibatches in [(1, 41), (2, 41), (3, 41), (4, 102)]:
        wanted = oracle(mixing, learners, minibatches)
        for weights in pool.call(fit_in_process, learners, experiment(mixing, minibatches)):
            assert torch.allclose(torch.tensor(weights, dtype=torch.float64), wanted, rtol=1e-9)


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(0.01, weight_decay=0.1), Groups()], ids=named)
def test_one_learner_is_the_plain_loop_to_the_bit(optimizer: OptimizerFactory) -> None:
    for task in (ToyTask(samples=8, ragged=True, hidden=16, dropout=0.2), OddToy(samples=4, hidden=16)):
        run = Experiment(task, DelayByOne(), Budget(minibatches=50), optimizer, evaluate_every_epochs=0.1)
        assert torch.equal(fit(run, VirtualWorld(1)), plain_loop(run))
        assert torch.equal(fit(run, ThreadWorld(1)), plain_loop(run))


@pytest.mark.parametrize("mixing", [uniform, ring])
def test_relabelling_permutes(mixing: Mixing) -> None:
    """The order of the minibatches of a turn does not matter if the mixing treats all learners alike."""
    swapped = replace(experiment(mixing, 40), task=Turned())
    assert torch.allclose(fit(swapped, unequal(4)), fit(experiment(mixing, 40), unequal(4)), rtol=1e-11, atol=1e-12)


@dataclass(frozen=True)
class Turned(Saturating):
    """The four minibatches of a turn, each assigned to the next learner."""

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        return super().minibatch(n - n % 4 + (n + 1) % 4)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_rate_zero_keeps_equal_learners_to_the_bit(mixing: Mixing) -> None:
    task = ToyTask(samples=4, hidden=16)
    run = Experiment(task, DelayByOne(mixing), Budget(minibatches=40), SGD(0.0))
    still = replace(run, budget=Budget(minibatches=0))
    if mixing is uniform:  # a mean of equal numbers is exact for a power of two of them
        assert torch.equal(fit(run, unequal(4)), fit(still, unequal(4)))
    else:
        assert torch.equal(fit(run, unequal(5)), fit(still, unequal(5)))


def test_staleness_is_one_and_averaging_is_hidden() -> None:
    """A turn takes max(gradient, averaging), not their sum."""
    cluster = Cluster(learners=4, compute=ConstantSeconds(0.1), link=Link(0.0, 1e6), message_bytes=0.08e6 / 1.5)
    seconds = {}
    stale: list[int] = []
    for strategy in (DelayByOne(), KAVG(1)):
        world = VirtualWorld(cluster)
        run = Experiment(Saturating(per_epoch=10_000), strategy, Budget(minibatches=400), SGD(ALPHA))
        seen: list[Record] = []
        Trainer(run, world, observers=lambda _, seen=seen: (seen.append,)).fit()  # type: ignore[misc]
        seconds[type(strategy).__name__] = world.clock.now
        stale = stale or [record.staleness for record in seen if record.kind == "step"]
    assert set(stale) == {1}
    assert len(stale) == 400
    exchange = 0.08  # 2 * 3 steps of a quarter of the bytes each
    around = 8 * exchange + 1e-6  # before the first and after the last gradient; moments are whole ticks
    assert 0 < seconds["DelayByOne"] - 100 * 0.1 < around
    assert 0 < seconds["KAVG"] - 100 * (0.1 + exchange) < around


def test_a_run_goes_on_where_it_stopped(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The round number of a mixing counts from the start of the run, not of the launch."""
    out = tmp_path_factory.mktemp("run")
    whole = replace(experiment(randomized_ring, 400), task=Saturating(per_epoch=200))
    Trainer(whole, VirtualWorld(4), out).fit()
    shutil.rmtree(out / "checkpoints" / "0000000400")  # as if the run had died after its first evaluation
    resumed = Trainer(whole, VirtualWorld(4), out, resume=True).fit()
    assert torch.equal(weights_of(resumed.model), fit(whole, VirtualWorld(4)))
