"""Natural gradient behind `me`: replicas, checkpoints, restarts, the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from murmur.core.facts import FactsOfInner
from murmur.core.learner import Learner, Strategy
from murmur.core.source import SKIPPED_SAMPLES, Gradient
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair
from murmur.engine.optim.natural_gradient import FisherConfig
from murmur.engine.optim.optimizer import SGD, NaturalGradientSGD
from murmur.engine.task import Loss
from murmur.engine.task_source import TaskSource
from murmur.engine.trainer import Trainer
from murmur.run.configuration import configure
from murmur.strategies import ADPSGD, KAVG, ParameterAveraging, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.bad_gradients import spoiled
from tests.support.named import named
from tests.support.tasks import fit, weights_of
from tests.support.unscaled import Experiment

TOY = ToyTask(samples=8, hidden=16, dropout=0.2, ragged=True, per_epoch=40)
NATURAL = NaturalGradientSGD(0.05, momentum=0.9, fisher=FisherConfig(rank_in=5, rank_out=4))


@pytest.mark.slow
def test_it_learns_where_the_inputs_are_badly_scaled() -> None:
    """Inputs of very different sizes and a common offset: plain SGD crawls along the small ones."""

    @dataclass(frozen=True)
    class Uneven(ToyTask):
        def _draw(self, n: int, size: int) -> tuple[Tensor, Tensor]:
            x, y = super()._draw(n, size)
            return x * torch.logspace(0.7, -0.7, 64) + 2.0, y

    def best(make: type[SGD] | type[NaturalGradientSGD]) -> float:
        runs = [Experiment(Uneven(per_epoch=300), SyncSGD(), optimizer=make(lr)) for lr in (0.01, 0.03, 0.1)]
        return min(Trainer(run, VirtualWorld(1)).fit().figures["loss"] for run in runs)

    assert best(NaturalGradientSGD) < 0.93 * best(SGD)


@dataclass(frozen=True)
class Watched(FactsOfInner):
    """A strategy, and the weights of every learner after each step."""

    strategy: SyncSGD
    seen: dict[int, list[Tensor]]

    @property
    def inner(self) -> Strategy:
        return self.strategy

    async def __call__(self, me: Learner) -> None:
        own = self.seen.setdefault(me.group.rank, [])
        descend = me.descend

        def watched(g: Tensor, staleness: int | None = None) -> None:
            descend(g, staleness)
            own.append(me.weights.snapshot())

        me.descend = watched  # type: ignore[method-assign]
        await self.strategy(me)


@pytest.mark.parametrize("world", [VirtualWorld(3), ThreadWorld(3, timeout_seconds=20)], ids=["virtual", "threads"])
def test_replicas_stay_equal_to_the_bit_though_estimates_differ(world: VirtualWorld) -> None:
    watched = Watched(SyncSGD(), {})
    fit(Experiment(TOY, watched, Budget(minibatches=60), NATURAL), world)  # type: ignore[arg-type]
    assert len(watched.seen) == 3
    for steps in zip(*watched.seen.values(), strict=True):
        assert torch.equal(steps[0], steps[1])
        assert torch.equal(steps[0], steps[2])


class Network(nn.Module):
    """A convolution, an LSTM with projection and linear layers; the gradients of `at` and what precedes it go bad."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(8, 6, 3)
        self.lstm = nn.LSTM(6, 5, proj_size=4, batch_first=True)
        self.first, self.last = nn.Linear(4, 7), nn.Linear(7, 10)
        self.at = ""

    def forward(self, x: Tensor) -> Tensor:
        y = self._through("convolution", self.convolution(x.view(-1, 8, 8)))
        y = self._through("lstm", self.lstm(y.transpose(1, 2))[0].mean(1))
        return self._through("last", self.last(self._through("first", torch.tanh(self.first(y)))))

    def _through(self, layer: str, y: Tensor) -> Tensor:
        return spoiled(y) if self.at == layer else y


@dataclass(frozen=True)
class Spoiled(ToyTask):
    """Minibatches `bad` have a finite loss and a gradient that is not finite, from layer `at` of the network down."""

    bad: tuple[int, ...] = ()
    at: str = "last"

    def model(self) -> nn.Module:
        return Network()

    def minibatch(self, n: int) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        return (*super().minibatch(n), torch.tensor(n))

    def loss(self, model: Network, minibatch: tuple[Tensor, Tensor, Tensor]) -> Loss:  # type: ignore[override]
        x, y, n = minibatch
        model.at = self.at if int(n) in self.bad else ""
        return super().loss(model, (x, y))


def _estimates(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    states = (optimizer.state.get(p, {}) for group in optimizer.param_groups for p in group["params"])
    return {(i, name): value for i, state in enumerate(states) for name, value in state.items()}


@pytest.mark.parametrize("samples", [2, 64])  # frames are preconditioned, and their sum
@pytest.mark.parametrize("at", ["convolution", "lstm", "first", "last"])
@pytest.mark.parametrize("bad", [(0, 1), (3,), (21,), (24,)])  # first call, each updates, none is due, one is due
def test_a_bad_gradient_is_skipped_and_leaves_all_estimates(samples: int, at: str, bad: tuple[int, ...]) -> None:
    drawn: list[bool] = []

    class Source(TaskSource):
        def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
            before = _estimates(self.local_optimizer.optimizer)
            gradient = super().draw(n, before_backward)
            after = _estimates(self.local_optimizer.optimizer)
            assert (gradient.samples == SKIPPED_SAMPLES) == (n in bad)
            if n in bad:
                assert after.keys() == before.keys()
                assert all(after[name] is value for name, value in before.items())
            drawn.append(n in bad)
            return gradient

    experiment = Experiment(Spoiled(samples=samples, bad=bad, at=at), SyncSGD(), Budget(minibatches=30), NATURAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("murmur.engine.trainer.TaskSource", Source)
        outcome = Trainer(experiment, VirtualWorld(1)).fit()
    assert sum(drawn) == len(bad)
    assert len(drawn) == 30
    assert math.isfinite(outcome.figures["loss"])


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
@pytest.mark.parametrize(
    "world",
    [VirtualWorld(2), ThreadWorld(2, timeout_seconds=20)],  # the latter sums behind the backward pass
    ids=["virtual", "threads"],
)
def test_a_bad_gradient_of_one_learner_does_not_end_the_run(strategy: Strategy, world: VirtualWorld) -> None:
    experiment = Experiment(Spoiled(samples=8, bad=(0, 7, 44)), strategy, Budget(minibatches=60), NATURAL)
    assert bool(fit(experiment, world).isfinite().all())


def test_minibatches_of_any_size_are_estimated_alike(tmp_path: Path) -> None:
    """Twice the samples, each there twice: the mean's derivatives are halved, the estimate of them is the same."""

    @dataclass(frozen=True)
    class Twice(ToyTask):
        def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
            x, y = super().minibatch(n)
            return torch.cat((x, x)), torch.cat((y, y))

    rho = []
    for name, task in (("once", ToyTask(samples=64)), ("twice", Twice(samples=64))):
        lasting = NaturalGradientSGD(0.05, fisher=FisherConfig(history_samples=1e-3))  # eta = 0.9 for both
        Trainer(Experiment(task, SyncSGD(), Budget(minibatches=1), lasting), VirtualWorld(1), tmp_path / name).fit()
        _, facts = read_pair(tmp_path / name / "checkpoints" / "0000000001" / "learner-0")
        rho.append(facts["optimizer"]["optimizer.2.out.rho"])
    assert rho[0] == pytest.approx(rho[1], rel=1e-3)


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4)], ids=named)
def test_a_resumed_run_ends_with_the_same_bits(strategy: Strategy, tmp_path: Path) -> None:
    """The estimates, and how often they were updated, come back from the checkpoint."""
    whole = Experiment(TOY, strategy, Budget(minibatches=96), NATURAL, evaluate_every_epochs=0.5)
    wanted = fit(whole, VirtualWorld(2))
    first = replace(whole, budget=Budget(minibatches=40))
    Trainer(first, VirtualWorld(2), tmp_path).fit()
    saved = sorted((tmp_path / "checkpoints").glob("[0-9]*"))[-1]
    tensors, facts = read_pair(saved / "learner-1")
    assert {"optimizer.0.in.W", "optimizer.0.out.d", "optimizer.0.momentum_buffer"} <= set(tensors)
    assert facts["optimizer"]["optimizer.0.in.t"] == 21
    assert torch.equal(weights_of(Trainer(whole, VirtualWorld(2), tmp_path, resume=True).fit().model), wanted)


def test_parameter_averaging_restarts_or_keeps_the_estimates() -> None:
    def run(optimizer: str) -> Tensor:
        strategy = ParameterAveraging(frames_per_iteration=64, optimizer=optimizer)  # type: ignore[arg-type]
        return fit(Experiment(TOY, strategy, Budget(minibatches=48), replace(NATURAL, momentum=0.0)), VirtualWorld(2))

    kept, restarted = run("keep"), run("restart")
    assert bool(kept.isfinite().all())
    assert not torch.equal(kept, restarted)  # without momentum the estimates are all that could be restarted


def test_the_command_line_knows_it() -> None:
    experiment = Experiment(TOY, SyncSGD())
    text = "optimizer=NaturalGradientSGD(lr=0.2, fisher=FisherConfig(alpha=2.0))"
    made = configure(experiment, [text, "optimizer.fisher.rank_in=8"])
    assert made.optimizer == NaturalGradientSGD(0.2, fisher=FisherConfig(alpha=2.0, rank_in=8))
    assert isinstance(made.optimizer(nn.Linear(3, 4)), torch.optim.SGD)
