"""Memory of large vectors that come and go, which is used again instead of going back to the system.

A system clears memory that it gives out, page by page: for ten million weights that takes twice as long as their copy.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

LEAST_BYTES = 1 << 22  # the memory of smaller vectors stays with the process anyway
MOST_SPARE = 3


class SpareVectors:
    """Vectors of one length and type on the CPU. At most `MOST_SPARE` that are not used keep their memory."""

    def __init__(self, numel: int, dtype: torch.dtype) -> None:
        self._bytes, self._dtype = numel * dtype.itemsize, dtype
        self._spare: deque[Any] = deque(maxlen=MOST_SPARE)

    def take(self) -> Tensor:
        """Return an uninitialised vector; its memory is used again once no tensor shares it any more."""
        if self._bytes < LEAST_BYTES:
            return torch.empty(self._bytes // self._dtype.itemsize, dtype=self._dtype)
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = torch.empty(self._bytes, dtype=torch.uint8).numpy()
        used = memory.view()  # the tensor's storage keeps this object alive
        finalize(used, self._spare.append, memory).atexit = False
        return torch.from_numpy(used).view(self._dtype)
