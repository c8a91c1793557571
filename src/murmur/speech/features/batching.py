"""Composition of minibatch n from utterances or chunks: pure functions of (lengths, size, seed, n).

Shapes: N items of a minibatch, T frames (padded), F values per frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from murmur.core.counted import counted
from murmur.speech.features.permutation import Permutation

BLOCK = 2  # minibatches of similar length that exchange utterances


@dataclass(frozen=True)
class UtteranceBatches:
    """Whole utterances, grouped by similar length; every utterance once per epoch.

    The utterances are sorted by length and shuffled within every two minibatches, anew in each epoch; the order of the
    groups is computed place by place (`Permutation`).

    Attributes:
        frames: length of each utterance.
        size: number of utterances per minibatch; the last group of an epoch may be smaller.
        seed: seed of the permutations.

    Raises:
        ValueError: no utterance, or size < 1.
    """

    frames: tuple[int, ...]
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.frames or self.size < 1:
            raise ValueError(
                f"need utterances and size >= 1, got {counted(len(self.frames), 'utterance')} and size {self.size}"
            )

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over all utterances."""
        return -(-len(self.frames) // self.size)

    def __getitem__(self, n: int) -> tuple[int, ...]:
        """Indices into `frames` of minibatch n, n = 0, 1, 2, ..."""
        epoch, place = divmod(n, self.per_epoch)
        group = int(Permutation(self.per_epoch, (self.seed, epoch))([place])[0])
        block, inside = divmod(group, BLOCK)
        first = block * BLOCK * self.size
        count = min(BLOCK * self.size, len(self.frames) - first)
        places = range(inside * self.size, min((inside + 1) * self.size, count))
        return tuple(self._by_length[first + Permutation(count, (self.seed, epoch, block, 1))(places)].tolist())

    def in_order(self) -> tuple[tuple[int, ...], ...]:
        """All utterances once, in groups of similar length without randomness: for evaluation."""
        order = self._by_length
        return tuple(tuple(order[i : i + self.size].tolist()) for i in range(0, len(order), self.size))

    @cached_property
    def _by_length(self) -> np.ndarray:
        return np.argsort(np.asarray(self.frames), kind="stable")


def pad(many_TF: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """feats_NTF with zeros after the end of each item, and the lengths_N in frames."""
    lengths_N = torch.tensor([len(feats_TF) for feats_TF in many_TF])
    feats_NTF = torch.zeros(len(many_TF), int(lengths_N.max()), many_TF[0].shape[1])
    for row, feats_TF in zip(feats_NTF, many_TF, strict=True):
        row[: len(feats_TF)] = torch.from_numpy(np.ascontiguousarray(feats_TF))
    return feats_NTF, lengths_N
