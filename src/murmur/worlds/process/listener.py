"""Authenticated listener: it accepts only callers with the run's secret, and no caller can occupy it for long.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable
from threading import Lock, Thread

from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.secret import call_in, let_in

HANDSHAKE_SECONDS = 5.0  # time for a caller to complete the handshake
MOST_HANDSHAKES = 128  # callers in the handshake; the oldest one is dropped to make room
RETRY_SECONDS = 0.05
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PASSING = (*OUT_OF_DESCRIPTORS, errno.ECONNABORTED, errno.EPROTO)  # errors that do not concern the listener itself


class HungUp(ConnectionError):
    """A listener had too many unauthenticated callers all the time, or its learner was ending."""


class Listener:
    """Runs `serve(line, number, arrival)` in a thread for every caller that has the secret; `serve` closes the line.

    `listener` is a socket from `listen`, `purpose` is the same for all callers, and `arrival` counts connections.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        purpose: str,
        serve: Callable[[socket.socket, int, int], None],
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._listener, self._secret, self._purpose, self._serve = listener, secret, purpose, serve
        self._handshake_seconds = handshake_seconds
        self._in_handshake: dict[socket.socket, None] = {}  # in order of arrival
        self._lock = Lock()
        Thread(target=self._accept, name=f"listener: {purpose}", daemon=True).start()

    def close(self) -> None:
        """Accept no more callers. Closing the socket alone would not wake the accepting thread."""
        with contextlib.suppress(OSError):  # some systems do not shut down an unconnected socket
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        arrival = 0
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in PASSING:
                    return  # closed
                self._make_room(1 if error.errno in OUT_OF_DESCRIPTORS else MOST_HANDSHAKES)
                time.sleep(RETRY_SECONDS)
                continue
            self._make_room(MOST_HANDSHAKES)
            with self._lock:
                self._in_handshake[line] = None
            arrival += 1
            Thread(target=self._meet, args=(line, arrival), name=f"line: {self._purpose}", daemon=True).start()

    def _make_room(self, most: int) -> None:
        """Drop the oldest callers in the handshake until fewer than `most` are left."""
        with self._lock:
            for line in list(self._in_handshake)[: max(0, len(self._in_handshake) - most + 1)]:
                del self._in_handshake[line]
                with contextlib.suppress(OSError):  # it has already gone
                    line.shutdown(socket.SHUT_RDWR)  # its thread closes it

    def _meet(self, line: socket.socket, arrival: int) -> None:
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = let_in(line, self._secret, self._purpose, awake_seconds() + self._handshake_seconds)
        except (OSError, EOFError, ValueError):
            line.close()  # without an explanation to an unauthenticated caller
            return
        finally:
            with self._lock:
                self._in_handshake.pop(line, None)
        line.settimeout(None)
        self._serve(line, number, arrival)


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
