"""Arrays of utterances that are read or computed as they are taken, and parts of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

Arrays = Mapping[str, np.ndarray]


class ByUtterance(Mapping[str, np.ndarray]):
    """{utterance: array}, where only `__getitem__` reads or computes. A part is small to pickle."""

    @property
    @abstractmethod
    def listed(self) -> Mapping[str, object]:
        """A mapping with the same utterances."""

    @abstractmethod
    def part(self, names: Sequence[str]) -> Arrays:
        """The arrays of some utterances, not read yet."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.listed)

    def __len__(self) -> int:
        return len(self.listed)

    def __contains__(self, utterance: object) -> bool:
        return utterance in self.listed


def part_of(values: Arrays, names: Sequence[str]) -> Arrays:
    """The arrays of some utterances; those in memory stay there."""
    return values.part(names) if isinstance(values, ByUtterance) else {name: values[name] for name in names}
