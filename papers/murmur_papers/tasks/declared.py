"""A network on a corpus that is declared by its size: the sizes of a published experiment without its data.

    murmur train cui2021 --dry-run --no-steps                                 (weights, memory, updates)
    murmur simulate cui2021 --set scale=0.02 --set budget.minibatches=2000    (a small version)
    murmur train cui2021 --set task.data=FOLDER --set task.dev=FOLDER         (frames and alignments of a real corpus)

Without a folder the frames are drawn from a mean for each class (`GeneratedFrames`), so that training can be tried and
timed; such losses say nothing about speech. A folder is one that `murmur prepare DATA --alignments` makes.

Shapes: N chunks, T frames, F values per frame, J frames joined on either side, C columns of the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.engine.task import Loss, Score
from murmur.speech import ctc
from murmur.speech.features.chunks import IGNORED, ChunkBatch, Chunks, ChunkTable
from murmur.speech.features.shards import FrameStore, open_store
from murmur.speech.hmm import frame_classifier
from murmur.speech.models import Network, Tdnn
from murmur.tasks.generated_frames import GeneratedFrames

FRAMES_PER_HOUR = 360_000  # at 100 frames a second
SPOKEN = 200  # frames of a generated utterance, rounded to whole chunks
DEV, DEV_CHUNKS = 16, 64  # generated utterances that are held out; chunks of dev that are evaluated at once, at least
LEAST = 8  # width of a layer and number of classes below which nothing is scaled
WIDTHS = ("hidden", "projection", "bottleneck")  # fields of a network that are widths of its layers


@dataclass(frozen=True)
class CrossEntropy:
    """-sum ln p(class | frame) over the frames that have a class; the network has a column for each class."""

    def columns(self, classes: int) -> int:
        return classes

    def total(self, logits_NTC: Tensor, targets_NT: Tensor) -> Tensor:
        """The criterion, summed over frames."""
        return frame_classifier.frame_total(logits_NTC, targets_NT)


@dataclass(frozen=True)
class Ctc:
    """-sum ln P(labels | frames) over chunks; labels: the classes of a chunk, equal neighbours merged.

    Column 0 of the network is the blank, column 1 + c stands for class c (Graves et al. 2006).
    """

    def columns(self, classes: int) -> int:
        return 1 + classes

    def total(self, logits_NTC: Tensor, targets_NT: Tensor) -> Tensor:
        """The criterion, summed over chunks; frames without a class are context and not aligned."""
        own_NT = targets_NT != IGNORED
        lengths_N, first = own_NT.sum(1), int(own_NT[0].int().argmax())  # the same first frame in every chunk
        labels = [1 + torch.unique_consecutive(row[own]) for row, own in zip(targets_NT, own_NT, strict=True)]
        aligned_NTC = logits_NTC[:, first : first + int(lengths_N.max())]
        return ctc.loss(aligned_NTC, lengths_N, [ctc.LabelGraph.linear(row.tolist()) for row in labels])


@dataclass(frozen=True)
class DeclaredTask:
    """Frame classification or CTC on generated frames of a declared amount, or on a prepared corpus.

    Attributes:
        hours: audio in one pass over the generated corpus, at 100 frames a second.
        inputs: values per generated frame.
        classes: number of generated classes (states or labels).
        network: type and size of the network.
        criterion: CrossEntropy() or Ctc().
        chunks: options for cutting utterances; `size` chunks are a minibatch of one learner.
        joined: frames on either side that are joined with each frame to one input of the network (11 frames: 5), for
            networks without context of their own.
        data: folder of a prepared training corpus, whose hours, inputs and classes replace the declared ones.
        dev: folder of the prepared held-out corpus.
        seed: seed of the generated frames and of the order of chunks.
    """

    hours: float = 1.0
    inputs: int = 40
    classes: int = 100
    network: Network = field(default_factory=Tdnn)
    criterion: CrossEntropy | Ctc = field(default_factory=CrossEntropy)
    chunks: Chunks = field(default_factory=Chunks)
    joined: int = 0
    data: Path | None = None
    dev: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.hours < float("inf") or min(self.inputs, self.classes) < 1 or self.joined < 0:
            raise ValueError(
                f"hours = {self.hours}, inputs = {self.inputs}, classes = {self.classes}, joined = {self.joined}: hours"
                " must be positive and finite, inputs and classes at least 1, joined at least 0"
            )
        if self.network.stack != 1:
            raise ValueError(f"network.stack = {self.network.stack}: every frame has a class, so it must be 1")
        if (self.data is None) != (self.dev is None):
            raise ValueError("task.data and task.dev name the two parts of one corpus: give both or none")

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: every process opens the corpora itself."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def at(self, scale: float) -> DeclaredTask:
        """A smaller task of the same kind: scale s.

        Widths of layers, classes and the minibatch are multiplied by s, hours by s^2, as the weights of a layer are:
        hours per weight stay the same, and the number of updates is multiplied by s. Widths and classes are at least
        8, a minibatch at least one chunk. Inputs, number of layers and length of chunks stay.
        """
        if not 0 < scale <= 1:
            raise ValueError(f"a scale must be above 0 and at most 1, got {scale}")
        given = {name: getattr(self.network, name, None) for name in WIDTHS}
        widths: dict[str, Any] = {name: scaled(width, scale) for name, width in given.items() if width is not None}
        return replace(
            self,
            hours=self.hours * scale**2,
            classes=scaled(self.classes, scale),
            network=replace(self.network, **widths),
            chunks=replace(self.chunks, size=max(1, round(self.chunks.size * scale))),
        )

    @property
    def frames(self) -> int:
        return self.chunks.size * self.chunks.frames

    @property
    def weights(self) -> int:
        """Number of weights of the network, for the declared inputs and classes."""
        with torch.device("meta"):
            model = self._built(self.inputs, self.classes)
        return sum(p.numel() for p in model.parameters())

    @property
    def message_bytes(self) -> float:
        """Bytes of the weights in single precision."""
        return 4.0 * self.weights

    @property
    def gradient_flops(self) -> float:
        """Floating-point operations of a gradient: six per weight and frame, frames of context included.

        A frame passes every weight once in the forward pass (two operations) and twice in the backward pass.
        Filters of a convolutional front, which pass a frame once for each bin, are counted once.
        """
        context = self.chunks.left_frames + self.chunks.right_frames
        return 6.0 * self.weights * (self.frames + context * self.chunks.size)

    def check(self) -> None:
        for name, folder in (("data", self.data), ("dev", self.dev)):
            if folder is not None and not folder.is_dir():
                raise SettingError(
                    f"task.{name}: there is no folder {folder}: make it with murmur prepare DATA --alignments, and name"
                    " the folder that it prints"
                )

    @cached_property
    def stores(self) -> tuple[FrameStore | GeneratedFrames, FrameStore | GeneratedFrames]:
        """Train and dev."""
        if self.data is not None and self.dev is not None:
            return open_store(self.data), open_store(self.dev)
        length = max(1, SPOKEN // self.chunks.frames) * self.chunks.frames
        count = max(1, round(self.hours * FRAMES_PER_HOUR / length))
        train = GeneratedFrames(count, length, self.inputs, self.classes, seed=self.seed)
        return train, replace(train, count=DEV, first=count)

    @property
    def per_epoch(self) -> int:
        return self._tables[0].per_epoch

    @property
    def samples_per_epoch(self) -> float:
        return float(self._tables[0].total_frames)

    def prepare(self) -> None:
        _ = self._tables

    def model(self) -> nn.Module:
        return self._built(self.stores[0].dims, self._classes)

    def minibatch(self, n: int) -> ChunkBatch:
        return self._batch(0, n)

    def loss(self, model: nn.Module, minibatch: ChunkBatch) -> Loss:
        """The criterion, summed; samples are the frames that have a class."""
        device = next(model.parameters()).device
        logits_NTC = model(minibatch.feats.to(device))
        return Loss(self.criterion.total(logits_NTC, minibatch.targets.to(device)), float(minibatch.frames))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            found = [self.loss(model, self._batch(1, n)) for n in range(self._tables[1].per_epoch)]
        loss = sum(float(part.total) for part in found) / sum(part.samples for part in found)
        return {"loss": loss, "logprob": -loss}

    def test(self, model: nn.Module) -> Score:
        """The figures of dev again: there is no other held-out set."""
        figures = self.evaluate(model)
        of = "generated frames" if self.data is None else "dev"
        return Score(figures, (f"log-probability {figures['logprob']:.4f} a frame of {of}",))

    def _built(self, inputs: int, classes: int) -> nn.Module:
        return self.network.build(inputs * (2 * self.joined + 1), self.criterion.columns(classes))

    @cached_property
    def _classes(self) -> int:
        if self.data is None:
            return self.classes
        return 1 + max(
            int(store.targets(u, 0, int(length)).max())
            for store in self.stores
            for u, length in enumerate(store.lengths)
        )

    @cached_property
    def _tables(self) -> tuple[ChunkTable, ChunkTable]:
        cut, sides = self.chunks, (self.chunks.left_frames + self.joined, self.chunks.right_frames + self.joined)
        train, dev = self.stores
        return (
            ChunkTable(train.lengths, cut.frames, *sides, cut.size, self.seed, cut.parts),
            ChunkTable(dev.lengths, cut.frames, *sides, max(cut.size, DEV_CHUNKS), self.seed, 1),
        )

    def _batch(self, part: int, n: int) -> ChunkBatch:
        batch = self._tables[part].batch(n, self.stores[part])
        if not self.joined:
            return batch
        feats_NTF, edge = batch.feats, self.joined
        return ChunkBatch(_joined(feats_NTF, 2 * edge + 1), batch.targets[:, edge:-edge].contiguous())


def scaled(width: int, scale: float) -> int:
    """A width multiplied by a scale, at least 8 unless it is less already."""
    return max(min(width, LEAST), round(width * scale))


def _joined(feats_NTF: Tensor, count: int) -> Tensor:
    """Every `count` neighbouring frames as one, the earliest first: (N, T - count + 1, count * F)."""
    return feats_NTF.unfold(1, count, 1).transpose(2, 3).flatten(2).contiguous()
