"""Averaged moments against the equations on stacked matrices, one row per learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.learner import Learner, Strategy
from murmur.core.mixing import ring
from murmur.core.moments import Moments
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import Adam, OptimizerFactory, PlainAdamW
from murmur.engine.schedule import Exponential
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ADPSGD,
    ALL,
    BMUF,
    KAVG,
    AdaptiveKAVG,
    Compressed,
    DelayByOne,
    DiLoCo,
    GossipPGA,
    SlowMo,
    SuperLearners,
)
from murmur.strategies.adaptive_kavg import Stages
from murmur.strategies.block_moments import check
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import plain_loop
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.tasks import OddToy, Point, Quadratic, fit
from tests.support.unscaled import Experiment

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


WITH_MOMENTS = [
    KAVG(4, moments="averaged"),
    AdaptiveKAVG(K=Stages((4,)), moments="averaged"),
    BMUF(4, moments="at_outer"),
    SlowMo(4, moments="averaged"),
    DiLoCo(4, moments="averaged"),
    GossipPGA(4, moments="averaged"),
    DelayByOne(moments="averaged"),
    DelayByOne(ring, moments="averaged"),
    ADPSGD(moments="averaged"),
    SuperLearners(KAVG(4, moments="averaged"), 2),
]


@pytest.mark.parametrize(
    ("strategy", "form", "minibatches"),
    [*((strategy, "int8", 240) for strategy in WITH_MOMENTS), (KAVG(3, moments="averaged"), "bfloat16", 1212)],
    ids=named,
)
def test_compression_rounds_moments_each_by_itself_and_counts_of_steps_not_at_all(
    strategy: Strategy, form: str, minibatches: int
) -> None:
    """At a rate of 0 all weights stay 0, so that the gradients, and with them the moments, are the same numbers."""
    task = Quadratic(size=300)  # no whole number of blocks; bfloat16 holds no odd count above 256

    def found(strategy: Strategy) -> tuple[Tensor, ...]:
        ends: list[Tensor] = []

        async def watched(me: Learner) -> None:
            await strategy(me)
            if not me.role.follows:
                ends.append(me.moments.snapshot())

        facts = Facts.of(strategy)
        watched.lock_step = facts.lock_step  # type: ignore[attr-defined]
        even = VirtualWorld(Cluster(learners=4, compute=ConstantSeconds(0.1), link=Link(0.0, 1e12)))
        fit(Experiment(task, watched, Budget(minibatches=minibatches), Adam(0.0)), even)
        m, v, t = torch.stack(ends).split([task.size, task.size, 1], dim=1)
        return m, v, t

    m, v, t = found(strategy)
    m_sent, v_sent, t_sent = found(Compressed(strategy, form))
    assert torch.allclose(t_sent, t, rtol=1e-9)
    most = 0.1 if strategy == BMUF(4, moments="at_outer") else 0.02  # its outer steps lengthen the errors too
    assert float((v_sent - v).abs().max()) < most * float(v.max())
    assert float((m_sent - m).abs().max()) < most * float(m.abs().max())


def test_names() -> None:
    with pytest.raises(ValueError, match="moments must be one of local, averaged, got 'at_outer'"):
        KAVG(moments="at_outer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="moments must be one of local, averaged, at_outer, got 'all'"):
        check("all")


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad and p.dim() == 2]


def in_two_groups(model: nn.Module) -> optim.Optimizer:
    first, *rest = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": rest, "momentum": 0.9, "dampening": 0.5}]
    return optim.SGD(groups, lr=0.1)


OPTIMIZERS: dict[str, OptimizerFactory] = {
    "SGD": lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "SGD, dampening": lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
    "SGD, two groups": in_two_groups,
    "Adam": lambda model: optim.Adam(model.parameters(), lr=0.01),
    "Adam, amsgrad": lambda model: optim.Adam(model.parameters(), lr=0.01, amsgrad=True),
    "Adam, weights outside": lambda model: optim.Adam(matrices(model), lr=0.01),
    "RAdam": lambda model: optim.RAdam(model.parameters(), lr=0.01),
}
if hasattr(optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda model: optim.Muon(matrices(model), lr=0.01)
AVERAGED = [make(moments="averaged") for make in ALL.values() if hasattr(make, "moments")]
EXACT_ALONE = [strategy for strategy in AVERAGED if Facts.of(strategy).bitwise_alone]
ODD = OddToy(samples=4, hidden=8)
OF_TORCH = [pytest.param(make, id=name) for name, make in OPTIMIZERS.items()]


@pytest.mark.parametrize("optimizer", OF_TORCH)
@pytest.mark.parametrize("strategy", EXACT_ALONE, ids=lambda strategy: type(strategy).__name__)
def test_one_learner_with_any_optimizer_is_the_plain_loop(strategy: Strategy, optimizer: OptimizerFactory) -> None:
    """Also with a schedule whose first factor is not 1, and tensors without gradients."""
    experiment = Experiment(ODD, strategy, Budget(minibatches=20), optimizer)
    assert torch.equal(fit(experiment, VirtualWorld(1)), plain_loop(experiment))
    scheduled = replace(experiment, schedule=Exponential(0.3, times=0.5))
    local = replace(scheduled, strategy=replace(strategy, moments="local"))  # type: ignore[type-var]
    assert torch.equal(fit(scheduled, VirtualWorld(1)), fit(local, VirtualWorld(1)))


@pytest.mark.parametrize("optimizer", OF_TORCH)
def test_all_state_is_averaged_with_any_optimizer(optimizer: OptimizerFactory) -> None:
    """After an average the moments of two learners are equal, and not what they were at the start."""
    found: list[dict[str, Tensor]] = []

    async def watched(me: Learner) -> None:
        await KAVG(5, moments="averaged")(me)
        states = me.moments.optimizer.state.values()
        found.append({f"{n} {k}": v for n, state in enumerate(states) for k, v in state.items() if v.dim() > 0})

    task = ToyTask(samples=4, hidden=8)
    fit(Experiment(task, watched, Budget(minibatches=20), optimizer), VirtualWorld(2))
    first, second = found
    assert all(torch.equal(first[name], second[name]) and first[name].any() for name in first)


@pytest.mark.parametrize("optimizer", OF_TORCH)
@pytest.mark.parametrize("strategy", [BMUF(4, eta=0.5, moments="at_outer"), ADPSGD(moments="averaged")])
def test_moments_of_any_optimizer_stay_usable(strategy: Strategy, optimizer: OptimizerFactory) -> None:
    """No outer step and no late addition makes the loss worse than at the start."""
    losses = [
        Trainer(Experiment(ODD, strategy, Budget(minibatches=count), optimizer), world()).fit().figures["loss"]
        for count in (0, 60)
    ]
    assert losses[1] < 1.5 * losses[0]


class Unknown(optim.SGD):
    """Adam-like in that a step of it divides by state that nobody knows."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p]["exp_avg"] = self.state[p]["belief"] = torch.ones_like(p)


@pytest.mark.parametrize("strategy", AVERAGED, ids=lambda strategy: type(strategy).__name__)
def test_an_optimizer_with_unknown_state_is_refused(strategy: Strategy) -> None:
    experiment = Experiment(TASK, strategy, Budget(minibatches=20), lambda model: Unknown(model.parameters()))
    with pytest.raises(ValueError, match=r"moments of Unknown cannot be averaged \(its state belief is not known"):
        fit(experiment, world())


REFUSED = ("NAdam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Adafactor", "ASGD", "Rprop")


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_with_other_state_are_refused_by_name(name: str) -> None:
    """Their moments may stay local; then they train."""
    experiment = Experiment(ODD, KAVG(2), Budget(minibatches=6), lambda m: getattr(optim, name)(m.parameters()))
    assert fit(experiment, VirtualWorld(2)).isfinite().all()
    averaged = replace(experiment, strategy=KAVG(2, moments="averaged"))
    with pytest.raises(ValueError, match=rf"moments of {name} cannot be averaged \(its state .* is not known\)"):
        fit(averaged, VirtualWorld(2))
