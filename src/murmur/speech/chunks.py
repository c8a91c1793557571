"""Fixed-length chunks of utterances with context, for frame-wise training: minibatch n is a pure function of n.

Shapes: N chunks, T = left + frames + right frames of a padded chunk, F values per frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

IGNORED = -100  # torch's cross-entropy passes over this target


@dataclass(frozen=True)
class Chunk:
    """Frames [first, last) of an utterance, whose targets are trained; context comes on top."""

    utterance: str
    first: int
    last: int


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
class ChunkTable:
    """All chunks of a corpus in a seeded order, a new one each epoch; every frame is trained once per epoch.

    An utterance is cut into ceil(T / frames) chunks of equal length up to one frame, so that no sliver remains.

    Attributes:
        lengths: frames of each utterance.
        frames: longest chunk, without context.
        left_frames: context before a chunk; the edge frame is repeated where the utterance begins or ends.
        right_frames: context after it.
        size: chunks per minibatch; the last of an epoch may be smaller.
        seed: of the permutations.

    Raises:
        ValueError: no utterance, an empty one, or a size below 1.
    """

    lengths: Mapping[str, int]
    frames: int = 40
    left_frames: int = 13
    right_frames: int = 13
    size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if self.frames < 1 or self.size < 1 or self.left_frames < 0 or self.right_frames < 0:
            raise ValueError(
                f"chunks of {self.frames} frames, context {self.left_frames} and {self.right_frames}, {self.size} per "
                "minibatch: frames and size must be at least 1, contexts at least 0"
            )
        empty = [name for name, length in self.lengths.items() if length < 1]
        if empty or not self.lengths:
            raise ValueError(f"chunks need utterances with frames; without any: {empty[:3] or 'the whole table'}")

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """Every chunk, in the order of the utterances."""
        found = []
        for name, length in self.lengths.items():
            cuts = np.linspace(0, length, -(-length // self.frames) + 1).astype(int).tolist()
            found += [Chunk(name, first, last) for first, last in pairwise(cuts)]
        return tuple(found)

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over all chunks."""
        return -(-len(self.chunks) // self.size)

    def __getitem__(self, n: int) -> tuple[Chunk, ...]:
        """Chunks of minibatch n, n = 0, 1, 2, ..."""
        epoch, place = divmod(n, self.per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.chunks))
        return tuple(self.chunks[i] for i in order[place * self.size : (place + 1) * self.size])

    def batch(
        self,
        n: int,
        feats: Mapping[str, np.ndarray],
        targets: Mapping[str, np.ndarray],
        change: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None,
    ) -> ChunkBatch:
        """Minibatch n: features with context, and targets (T,) of each utterance cut alike.

        `change` is applied to each chunk's features, e.g. a `SpecAugment`, with a generator named by (seed, n).

        Raises:
            ValueError: an utterance has not as many targets as frames.
        """
        rng = np.random.default_rng([self.seed, n, 1])
        chunks = self[n]
        width = self.left_frames + max(chunk.last - chunk.first for chunk in chunks) + self.right_frames
        rows, labels = [], torch.full((len(chunks), width), IGNORED)
        for row, chunk in enumerate(chunks):
            feats_TF, targets_T = feats[chunk.utterance], targets[chunk.utterance]
            if len(feats_TF) != len(targets_T):
                raise ValueError(
                    f"{chunk.utterance} has {len(feats_TF)} frames and {len(targets_T)} targets: align it again"
                )
            places = np.arange(chunk.first - self.left_frames, chunk.first - self.left_frames + width)
            cut_TF = np.asarray(feats_TF[np.clip(places, 0, len(feats_TF) - 1)])
            rows.append(cut_TF if change is None else change(cut_TF, rng))
            own = slice(self.left_frames, self.left_frames + chunk.last - chunk.first)
            labels[row, own] = torch.from_numpy(np.asarray(targets_T[chunk.first : chunk.last], np.int64))
        return ChunkBatch(torch.from_numpy(np.stack(rows).astype(np.float32)), labels)
