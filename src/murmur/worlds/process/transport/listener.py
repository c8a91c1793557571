"""Where connections come in: only who has the run's secret gets past the door, and nobody can stand in it for long.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable
from threading import Lock, Thread
from weakref import WeakKeyDictionary

from murmur.worlds.process.transport.handshake import call_in, let_in

STRANGER_SECONDS = 5.0  # how long a caller may take to say who it is
MOST_STRANGERS = 128  # callers that have not yet said so; the one that has stood there longest makes room
RETRY_SECONDS = 0.05
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PASSING = (*OUT_OF_DESCRIPTORS, errno.ECONNABORTED, errno.EPROTO)  # the listener itself is well


class HungUp(ConnectionError):
    """A door has had too many strangers all the time, or its learner was ending."""


class Listener:
    """Lets `serve(line, number)` run in a thread of its own for every caller that has the secret.

    Args:
        listener: from `listen`.
        secret: of the run.
        purpose: what callers must have come for.
        serve: what is done with a caller; it closes the connection.
        stranger_seconds: how long a caller may take to say who it is.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        purpose: str,
        serve: Callable[[socket.socket, int], None],
        stranger_seconds: float = STRANGER_SECONDS,
    ) -> None:
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._listener, self._secret, self._purpose, self._serve = listener, secret, purpose, serve
        self._stranger_seconds = stranger_seconds
        self._strangers: dict[socket.socket, None] = {}  # in order of arrival
        self._arrivals: WeakKeyDictionary[socket.socket, int] = WeakKeyDictionary()
        self._arrived = 0
        self._lock = Lock()
        Thread(target=self._accept, name=f"door: {purpose}", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more. Closing alone would not wake the thread that accepts."""
        with contextlib.suppress(OSError):  # some systems do not shut down what is not connected
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def arrival(self, line: socket.socket) -> int:
        """The place of a connection in the order in which connections came in."""
        with self._lock:
            return self._arrivals[line]

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in PASSING:
                    return  # closed
                self._make_room(1 if error.errno in OUT_OF_DESCRIPTORS else MOST_STRANGERS)
                time.sleep(RETRY_SECONDS)
                continue
            self._make_room(MOST_STRANGERS)
            with self._lock:
                self._strangers[line] = None
                self._arrived += 1
                self._arrivals[line] = self._arrived
            Thread(target=self._meet, args=(line,), name=f"line: {self._purpose}", daemon=True).start()

    def _make_room(self, most: int) -> None:
        """Hang up on the strangers that have been here longest, until fewer than `most` are left."""
        with self._lock:
            for line in list(self._strangers)[: max(0, len(self._strangers) - most + 1)]:
                del self._strangers[line]
                with contextlib.suppress(OSError):  # it has gone by itself
                    line.shutdown(socket.SHUT_RDWR)  # its thread closes it

    def _meet(self, line: socket.socket) -> None:
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = let_in(line, self._secret, self._purpose, time.monotonic() + self._stranger_seconds)
        except (OSError, EOFError, ValueError):
            line.close()  # a stranger gets no explanation
            return
        finally:
            with self._lock:
                self._strangers.pop(line, None)
        line.settimeout(None)
        self._serve(line, number)


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A listening socket on one interface; port 0 takes a free one."""
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
    """A connection to a door, past it.

    A door that has too many strangers may hang up on one that is none; it is asked again until the time is over.
    `trying` is given each socket before it is connected: another thread ends the try by shutting the socket down.

    Raises:
        OSError: nobody listens there, or has the time.
        HungUp: who listens there has hung up until the time was over.
        Refused: whoever listens there has another secret.
    """
    deadline = time.monotonic() + seconds
    while True:
        line = socket.socket(socket.AF_INET, socket.SOCK_STREAM)  # as in `listen`
        try:
            trying(line)
            line.settimeout(max(RETRY_SECONDS, deadline - time.monotonic()))
            line.connect(where)
            if line.getsockname() == line.getpeername():  # nobody listens, and the port was free for this very call
                raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            call_in(line, secret, purpose, number, deadline)
        except (EOFError, ConnectionResetError, BrokenPipeError) as error:
            line.close()
            if time.monotonic() > deadline:
                raise HungUp(f"{where[0]}:{where[1]} hangs up before it says who it is") from error
            time.sleep(RETRY_SECONDS)
        except OSError:
            line.close()
            raise
        else:
            return line
