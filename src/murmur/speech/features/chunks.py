"""Fixed-length chunks of utterances with context, for frame-wise training: minibatch n is a pure function of n.

Only one running count per utterance grows with the corpus: chunks are numbered, not listed, and their order is
computed (`Permutation`), not drawn.

Shapes: U utterances, N chunks, T = left + frames + right frames of a padded chunk, F values per frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from murmur.speech.features.batching import Permutation

IGNORED = -100  # torch's cross-entropy ignores this target
FITTED_FRAMES = 4  # by which an alignment may be longer or shorter than its features
PARTITION = 1  # last part of a name: the permutation that assigns chunks to parts, beside those of epochs
Shares = Literal["drawn", "adjacent"]
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


class Frames(Protocol):
    """Utterances 0 .. U - 1 with targets for their frames, in any kind of storage."""

    @property
    def dims(self) -> int:
        """Values per frame, F."""

    def read(self, utterance: int, first: int, out_TF: np.ndarray) -> None:
        """Write frames first, first + 1, ... into `out_TF`; edge frames are repeated before and after the utterance."""

    def targets(self, utterance: int, first: int, last: int) -> np.ndarray:
        """Targets of the frames [first, last)."""


@dataclass(frozen=True, eq=False)
class SomeUtterances:
    """Some of the utterances of other frames, by their number among all, (U,); they are numbered anew."""

    frames: Frames
    chosen: npt.NDArray[np.int64]

    @property
    def dims(self) -> int:
        """Values per frame."""
        return self.frames.dims

    def read(self, utterance: int, first: int, out_TF: np.ndarray) -> None:
        """See `Frames`."""
        self.frames.read(int(self.chosen[utterance]), first, out_TF)

    def targets(self, utterance: int, first: int, last: int) -> np.ndarray:
        """See `Frames`."""
        return self.frames.targets(int(self.chosen[utterance]), first, last)


@dataclass(frozen=True)
class Chunk:
    """Frames [first, last) of an utterance with targets to train; context is added to them."""

    utterance: int
    first: int
    last: int


# Draws one of several versions of the utterance of a chunk: the source of its frames, and its place in that source.
Versions = Callable[[Chunk, np.random.Generator], tuple[Frames, Chunk]]


@dataclass(frozen=True)
class ChunkBatch:
    """feats (N, T, F), context and padding included; targets (N, T), `IGNORED` outside the chunk's own frames."""

    feats: Tensor
    targets: Tensor

    @property
    def frames(self) -> int:
        """Frames with a target."""
        return int((self.targets != IGNORED).sum())


@dataclass(frozen=True)
class Chunks:
    """Options for cutting utterances into training chunks.

    Attributes:
        frames: length of the longest chunk.
        left_frames: frames of context before the chunk, not trained.
        right_frames: frames of context after the chunk, not trained.
        size: number of chunks in a minibatch.
        parts: number of shares of the chunks; with as many lock-step learners, each trains on its own share alone.
        shares: chunks of a share: drawn from all, or adjacent in the store, so that a learner needs only its shards.
    """

    frames: int = 100
    left_frames: int = 12
    right_frames: int = 12
    size: int = 24
    parts: int = 1
    shares: Shares = "drawn"

    def __post_init__(self) -> None:
        if min(self.frames, self.size, self.parts) < 1 or min(self.left_frames, self.right_frames) < 0:
            raise ValueError(f"{self}: frames, size and parts must be at least 1, and the context at least 0")


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """All chunks of a corpus in a seeded order, a new one each epoch; every frame is trained once per epoch.

    An utterance is cut into ceil(T / frames) chunks whose lengths differ by at most one frame.

    Attributes:
        lengths: number of frames of each utterance, (U,).
        frames: length of the longest chunk, without context.
        left_frames: context before a chunk; the edge frame is repeated at the beginning and end of an utterance.
        right_frames: context after a chunk.
        size: number of chunks per minibatch; the last minibatch of an epoch may be smaller.
        seed: seed of the permutations.
        parts: number of parts to which the chunks are assigned once and for all. Minibatch n holds only chunks of part
            n mod parts, so that with as many lock-step learners each sees its own part alone, like hosts of a cluster
            that each hold a share of the corpus. The last minibatches of a part may hold one chunk more.
        shares: the chunks of a part are drawn from all, or adjacent in the order of the utterances.

    Raises:
        ValueError: no utterance, an empty one, a size below 1, or more parts than chunks.
    """

    lengths: Sequence[int] | npt.NDArray[np.integer]
    frames: int = 40
    left_frames: int = 13
    right_frames: int = 13
    size: int = 64
    seed: int = 0
    parts: int = 1
    shares: Shares = "drawn"

    def __post_init__(self) -> None:
        if self.frames < 1 or self.size < 1 or self.left_frames < 0 or self.right_frames < 0:
            raise ValueError(
                f"chunks of {self.frames} frames, context {self.left_frames} and {self.right_frames}, {self.size} per "
                "minibatch: frames and size must be at least 1, contexts at least 0"
            )
        empty = np.flatnonzero(np.asarray(self.lengths) < 1)
        if len(empty) or not len(self.lengths):
            raise ValueError(
                f"chunks need utterances with frames; without any: {empty[:3].tolist() or 'the whole table'}"
            )
        if not 1 <= self.parts <= self.chunks:
            raise ValueError(f"{self.chunks} chunks cannot be divided into {self.parts} parts: give 1 to {self.chunks}")

    @cached_property
    def _behind(self) -> npt.NDArray[np.int64]:
        """Chunks up to the end of each utterance."""
        return np.cumsum(-(-np.asarray(self.lengths, np.int64) // self.frames))

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return int(self._behind[-1])

    @property
    def total_frames(self) -> int:
        """Frames of all chunks."""
        return int(np.sum(self.lengths, dtype=np.int64))

    @property
    def per_part(self) -> int:
        """Minibatches of one part in an epoch."""
        return -(-(self.chunks // self.parts) // self.size)

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over all chunks."""
        return self.per_part * self.parts

    def __getitem__(self, n: int) -> tuple[Chunk, ...]:
        """Chunks of minibatch n, n = 0, 1, 2, ..."""
        epoch, place = divmod(n, self.per_epoch)
        turn, part = divmod(place, self.parts)
        first, last = (self.chunks * p // self.parts for p in (part, part + 1))
        end = last - first if turn == self.per_part - 1 else (turn + 1) * self.size
        order = Permutation(last - first, (self.seed, epoch, part))
        numbers = first + order(range(turn * self.size, end))
        if self.parts > 1 and self.shares == "drawn":
            numbers = Permutation(self.chunks, (self.seed, 0, 0, PARTITION))(numbers)
        return self.cut(numbers)

    def cut(self, numbers: npt.NDArray[np.int64]) -> tuple[Chunk, ...]:
        """Chunks by their number, 0 .. chunks - 1 in the order of the utterances."""
        owners = self._behind.searchsorted(numbers, "right")
        found = []
        for number, owner in zip(numbers.tolist(), owners.tolist(), strict=True):
            before = int(self._behind[owner - 1]) if owner else 0
            count, length = int(self._behind[owner]) - before, int(self.lengths[owner])
            place = number - before
            found.append(Chunk(owner, place * length // count, (place + 1) * length // count))
        return tuple(found)

    def batch(
        self, n: int, corpus: Frames, change: Change | None = None, versions: Versions | None = None
    ) -> ChunkBatch:
        """Minibatch n: features with context, and the targets of the chunks' own frames.

        `change` is applied to each chunk's features, e.g. a `SpecAugment`, with a generator named by (seed, n).
        `versions`, with another generator, draws a source for each chunk in place of `corpus`.
        """
        return self._batch(self[n], (self.seed, n), corpus, change, versions)

    def piece(
        self,
        n: int,
        number: int,
        of: int,
        corpus: Frames,
        change: Change | None = None,
        versions: Versions | None = None,
    ) -> ChunkBatch | None:
        """Piece `number` of `of` pieces of minibatch n, with generators of its own; None if it has no chunks."""
        chunks = self.piece_chunks(n, number, of)
        name = (self.seed, n) if of == 1 else (self.seed, n, number, of)
        return self._batch(chunks, name, corpus, change, versions) if chunks else None

    def piece_chunks(self, n: int, number: int, of: int) -> tuple[Chunk, ...]:
        """The chunks of piece `number` of `of` pieces of minibatch n."""
        chunks = self[n]
        first, last = (len(chunks) * k // of for k in (number, number + 1))
        return chunks[first:last]

    def _batch(
        self,
        chunks: Sequence[Chunk],
        name: tuple[int, ...],
        corpus: Frames,
        change: Change | None,
        versions: Versions | None,
    ) -> ChunkBatch:
        rng, draws = (np.random.default_rng([*name, purpose]) for purpose in (1, 2))
        drawn = [(corpus, chunk) if versions is None else versions(chunk, draws) for chunk in chunks]
        chunks = [chunk for _, chunk in drawn]
        width = self.left_frames + max(chunk.last - chunk.first for chunk in chunks) + self.right_frames
        feats = np.empty((len(chunks), width, corpus.dims), np.float32)
        labels = np.full((len(chunks), width), IGNORED, np.int64)
        for row_TF, label_T, (source, chunk) in zip(feats, labels, drawn, strict=True):
            source.read(chunk.utterance, chunk.first - self.left_frames, row_TF)
            if change is not None:
                row_TF[:] = change(row_TF, rng)
            own = slice(self.left_frames, self.left_frames + chunk.last - chunk.first)
            label_T[own] = source.targets(chunk.utterance, chunk.first, chunk.last)
        return ChunkBatch(torch.from_numpy(feats), torch.from_numpy(labels))


@dataclass(frozen=True, eq=False)
class FramesInMemory:
    """`Frames` of arrays in memory: feats_TF and targets_T of each utterance, in the order of `feats`.

    Raises:
        ValueError: an utterance has different numbers of targets and frames.
    """

    feats: Mapping[str, np.ndarray]
    labels: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        for name in self.names:
            check_lengths(name, self.feats[name], self.labels[name])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The utterances by number."""
        return tuple(self.feats)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Frames of each utterance."""
        return tuple(len(self.feats[name]) for name in self.names)

    @property
    def dims(self) -> int:
        """Values per frame."""
        return int(self.feats[self.names[0]].shape[1])

    def read(self, utterance: int, first: int, out_TF: np.ndarray) -> None:
        """Frames first, first + 1, ... with the edges repeated."""
        copy_with_edges(self.feats[self.names[utterance]], first, out_TF)

    def targets(self, utterance: int, first: int, last: int) -> np.ndarray:
        """Targets of the frames [first, last)."""
        return self.labels[self.names[utterance]][first:last]


@dataclass(frozen=True)
class AlignedFrames:
    """An utterance to store: feats (T, F), and a target per frame, (T,), integers from 0; None for features alone."""

    name: str
    feats: np.ndarray
    targets: np.ndarray | None = None


def fit_targets(pdfs_T: np.ndarray, frames: int) -> np.ndarray:
    """Targets for `frames` frames from an alignment with a few frames more or fewer.

    Analyses with and without snip_edges differ by two frames at 25/10 ms; the first and last labels are repeated, or
    the ends cut, equally on both sides.

    Raises:
        ValueError: the lengths differ by more than 4 frames: another utterance, or another frame rate.
    """
    missing = frames - len(pdfs_T)
    if abs(missing) > FITTED_FRAMES or not len(pdfs_T):
        raise ValueError(
            f"an alignment of {len(pdfs_T)} frames cannot serve {frames} frames of features: align the same audio at "
            "the same frame shift"
        )
    if missing >= 0:
        return np.pad(pdfs_T, (missing // 2, missing - missing // 2), mode="edge")
    return pdfs_T[-missing // 2 : -missing // 2 + frames]


def at_speed(pdfs_T: np.ndarray, frames: int, first: int = 0, last: int | None = None) -> np.ndarray:
    """An alignment stretched to the `frames` frames of the same audio played at another speed (nearest label).

    Frame t takes the label of frame floor((t + 1/2) T / frames); of these the frames [first, last) are returned.
    """
    at_T = np.arange(first, frames if last is None else last)
    return pdfs_T[((at_T + 0.5) * len(pdfs_T) / frames).astype(int)]


def speed_copy(name: str, speed: float, feats_TF: np.ndarray, targets_T: np.ndarray) -> AlignedFrames:
    """An utterance analysed at some speed (`LogMel(speed=...)`) with its alignment at speed 1 (Ko et al. 2015).

    The copy is named `sp1.1-UTTERANCE`; at speed 1 the name is unchanged.
    """
    return AlignedFrames(copy_name(name, speed), feats_TF, at_speed(targets_T, len(feats_TF)))


def copy_name(name: str, speed: float) -> str:
    """The name of an utterance's copy at some speed."""
    return name if speed == 1.0 else f"sp{speed:g}-{name}"


def check_lengths(name: str, feats_TF: np.ndarray, targets_T: np.ndarray) -> None:
    """Raise ValueError, naming the utterance, if an alignment does not fit its features."""
    if len(feats_TF) != len(targets_T):
        raise ValueError(f"{name} has {len(feats_TF)} frames and {len(targets_T)} targets: align it again")


def copy_with_edges(feats_TF: np.ndarray, first: int, out_TF: np.ndarray) -> None:
    """out_TF[k] = feats_TF[first + k], converted; the first and last frames are repeated beyond the ends.

    The stretch must overlap the utterance by at least one frame.
    """
    before = max(-first, 0)
    last = min(first + len(out_TF), len(feats_TF))
    end = last - first
    out_TF[before:end] = feats_TF[first + before : last]
    out_TF[:before] = out_TF[before]
    out_TF[end:] = out_TF[end - 1]
