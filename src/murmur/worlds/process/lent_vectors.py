"""Vectors that a learner lends to others of its host, which read them where they lie.

The memory of a learner has two slots for vectors, and cells in which readers tell that they have finished:

    owner    a vector into a slot, then a message with slot, cell and a number over the connection    ->
    reader   reads the slot                                                   <-    the number into the cell

A message is sent when its vector is complete. A slot is written again when no tensor of the owner shares it and all of
its readers have finished; while both slots are in use, vectors travel over the connection. A lost reader may still read
(a stopped process), so its slots are never written again: new memory takes their place. The memory has no name, and
ends with the last process that maps it. The words of its first page are the token, by which readers know it, and the
cells. A learner maps its own memory and the latest one of each learner of its host that posts to it.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import finalize, ref

import numpy as np
import torch
from torch import Tensor

from murmur.worlds.process.shared_memory import network_of_host
from murmur.worlds.process.wire_format import Loan, MemoryOffer

SLOTS, PAGE = 2, 1 << 16  # bytes of the first page, at least one of the system's
CELLS = PAGE // 8 - 1
LEAST_BYTES = 1 << 16  # smaller vectors cost less than the care for a slot


@dataclass(frozen=True)
class _Lent:
    slot: int
    number: int
    reader: int


class LentMemory:
    """Memory of one learner, with slots of `slot_bytes`. Not safe for threads by itself."""

    def __init__(self, slot_bytes: int) -> None:
        self.slot_bytes, self.token = slot_bytes, secrets.randbits(62) + 1
        self.descriptor = os.memfd_create("murmur")
        os.ftruncate(self.descriptor, _size(slot_bytes))
        self._area = np.frombuffer(mmap.mmap(self.descriptor, _size(slot_bytes)), np.uint8)
        self._words = self._area[:PAGE].view(np.int64)
        self._words[0] = self.token
        self._used: list[Callable[[], object]] = [lambda: None] * SLOTS
        self._lent: dict[int, _Lent] = {}  # by cell
        self._number = 0

    def take(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        """Return an uninitialised vector in a slot; None if no slot is free."""
        lent = {found.slot for found in self._unfinished().values()}
        for slot in range(SLOTS):
            if self._used[slot]() is None and slot not in lent:
                used = self._area[self._start(slot) :][: numel * dtype.itemsize]  # the tensor's storage keeps it alive
                self._used[slot] = ref(used)
                return torch.from_numpy(used).view(dtype)
        return None

    def slot_of(self, x: Tensor) -> int | None:
        """Return the slot in which a vector lies, if it does."""
        starts = [self._area.ctypes.data + self._start(slot) for slot in range(SLOTS)]
        return starts.index(x.data_ptr()) if x.data_ptr() in starts else None

    def lend(self, slot: int, reader: int) -> Loan | None:
        """Lend a slot to a reader; None if no cell is left."""
        lent = self._unfinished()
        cell = next((cell for cell in range(CELLS) if cell not in lent), None)
        if cell is None:
            return None
        self._number += 1
        self._lent[cell] = _Lent(slot, self._number, reader)
        return Loan(self.token, slot, cell, self._number)

    def is_lent_to(self, reader: int) -> bool:
        return any(found.reader == reader for found in self._unfinished().values())

    def close(self) -> None:
        """Let no further process map the memory."""
        os.close(self.descriptor)

    def _start(self, slot: int) -> int:
        return PAGE + slot * self.slot_bytes

    def _unfinished(self) -> dict[int, _Lent]:
        self._lent = {cell: lent for cell, lent in self._lent.items() if self._words[1 + cell] != lent.number}
        return self._lent


def _size(slot_bytes: int) -> int:
    return PAGE + SLOTS * slot_bytes


class Lender:
    """The memory of one learner, made when the first vector asks for it and again for a longer one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._memory: LentMemory | None = None
        self._closed = not hasattr(os, "memfd_create")
        self._network = network_of_host()

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        """Return memory for a vector that is posted and not changed afterwards; None: any other will do."""
        size = numel * dtype.itemsize
        with self._lock:
            if self._closed or size < LEAST_BYTES:
                return None
            if self._memory is None or self._memory.slot_bytes < size:
                self._renew(LentMemory(-(-size // PAGE) * PAGE))
            assert self._memory is not None
            return self._memory.take(numel, dtype)

    def offer(self, x: Tensor) -> MemoryOffer | None:
        """Return where others of this host find the memory of a vector; None if it lies elsewhere."""
        with self._lock:
            memory = self._memory
            if memory is None or memory.slot_of(x) is None:
                return None
            return MemoryOffer(os.getpid(), memory.descriptor, self._network, memory.token, memory.slot_bytes)

    def lend(self, x: Tensor, reader: int, token: int) -> Loan | None:
        """Lend a vector to a reader that has mapped the memory with this token; None if it lies elsewhere."""
        with self._lock:
            memory = self._memory
            slot = None if memory is None or memory.token != token else memory.slot_of(x)
            return None if memory is None or slot is None else memory.lend(slot, reader)

    def lose(self, reader: int) -> None:
        """Write no slot again that a lost reader has not finished."""
        with self._lock:
            if self._memory is not None and self._memory.is_lent_to(reader):
                self._renew(None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._renew(None)

    def _renew(self, memory: LentMemory | None) -> None:
        if self._memory is not None:
            self._memory.close()
        self._memory = memory


class Borrower:
    """The memory of another learner, as this one has mapped it.

    Attributes:
        token: Its token; 0 if none is mapped.
    """

    def __init__(self) -> None:
        self.token = 0
        self._seen = 0
        self._area: Any = None
        self._slot_bytes = 0

    def consider(self, offer: MemoryOffer) -> None:
        """Map an offered memory, unless it cannot be seen from here: another host, network or container."""
        if offer.token == self._seen:
            return
        self._seen, self.token, self._area = offer.token, 0, None
        area = _mapped(offer) if offer.network == network_of_host() else None
        if area is not None:
            self.token, self._area, self._slot_bytes = offer.token, area, offer.slot_bytes

    def vector(self, loan: Loan, numel: int, dtype: torch.dtype) -> Tensor:
        """Return a lent vector, to be read only; it is given back when no tensor shares it any more.

        Raises:
            ValueError: It is in no memory that is mapped.
        """
        size = numel * dtype.itemsize
        if loan.token != self.token or not (loan.slot < SLOTS and loan.cell < CELLS and 0 < size <= self._slot_bytes):
            raise ValueError(f"a vector of {size} bytes in memory that is not mapped")
        used = self._area[PAGE + loan.slot * self._slot_bytes :][:size]
        finalize(used, _give_back, self._area, loan).atexit = False
        return torch.from_numpy(used).view(dtype)


def _give_back(area: Any, loan: Loan) -> None:
    area[:PAGE].view(np.int64)[1 + loan.cell] = loan.number


def _mapped(offer: MemoryOffer) -> Any:
    """Return the bytes of an offered memory; None if they cannot be mapped here."""
    try:
        descriptor = os.open(f"/proc/{offer.process}/fd/{offer.descriptor}", os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != _size(offer.slot_bytes):
            return None
        area = np.frombuffer(mmap.mmap(descriptor, found.st_size), np.uint8)
    finally:
        os.close(descriptor)
    return area if area[:8].view(np.int64)[0] == offer.token else None
