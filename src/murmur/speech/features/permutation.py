"""A pseudo-random order of any length, computed place by place without memory.

A Feistel network over Z_a x Z_b with a b >= size, with additions to both halves in turn (the generalised network of
Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); a value beyond the end is sent through again ("cycle
walking") until it is inside. Since a b exceeds the size by less than its root, this is rare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

ROUNDS = 16  # 8 are too few: successors in orders of a dozen values are not random (chi-square 254 of 131)
Indices = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Permutation:
    """A one-to-one map of 0 .. size - 1 onto itself, named by integers such as (seed, epoch).

    Attributes:
        size: number of values.
        name: non-negative integers; equal names give equal orders on any machine.

    Raises:
        ValueError: a size below 1.
    """

    size: int
    name: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a permutation needs at least one value, got size {self.size}")

    @cached_property
    def _keys(self) -> Indices:
        return np.asarray(np.random.SeedSequence(list(self.name)).generate_state(ROUNDS, np.uint64), np.uint64)

    @cached_property
    def _sides(self) -> tuple[np.uint64, np.uint64]:
        a = math.isqrt(self.size - 1) + 1
        return np.uint64(a), np.uint64(-(-self.size // a))

    def __call__(self, places: Sequence[int] | range | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The values at some places of the order.

        Raises:
            IndexError: a place outside 0 .. size - 1.
        """
        asked = np.asarray(places, np.int64)
        if asked.size and (asked.min() < 0 or asked.max() >= self.size):
            raise IndexError(f"an order of {self.size} values has no place {asked.min()} or no place {asked.max()}")
        values = self._sent(asked.astype(np.uint64))
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
