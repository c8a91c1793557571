"""Shared parts of tasks that train frames in chunks: the length of a pass, and the criterion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from murmur.engine.task import Loss
from murmur.speech.features.chunks import IGNORED, ChunkBatch, ChunkTable
from murmur.speech.hmm import hybrid
from murmur.tasks.hybrid.config import Chunks
from murmur.tasks.precision import Precision, products_in


class ChunkLearning(ABC):
    """Cross-entropy of frames on the minibatches of a `ChunkTable`.

    Attributes:
        precision: number format of the network's matrix products in training.
        chunks: options for cutting utterances into chunks.
    """

    precision: Precision
    chunks: Chunks

    @property
    @abstractmethod
    def _table(self) -> ChunkTable:
        """The chunks in the order of training."""

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the training frames, stored copies at other speeds included."""
        return self._table.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Frames in one pass; speeds drawn on the fly count as speed 1."""
        return float(self._table.total_frames)

    def loss(self, model: nn.Module, minibatch: ChunkBatch) -> Loss:
        """Cross-entropy, summed over the frames that have a target."""
        kind = next(model.parameters()).device.type
        with products_in(self.precision, kind):
            total, frames = hybrid.batch_loss(model, minibatch)
        return Loss(total, float(frames))

    @property
    def most_pieces(self) -> int:
        """Chunks of a minibatch."""
        return self.chunks.size

    def tensors(self, minibatch: ChunkBatch) -> tuple[tuple[Tensor, ...], float]:
        """feats (N, T, F), targets (N, T), and the number of frames with a target."""
        return (minibatch.feats, minibatch.targets), float(minibatch.frames)

    def total(self, model: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """The total of `loss`, for many networks at once."""
        feats_NTF, targets_NT = tensors
        with products_in(self.precision, feats_NTF.device.type):
            return hybrid.frame_total(model(feats_NTF), targets_NT)

    def filled(self, tensors: tuple[Tensor, ...], units: int) -> tuple[Tensor, ...]:
        """The tensors of a minibatch with chunks without targets appended, N = units in all."""
        feats_NTF, targets_NT = tensors
        more = units - len(feats_NTF)
        feats = functional.pad(feats_NTF, (0, 0, 0, 0, 0, more))
        return feats, functional.pad(targets_NT, (0, 0, 0, more), value=IGNORED)
