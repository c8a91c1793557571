"""Store server through which learners find each other: a separate process, so that no learner hosts it.

It replaces PyTorch's TCPStore, which listens on all interfaces, looks every caller's name up in the DNS (seconds on a
slow resolver), lets one waiting thread block all others of the same client, and accepts unauthenticated connections.
Standard library only, so that the process starts at once.

A connection begins with a handshake. Then each request is one frame, and so is its answer (`wire_format.py`). One
thread serves all clients by an event loop; what it answers is decided without IO (`store_state.py`).
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE
from threading import Lock
from typing import Any

from murmur.worlds.awake_clock import awake_clock, awake_seconds
from murmur.worlds.process.event_loop import EventLoop, Handler
from murmur.worlds.process.listener import Admission, dial
from murmur.worlds.process.membership_server import RESUME_SECONDS, Instant
from murmur.worlds.process.secret import Refused, from_descriptor
from murmur.worlds.process.signals import ignore_until_ready
from murmur.worlds.process.store_state import Reply, StoreState
from murmur.worlds.process.wire_format import (
    PIECE_BYTES,
    REQUEST,
    Head,
    encode_head,
    read_frame,
    receive_frame,
    send_frame,
)

log = logging.getLogger(__name__)
PURPOSE = "store"
LONGEST_POLL_SECONDS = 3600.0  # select.poll counts milliseconds in 32 bits
TELL_SECONDS = 10.0  # between two log lines about the same wait


def clock_time(seconds: float) -> str:
    """Return the time of day in `seconds` seconds, for messages."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))


class MissingKey(TimeoutError):
    """A key did not appear in time."""


class Line:
    """Connection of a client in the event loop of a server.

    While a request waits, or its answer is not sent, the next one is not read.

    Attributes:
        waits: True while a request has no answer yet.
    """

    def __init__(self, loop: EventLoop, line: socket.socket, handler: Handler) -> None:
        self._loop, self._line, self._handler = loop, line, handler
        self._got, self._unsent = bytearray(), memoryview(b"")
        self._frame = read_frame(REQUEST)
        self._needed = next(self._frame)
        self._events = 0
        self.waits = False
        self._watch()

    def ready(self, events: int) -> None:
        """Send and receive what is possible at once; OSError or EOFError if the connection has ended."""
        with contextlib.suppress(BlockingIOError):  # the selector was wrong
            if events & EVENT_WRITE:
                self._unsent = self._unsent[self._line.send(self._unsent) :]
            if events & EVENT_READ:
                piece = self._line.recv(PIECE_BYTES)
                if not piece:
                    raise EOFError
                self._got += piece
        self._watch()

    def request(self) -> tuple[Head, bytes] | None:
        """Return the next request if it has arrived and its turn has come; ValueError if it is malformed."""
        try:
            while not self.waits and not self._unsent and len(self._got) >= self._needed:
                piece = bytes(self._got[: self._needed])
                del self._got[: self._needed]
                self._needed = self._frame.send(piece)
        except StopIteration as complete:
            self._frame, self.waits = read_frame(REQUEST), True
            self._needed = next(self._frame)
            request: tuple[Head, bytes] = complete.value
            return request
        return None

    def answer(self, head: Head, value: bytes) -> None:
        """Send an answer, in parts if need be; OSError if the connection has ended."""
        self.waits = False
        self._unsent = memoryview(encode_head(head, len(value), REQUEST) + value)
        self.ready(EVENT_WRITE)

    def close(self) -> None:
        self._loop.forget(self._line)
        self._line.close()

    def _watch(self) -> None:
        """Watch for what is of use; while the client has to wait, for a first part of its next request or its end."""
        reads = len(self._got) < PIECE_BYTES or not (self.waits or self._unsent)
        events = (EVENT_READ if reads else 0) | (EVENT_WRITE if self._unsent else 0)
        if events != self._events and events:
            self._loop.watch(self._line, self._handler, events)
        elif events != self._events:
            self._loop.forget(self._line)
        self._events = events


class StoreServer:
    """Serves keys and memberships on a socket from `listen`, in one thread.

    Callers without the secret get no answer. If it is empty, any caller that speaks the protocol has it.
    """

    def __init__(self, listener: socket.socket, secret: bytes = b"") -> None:
        self._loop, self._lines, self._clock = EventLoop("store"), dict[int, Line](), awake_clock()
        self._state = StoreState(self._now())
        self._admission = Admission(self._loop, listener, secret, PURPOSE, self._admit)
        self.address: tuple[str, int] = self._admission.address
        self._loop.add(self)
        self._loop.start()

    def close(self) -> None:
        """Accept no more callers; those that are connected are served until they leave."""
        self._loop.close()

    def due(self) -> float:
        return self._state.due()

    def pass_time(self, _: float) -> None:
        self._settle(self._state.pass_time(self._now()))

    def end(self) -> None:
        """Do nothing: the clients close their connections."""

    def _now(self) -> Instant:
        return Instant(self._clock(), self._clock.settles(RESUME_SECONDS))

    def _admit(self, line: socket.socket, _: int, arrival: int) -> None:
        self._lines[arrival] = Line(self._loop, line, partial(self._hear, arrival))

    def _hear(self, client: int, events: int) -> None:
        self._settle(self._attempt(client, lambda line: line.ready(events)), [client])

    def _settle(self, replies: list[Reply], heard: Sequence[int] = ()) -> None:
        """Send replies, and take the requests that have arrived from these clients and from those with a reply."""
        unsent, clients = deque(replies), list(heard)
        while unsent or clients:
            if unsent:
                reply = unsent.popleft()
                clients.append(reply.client)
                unsent += self._attempt(reply.client, partial(Line.answer, head=reply.head, value=reply.value))
            else:
                client = clients.pop()
                unsent += self._attempt(client, partial(self._take, client))

    def _take(self, client: int, line: Line) -> list[Reply]:
        request = line.request()
        return [] if request is None else self._state.receive(client, *request, self._now())

    def _attempt(self, client: int, act: Callable[[Line], list[Reply] | None]) -> list[Reply]:
        """Act on a client's connection; close it if that fails. Return the replies that are due then."""
        if (line := self._lines.get(client)) is None:
            return []  # it has ended meanwhile
        try:
            return act(line) or []
        except (OSError, EOFError, ValueError):
            pass  # the caller has closed the connection, or its request is malformed
        except Exception:
            log.exception("the store closes a connection, for a request that it cannot answer")
        del self._lines[client]
        line.close()
        return self._state.hang_up(client)


class StoreClient:
    """One connection to a store server. Threads take turns; a thread with long waits needs a connection of its own.

    Every method raises ConnectionError if no server answers within `timeout_seconds`, or one without the run's secret.
    """

    def __init__(self, host: str, port: int, timeout_seconds: float = 60.0, secret: bytes = b"") -> None:
        self.host, self.port, self.timeout_seconds, self._secret = host, port, timeout_seconds, secret
        self._lock = Lock()
        self._ahead = False
        self._line = self._connect()

    def _connect(self) -> socket.socket:
        began = awake_seconds()
        deadline, tell_at = began + self.timeout_seconds, began + TELL_SECONDS
        until = clock_time(self.timeout_seconds)
        where = f"{self.host}:{self.port}"
        while True:
            try:
                return dial((self.host, self.port), self._secret, PURPOSE, 0, deadline - awake_seconds())
            except Refused as error:
                raise Refused(f"{where} is not this run's store: {error}") from error
            except OSError as error:
                now = awake_seconds()
                named = isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN
                if now > deadline or named:
                    raise ConnectionError(f"no store answers at {where}: {error}") from error
                if now > tell_at:
                    tell_at = now + TELL_SECONDS
                    log.warning(
                        "no store answers at %s yet (%s): tried for %.0f s, until %s", where, error, now - began, until
                    )
                time.sleep(0.05)

    def again(self, timeout_seconds: float) -> StoreClient:
        return StoreClient(self.host, self.port, timeout_seconds, self._secret)

    def call(
        self, head: dict[str, Any], value: bytes = b"", seconds: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and return its answer, within `seconds` or else `timeout_seconds`."""
        return self._exchange(head, value, self.timeout_seconds if seconds is None else seconds)

    def call_ahead(self, head: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request and return the answer to the one before, which has most likely come; None for the first.

        A connection has either such requests or calls.
        """
        first, self._ahead = not self._ahead, True
        return self._exchange(head, b"", self.timeout_seconds, answers=not first)[0] or None

    def _exchange(
        self, head: dict[str, Any], value: bytes, longest: float, answers: bool = True
    ) -> tuple[dict[str, Any], bytes]:
        request = encode_head(head, len(value), REQUEST)
        with self._lock:
            try:
                self._line.settimeout(longest)
                send_frame(self._line, request, value)
                if not answers:
                    return {}, b""
                _await_bytes(self._line, longest)
                return receive_frame(self._line, REQUEST)
            except TimeoutError as error:
                self._line.close()  # a late answer would be taken for the answer to the next request
                raise ConnectionError(f"the store at {self.host}:{self.port} does not answer") from error
            except (OSError, EOFError) as error:
                raise ConnectionError(f"the store at {self.host}:{self.port} is gone: {error}") from error
            except ValueError as error:
                self._line.close()  # the start of the next frame is unknown
                raise ConnectionError(f"the store at {self.host}:{self.port} sends no frames: {error}") from error

    def wait(self, keys: list[str], seconds: float) -> bytes:
        """Wait until all keys exist; return the value of the first. MissingKey names those that do not come in time."""
        request = {"do": "wait", "keys": keys, "seconds": seconds}
        head, value = self.call(request, seconds=seconds + self.timeout_seconds)
        if head["missing"]:
            raise MissingKey(f"after {seconds:.1f} s the store still has no {', '.join(head['missing'])}")
        return value

    def close(self) -> None:
        """Close the connection; a call under way in another thread ends."""
        with contextlib.suppress(OSError):  # the server may have closed it first
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()


def _await_bytes(line: socket.socket, seconds: float) -> None:
    """Wait until bytes have arrived or the connection has ended; TimeoutError after `seconds` without pauses."""
    poll, deadline = select.poll(), awake_seconds() + seconds
    poll.register(line, select.POLLIN)
    while (left := deadline - awake_seconds()) > 0:
        if poll.poll(1000 * min(left, LONGEST_POLL_SECONDS)):
            return
    raise TimeoutError


def main() -> None:
    """Serve until standard input closes with the launcher.

    Arguments: the descriptors of the listening socket and of the file with the secret.
    """
    ignore_until_ready()  # a scheduler signals every process; the learners need the store until they have saved
    server = StoreServer(socket.socket(fileno=int(sys.argv[1])), from_descriptor(int(sys.argv[2])))
    sys.stdin.buffer.read()
    server.close()


if __name__ == "__main__":
    main()
