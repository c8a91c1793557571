"""Averaged moments against the equations on stacked matrices, one row per learner."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.learner import Learner, Strategy
from murmur.core.mixing import ring
from murmur.core.moments import Moments
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import Adam, PlainAdamW
from murmur.strategies import ADPSGD, BMUF, KAVG, AdaptiveKAVG, DelayByOne, DiLoCo, GossipPGA, SlowMo, SuperLearners
from murmur.strategies.adaptive_rules import Stages
from murmur.strategies.block_moments import check
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tasks import Point, Quadratic, fit
from unscaled import Experiment

RATE, L, BETAS = 0.05, 3, (0.9, 0.999)
TASK = Quadratic(ragged=True)


class Stack:
    """Weights of all learners, each with an Adam of its own."""

    def __init__(self) -> None:
        self.models = [Point(TASK.size) for _ in range(L)]
        self.optimizers = [PlainAdamW(model.parameters(), lr=RATE, weight_decay=0.0) for model in self.models]
        pairs = zip(self.optimizers, self.models, strict=True)
        self.moments = [Moments(optimizer, Layout.trainable(model)) for optimizer, model in pairs]

    @property
    def W(self) -> Tensor:
        return torch.stack([model.w.detach().clone() for model in self.models])

    @property
    def M(self) -> Tensor:
        return torch.stack([moments.snapshot() for moments in self.moments])

    def set(self, W: Tensor, M: Tensor) -> None:
        for model, moments, w, m in zip(self.models, self.moments, W, M, strict=True):
            model.w.data.copy_(w)
            moments.set_(m)

    def gradient(self, i: int, n: int) -> Tensor:
        return TASK.curvature * (self.models[i].w.detach() - TASK.centre(n))

    def step(self, i: int, g: Tensor) -> None:
        self.models[i].w.grad = g
        self.optimizers[i].step()


def world(learners: int = L) -> VirtualWorld:
    return VirtualWorld(Cluster(learners=learners, compute=LognormalSeconds(sigma=0.8)))


def run(strategy: Strategy, minibatches: int) -> Tensor:
    return fit(Experiment(TASK, strategy, Budget(minibatches=minibatches), Adam(RATE)), world())


def in_blocks(count: int, k: int, outer: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """Weights after blocks of k steps, each followed by `outer(w, m at its start, mean of w, mean of m at its end)`."""
    stack = Stack()
    for block in range(count):
        w, m = stack.W[0], stack.M[0]
        samples = torch.zeros(L, dtype=torch.float64)
        for step in range(k):
            for i in range(L):
                n = (block * k + step) * L + i
                stack.step(i, stack.gradient(i, n))
                samples[i] += TASK.weight(n)
        share = samples / samples.sum()
        w, m = outer(w, m, share @ stack.W, share @ stack.M)
        stack.set(w.expand(L, -1), m.expand(L, -1))
    return stack.W[0]


def moved_on(before: Tensor, mean: Tensor, k: int, blocks: float) -> Tensor:
    """Moments m, v and number of steps after an outer step of this length."""
    E = [(x1 - d**k * x0) / (1 - d**k) for x0, x1, d in zip(parts(before), parts(mean), BETAS, strict=False)]
    now = [
        d ** (k * blocks) * x0 + (1 - d ** (k * blocks)) * e for x0, e, d in zip(parts(before), E, BETAS, strict=False)
    ]
    m, v = now
    largest = 1.01 * 0.1**2 / (0.001 * (1 - 0.81 / 0.999))
    return torch.cat([m, torch.maximum(v, m**2 / largest), before[-1:] + blocks * (mean - before)[-1:]])


def parts(moments: Tensor) -> tuple[Tensor, Tensor]:
    return moments[: TASK.size], moments[TASK.size : 2 * TASK.size]


@pytest.mark.parametrize("strategy", [KAVG(4, moments="averaged"), AdaptiveKAVG(K=Stages((4,)), moments="averaged")])
def test_kavg(strategy: Strategy) -> None:
    wanted = in_blocks(6, 4, lambda w, m, w_mean, m_mean: (w_mean, m_mean))
    assert torch.allclose(run(strategy, 24 * L), wanted, rtol=1e-10)
    assert not torch.allclose(run(KAVG(4), 24 * L), wanted, rtol=1e-4)


@pytest.mark.parametrize("nesterov", [False, True])
def test_bmuf_adam(nesterov: bool) -> None:
    eta, zeta, W, delta, blocks = 0.5, 0.9, [torch.zeros(5)], [torch.zeros(5)], [0.0]

    def outer(w: Tensor, m: Tensor, w_mean: Tensor, m_mean: Tensor) -> tuple[Tensor, Tensor]:
        delta.append(eta * delta[-1] + zeta * (w_mean - w))
        blocks.append(eta * blocks[-1] + zeta)
        W.append(W[-1] + delta[-1])
        length = blocks[-1] + eta * (blocks[-1] - blocks[-2]) if nesterov else blocks[-1]
        return W[-1] + eta * delta[-1] if nesterov else W[-1], moved_on(m, m_mean, 4, length)

    wanted = in_blocks(6, 4, outer)
    assert torch.allclose(run(BMUF(4, eta, zeta, nesterov, moments="at_outer"), 24 * L), wanted, rtol=1e-10)
    averaged = run(BMUF(4, eta, zeta, nesterov, moments="averaged"), 24 * L)
    assert not torch.allclose(averaged, wanted, rtol=1e-4)


def test_the_length_of_outer_steps() -> None:
    """Without momentum all three outer steps are plain averages, with it they agree in pairs."""
    kavg = run(KAVG(4, moments="averaged"), 24 * L)
    for plain in (SlowMo(4, 0.0, moments="at_outer"), DiLoCo(4, 1.0, 0.0, moments="at_outer")):
        assert torch.allclose(run(plain, 24 * L), kavg, rtol=1e-9)
    bmuf = run(BMUF(4, 0.6, 1.0, nesterov=False, moments="at_outer"), 24 * L)
    assert torch.allclose(run(SlowMo(4, 0.6, moments="at_outer"), 24 * L), bmuf, rtol=1e-9)
    nesterov = BMUF(4, 0.6, 0.7, nesterov=True, moments="at_outer")
    assert torch.allclose(run(DiLoCo(4, 0.7, 0.6, moments="at_outer"), 24 * L), run(nesterov, 24 * L), rtol=1e-9)


@pytest.mark.parametrize("moments", ["averaged", "at_outer"])
def test_gossip_pga(moments: str) -> None:
    stack = Stack()
    for k in range(10):
        for i in range(L):
            stack.step(i, stack.gradient(i, k * L + i))
        exact = (k + 1) % 4 == 0
        T = torch.zeros(L, L, dtype=torch.float64)
        for i in range(L):
            for j, weight in ring(k, range(L), i).items():
                T[i, j] = weight
        T = torch.full((L, L), 1 / L, dtype=torch.float64) if exact else T
        stack.set(T @ stack.W, T @ stack.M if exact or moments == "averaged" else stack.M)
    found = run(GossipPGA(4, moments=moments), 10 * L)  # type: ignore[arg-type]
    assert torch.allclose(found, stack.W.mean(0), rtol=1e-10)


def test_delay_by_one() -> None:
    """Weights and moments are those of the turn before, averaged; the gradient is taken at the own weights."""
    stack = Stack()
    for k in range(10):
        gradients = [stack.gradient(i, k * L + i) for i in range(L)]
        stack.set(stack.W.mean(0).expand(L, -1), stack.M.mean(0).expand(L, -1))
        for i, g in enumerate(gradients):
            stack.step(i, g)
    assert torch.allclose(run(DelayByOne(moments="averaged"), 10 * L), stack.W.mean(0), rtol=1e-10)


@pytest.mark.parametrize("nodes", [False, True])
def test_gossip_brings_moments_together(nodes: bool) -> None:
    """At a rate of 0 all gradients are those at the start: only gossip makes the learners' moments alike."""

    def spread(strategy: Strategy) -> float:
        found: list[Tensor] = []

        async def watched(me: Learner) -> None:
            await strategy(me)
            found.append(me.moments.snapshot()[: TASK.size])

        watched.lock_step = False  # type: ignore[attr-defined]
        fit(Experiment(TASK, watched, Budget(minibatches=400), Adam(0.0)), world(4))
        return float(torch.stack(found).var(0).sum())

    def of(moments: str) -> Strategy:
        gossip = ADPSGD(moments=moments)  # type: ignore[arg-type]
        return SuperLearners(gossip) if nodes else gossip

    assert spread(of("averaged")) < 0.5 * spread(of("local"))


def test_names() -> None:
    with pytest.raises(ValueError, match="moments must be one of local, averaged, got 'at_outer'"):
        KAVG(moments="at_outer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="moments must be one of local, averaged, at_outer, got 'all'"):
        check("all")
