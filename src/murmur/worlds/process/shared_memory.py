"""Vectors in memory that the processes of one host share, and their sums without a network.

A sum of n members: each writes its vector into the first slot of its own memory. They meet. Each adds up one n-th of
all vectors, and writes the result into its second slot. They meet again, and read the other parts. A vector is copied
about five times less than through the connections of gloo.

A first slot may be written again after the second meeting, when all have read it. The second slots are written again
after the first meeting of the next sum, when all have read them.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from weakref import finalize

import torch
from torch import Tensor

from murmur.core.group import weighted_mean
from murmur.core.spare_vectors import SpareVectors

SLOTS = 2  # vectors of a sum: what a member gives, and its part of the result; of broadcasts: they alternate


class SharedVectors:
    """`SLOTS` vectors of one length and type in memory that one process writes and the others of its host read.

    The memory has no name: it is a file of memory (`memfd_create`, Linux) that the others open through its owner's
    descriptor, which is -1 after `close`, and elsewhere. It is freed with the last process that maps it, however that
    process ends.
    """

    def __init__(self, descriptor: int, numel: int, dtype: torch.dtype) -> None:
        self.descriptor = descriptor
        self._close = finalize(self, os.close, descriptor)  # vectors of a length that comes only once
        memory = mmap.mmap(descriptor, SLOTS * numel * dtype.itemsize)
        self.slots: Sequence[Tensor] = torch.frombuffer(memory, dtype=dtype).view(SLOTS, numel).unbind()

    @classmethod
    def make(cls, numel: int, dtype: torch.dtype) -> SharedVectors:
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
        if os.fstat(own).st_size != SLOTS * numel * dtype.itemsize:
            os.close(own)
            return None
        vectors = cls(own, numel, dtype)
        vectors.close()
        return vectors

    def close(self) -> None:
        """Close the descriptor; the memory stays mapped."""
        self._close()
        self.descriptor = -1


def network_of_host() -> int:
    """Number of this process's network namespace; processes of one host that differ in it are apart on purpose."""
    try:
        return Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return 0  # a system without namespaces


def parts_of(numel: int, size: int) -> list[slice]:
    """Return the parts of a vector that the members of a sum add up, by rank."""
    return [slice(*ends) for ends in pairwise(numel * r // size for r in range(size + 1))]


class SharedSum:
    """Sums and means of the vectors (n,) of all members, each of which has its own `vectors`.

    Args:
        vectors: Memory of each member, by rank.
        rank: Rank of this member.
        meet: Waits until all members have called it; raises if one is lost.
        spent: Block around the time that a sum takes, for the trace.
    """

    def __init__(
        self,
        vectors: Sequence[SharedVectors],
        rank: int,
        meet: Callable[[], None],
        spent: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._vectors, self._rank, self._meet, self._spent = vectors, rank, meet, spent
        own = vectors[rank].slots[0]
        numel, size = own.numel(), len(vectors)
        self._total: Tensor | None = None
        self._spare = SpareVectors(numel, own.dtype)
        self._parts = parts_of(numel, size)

    def next(self) -> Tensor:
        """Return this member's vector of the next sum, to be filled before the members meet; no sum changes it."""
        return self._vectors[self._rank].slots[0]

    def mean(self, weights: Sequence[float]) -> Tensor:
        """Return the weighted mean as a new vector, after all members have filled theirs and met."""
        with self._spent():
            self._add(lambda parts, out: weighted_mean(parts, weights, out))
            return self.latest()

    def latest(self) -> Tensor:
        """Return the latest result as a new vector once more; a member that is lost since then has left its part."""
        return self._read(self._spare.take())

    def total(self, divisor: float) -> Tensor:
        """Return the sum over `divisor`, after all members have filled theirs and met; valid until the next one."""
        with self._spent():
            self._add(lambda parts, out: _sum(parts, out).div_(divisor))
            # Not this member's own memory: it may be changed here while others still read their parts of it.
            self._total = self._read(torch.empty_like(self.next()) if self._total is None else self._total)
            return self._total

    def _add(self, combine: Callable[[Sequence[Tensor], Tensor], Tensor]) -> None:
        mine = self._parts[self._rank]
        out = self._vectors[self._rank].slots[1][mine]
        combine([vectors.slots[0][mine] for vectors in self._vectors], out)
        self._meet()

    def _read(self, into: Tensor) -> Tensor:
        for vectors, part in zip(self._vectors, self._parts, strict=True):
            into[part] = vectors.slots[1][part]
        return into


def _sum(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    torch.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        out.add_(part)
    return out


@dataclass
class _Recurring:
    """Vectors of one length and type that recur.

    Attributes:
        uses: How often they came.
        own: Memory of this member.
        opened: Memory of all members, once this one has opened it; None after a failure.
        sum: Their sums, once all members have opened it.
    """

    uses: int = 0
    own: SharedVectors | None = None
    opened: list[SharedVectors] | None = None
    sum: SharedSum | None = None


FIRST_USE = 3  # number of the vector from which on shared memory is used
NUMBERS = 4  # that members share beside those of a mean: process, descriptor, network, whether all was opened
LEAST_NUMEL = 4096


class RecurringMeans:
    """Shared memory for means of vectors that recur, agreed on by numbers that the members of a mean share anyway.

    The first vector of a length and type offers memory, the second one tells if it could be opened, and from the third
    one on it is used: the system gives out no page of it before. The numbers have the same length at all times, so that
    members whose vectors differ find it out.
    """

    def __init__(self, made: Callable[[list[SharedVectors]], SharedSum]) -> None:
        self._made = made
        self._all: dict[tuple[int, torch.dtype], _Recurring] = defaultdict(_Recurring)
        self._network = network_of_host() if hasattr(os, "memfd_create") else -1

    def offer(self, x: Tensor) -> tuple[float, ...]:
        """Return the numbers of this member; if there is memory for vectors like x, copy it there."""
        if x.device.type != "cpu" or x.numel() < LEAST_NUMEL or self._network < 0:
            return (0.0, -1.0, 0.0, 0.0)
        found = self._all[x.numel(), x.dtype]
        found.uses += 1
        if found.sum is not None:
            slot = found.sum.next()
            if x.data_ptr() != slot.data_ptr():  # it may have been made there (`room`)
                slot.copy_(x)
        elif found.uses == 1:
            found.own = SharedVectors.make(x.numel(), x.dtype)
        descriptor = -1.0 if found.own is None else found.own.descriptor
        return (os.getpid(), descriptor, self._network, float(found.opened is not None))

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        """Return this member's memory for the next vector like this, if there is any."""
        found = self._all.get((numel, dtype))
        return None if found is None or found.sum is None else found.sum.next()

    def begins(self, x: Tensor) -> bool:
        """True for the first means of vectors like x, which shared memory may serve later."""
        found = self._all.get((x.numel(), x.dtype))
        return found is not None and found.uses < FIRST_USE

    def accept(self, x: Tensor, rank: int, offers: Sequence[Sequence[float]]) -> SharedSum | None:
        """Return the sums that have a copy of each member's x; else go on with the offers of all members, by rank."""
        found = self._all.get((x.numel(), x.dtype))
        if found is None or found.own is None:
            return None
        if found.sum is not None:
            return found.sum
        if found.opened is None:
            found.opened = self._open(found.own, x, rank, offers)
        else:
            found.sum = self._made(found.opened) if all(opened for *_, opened in offers) else None
            found.own.close()
        if found.sum is None and (found.opened is None or found.own.descriptor < 0):
            found.own = found.opened = None  # memory of a member cannot be seen from another one
        return None

    def _open(
        self, own: SharedVectors, x: Tensor, rank: int, offers: Sequence[Sequence[float]]
    ) -> list[SharedVectors] | None:
        opened = []
        for member, (process, descriptor, network, _) in enumerate(offers):
            there = descriptor >= 0 and network == self._network
            seen = SharedVectors.open(int(process), int(descriptor), x.numel(), x.dtype) if there else None
            if member != rank and seen is None:
                return None
            opened.append(own if member == rank or seen is None else seen)
        return opened
