"""Formation of gloo and NCCL groups by their members."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from murmur.core.group import PeerLost
from murmur.core.native_thread import NativeThread
from murmur.core.torch_private import c10d, gloo_options
from murmur.worlds.process.transport.gloo_sockets import Device

LOOK_SECONDS = 0.1  # longest delay before a loss is noticed while a group is formed


def address_of(store: c10d.Store, member: int) -> tuple[str, int]:
    """Return the address of a learner's device."""
    host, port = store.get(f"gloo/{member}").decode().rsplit(":", 1)
    return host, int(port)


def make_gloo(
    store: c10d.Store, rank: int, size: int, device: Device, patience: float, check: Callable[[], None] | None
) -> Any:
    """Form a gloo group that all members reach within `patience` seconds.

    Args:
        store: Store of the group's keys.
        rank: Rank of this learner in the group.
        size: Number of members.
        device: gloo's device.
        patience: Time for all members, in seconds.
        check: Called repeatedly meanwhile; raises once a member is known to be lost. gloo itself would wait for the
            member until its timeout, and is left behind in its thread.

    Raises:
        PeerLost: A member did not come.
    """
    options = gloo_options(device.gloo, threads=2, timeout=timedelta(seconds=patience))
    made: list[Any] = []

    def make() -> None:
        try:
            made.append(c10d.ProcessGroupGloo(store, rank, size, options))
        except (RuntimeError, ConnectionError) as error:
            made.append(error)

    if check is None:
        make()
    else:
        making = NativeThread(make, "makes a group")
        making.start()
        while making.is_alive():
            making.join(LOOK_SECONDS)
            check()
    if isinstance(made[0], Exception):
        raise PeerLost(f"member {rank} could not reach all {size} of its group: {made[0]}") from made[0]
    return made[0]


def make_nccl(store: c10d.Store, rank: int, size: int) -> Any:
    """Form an NCCL group."""
    return c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), rank, size, c10d.ProcessGroupNCCL.Options())


def ended(work: Any, seconds: float) -> bool:
    """True if a collective ends, successfully or not, within `seconds`."""
    with suppress(RuntimeError):  # timed out, or failed: the wait for its result reports the failure
        work.wait(timedelta(seconds=seconds))
    return bool(work.is_completed())
