"""Backends of groups: gloo groups and their sockets.

gloo can neither abort an operation on a stopped learner nor drop the group before that operation's timeout. An
operation whose connections are shut down ends within a millisecond, and so does the group. gloo does not show its
connections, so they are found among the descriptors of this process: each has one end at the address of a member's
device.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Any

from murmur.core.group import PeerLost
from murmur.core.torch_private import c10d, gloo_options
from murmur.worlds.process.traffic import Flow, flow_of

LOOK_SECONDS = 0.1  # longest delay before a loss is noticed while a group is formed


def address_of(store: c10d.Store, member: int) -> tuple[str, int]:
    host, port = store.get(f"gloo/{member}").decode().rsplit(":", 1)
    return host, int(port)


def make_gloo(
    store: c10d.Store, rank: int, size: int, device: Device, patience: float, check: Callable[[], None] | None
) -> Any:
    """Form a gloo group that all members reach within `patience` seconds, or raise PeerLost.

    `check` is called repeatedly meanwhile, and raises once a member is known to be lost. gloo itself would wait for the
    member until its timeout, and is left behind in its thread.
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
        making = Thread(target=make, name="makes a group", daemon=True)  # it may stay in native code
        making.start()
        while making.is_alive():
            making.join(LOOK_SECONDS)
            check()
    if isinstance(made[0], Exception):
        raise PeerLost(f"member {rank} could not reach all {size} of its group: {made[0]}") from made[0]
    return made[0]


def ended(work: Any, seconds: float) -> bool:
    """True if a collective ends, successfully or not, within `seconds`."""
    with suppress(RuntimeError):  # timed out, or failed: the wait for its result reports the failure
        work.wait(timedelta(seconds=seconds))
    return bool(work.is_completed())


Address = tuple[str, int]
DROP_SECONDS = 0.5  # a group without operations is dropped within milliseconds


@dataclass(frozen=True)
class Device:
    """gloo's device of one learner, which owns a thread, and its listening address."""

    gloo: Any
    address: Address

    @classmethod
    def at(cls, host: str) -> Device:
        before = _listening()
        gloo = c10d.ProcessGroupGloo.create_device(hostname=host)
        opened = [address for address in _listening() - before if address[0] == host]
        if len(opened) != 1:
            raise RuntimeError(f"gloo should listen at one new port of {host}, but listens at {sorted(opened)}")
        return cls(gloo, opened[0])


@dataclass(frozen=True)
class Connection:
    """A connection of this process: its descriptor and its two ends."""

    descriptor: int
    here: Address
    there: Address


class GlooSockets:
    """Connections that gloo opened while one group was formed: new ones with an end at a device of a member."""

    def __init__(self, devices: Collection[Address], before: frozenset[Connection]) -> None:
        new = connections() - before
        self.held = frozenset(c for c in new if c.here in devices or c.there in devices)

    def cut(self) -> None:
        """Shut the connections down: all waits on them fail, here and at the other ends."""
        for descriptor, line in _lines():
            if _connection(descriptor, line) in self.held:
                with suppress(OSError):  # the other end may have closed it first
                    line.shutdown(socket.SHUT_RDWR)
        self.held = frozenset()

    def flows(self) -> dict[Connection, Flow]:
        found = ((_connection(descriptor, line), flow_of(line)) for descriptor, line in _lines())
        return {c: flow for c, flow in found if c is not None and c in self.held and flow is not None}


def drop(groups: list[Any]) -> None:
    """Empty a list of groups whose connections have been cut, and wait for a short time for their ends.

    A group ends when its operations have. When a connection breaks, gloo can miss one operation: its first message
    fails, the waiting operations are told, and only then is it added to them. It then lasts until its timeout, perhaps
    minutes, which would delay the report of a lost learner.
    """
    dropping = Thread(target=groups.clear, name="drops groups", daemon=True)  # it may stay in native code
    dropping.start()
    dropping.join(DROP_SECONDS)


def connections() -> frozenset[Connection]:
    found = (_connection(descriptor, line) for descriptor, line in _lines())
    return frozenset(connection for connection in found if connection is not None)


def _listening() -> set[Address]:
    return {
        line.getsockname()[:2] for _, line in _lines() if line.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    }


def _connection(descriptor: int, line: socket.socket) -> Connection | None:
    try:
        return Connection(descriptor, line.getsockname()[:2], line.getpeername()[:2])
    except OSError:
        return None  # not connected, or no longer


def _lines() -> Iterator[tuple[int, socket.socket]]:
    """Yield the TCP sockets of this process by their descriptors, each as a second handle."""
    for name in os.listdir("/dev/fd"):  # exists on Linux and macOS
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            line = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed since the listing
        with line:
            if line.family in (socket.AF_INET, socket.AF_INET6):
                yield int(name), line
