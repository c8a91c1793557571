"""Vectors in memory that one process writes and the other processes of its host read.

The memory has no name: it is a file of memory (`memfd_create`, Linux) that the others open through its owner's
descriptor. It is freed with the last process that maps it, however that process ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor

SLOTS = 2  # vectors of one sequence: the one that is read, and the one that is written


def available() -> bool:
    """True if this system has files of memory."""
    return hasattr(os, "memfd_create")


class SharedVectors:
    """`SLOTS` vectors of one length and type.

    Attributes:
        slots: The vectors.
        descriptor: Descriptor of the memory in the process that made it; -1 after `close`, and elsewhere.
    """

    def __init__(self, descriptor: int, numel: int, dtype: torch.dtype) -> None:
        self.descriptor = descriptor
        memory = mmap.mmap(descriptor, SLOTS * numel * dtype.itemsize)
        self.slots: Sequence[Tensor] = torch.frombuffer(memory, dtype=dtype).view(SLOTS, numel).unbind()

    @classmethod
    def make(cls, numel: int, dtype: torch.dtype) -> SharedVectors:
        """Make the memory."""
        descriptor = os.memfd_create("murmur")
        os.ftruncate(descriptor, SLOTS * numel * dtype.itemsize)
        return cls(descriptor, numel, dtype)

    @classmethod
    def open(cls, process: int, descriptor: int, numel: int, dtype: torch.dtype) -> SharedVectors | None:
        """Open the memory of another process; None if that process cannot be seen from here (another container)."""
        try:
            own = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        except OSError:
            return None
        try:
            found = os.fstat(own).st_size == SLOTS * numel * dtype.itemsize
            vectors = cls(own, numel, dtype) if found else None
        finally:
            os.close(own)
        if vectors is not None:
            vectors.descriptor = -1
        return vectors

    def close(self) -> None:
        """Close the descriptor; the memory stays mapped."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
