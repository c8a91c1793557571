"""`torch.distributed.init_process_group()` in a launch of murmur: `env://` over the launch's own store.

PyTorch's `env://` opens a store of its own at MASTER_PORT, where that of the launch listens already.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from murmur.core.torch_private import PrefixStore, Rendezvous, Store, replace_rendezvous
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import START_SECONDS


def store_of_default_group(place: Place) -> Store:
    """Connect to the store of a launch, for the keys of the default process group.

    Raises:
        ConnectionError: No store answers.
    """
    return PrefixStore("torch.distributed/", _connected(place))


@cache  # lives as long as the process: a group in C++ uses the store, and does not keep its part in Python
def _connected(place: Place) -> Store:
    return connect(place, START_SECONDS)


def understand_launches() -> None:
    """Let `env://` find the store of a launch, unless torchrun owns it; connect to nothing yet.

    Frameworks call `init_process_group()` where no integration can pass them a store.
    """
    replace_rendezvous("env", _in_launches)


def _in_launches(plain: Rendezvous) -> Rendezvous:
    def meet(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        place = place_of()
        if place is None or place.store == "torchrun":
            yield from plain(url, **options)
        else:
            yield store_of_default_group(place), place.rank, place.size

    return meet
