"""Pre-training of a sigmoid network: a stack of restricted Boltzmann machines on the features, layer by layer.

    murmur train pretrain --out runs/stack                        (digits spoken by espeak-ng; needs no transcripts)
    murmur train digits_dnn --init runs/stack --out runs/dnn      (the same network, fine-tuned on states)

and `murmur train an4_pretrain`, then `murmur train an4 --set 'task.network=Dnn(512, 3)' --init ...`. Any strategy and
any number of learners work: a minibatch trains the machine that its number selects; the others have no gradient.
Rates: Gaussian units tolerate only a small part of the rate of Bernoulli units (`gaussian_share`; it has no effect with
an optimizer that normalises gradients, such as Adam).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from murmur.engine.task import Loss, Score, Unmade
from murmur.speech.features.chunks import IGNORED, ChunkBatch
from murmur.speech.models import Dnn
from murmur.speech.models.dnn import AcousticDnn, RbmStack
from murmur.speech.tasks.hybrid.config import CrossEntropy
from murmur.speech.tasks.hybrid.task import HybridTask


@dataclass(frozen=True)
class StackBatch:
    """Chunks with context, feats (N, T, F), a mask of the frames that count (N, T), and the machine that they train."""

    feats: Tensor
    counted: Tensor
    layer: int


@dataclass(frozen=True)
class PretrainTask:
    """The hidden layers of a hybrid task's network as machines, trained greedily from the lowest up.

    Attributes:
        supervised: task by cross-entropy that provides the features and the network, which must be a sigmoid `Dnn`.
        epochs_per_layer: passes over the corpus for each machine; the highest one takes the rest of the budget.
        gaussian_share: factor on the lowest machine's gradient.
    """

    supervised: HybridTask = field(default_factory=HybridTask)
    epochs_per_layer: float = 1.0
    gaussian_share: float = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.supervised.network, Dnn):
            raise ValueError(f"pre-training needs a Dnn, not {type(self.supervised.network).__name__}")
        if not isinstance(self.supervised.criterion, CrossEntropy):
            given = type(self.supervised.criterion).__name__
            raise ValueError(f"pre-training needs task.supervised.criterion = CrossEntropy(), not {given}")
        if not (self.epochs_per_layer > 0 and self.gaussian_share > 0):
            raise ValueError(f"epochs_per_layer and gaussian_share must be positive, got {self}")

    def __getstate__(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def per_epoch(self) -> int:
        return self.supervised.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        return self.supervised.samples_per_epoch

    @property
    def data_digest(self) -> str:
        return self.supervised.data_digest

    def check(self) -> None:
        self.supervised.check()

    def unprepared(self) -> list[Unmade]:
        return self.supervised.unprepared()

    def prepare(self) -> None:
        self.supervised.prepare()

    def model(self) -> nn.Module:
        """A fresh stack with the shape of the supervised task's network."""
        like = self.supervised.model()
        assert isinstance(like, AcousticDnn)
        return RbmStack(self._network, like.inputs, like.output.out_features)

    def layer(self, n: int) -> int:
        """The index of the machine that minibatch n trains."""
        return min(int(n / (self.per_epoch * self.epochs_per_layer)), self._network.layers - 1)

    def minibatch(self, n: int) -> StackBatch:
        return self._without_targets(self.supervised.minibatch(n), n)

    @property
    def most_pieces(self) -> int:
        return self.supervised.most_pieces

    def piece(self, n: int, number: int, of: int) -> StackBatch | None:
        batch = self.supervised.piece(n, number, of)
        return None if batch is None else self._without_targets(batch, n)

    def _without_targets(self, batch: ChunkBatch, n: int) -> StackBatch:
        return StackBatch(batch.feats, batch.targets != IGNORED, self.layer(n))

    def loss(self, model: nn.Module, minibatch: StackBatch) -> Loss:
        """Contrastive divergence of one machine, summed over frames; only its gradient matters, not its value."""
        assert isinstance(model, RbmStack)
        v_MV = model.below(minibatch.layer, minibatch.feats)[minibatch.counted]
        share = 1.0 if minibatch.layer else self.gaussian_share
        return Loss(share * model.machine(minibatch.layer).contrast(v_MV), float(len(v_MV)))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """On dev: each machine's squared error of reconstruction as a share of its input's variance, and their mean."""
        assert isinstance(model, RbmStack)
        device = next(model.parameters()).device
        with torch.no_grad():
            found = [
                _share_lost(model, number, [torch.from_numpy(np.asarray(f)).to(device) for f in self._dev])
                for number in range(len(model.maps))
            ]
        return {"loss": sum(found) / len(found), **{f"layer {k}": share for k, share in enumerate(found)}}

    def test(self, model: nn.Module) -> Score:
        figures = dict(self.evaluate(model))
        lines = (f"reconstruction loss on dev: {', '.join(f'{n} {v:.3f}' for n, v in figures.items())}",)
        return Score(figures, lines)

    @property
    def _network(self) -> Dnn:
        assert isinstance(self.supervised.network, Dnn)
        return self.supervised.network

    @cached_property
    def _dev(self) -> list[np.ndarray]:
        return list(self.supervised.data.dev_feats.values())


def _share_lost(model: RbmStack, number: int, utterances: list[Tensor]) -> float:
    machine = model.machine(number)
    lost, count = 0.0, 0
    total = squares = torch.zeros((), dtype=torch.float64)
    for feats_TF in utterances:
        v_TV = model.below(number, feats_TF[None])[0]
        lost += float(machine.reconstruction_error(v_TV).sum())
        count += len(v_TV)
        total, squares = total + v_TV.double().sum(0).cpu(), squares + v_TV.double().square().sum().cpu()
    return lost / max(float(squares - total.square().sum() / count), 1e-12)
