"""Which utterances or chunks make up minibatch n: pure functions of (lengths, size, seed, n).

Shapes: N items of a minibatch, T frames (padded), F values per frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch


@dataclass(frozen=True)
class UtteranceBatches:
    """Whole utterances, grouped by similar length; every utterance once per epoch.

    In each epoch the lengths are jittered by up to a tenth before they are sorted and cut into groups, so that the
    groups differ between epochs, and the groups are permuted.

    Attributes:
        frames: length of each utterance.
        size: utterances per minibatch; the last group of an epoch may be smaller.
        seed: of the permutations.

    Raises:
        ValueError: no utterance, or size < 1.
    """

    frames: tuple[int, ...]
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.frames or self.size < 1:
            raise ValueError(f"need utterances and size >= 1, got {len(self.frames)} utterances and size {self.size}")

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over all utterances."""
        return -(-len(self.frames) // self.size)

    def __getitem__(self, n: int) -> tuple[int, ...]:
        """Indices into `frames` of minibatch n, n = 0, 1, 2, ..."""
        epoch, place = divmod(n, self.per_epoch)
        return _groups(self, epoch)[place]

    def in_order(self) -> tuple[tuple[int, ...], ...]:
        """All utterances once, in groups of similar length without any randomness: for evaluation."""
        order = np.argsort(np.asarray(self.frames), kind="stable")
        return tuple(tuple(order[i : i + self.size].tolist()) for i in range(0, len(order), self.size))


@lru_cache(maxsize=8)
def _groups(batches: UtteranceBatches, epoch: int) -> tuple[tuple[int, ...], ...]:
    rng = np.random.default_rng([batches.seed, epoch])
    jittered = np.asarray(batches.frames) * rng.uniform(0.95, 1.05, len(batches.frames))
    order = np.argsort(jittered, kind="stable")
    groups = [tuple(order[i : i + batches.size].tolist()) for i in range(0, len(order), batches.size)]
    return tuple(groups[i] for i in rng.permutation(len(groups)))


def pad(many_TF: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """feats_NTF, zeros behind the end of each item, and the lengths_N in frames."""
    lengths_N = torch.tensor([len(feats_TF) for feats_TF in many_TF])
    feats_NTF = torch.zeros(len(many_TF), int(lengths_N.max()), many_TF[0].shape[1])
    for row, feats_TF in zip(feats_NTF, many_TF, strict=True):
        row[: len(feats_TF)] = torch.from_numpy(np.ascontiguousarray(feats_TF))
    return feats_NTF, lengths_N
