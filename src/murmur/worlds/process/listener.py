"""Authenticated listener: it accepts only callers with the run's secret, and no caller can occupy it for long.

Standard library only.
"""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from threading import Thread

from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.event_loop import EventLoop
from murmur.worlds.process.secret import call_in, host_side

HANDSHAKE_SECONDS = 5.0  # time for a caller to complete the handshake
MOST_HANDSHAKES = 128  # callers in the handshake; the oldest one is dropped to make room
RETRY_SECONDS = 0.05
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PASSING = (*OUT_OF_DESCRIPTORS, errno.ECONNABORTED, errno.EPROTO)  # errors that do not concern the listener itself


class HungUp(ConnectionError):
    """A listener had too many unauthenticated callers all the time, or its learner was ending."""


@dataclass
class Caller:
    """A caller in the handshake: the bytes that it has sent of those needed next, and its time until the end."""

    arrival: int
    deadline: float
    handshake: Generator[tuple[bytes, int], bytes, int]
    needed: int
    got: bytes = b""


class Admission:
    """Accepts callers in an event loop, and calls `admit(line, number, arrival)` with those that have the secret.

    The line does not block. `purpose` is the same for all callers, and `arrival` counts connections. No byte that
    follows the handshake is read.
    """

    def __init__(
        self,
        loop: EventLoop,
        listener: socket.socket,
        secret: bytes,
        purpose: str,
        admit: Callable[[socket.socket, int, int], None],
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._loop, self._listener, self._secret, self._purpose, self._admit = loop, listener, secret, purpose, admit
        self._handshake_seconds = handshake_seconds
        self._arrivals, self._retry_at = 0, math.inf
        self.in_handshake: dict[socket.socket, Caller] = {}  # in order of arrival, which is that of deadlines
        listener.setblocking(False)
        loop.add(self)
        loop.watch(listener, self._accept)

    def due(self) -> float:
        first = next(iter(self.in_handshake.values()), None)
        return self._retry_at if first is None else min(self._retry_at, first.deadline)

    def pass_time(self, now: float) -> None:
        for line in [line for line, caller in self.in_handshake.items() if caller.deadline <= now]:
            self._drop(line)
        if self._retry_at <= now:
            self._retry_at = math.inf
            self._loop.watch(self._listener, self._accept)

    def end(self) -> None:
        self._retry_at = math.inf
        self._loop.forget(self._listener)
        self._listener.close()
        for line in list(self.in_handshake):
            self._drop(line)

    def _accept(self, _: int) -> None:
        try:
            line, _ = self._listener.accept()
        except BlockingIOError:
            return  # the caller has gone
        except OSError as error:
            if error.errno in PASSING:
                self._make_room(1 if error.errno in OUT_OF_DESCRIPTORS else MOST_HANDSHAKES)
                self._retry_at = awake_seconds() + RETRY_SECONDS
            self._loop.forget(self._listener)
            return
        self._make_room(MOST_HANDSHAKES)
        self._arrivals += 1
        handshake = host_side(self._secret, self._purpose)
        deadline = awake_seconds() + self._handshake_seconds
        self.in_handshake[line] = Caller(self._arrivals, deadline, handshake, next(handshake)[1])
        line.setblocking(False)
        self._loop.watch(line, partial(self._hear, line))

    def _make_room(self, most: int) -> None:
        """Drop the oldest callers in the handshake until fewer than `most` are left."""
        for line in list(self.in_handshake)[: max(0, len(self.in_handshake) - most + 1)]:
            self._drop(line)

    def _drop(self, line: socket.socket) -> None:
        """Close a connection without an explanation to an unauthenticated caller."""
        del self.in_handshake[line]
        self._loop.forget(line)
        line.close()

    def _hear(self, line: socket.socket, _: int) -> None:
        if (caller := self.in_handshake.get(line)) is None:
            return  # dropped in this turn
        try:
            piece = line.recv(caller.needed - len(caller.got))
            caller.got += piece
            if not piece:
                self._drop(line)
            elif len(caller.got) == caller.needed:
                answer, caller.needed = caller.handshake.send(caller.got)
                caller.got = b""
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line.sendall(answer)  # fits the buffer of a new connection
        except StopIteration as proved:
            del self.in_handshake[line]
            self._loop.forget(line)
            self._admit(line, proved.value, caller.arrival)
        except BlockingIOError:
            return  # nothing has come after all
        except (OSError, ValueError):
            self._drop(line)


class Listener:
    """Runs `serve(line, number, arrival)` in a thread for every caller that has the secret; `serve` closes the line.

    `listener` is a socket from `listen`; see `Admission`. One thread accepts all callers.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        purpose: str,
        serve: Callable[[socket.socket, int, int], None],
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self._loop, self._serve, self._purpose = EventLoop(f"listener: {purpose}"), serve, purpose
        self.address = Admission(self._loop, listener, secret, purpose, self._admit, handshake_seconds).address
        self._loop.start()

    def close(self) -> None:
        """Accept no more callers."""
        self._loop.close()

    def _admit(self, line: socket.socket, number: int, arrival: int) -> None:
        line.settimeout(None)
        Thread(target=self._serve, args=(line, number, arrival), name=f"line: {self._purpose}", daemon=True).start()


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open a listening socket on one interface; port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(1024)
    return listener


def dial(
    where: tuple[str, int],
    secret: bytes,
    purpose: str,
    number: int,
    seconds: float,
    trying: Callable[[socket.socket], None] = lambda _: None,
) -> socket.socket:
    """Connect to an authenticated listener and complete the handshake.

    A listener with too many callers in the handshake may drop a valid one, which tries again until the time is over.
    `trying` is called with each socket before it is connected, so that another thread can end the try by its shutdown.

    Raises:
        OSError: No process listens there, or it has no time.
        HungUp: The listener has closed the connection until the time was over.
        Refused: The listener has another secret.
    """
    deadline = awake_seconds() + seconds
    while True:
        line = socket.socket(socket.AF_INET, socket.SOCK_STREAM)  # as in `listen`
        try:
            trying(line)
            line.settimeout(max(RETRY_SECONDS, deadline - awake_seconds()))
            line.connect(where)
            if line.getsockname() == line.getpeername():  # connected to itself: no listener, and its own port matched
                raise ConnectionRefusedError(errno.ECONNREFUSED, "no process listens")
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            call_in(line, secret, purpose, number, deadline)
        except (EOFError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError) as error:
            line.close()
            if awake_seconds() > deadline:
                raise HungUp(f"{where[0]}:{where[1]} closes the connection during the handshake") from error
            time.sleep(RETRY_SECONDS)
        except OSError:
            line.close()
            raise
        else:
            return line
