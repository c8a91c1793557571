"""Shared parts of tasks that train frames in chunks: the length of a pass, the criterion, the format of products."""

from __future__ import annotations

import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.core.torch_private import has_fast_bfloat16
from murmur.engine.task import Loss
from murmur.speech.features.chunks import IGNORED, ChunkBatch, Chunks, ChunkTable
from murmur.speech.hmm import frame_classifier

log = logging.getLogger(__name__)
Precision = Literal["float32", "bfloat16"]


def products_in(precision: Precision, kind: str) -> torch.autocast:
    """Context of a forward pass on a kind of device, such as "cpu".

    A processor without instructions for bfloat16 computes in float32: PyTorch's emulation takes several times as long.
    """
    narrow = precision == "bfloat16" and (kind != "cpu" or _fast_here())
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=narrow)


@functools.cache  # told once
def _fast_here() -> bool:
    fast = has_fast_bfloat16()
    if not fast:
        log.info("this processor has no instructions for bfloat16: products are computed in float32")
    return fast


class ChunkLearning(ABC):
    """Cross-entropy of frames on the minibatches of a `ChunkTable`."""

    precision: Precision
    chunks: Chunks

    @property
    @abstractmethod
    def order(self) -> ChunkTable:
        """The chunks in the order of training."""

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the training frames, stored copies at other speeds included."""
        return self.order.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Frames in one pass; speeds drawn on the fly count as speed 1."""
        return float(self.order.total_frames)

    def loss(self, model: nn.Module, minibatch: ChunkBatch) -> Loss:
        kind = next(model.parameters()).device.type
        with products_in(self.precision, kind):
            total, frames = frame_classifier.batch_loss(model, minibatch)
        return Loss(total, float(frames))

    @property
    def most_pieces(self) -> int:
        return self.chunks.size

    def tensors(self, minibatch: ChunkBatch) -> tuple[tuple[Tensor, ...], float]:
        """feats (N, T, F), targets (N, T), and the number of frames with a target."""
        return (minibatch.feats, minibatch.targets), float(minibatch.frames)

    def total(self, model: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """The total of `loss`, for many networks at once."""
        feats_NTF, targets_NT = tensors
        with products_in(self.precision, feats_NTF.device.type):
            return frame_classifier.frame_total(model(feats_NTF), targets_NT)

    def filled(self, tensors: tuple[Tensor, ...], units: int) -> tuple[Tensor, ...]:
        """The tensors of a minibatch with chunks without targets appended, N = units in all."""
        feats_NTF, targets_NT = tensors
        more = units - len(feats_NTF)
        feats = functional.pad(feats_NTF, (0, 0, 0, 0, 0, more))
        return feats, functional.pad(targets_NT, (0, 0, 0, more), value=IGNORED)
