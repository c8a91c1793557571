"""gloo's sockets, found among the descriptors of this process, so that a group can be given up at once.

gloo can neither abort an operation on a stopped learner nor drop the group before that operation's timeout. An
operation whose connections are shut down ends within a millisecond, and so does the group. gloo does not show its
connections, but each has one end at the address of a member's device.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from murmur.core.native_thread import NativeThread
from murmur.core.torch_private import c10d
from murmur.worlds.process.transport.traffic import Flow, flow_of

Address = tuple[str, int]
DROP_SECONDS = 0.5  # a group without operations is dropped within milliseconds


@dataclass(frozen=True)
class Device:
    """gloo's device of one learner, which owns a thread, and its listening address."""

    gloo: Any
    address: Address

    @classmethod
    def at(cls, host: str) -> Device:
        """Create a device on the interface of an address.

        Raises:
            RuntimeError: Its listening address cannot be found.
        """
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
    """Connections that gloo opened while one group was formed.

    Args:
        devices: Addresses of all members' devices.
        before: Connections that were open before.

    Attributes:
        held: Connections of the group; empty after they have been cut.
    """

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
        """Return the flow over each of them, if the system reports it."""
        found = ((_connection(descriptor, line), flow_of(line)) for descriptor, line in _lines())
        return {c: flow for c, flow in found if c is not None and c in self.held and flow is not None}


def drop(groups: list[Any]) -> None:
    """Empty a list of groups whose connections have been cut, and wait for a short time for their ends.

    A group ends when its operations have. When a connection breaks, gloo can miss one operation: its first message
    fails, the waiting operations are told, and only then is it added to them. It then lasts until its timeout, perhaps
    minutes, which would delay the report of a lost learner.
    """
    dropping = NativeThread(groups.clear, "drops groups")
    dropping.start()
    dropping.join(DROP_SECONDS)


def connections() -> frozenset[Connection]:
    """Return the connections of this process."""
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
