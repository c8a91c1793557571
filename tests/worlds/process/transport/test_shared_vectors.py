"""Vectors in shared memory: what one process writes the others read, and memory that cannot be seen is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from murmur.worlds.process.transport.shared_vectors import SLOTS, SharedVectors, available

pytestmark = pytest.mark.skipif(not available(), reason="this system has no files of memory (memfd_create)")
READER = """
import sys, torch
from murmur.worlds.process.transport.shared_vectors import SharedVectors
vectors = SharedVectors.open(int(sys.argv[1]), int(sys.argv[2]), 5, torch.float32)
print([slot.tolist() for slot in vectors.slots])
vectors.slots[1].fill_(7.0)
"""


def test_another_process_reads_what_one_has_written() -> None:
    own = SharedVectors.make(5, torch.float32)
    own.slots[0].copy_(torch.arange(5.0))
    words = [sys.executable, "-c", READER, str(os.getpid()), str(own.descriptor)]
    read = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert read.strip() == str([[0.0, 1.0, 2.0, 3.0, 4.0], [0.0] * 5])
    assert own.slots[1].tolist() == [7.0] * 5  # the same memory
    own.close()
    assert own.slots[0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]  # still mapped


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
