"""Stores of blocks: a process may train several times in one launch, and the keys of each time are separate.

The store counts the blocks of each process, so the learners' k-th blocks belong together. A process that was started
again begins with the first block, as its program does; if others are in that block, it comes late.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from murmur.core.torch_private import PrefixStore, Store
from murmur.worlds.process.launch.environment import Place
from murmur.worlds.process.store.torch_store import NetStore, connect

INTERPRETER = uuid4().hex  # a number of a process would be used again after a restart


@contextmanager
def store_of_next_block(place: Place, timeout_seconds: float) -> Iterator[tuple[Store, int]]:
    """Yield the store of this process's next block, and the number of the block; the first has the launch's own keys.

    Args:
        place: This process's place.
        timeout_seconds: Longest wait for the store of the launch.

    Raises:
        ConnectionError, ValueError: As for `connect`.
    """
    launch = connect(place, timeout_seconds)
    try:
        number = int(launch.add(f"blocks/{place.rank}/{INTERPRETER}-{os.getpid()}", 1)) - 1
        yield launch if number == 0 else _under(launch, f"block-{number}/"), number
    finally:
        if isinstance(launch, NetStore):
            launch.close()


def _under(store: Store, prefix: str) -> Store:
    """Return a store with keys of its own under a prefix, over the same connection."""
    return store.under(prefix) if isinstance(store, NetStore) else PrefixStore(prefix, store)
