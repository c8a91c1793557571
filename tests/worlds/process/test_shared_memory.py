"""Vectors in memory that the processes of one host share, and their sums."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import pytest
import torch
from torch import Tensor

from murmur.core.group import weighted_mean
from murmur.core.world import Seat
from murmur.worlds.process.shared_memory import LEAST_NUMEL, SLOTS, RecurringMeans, SharedSum, SharedVectors
from tests.support.descriptors import settled_descriptors
from tests.support.pool import Pool, PooledWorld

NEEDS_FILES_OF_MEMORY = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="this system has no files of memory (memfd_create)"
)
READER = """
import sys, torch
from murmur.worlds.process.shared_memory import SharedVectors
vectors = SharedVectors.open(int(sys.argv[1]), int(sys.argv[2]), 5, torch.float32)
print([slot.tolist() for slot in vectors.slots])
vectors.slots[1].fill_(7.0)
"""


@NEEDS_FILES_OF_MEMORY
def test_another_process_reads_what_one_has_written() -> None:
    own = SharedVectors.make(5, torch.float32)
    own.slots[0].copy_(torch.arange(5.0))
    words = [sys.executable, "-c", READER, str(os.getpid()), str(own.descriptor)]
    read = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert read.strip() == str([[0.0, 1.0, 2.0, 3.0, 4.0], [0.0] * 5])
    assert own.slots[1].tolist() == [7.0] * 5  # the same memory
    own.close()
    assert own.slots[0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]  # still mapped


@NEEDS_FILES_OF_MEMORY
def test_memory_that_cannot_be_seen_is_none() -> None:
    own = SharedVectors.make(5, torch.float32)
    number = own.descriptor
    opened = SharedVectors.open(os.getpid(), number, 5, torch.float32)
    assert opened is not None
    assert len(opened.slots) == SLOTS
    assert SharedVectors.open(os.getpid(), number, 6, torch.float32) is None  # another length
    own.close()
    assert SharedVectors.open(os.getpid(), number, 5, torch.float32) is None
    assert SharedVectors.open(2**22 + 1, number, 5, torch.float32) is None  # no such process


def members(networks: tuple[int, int]) -> list[RecurringMeans]:
    """Return the memory of two members in this process, in these network namespaces."""
    made = [RecurringMeans(lambda vectors: cast(SharedSum, vectors)) for _ in networks]
    for means, network in zip(made, networks, strict=True):
        means._network = network
    return made


def share(means: list[RecurringMeans], xs: list[Tensor]) -> list[object]:
    offers = [each.offer(x) for each, x in zip(means, xs, strict=True)]
    return [each.accept(x, rank, offers) for rank, (each, x) in enumerate(zip(means, xs, strict=True))]


@NEEDS_FILES_OF_MEMORY
@pytest.mark.parametrize(("networks", "used"), [((1, 1), True), ((1, 2), False)])
def test_members_of_one_network_share_memory_from_the_third_mean_on(networks: tuple[int, int], used: bool) -> None:
    means = members(networks)
    xs = [torch.full((LEAST_NUMEL,), 1.0 + rank) for rank in range(2)]
    for _ in range(2):
        assert share(means, xs) == [None, None]
        assert share(means, [x[1:] for x in xs]) == [None, None]  # too short
    found = [each._all[LEAST_NUMEL, torch.float32].sum for each in means]
    assert [each is not None for each in found] == [used, used]
    if used:
        first, second = cast(list[list[SharedVectors]], found)
        for rank in range(2):
            first[rank].slots[0].fill_(rank + 5.0)
            assert second[rank].slots[0][-1] == rank + 5.0


@NEEDS_FILES_OF_MEMORY
def test_members_go_on_without_memory_if_one_cannot_open_it(monkeypatch: pytest.MonkeyPatch) -> None:
    means = members((1, 1))
    xs = [torch.ones(LEAST_NUMEL), torch.ones(LEAST_NUMEL)]
    monkeypatch.setattr(means[1], "_open", lambda *_: None)
    for _ in range(4):
        assert share(means, xs) == [None, None]


def sums_of_two(n: int) -> tuple[list[SharedVectors], list[SharedSum]]:
    """Return the memory of two members in this process, and their sums; they take turns, so no meeting is needed."""
    own = [SharedVectors.make(n, torch.float32) for _ in range(2)]
    return own, [SharedSum(own, rank, lambda: None, nullcontext) for rank in range(2)]


@NEEDS_FILES_OF_MEMORY
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0), (0.0, 2.0)])
def test_a_mean_is_that_of_vectors_and_changes_none(weights: tuple[float, float]) -> None:
    own, sums = sums_of_two(7)
    xs = [torch.randn(7, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    for each, x in zip(sums, xs, strict=True):
        each.next().copy_(x)
    for each in sums:  # the first one reads the part of the other one only in `latest`
        each.mean(weights)
    wanted = weighted_mean(xs, weights)
    for each, x in zip(sums, xs, strict=True):
        each.latest().zero_()  # of the caller
        assert torch.equal(each.latest(), wanted)
        assert torch.equal(each.next(), x)
    for vectors in own:
        vectors.close()


@NEEDS_FILES_OF_MEMORY
def test_descriptors_of_vectors_that_come_once_are_closed() -> None:
    before = settled_descriptors()
    means = members((1, 1))
    share(means, [torch.ones(LEAST_NUMEL)] * 2)
    assert set(os.listdir("/proc/self/fd")) > set(before)
    del means
    assert settled_descriptors() == before


@NEEDS_FILES_OF_MEMORY
def test_a_vector_made_in_the_room_of_a_mean_is_not_copied() -> None:
    own, sums = sums_of_two(LEAST_NUMEL)
    means = RecurringMeans(lambda _: sums[0])
    assert means.room(LEAST_NUMEL, torch.float32) is None
    means._all[LEAST_NUMEL, torch.float32].sum = sums[0]
    means._all[LEAST_NUMEL, torch.float32].own = own[0]
    room = means.room(LEAST_NUMEL, torch.float32)
    assert room is not None
    assert room.data_ptr() == sums[0].next().data_ptr()
    before = room.fill_(3.0)._version
    means.offer(room)
    assert room._version == before
    means.offer(torch.full((LEAST_NUMEL,), 4.0))
    assert room[0] == 4.0


@dataclass(frozen=True)
class SameMeans:
    """Means of the same vectors, five times: the first ones without shared memory, the later ones in it."""

    async def __call__(self, seat: Seat) -> list[Tensor]:
        x = torch.randn(2 * LEAST_NUMEL + 1, generator=torch.Generator().manual_seed(seat.group.rank))
        return [await seat.group.mean(x.clone(), weight=4.0 + seat.group.rank) for _ in range(5)]


@NEEDS_FILES_OF_MEMORY
@pytest.mark.processes
@pytest.mark.parametrize("size", [2, 3])
def test_the_first_means_have_the_bits_of_those_in_shared_memory(pool: Pool, size: int) -> None:
    """A resumed run begins without shared memory where the uninterrupted one had it."""
    for first, *others in PooledWorld(pool, size).run(SameMeans()):
        assert all(torch.equal(first, other) for other in others)
