"""Gradients of many virtual learners on a device: the same run as each gradient alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import pytest
import torch
from torch import nn

from murmur.core.learner import Strategy
from murmur.core.source import ComputeBatch
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam, NaturalGradientSGD
from murmur.engine.scaling import Auto
from murmur.engine.schedule import Constant
from murmur.engine.task import Fillable
from murmur.engine.trainer import Trainer
from murmur.speech.features.chunks import ChunkBatch, Chunks, ChunkTable
from murmur.speech.models import Blstm, Dnn
from murmur.speech.tasks.frames import FramesTask
from murmur.strategies import ADPSGD, ASGD, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.tasks.generated_frames import GeneratedFrames
from murmur.worlds.virtual.cluster import Cluster, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from murmur_papers.studies.device_gradients import DeviceGradients
from tests.support.tasks import weights_of

CLUSTER = Cluster(5, LognormalSeconds(0.1, 0.3), Link(1e-4, 1e8), lease_seconds=0.3)
STRATEGIES = [SyncSGD(), KAVG(4), ADPSGD(), DelayByOne(), SuperLearners(ADPSGD(), 2), ASGD()]
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@dataclass(frozen=True)
class Generated(FramesTask):
    """Frames drawn when they are read."""

    frames = GeneratedFrames(count=12, length=90, dims=5, classes=4)

    @property
    def order(self) -> ChunkTable:
        return ChunkTable(self.frames.lengths, **asdict(self.chunks), seed=self.seed)

    def model(self) -> nn.Module:
        return self.network.build(self.frames.dims, self.frames.classes)

    def minibatch(self, n: int) -> ChunkBatch:
        return self.order.batch(n, self.frames)

    def piece(self, n: int, number: int, of: int) -> ChunkBatch | None:
        return self.order.piece(n, number, of, self.frames)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"loss": self.loss(model, self.minibatch(0)).total.item()}


def experiment(strategy: Strategy) -> Experiment:
    """A BLSTM; its minibatch is cut among the learners, into pieces of several sizes."""
    task = Generated(network=Blstm(hidden=6, layers=2, bottleneck=4), chunks=Chunks(21, 5, 5, 13))
    return Experiment(task, strategy, Budget(minibatches=30), Adam(lr=0.01), Constant(), scaling=Auto("stays"))


def trained(
    what: Experiment, together: ComputeBatch | None, device: str = "cpu", cluster: Cluster = CLUSTER
) -> tuple[torch.Tensor, list[float]]:
    """The consensus, and the losses of all steps."""
    losses: list[float] = []
    world = VirtualWorld(cluster, together=together, device=device)
    outcome = Trainer(what, world, observers=lambda _: (lambda record: losses.append(record.loss),)).fit()
    return weights_of(outcome.model.to("cpu")), losses


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_the_same_run_but_for_rounding(strategy: Strategy, device: str) -> None:
    alone, by_themselves = trained(experiment(strategy), None)
    together, by_one_call = trained(experiment(strategy), DeviceGradients(device), device)
    begun = weights_of(experiment(strategy).task.model())
    assert float((together - alone).norm()) <= 1e-3 * float((alone - begun).norm())
    assert by_one_call == pytest.approx(by_themselves, rel=1e-4, nan_ok=True)


@pytest.mark.gpu
def test_one_learner_on_a_gpu_makes_the_same_run_but_for_rounding() -> None:
    """Its LSTM layers are cuDNN's, not those of the mapped pass."""
    alone = replace(experiment(SyncSGD()), budget=Budget(minibatches=60))
    cluster = Cluster(1, LognormalSeconds(0.1, 0.3))
    (here, at_home), (there, abroad) = (
        trained(alone, None, cluster=cluster),
        trained(alone, DeviceGradients("cuda"), "cuda", cluster),
    )
    begun = weights_of(alone.task.model())
    assert float((there - here).norm()) <= 1e-3 * float((here - begun).norm())
    assert abroad == pytest.approx(at_home, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4)], ids=lambda s: type(s).__name__)
def test_natural_gradients_on_a_gpu_make_the_same_run_but_for_rounding(strategy: Strategy) -> None:
    task = Generated(network=Dnn(hidden=12, layers=2, context=2), chunks=Chunks(21, 5, 5, 13))
    natural = replace(experiment(strategy), task=task, optimizer=NaturalGradientSGD(0.05, momentum=0.5))
    (here, at_home), (there, abroad) = trained(natural, None), trained(natural, None, "cuda")
    begun = weights_of(task.model())
    assert float((there - here).norm()) <= 1e-2 * float((here - begun).norm())
    assert abroad == pytest.approx(at_home, rel=1e-3, nan_ok=True)


def test_filled_minibatches_have_the_same_total() -> None:
    task = Generated(network=Blstm(hidden=6, layers=1))
    assert isinstance(task, Fillable)
    tensors, _ = task.tensors(task.minibatch(0))
    filled = task.filled(tensors, len(tensors[0]) + 3)
    assert [len(t) for t in filled] == [len(tensors[0]) + 3] * 2
    model = task.model()
    with torch.no_grad():
        assert float(task.total(model, *filled)) == pytest.approx(float(task.total(model, *tensors)), rel=1e-6)
