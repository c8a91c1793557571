"""gloo's connections, found among the descriptors of this process, so that a group can be given up at once.

gloo can neither abort an operation on a learner that has stopped nor drop the group before that operation's timeout has
passed. An operation whose connections are shut down ends within a millisecond, and so does the group. gloo does not
show its connections, but each has an end at the address on which a member's device listens.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import Any

from murmur.core.torch_private import c10d
from murmur.worlds.process.transport.traffic import Flow, flow_of

Address = tuple[str, int]
DROP_SECONDS = 0.5  # a group whose operations have ended is dropped within milliseconds


@dataclass(frozen=True)
class Device:
    """gloo's device of one learner, which owns a thread, and the address on which it listens."""

    gloo: Any
    address: Address

    @classmethod
    def at(cls, host: str) -> Device:
        """A device on the interface of an address.

        Raises:
            RuntimeError: it does not show where it listens.
        """
        before = _listening()
        gloo = c10d.ProcessGroupGloo.create_device(hostname=host)
        opened = [address for address in _listening() - before if address[0] == host]
        if len(opened) != 1:
            raise RuntimeError(f"gloo should listen at one new port of {host}, and listens at {sorted(opened)}")
        return cls(gloo, opened[0])


@dataclass(frozen=True)
class Connection:
    """A connection of this process: its descriptor and its two ends."""

    descriptor: int
    here: Address
    there: Address


class GlooSockets:
    """The connections that gloo opened while one group was made.

    Args:
        devices: the addresses of all members' devices.
        before: the connections that were open before.

    Attributes:
        held: those of the group; none after they have been cut.
    """

    def __init__(self, devices: Collection[Address], before: frozenset[Connection]) -> None:
        new = connections() - before
        self.held = frozenset(c for c in new if c.here in devices or c.there in devices)

    def cut(self) -> None:
        """Shut them down: whatever waits on them, here and at the other ends, fails."""
        for descriptor, line in _lines():
            if _connection(descriptor, line) in self.held:
                with suppress(OSError):  # the other end may have been faster
                    line.shutdown(socket.SHUT_RDWR)
        self.held = frozenset()

    def flows(self) -> dict[Connection, Flow]:
        """How much has gone over each of them, where the system tells."""
        found = ((_connection(descriptor, line), flow_of(line)) for descriptor, line in _lines())
        return {c: flow for c, flow in found if c is not None and c in self.held and flow is not None}


def drop(groups: list[Any]) -> None:
    """Empty a list of groups whose connections have been cut, and wait for their ends, but not for long.

    A group ends when its operations have. gloo can leave one of them out when it tells them that a connection has
    broken: its first message fails, those that wait are told, and only then is it put among them. It then lasts as long
    as its timeout, minutes perhaps, for which a learner that wants to say who is lost must not wait.
    """
    dropping = Thread(target=groups.clear, name="drops groups", daemon=True)
    dropping.start()
    dropping.join(DROP_SECONDS)


def connections() -> frozenset[Connection]:
    """The connections of this process."""
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
        return None  # it has no other end, or none any more


def _lines() -> Iterator[tuple[int, socket.socket]]:
    """The TCP sockets of this process by their descriptors; what is yielded is a second handle on each."""
    for name in os.listdir("/dev/fd"):  # Linux and macOS both have it
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            line = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed since it was listed
        with line:
            if line.family in (socket.AF_INET, socket.AF_INET6):
                yield int(name), line
