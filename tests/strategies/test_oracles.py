"""Every strategy against its equation on the stacked matrix W (one row per learner), in known time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from murmur.core.mixing import Mixing, randomized_ring, ring
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.schedule import Exponential
from murmur.engine.task import Loss
from murmur.strategies import BMUF, KAVG, DiLoCo, GossipPGA, SlowMo, SyncSGD
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import thinned
from tests.support.tasks import Quadratic, fit
from tests.support.unscaled import Experiment

ALPHA = 0.1


def gradient(task: Quadratic, w: Tensor, n: int) -> Tensor:
    return task.curvature * (w - task.centre(n))


def world(learners: int) -> VirtualWorld:
    return VirtualWorld(Cluster(learners=learners, compute=LognormalSeconds(sigma=0.8)))


@pytest.mark.parametrize("learners", [1, 2, 3, 5])
@pytest.mark.parametrize("minibatches", [1, 7, 40, 41])
def test_sync_sgd(learners: int, minibatches: int) -> None:
    task = Quadratic(ragged=True)
    w = torch.zeros(task.size, dtype=torch.float64)
    for first in range(0, minibatches, learners):
        ns = range(first, min(first + learners, minibatches))
        total = sum(task.weight(n) for n in ns)
        w = w - ALPHA * sum((task.weight(n) * gradient(task, w, n) for n in ns), torch.zeros_like(w)) / total
    got = fit(Experiment(task, SyncSGD(), Budget(minibatches=minibatches), SGD(ALPHA)), world(learners))
    assert torch.allclose(got, w, rtol=1e-12, atol=1e-12)


def blocks(minibatches: int, learners: int, k: int, start: Tensor, outer: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Weights after blocks of k local steps, each followed by `outer(start of the block, mean of its ends)`."""
    task = Quadratic(ragged=True)
    for first in range(0, minibatches, k * learners):
        ends, samples = [], []
        for learner in range(learners):
            own, used = start, 0.0
            for n in range(first + learner, min(first + k * learners, minibatches), learners):
                own, used = own - ALPHA * gradient(task, own, n), used + task.weight(n)
            ends.append(own)
            samples.append(used)
        mean = sum((s * x for s, x in zip(samples, ends, strict=True)), torch.zeros_like(start)) / sum(samples)
        start = outer(start, mean)
    return start


@pytest.mark.parametrize(("learners", "k", "minibatches"), thinned([1, 2, 3, 5], [1, 4, 8], [3, 40, 43]))
def test_kavg(learners: int, k: int, minibatches: int) -> None:
    task = Quadratic(ragged=True)
    consensus = blocks(minibatches, learners, k, torch.zeros(task.size, dtype=torch.float64), lambda _, mean: mean)
    got = fit(Experiment(task, KAVG(k), Budget(minibatches=minibatches), SGD(ALPHA)), world(learners))
    assert torch.allclose(got, consensus, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("minibatches", [40, 43])
def test_bmuf(nesterov: bool, minibatches: int) -> None:
    task, learners, k, eta, zeta = Quadratic(ragged=True), 3, 4, 0.6, 0.9
    zero = torch.zeros(task.size, dtype=torch.float64)
    w, delta = [zero], [zero]

    def outer(start: Tensor, mean: Tensor) -> Tensor:
        delta.append(eta * delta[-1] + zeta * (mean - start))
        w.append(w[-1] + delta[-1])
        return w[-1] + eta * delta[-1] if nesterov else w[-1]

    start = blocks(minibatches, learners, k, zero, outer)
    strategy = BMUF(k, eta, zeta, nesterov)
    got = fit(Experiment(task, strategy, Budget(minibatches=minibatches), SGD(ALPHA)), world(learners))
    assert torch.allclose(got, start, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("minibatches", [3, 40, 43])
@pytest.mark.parametrize("learners", [1, 3])
def test_slow_mo(learners: int, minibatches: int) -> None:
    zero = torch.zeros(5, dtype=torch.float64)
    u = [zero]

    def outer(x: Tensor, mean: Tensor) -> Tensor:
        u.append(0.6 * u[-1] + (x - mean) / ALPHA)
        return x - 0.9 * ALPHA * u[-1]

    wanted = blocks(minibatches, learners, 4, zero, outer)
    run = Experiment(Quadratic(ragged=True), SlowMo(4, 0.6, 0.9), Budget(minibatches=minibatches), SGD(ALPHA))
    assert torch.allclose(fit(run, world(learners)), wanted, rtol=1e-12, atol=1e-12)
    classical = fit(replace(run, strategy=BMUF(4, 0.6, 0.9, nesterov=False)), world(learners))
    assert torch.allclose(classical, wanted, rtol=1e-11, atol=1e-12)


def test_slow_momentum_keeps_its_length_when_the_rate_falls() -> None:
    """With a rate that falls from block to block, the momentum counts in gradients."""
    rates = [ALPHA * 0.1 ** (4 * 3 * block / 48) for block in range(4)]
    task, zero = Quadratic(), torch.zeros(5, dtype=torch.float64)
    x, u = zero, zero
    for block, _ in enumerate(rates):
        ends = []
        for learner in range(3):
            own = x
            for step in range(4):
                done = 12 * block + 3 * step
                rate = ALPHA * 0.1 ** (done / 48)
                own = own - rate * gradient(task, own, done + learner)
            ends.append(own)
        u = 0.5 * u + (x - torch.stack(ends).mean(0)) / rate
        x = x - rate * u
    run = Experiment(task, SlowMo(4), Budget(minibatches=48), SGD(ALPHA), Exponential(0.1))
    assert torch.allclose(fit(run, world(3)), x, rtol=1e-10)


@pytest.mark.parametrize("minibatches", [3, 40, 43])
@pytest.mark.parametrize("learners", [1, 3])
def test_diloco(learners: int, minibatches: int) -> None:
    zero = torch.zeros(5, dtype=torch.float64)
    parameter = torch.nn.Parameter(zero.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.8, nesterov=True)  # the outer optimizer of the paper

    def outer(x: Tensor, mean: Tensor) -> Tensor:
        parameter.grad = x - mean
        optimizer.step()
        return parameter.detach().clone()

    wanted = blocks(minibatches, learners, 4, zero, outer)
    run = Experiment(Quadratic(ragged=True), DiLoCo(4, 0.7, 0.8), Budget(minibatches=minibatches), SGD(ALPHA))
    assert torch.allclose(fit(run, world(learners)), wanted, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Quartic(Quadratic):
    """Loss 1/4 (w - c_n)^4 a sample: the mean of all weights depends on how they are mixed."""

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float]) -> Loss:
        centre, weight = minibatch
        return Loss(weight * 0.25 * ((model.w - centre) ** 4).sum(), weight)


@pytest.mark.parametrize("mixing", [ring, randomized_ring])
@pytest.mark.parametrize("period", [1, 3, 100])
def test_gossip_with_a_periodic_mean(mixing: Mixing, period: int) -> None:
    learners, turns, task = 5, 11, Quartic()
    W = torch.zeros(learners, task.size, dtype=torch.float64)
    for k in range(turns):
        W = torch.stack([W[i] - ALPHA * (W[i] - task.centre(k * learners + i)) ** 3 for i in range(learners)])
        T = torch.zeros(learners, learners, dtype=torch.float64)
        for i in range(learners):
            for j, weight in mixing(k, range(learners), i).items():
                T[i, j] = weight
        W = W.mean(0).expand_as(W).clone() if (k + 1) % period == 0 else T @ W
    run = Experiment(task, GossipPGA(period, mixing), Budget(minibatches=learners * turns), SGD(ALPHA))
    assert torch.allclose(fit(run, world(learners)), W.mean(0), rtol=1e-11)


def test_bmuf_without_momentum_is_kavg() -> None:
    task, budget = Quadratic(ragged=True), Budget(minibatches=50)
    plain = fit(Experiment(task, KAVG(4), budget, SGD(ALPHA)), world(3))
    for nesterov in (False, True):
        filtered = fit(Experiment(task, BMUF(4, 0.0, 1.0, nesterov), budget, SGD(ALPHA)), world(3))
        assert torch.allclose(filtered, plain, rtol=1e-12, atol=1e-14)


def test_errors() -> None:
    with pytest.raises(ValueError, match="0 <= eta < 1"):
        BMUF(eta=1.0)
    for wrong in (lambda: SlowMo(beta=1.0), lambda: DiLoCo(rate=0.0), lambda: GossipPGA(0), lambda: DiLoCo(mu=-0.1)):
        with pytest.raises(ValueError, match="needs"):
            wrong()
    with pytest.raises(ValueError, match="K >= 1, got 0"):
        KAVG(0)
