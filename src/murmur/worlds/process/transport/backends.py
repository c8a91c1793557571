"""Groups of gloo and NCCL, as their members make them together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Thread
from typing import Any

from murmur.core.group import PeerLost
from murmur.core.torch_private import c10d, gloo_options
from murmur.worlds.process.transport.gloo_sockets import Device

LOOK_SECONDS = 0.1  # how soon a loss is noticed while a group is made


def address_of(store: c10d.Store, member: int) -> tuple[str, int]:
    """Where a learner's device listens."""
    host, port = store.get(f"gloo/{member}").decode().rsplit(":", 1)
    return host, int(port)


def make_gloo(
    store: c10d.Store, rank: int, size: int, device: Device, patience: float, check: Callable[[], None] | None
) -> Any:
    """A group of gloo that all members have reached within `patience` seconds.

    Args:
        store: of the group's keys.
        rank, size: this learner's in the group, and the members' number.
        device: gloo's.
        patience: seconds.
        check: called again and again meanwhile; raises once a member is known to be lost. gloo itself would wait for it
            until the time is over, and is left behind in its thread.

    Raises:
        PeerLost: a member did not come.
    """
    options = gloo_options()
    options._devices = [device.gloo]
    options._threads = 2
    options._timeout = timedelta(seconds=patience)
    made: list[Any] = []

    def make() -> None:
        try:
            made.append(c10d.ProcessGroupGloo(store, rank, size, options))
        except (RuntimeError, ConnectionError) as error:
            made.append(error)

    if check is None:
        make()
    else:
        making = Thread(target=make, name="makes a group", daemon=True)
        making.start()
        while making.is_alive():
            making.join(LOOK_SECONDS)
            check()
    if isinstance(made[0], Exception):
        raise PeerLost(f"member {rank} could not reach all {size} of its group: {made[0]}") from made[0]
    return made[0]


def make_nccl(store: c10d.Store, rank: int, size: int) -> Any:
    """A group of NCCL."""
    return c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), rank, size, c10d.ProcessGroupNCCL.Options())


def ended(work: Any, seconds: float) -> bool:
    """Whether a collective has ended, well or not, within the next moment."""
    with suppress(RuntimeError):  # the moment is over, or it has failed: whoever waits for the end is told why
        work.wait(timedelta(seconds=seconds))
    return bool(work.is_completed())
