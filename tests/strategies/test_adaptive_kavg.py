"""Adaptive K-step averaging against its equation, and the rules of its parameters."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from murmur.core.learner import Progress
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.schedule import Exponential
from murmur.engine.trainer import Trainer
from murmur.strategies.adaptive_kavg import AdaComm, AdaptiveKAVG, Geometric, Stages, Standing
from murmur.strategies.kavg import KAVG
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.pool import Pool
from tests.support.tasks import Groups, Quadratic, fit, fit_in_process, weights_of
from tests.support.unscaled import Experiment

ALPHA, BUDGET = 0.05, 300
ADAPTIVE = [
    AdaptiveKAVG(),
    AdaptiveKAVG(AdaComm(8, rate_power=0.0), rate=Geometric(1.0, 0.3)),
    AdaptiveKAVG(AdaComm(4, 1.0, 12), rate=Geometric(1.0, 0.1)),
    AdaptiveKAVG(Geometric(12, 2), Stages((1, 2, 4), (0.3, 0.6)), Stages((1.0, 2.0, 4.0), (0.3, 0.6))),
]


class Far(Quadratic):
    """Quadratic with a large initial loss."""

    def centre(self, n: int) -> Tensor:
        return 6.0 + super().centre(n)


def standing(fraction: float = 0.0, loss: float = math.nan, rate: float = math.nan, **first: float) -> Standing:
    return Standing(Progress(0, 0.0, 0.0, fraction, loss, rate), **first)


def oracle(strategy: AdaptiveKAVG, learners: int, minibatches: int = BUDGET) -> tuple[Tensor, list[int]]:
    task = Far(ragged=True)
    consensus, done = torch.zeros(task.size, dtype=torch.float64), 0
    seen: dict[str, float] = {}
    periods = []
    while done < minibatches:
        now = standing(done / minibatches, **seen)
        K, B, r = round(strategy.K(now)), round(strategy.minibatches(now)), strategy.rate(now)
        ends, losses, samples = [], [], []
        for learner in range(learners):
            w, used, loss = consensus, 0.0, 0.0
            for step in range(K):
                ns = [done + (step * B + b) * learners + learner for b in range(B)]
                ns = [n for n in ns if n < minibatches]
                size = sum(task.weight(n) for n in ns)
                loss += sum(task.weight(n) * 0.5 * float(((w - task.centre(n)) ** 2).sum()) for n in ns)
                if ns:
                    w = w - r * ALPHA * sum(task.weight(n) * (w - task.centre(n)) for n in ns) / size
                used += size
            ends.append(w)
            losses.append(loss)
            samples.append(used)
        consensus = sum((s * w for s, w in zip(samples, ends, strict=True)), torch.zeros_like(consensus)) / sum(samples)
        seen["loss"], seen["rate"] = sum(losses) / sum(samples), r * ALPHA
        seen.setdefault("first_loss", seen["loss"])
        seen.setdefault("first_rate", seen["rate"])
        periods.append(K)
        done += K * B * learners
    return consensus, periods


def experiment(strategy: AdaptiveKAVG, minibatches: int = BUDGET) -> Experiment:
    return Experiment(Far(ragged=True), strategy, Budget(minibatches=minibatches), SGD(ALPHA))


@pytest.mark.parametrize("strategy", ADAPTIVE, ids=named)
@pytest.mark.parametrize("learners", [1, 3])
@pytest.mark.parametrize("minibatches", [BUDGET, 13])
def test_equation(strategy: AdaptiveKAVG, learners: int, minibatches: int) -> None:
    wanted, _ = oracle(strategy, learners, minibatches)
    world = VirtualWorld(Cluster(learners=learners, compute=LognormalSeconds(sigma=0.8)))
    got = fit(experiment(strategy, minibatches), world)
    assert torch.allclose(got, wanted, rtol=1e-11, atol=1e-12)
    assert torch.equal(got, fit(experiment(strategy, minibatches), ThreadWorld(learners, timeout_seconds=20)))


def test_periods_change() -> None:
    assert all(len(set(oracle(strategy, 3)[1])) >= 3 for strategy in ADAPTIVE)


def test_fixed_rules_are_plain_averaging_to_the_bit() -> None:
    run = Experiment(ToyTask(samples=8, ragged=True, dropout=0.2), KAVG(4), Budget(minibatches=61), Groups())
    adaptive = replace(run, strategy=AdaptiveKAVG(Stages((4,))))
    assert torch.equal(fit(run, VirtualWorld(3)), fit(adaptive, VirtualWorld(3)))


def test_one_learner_is_the_plain_loop_to_the_bit() -> None:
    run = Experiment(ToyTask(samples=8, ragged=True, dropout=0.2), AdaptiveKAVG(), Budget(minibatches=61), Groups())
    assert torch.equal(fit(run, VirtualWorld(1)), plain_loop(run))


@pytest.mark.parametrize(("minibatches", "learners"), [(101, 2), (101, 4), (103, 4)])
def test_every_budget_ends(minibatches: int, learners: int) -> None:
    cluster = Cluster(learners=learners, compute=ConstantSeconds(0.01, {i: 1.0 + i for i in range(learners)}))
    for strategy in ADAPTIVE[3:]:
        virtual = fit(experiment(strategy, minibatches), VirtualWorld(cluster))
        uneven = ThreadWorld(learners, timeout_seconds=20, delay=lambda learner: 2e-4 * learner)
        assert torch.equal(fit(experiment(strategy, minibatches), uneven), virtual)


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_processes(pool: Pool) -> None:
    for learners, strategy in [(1, ADAPTIVE[0]), (3, ADAPTIVE[2]), (4, ADAPTIVE[3])]:
        for weights in pool.call(fit_in_process, learners, experiment(strategy)):
            assert torch.allclose(torch.tensor(weights, dtype=torch.float64), oracle(strategy, learners)[0], rtol=1e-9)


@pytest.mark.parametrize("strategy", ADAPTIVE, ids=named)
def test_a_run_goes_on_where_it_stopped(strategy: AdaptiveKAVG, tmp_path: Path) -> None:
    """F_0 and the latest loss are in the checkpoint, so that K is the same as without the interruption."""
    run = replace(experiment(strategy), evaluate_every_epochs=0.1)
    Trainer(run, VirtualWorld(3), tmp_path).fit()
    marks = sorted((tmp_path / "checkpoints").glob("[0-9]*"))
    assert int(marks[-2].name) < BUDGET
    shutil.rmtree(marks[-1])
    resumed = Trainer(run, VirtualWorld(3), tmp_path, resume=True).fit()
    assert torch.equal(weights_of(resumed.model), fit(run, VirtualWorld(3)))


def test_rules() -> None:
    assert AdaComm(16)(standing()) == 16
    assert AdaComm(16)(standing(first_loss=4.0, loss=1.0, first_rate=0.1, rate=0.1)) == 8
    assert AdaComm(16)(standing(first_loss=4.0, loss=1.0, first_rate=0.1, rate=0.025)) == 16
    assert AdaComm(16, 0.0)(standing(first_loss=4.0, loss=1.0, first_rate=0.1, rate=0.025)) == 8
    assert AdaComm(16)(standing(first_loss=4.0, loss=4.0, first_rate=0.1, rate=1e-6)) == 64
    assert AdaComm(16)(standing(first_loss=4.0, loss=0.0, first_rate=0.1, rate=0.1)) == 1
    assert AdaComm(3)(standing(first_loss=2.0, loss=1.0, first_rate=0.1, rate=0.1)) == 3  # 2.12, rounded up
    assert [round(Geometric(16, 1)(standing(f)), 9) for f in (0, 0.25, 0.5, 1)] == [16, 8, 4, 1]
    assert [Stages((8, 4, 2), (0.5, 0.75))(standing(f)) for f in (0, 0.49, 0.5, 0.74, 0.75, 1)] == [8, 8, 4, 4, 2, 2]


def test_the_rate_factor_comes_on_top_of_the_schedule() -> None:
    """A factor of 1/2 by a rule equals half the rate of the optimizer."""
    run = replace(experiment(AdaptiveKAVG(Stages((4,)), rate=Stages((0.5,)))), schedule=Exponential(0.1))
    other = replace(run, strategy=KAVG(4), optimizer=SGD(ALPHA / 2))
    assert torch.allclose(fit(run, VirtualWorld(3)), fit(other, VirtualWorld(3)), rtol=1e-12, atol=1e-14)


def test_errors() -> None:
    with pytest.raises(ValueError, match="1 <= K <= most"):
        AdaComm(100)
    with pytest.raises(ValueError, match="one value more"):
        Stages((1, 2), ())
    with pytest.raises(ValueError, match="positive numbers"):
        Geometric(0, 1)


def test_a_finished_run_that_goes_on_has_the_loss_of_its_last_round(tmp_path: Path) -> None:
    """The round in which the budget ends has none; its zero was taken for a loss, and K for 1."""
    seen = []

    class Seen(AdaComm):
        def __call__(self, now: Standing) -> float:
            seen.append((now.at.minibatches, now.at.loss))
            return super().__call__(now)

    run = Experiment(Far(), AdaptiveKAVG(Seen(8)), Budget(minibatches=96), SGD(ALPHA))
    Trainer(run, VirtualWorld(2), tmp_path).fit()
    (last,) = {loss for minibatches, loss in seen if minibatches == 96}
    seen.clear()
    longer = replace(run, budget=Budget(minibatches=192))
    Trainer(longer, VirtualWorld(2), tmp_path, resume=True).fit()
    assert seen[0] == (96, last)
    assert last > 0
