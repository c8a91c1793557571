"""Groups of gloo and NCCL, as their members make them together."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from murmur.group import PeerLost
from murmur.worlds.torch.connections import Device


def address_of(store: c10d.Store, member: int) -> tuple[str, int]:
    """Where a learner's device listens."""
    host, port = store.get(f"gloo/{member}").decode().rsplit(":", 1)
    return host, int(port)


def make_gloo(store: c10d.Store, rank: int, size: int, device: Device, patience: float) -> Any:
    """A group of gloo that all members have reached within `patience` seconds.

    Raises:
        PeerLost: somebody did not come.
    """
    options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [device.gloo]
    options._threads = 2
    options._timeout = timedelta(seconds=patience)
    try:
        return c10d.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise PeerLost(f"member {rank} could not reach all {size} of its group: {error}") from error


def make_nccl(store: c10d.Store, rank: int, size: int) -> Any:
    """A group of NCCL."""
    return c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), rank, size, c10d.ProcessGroupNCCL.Options())


def ended(work: Any, seconds: float) -> bool:
    """Whether a collective has ended, well or not, within the next moment."""
    with suppress(RuntimeError):  # the moment is over, or it has failed: whoever waits for the end is told why
        work.wait(timedelta(seconds=seconds))
    return bool(work.is_completed())
