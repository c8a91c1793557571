"""Composition of minibatch n from utterances or chunks: pure functions of (lengths, size, seed, n).

Shapes: N items of a minibatch, T frames (padded), F values per frame.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from murmur.core.counted import counted

ROUNDS = 16  # 8 are too few: successors in orders of a dozen values are not random (chi-square 254 of 131)
Indices = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Permutation:
    """A one-to-one map of 0 .. size - 1 onto itself, named by integers such as (seed, epoch).

    A Feistel network over Z_a x Z_b with a b >= size, with additions to both halves in turn (the generalised network of
    Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); a value beyond the end is sent through again
    ("cycle walking") until it is inside. Since a b exceeds the size by less than its root, this is rare. Equal names
    give equal orders on any machine.
    """

    size: int
    name: tuple[int, ...] = (0,)

    @cached_property
    def _keys(self) -> Indices:
        return np.asarray(np.random.SeedSequence(list(self.name)).generate_state(ROUNDS, np.uint64), np.uint64)

    @cached_property
    def _sides(self) -> tuple[np.uint64, np.uint64]:
        a = math.isqrt(self.size - 1) + 1
        return np.uint64(a), np.uint64(-(-self.size // a))

    def __call__(self, places: Sequence[int] | range | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The values at some places of the order, 0 .. size - 1."""
        values = self._sent(np.asarray(places, np.int64).astype(np.uint64))
        while (beyond := values >= np.uint64(self.size)).any():
            values[beyond] = self._sent(values[beyond])
        return values.astype(np.int64)

    def _sent(self, values: Indices) -> Indices:
        a, b = self._sides
        right, left = np.divmod(values, a)
        for number, key in enumerate(self._keys):
            if number % 2 == 0:
                left = (left + _mixed(right + key) % a) % a
            else:
                right = (right + _mixed(left + key) % b) % b
        return right * a + left


def _mixed(values: Indices) -> Indices:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit moves about half of the output's."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # modulo 2^64, as intended
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


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

    def piece(self, n: int, number: int, of: int) -> tuple[tuple[int, ...], np.random.Generator]:
        """Utterances of piece `number` of `of` pieces of minibatch n, and the generator of their random changes."""
        every = self[n]
        first, last = (len(every) * k // of for k in (number, number + 1))
        return every[first:last], np.random.default_rng((self.seed, n) if of == 1 else (self.seed, n, number, of))

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
