"""Quasi-global momentum against its equation on the stacked matrix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import RMSprop

import murmur
from murmur.core.learner import Strategy
from murmur.core.mixing import Mixing, matrix, randomized_ring, ring
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD, OptimizerFactory
from murmur.engine.schedule import Exponential
from murmur.engine.task import Loss
from murmur.run.dry_run import dry_run
from murmur.run.request import RunRequest
from murmur.strategies import ADPSGD, Compressed, QuasiGlobal, SuperLearners
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import thinned
from tests.support.tasks import Quadratic, fit
from tests.support.unscaled import Experiment

ALPHA, BETA, MU, ROUNDS = 0.05, 0.8, 0.6, 15
AT_ONCE = Link(latency_seconds=0.0, bytes_per_second=1e18)


@dataclass(frozen=True)
class Listed(Quadratic):
    """Quadratic that records each model's minibatches."""

    by: dict[nn.Module, list[int]] = field(default_factory=dict, compare=False, repr=False)

    def minibatch(self, n: int) -> tuple[Tensor, float, int]:  # type: ignore[override]
        return *super().minibatch(n), n

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float, int]) -> Loss:  # type: ignore[override]
        self.by.setdefault(model, []).append(minibatch[2])
        return super().loss(model, minibatch[:2])


@pytest.mark.parametrize(
    ("mixing", "learners", "falling"), thinned([ring, randomized_ring], [5, 3, 2, 1], [False, True])
)
def test_equation(mixing: Mixing, learners: int, falling: bool) -> None:
    """Learners of equal speed; with a falling rate, changes count in steps of the rate at which they were made."""
    task, total = Listed(), ROUNDS * learners
    strategy = QuasiGlobal(mixing, BETA, MU)
    run = Experiment(task, strategy, Budget(minibatches=total), SGD(ALPHA), Exponential(0.1 if falling else 1.0))
    consensus = fit(run, VirtualWorld(Cluster(learners, ConstantSeconds(0.25), AT_ONCE)))
    taken = sorted(task.by.values(), key=lambda own: own[0])
    w = before = phi = m = torch.zeros(learners, task.size, dtype=torch.float64)
    rates = torch.full((learners, 1), ALPHA, dtype=torch.float64)
    for k in range(ROUNDS):
        g = torch.stack([task.curvature * (phi[i] - task.centre(taken[i][k])) for i in range(learners)])
        if k > 0:
            m = MU * m + (1 - MU) * (before - w) / rates
        if falling:  # by the minibatches claimed, which differ between learners
            rates = torch.tensor([[ALPHA * 0.1 ** ((taken[i][k] + 1) / total)] for i in range(learners)]).double()
        before, phi = w, w - rates * (g + BETA * m)
        w = matrix(mixing, k, range(learners)) @ phi
    assert torch.allclose(consensus, w.mean(0), rtol=1e-6 if falling else 1e-10)


class Slope(Quadratic):
    """Gradients that are all the same."""

    def centre(self, n: int) -> Tensor:
        return torch.ones(self.size, dtype=torch.float64)


def test_a_constant_gradient_is_amplified_as_by_momentum() -> None:
    def moved(strategy: QuasiGlobal) -> Tensor:
        run = Experiment(Slope(curvature=1e-9), strategy, Budget(minibatches=4000), SGD(1.0))
        return fit(run, VirtualWorld(3))

    ratio = moved(QuasiGlobal(beta=0.9, mu=0.9)) / moved(QuasiGlobal(beta=0.0))
    assert torch.allclose(ratio, torch.full_like(ratio, 10.0), rtol=0.15)  # less the steps before it has built up


@pytest.mark.parametrize(
    "optimizer",
    [SGD(0.1, momentum=0.5), Adam(0.1), NaturalGradientSGD(0.1, momentum=0.5), lambda m: RMSprop(m.parameters())],
)
@pytest.mark.parametrize("strategy", [QuasiGlobal(), SuperLearners(QuasiGlobal(), 2), Compressed(QuasiGlobal())])
def test_a_warning_tells_of_an_optimizer_with_moments(
    strategy: Strategy, optimizer: OptimizerFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        found = sum("QuasiGlobal" in text and "is for plain SGD" in text for text in caplog.messages)
        caplog.clear()
        return found

    experiment = Experiment(ToyTask(), strategy, Budget(minibatches=8), optimizer)
    fit(experiment, VirtualWorld(2))
    assert told() == 1
    dry_run(RunRequest(source="toy", learners=2, threads=1, out=tmp_path), experiment, prepared_only=False, steps=False)
    assert told() == 1
    model = ToyTask().model()
    murmur.join(strategy, model, optimizer(model))
    assert told() == 1


def test_no_warning_tells_of_plain_steps_or_of_moments_that_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    toy = Experiment(ToyTask(), QuasiGlobal(), Budget(minibatches=8))
    for optimizer in (SGD(0.1, weight_decay=0.1), NaturalGradientSGD(0.1), lambda m: optim.SGD(m.parameters(), 0.1)):
        fit(replace(toy, optimizer=optimizer), VirtualWorld(2))
    adam = Experiment(Quadratic(), QuasiGlobal(beta=0.0), Budget(minibatches=40), Adam(0.01))
    assert torch.equal(fit(adam, VirtualWorld(2)), fit(replace(adam, strategy=ADPSGD()), VirtualWorld(2)))
    assert not any("plain SGD" in text for text in caplog.messages)


def test_errors() -> None:
    for wrong in (lambda: QuasiGlobal(beta=1.0), lambda: QuasiGlobal(mu=-0.1)):
        with pytest.raises(ValueError, match="QuasiGlobal needs"):
            wrong()
