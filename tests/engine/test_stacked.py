"""Gradients of many virtual learners by one call, against each computed alone; who may not have that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from murmur.core.learner import Strategy
from murmur.core.source import Gradient, PendingGradient
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD, NaturalGradientSGD
from murmur.engine.record import Record
from murmur.engine.stacked import NotStackable, check_stackable, draw_together, gradients_of
from murmur.engine.trainer import Trainer
from murmur.speech.features.chunks import IGNORED, ChunkBatch
from murmur.speech.models import Blstm, Conformer, Convolutions, Dnn, Lstm, Network, Tdnn, TdnnF
from murmur.speech.tasks.frames import FramesTask
from murmur.strategies import ADPSGD, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.cluster import Cluster, Kill, Link, LognormalSeconds, Rejoin
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.tasks import Quadratic, weights_of
from tests.support.unscaled import Experiment

CLUSTER = Cluster(8, LognormalSeconds(0.1, 0.3), Link(1e-4, 1e8), lease_seconds=0.3)
STRATEGIES = [SyncSGD(), KAVG(4), ADPSGD(), DelayByOne(), SuperLearners(ADPSGD(), 2)]


def experiment(strategy: Strategy = SyncSGD(), **task: object) -> Experiment:  # noqa: B008 - frozen
    toy = ToyTask(**{"hidden": 32, "per_epoch": 40, "ragged": True} | task)  # type: ignore[arg-type]
    return Experiment(toy, strategy, Budget(minibatches=64), SGD(0.1, momentum=0.5))


@dataclass
class Counted:
    """`draw_together`, and how many gradients each call was for."""

    calls: list[int]

    def __call__(self, drawings: Sequence[PendingGradient]) -> list[Gradient]:
        self.calls.append(len(drawings))
        return draw_together(drawings)


def trained(
    what: Experiment, together: Callable[[Sequence[PendingGradient]], list[Gradient]] | None, cluster: Cluster = CLUSTER
) -> tuple[Tensor, list[Record]]:
    """The consensus, and the records of all learners as they came."""
    records: list[Record] = []
    world = VirtualWorld(cluster, together=together)
    outcome = Trainer(what, world, observers=lambda _: (records.append,)).fit()
    return weights_of(outcome.model), records


def near(ours: Tensor, theirs: Tensor) -> bool:
    return float((ours - theirs).norm()) <= 1e-6 * float(theirs.norm())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_the_same_run_but_for_rounding(strategy: Strategy) -> None:
    """Weights within 1e-6; every record in its place and at its virtual moment, losses but for rounding."""
    counted = Counted([])
    alone, by_themselves = trained(experiment(strategy), None)
    stacked, by_one_call = trained(experiment(strategy), counted)
    assert near(stacked, alone)
    for ours, theirs in zip(by_one_call, by_themselves, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5, nan_ok=True)
        assert replace(ours, loss=0.0, figures={}, consensus_distance=None) == replace(
            theirs, loss=0.0, figures={}, consensus_distance=None
        )
    assert sum(counted.calls) == 64
    assert sum(counted.calls) / len(counted.calls) > 3, "most calls are for many"
    again, _ = trained(experiment(strategy), draw_together)
    assert again.equal(stacked)


def test_learners_that_die_and_come_back() -> None:
    """A killed learner's pending work is not computed; the run equals that of gradients computed alone."""
    cluster = replace(CLUSTER, faults=(Kill(2, 0.45), Rejoin(2, 1.0), Kill(0, 0.7)))
    counted = Counted([])
    alone, by_themselves = trained(experiment(ADPSGD()), None, cluster)
    stacked, by_one_call = trained(experiment(ADPSGD()), counted, cluster)
    assert near(stacked, alone)
    assert [(r.learner, r.seconds) for r in by_one_call] == [(r.learner, r.seconds) for r in by_themselves]
    of_the_dead = sum(counted.calls) - sum(r.kind == "step" for r in by_one_call)
    assert 0 <= of_the_dead <= 2, "what was computed before its learner died"


@dataclass(frozen=True)
class Partly(ToyTask):
    """A tensor that never takes part, a frozen one; minibatch 13 gives no number."""

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10), nn.Identity())
        model[3].register_parameter("unused", nn.Parameter(torch.ones(3)))
        model[0].bias.requires_grad_(False)
        return model

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        x, y = super().minibatch(n)
        return (x * float("nan") if n == 13 else x), y


def test_tensors_without_gradient_and_losses_that_are_no_numbers() -> None:
    """As alone: weight decay passes by what had no gradient; a minibatch without a loss is skipped by its learner."""
    what = replace(experiment(KAVG(2)), task=Partly(), optimizer=SGD(0.1, weight_decay=0.1))
    alone, by_themselves = trained(what, None)
    stacked, by_one_call = trained(what, draw_together)
    assert near(stacked, alone)
    assert [r.skipped for r in by_one_call] == [r.skipped for r in by_themselves]
    assert max(r.skipped for r in by_one_call) == 1
    assert stacked[-3:].equal(torch.ones(3))


class Normed(ToyTask):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


class First(nn.Module):
    def forward(self, found: tuple[Tensor, Tensor]) -> Tensor:
        return found[0]


class Recurrent(ToyTask):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.LSTM(64, 10), First())


def test_what_cannot_be_stacked_is_told_before_the_run() -> None:
    toy = experiment()
    check_stackable(toy)
    for message, other in {
        "Quadratic does not offer": replace(toy, task=Quadratic()),
        "running statistics": replace(toy, task=Normed()),
        "NaturalGradientSGD preconditions": replace(toy, optimizer=NaturalGradientSGD()),
        "random": experiment(dropout=0.2),
        "lstm": replace(toy, task=Recurrent()),
    }.items():
        with pytest.raises(NotStackable, match=message):
            check_stackable(other)


@pytest.mark.parametrize(
    "network",
    [
        Dnn(16, 2, 2),
        Tdnn(8, ((-1, 0, 1), (-2, 0)), 0.0),
        TdnnF(8, 3, strides=(1,), dropout=0.0, front=Convolutions((2, 3), bins=5)),
        Lstm(6, 2),
        Blstm(6, 2, projection=4, bottleneck=3),
        Conformer(8, 2, 2, 3, reach=3, dropout=0.0),
    ],
    ids=lambda n: type(n).__name__,
)
def test_networks_on_chunks_of_frames(network: Network) -> None:
    """The acoustic models' gradients by one call are those of the criterion that trains them."""
    draw = torch.Generator().manual_seed(0)
    task = FramesTask(network=network)
    models = [network.build(5, 4).double() for _ in range(3)]  # a narrow normalised layer magnifies rounding
    batches = []
    for learner in range(3):
        targets = torch.randint(0, 4, (2, 7), generator=draw)
        targets[:, : 1 + learner] = IGNORED
        batches.append(ChunkBatch(torch.randn(2, 7, 5, generator=draw).double(), targets))
    tensors, samples = zip(*map(task.tensors, batches), strict=True)
    parts, losses = gradients_of(task, models, tensors, samples)
    for learner, (model, batch) in enumerate(zip(models, batches, strict=True)):
        loss = task.loss(model, batch)
        assert loss.samples == samples[learner]
        mean = loss.total / loss.samples
        mean.backward()
        assert losses[learner] == pytest.approx(float(mean.detach()), rel=1e-6)
        for part, tensor in zip(parts, model.parameters(), strict=True):
            assert part is not None
            assert tensor.grad is not None
            torch.testing.assert_close(part[learner], tensor.grad, rtol=1e-4, atol=1e-6)
