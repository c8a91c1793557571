"""Layer-by-layer pre-training as a task, with any strategy, and the network that starts from the stack."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from murmur.core.errors import SettingError
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.run.configuration import configure, recipe_names, resolved
from murmur.run.saved_model import InitialWeights, read_into
from murmur.speech.features.chunks import IGNORED, ChunkBatch
from murmur.speech.models import Dnn, Tdnn
from murmur.speech.models.dnn import RbmStack
from murmur.speech.tasks.hybrid.config import ChainMmi, Mmi, Smbr
from murmur.speech.tasks.hybrid.pretrain import PretrainTask, StackBatch
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.unscaled import Experiment

F = 6


def frames(seed: int, count: int) -> np.ndarray:
    """Features with structure: three prototypes and noise, of zero mean."""
    rng = np.random.default_rng(seed)
    prototypes = np.random.default_rng(0).standard_normal((3, F))
    found = prototypes[rng.integers(3, size=count)] + 0.3 * rng.standard_normal((count, F))
    return (found - prototypes.mean(0)).astype(np.float32)


@dataclass(frozen=True)
class Frames(HybridTask):
    """A hybrid task without a corpus."""

    network: Dnn = field(default_factory=lambda: Dnn(hidden=10, layers=2, context=1))  # type: ignore[assignment]

    @property
    def per_epoch(self) -> int:
        return 20

    @property
    def samples_per_epoch(self) -> float:
        return 20.0 * 48

    @property
    def data(self) -> SimpleNamespace:  # type: ignore[override]
        return SimpleNamespace(dev_feats={"a": frames(900, 50), "b": frames(901, 30)})

    def model(self) -> torch.nn.Module:
        return self.network.build(F, 3)

    def minibatch(self, n: int) -> ChunkBatch:  # type: ignore[override]
        targets = torch.full((4, 14), IGNORED)
        targets[:, 1:13] = 0
        return ChunkBatch(torch.from_numpy(frames(n % 20, 56).reshape(4, 14, F)), targets)

    def piece(self, n: int, number: int, of: int) -> ChunkBatch | None:
        feats, targets = (
            rows.tensor_split(of)[number] for rows in (self.minibatch(n).feats, self.minibatch(n).targets)
        )
        return ChunkBatch(feats, targets) if len(targets) else None


TASK = PretrainTask(Frames(), epochs_per_layer=2.0, gaussian_share=0.2)


def test_a_minibatchs_number_says_whose_turn_it_is() -> None:
    assert [TASK.layer(n) for n in (0, 39, 40, 79, 80, 500)] == [0, 0, 1, 1, 1, 1]
    batch = TASK.minibatch(41)
    assert isinstance(batch, StackBatch)
    assert (batch.layer, int(batch.counted.sum())) == (1, 48)
    assert torch.equal(batch.feats, TASK.supervised.minibatch(41).feats)
    model = TASK.model()
    loss = TASK.loss(model, batch)
    assert loss.samples == 48.0
    torch.manual_seed(0)
    one = TASK.loss(model, TASK.minibatch(0)).total
    torch.manual_seed(0)
    whole = replace(TASK, gaussian_share=1.0).loss(model, TASK.minibatch(0)).total
    torch.testing.assert_close(one, 0.2 * whole)  # the lowest machine's rate


def test_pieces_of_a_minibatch_train_the_same_machine() -> None:
    pieces = [TASK.piece(41, number, 5) for number in range(5)]
    assert pieces[4] is None  # of four chunks
    there = [piece for piece in pieces if piece is not None]
    assert {piece.layer for piece in there} == {1}
    assert torch.equal(torch.cat([piece.feats for piece in there]), TASK.minibatch(41).feats)
    assert torch.equal(torch.cat([piece.counted for piece in there]), TASK.minibatch(41).counted)


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(3), ADPSGD()], ids=named)
def test_it_trains_under_any_strategy(strategy: Strategy) -> None:
    task = replace(TASK, epochs_per_layer=10.0, gaussian_share=1.0)
    start = task.evaluate(task.model())
    experiment = Experiment(task, strategy, Budget(epochs=20), SGD(0.05, momentum=0.5))
    figures = Trainer(experiment, VirtualWorld(2)).fit().figures
    assert figures["layer 0"] < 0.8 * start["layer 0"]
    assert figures["loss"] == pytest.approx((figures["layer 0"] + figures["layer 1"]) / 2)
    assert all(math.isfinite(v) for v in figures.values())


def test_a_layer_rests_while_another_learns() -> None:
    seen = []
    for minibatches in (40, 60):
        experiment = Experiment(TASK, SyncSGD(), Budget(minibatches=minibatches), SGD(0.05, 0.9, weight_decay=0.01))
        seen.append(Trainer(experiment, VirtualWorld(1)).fit().model.state_dict())
    assert torch.equal(seen[0]["maps.0.weight"], seen[1]["maps.0.weight"])
    assert not torch.equal(seen[0]["maps.1.weight"], seen[1]["maps.1.weight"])
    assert torch.equal(seen[0]["output.weight"], seen[1]["output.weight"])


def test_a_network_starts_from_the_stack(tmp_path: Path) -> None:
    stack = Trainer(Experiment(TASK, SyncSGD(), Budget(epochs=3)), VirtualWorld(1), tmp_path).fit().model
    fine = Experiment(TASK.supervised, SyncSGD(), initial=InitialWeights(tmp_path / "model", ""))
    network = fine.model()
    assert not isinstance(network, RbmStack)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, stack.state_dict()[name])
    again = TASK.model()
    read_into(again, tmp_path / "model")  # the stack itself takes everything
    assert torch.equal(again.state_dict()["visible.1"], stack.state_dict()["visible.1"])
    other = replace(TASK.supervised, network=Dnn(hidden=10, layers=3, context=1))
    with pytest.raises(SettingError, match=r"no tensor 'maps\.2\.weight'"):
        replace(fine, task=other).model()
    with pytest.raises(SettingError, match=r"no tensor '0\.weight'"):
        read_into(ToyTask().model(), tmp_path / "model")


def test_recipes_and_refusals() -> None:
    assert {"pretrain", "an4_pretrain", "digits_dnn"} <= set(recipe_names())
    stack, fine = resolved("pretrain"), resolved("digits_dnn")
    assert stack.task.supervised == fine.task  # type: ignore[attr-defined]
    assert stack.budget == Budget(epochs=6)
    made = configure(resolved("an4"), ["task.network=Dnn(512, 3)"])
    assert resolved("an4_pretrain").task.supervised == made.task  # type: ignore[attr-defined]
    for criterion in (Mmi(), Smbr(), ChainMmi()):
        message = rf"task\.supervised\.criterion = CrossEntropy\(\), not {type(criterion).__name__}$"
        with pytest.raises(ValueError, match=message):
            replace(TASK, supervised=replace(TASK.supervised, criterion=criterion))
    with pytest.raises(ValueError, match="not Tdnn"):
        PretrainTask(HybridTask(network=Tdnn()))
    with pytest.raises(ValueError, match="must be positive"):
        replace(TASK, epochs_per_layer=0.0)
