"""Store server through which learners find each other: a separate process, so that no learner hosts it.

It replaces PyTorch's TCPStore, which listens on all interfaces, looks every caller's name up in the DNS (seconds on a
slow resolver), lets one waiting thread block all others of the same client, and accepts unauthenticated connections.
Standard library only, so that the process starts at once.

A connection begins with a handshake. Then each request is one frame, and so is its answer (`wire_format.py`).
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import sys
import time
from collections.abc import Callable
from threading import Condition, Lock
from typing import Any

from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.listener import Listener, dial
from murmur.worlds.process.membership_server import MembershipServer
from murmur.worlds.process.secret import Refused, from_descriptor
from murmur.worlds.process.signals import ignore_until_ready
from murmur.worlds.process.wire_format import (
    REQUEST,
    encode_head,
    receive_frame,
    seconds,
    send_frame,
    text,
    texts,
    whole,
)

log = logging.getLogger(__name__)
PURPOSE = "store"
LARGEST = 1 << 62  # bound on counters
LONGEST_POLL_SECONDS = 3600.0  # select.poll counts milliseconds in 32 bits
TELL_SECONDS = 10.0  # between two log lines about the same wait


def clock_time(seconds: float) -> str:
    """Return the time of day in `seconds` seconds, for messages."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))


class MissingKey(TimeoutError):
    """A key did not appear in time."""


class StoreServer:
    """Serves keys on a socket from `listen`, with one thread per connection, until it is closed.

    Callers without the secret get no answer. If it is empty, any caller that speaks the protocol has it.
    """

    def __init__(self, listener: socket.socket, secret: bytes = b"") -> None:
        self._values: dict[str, bytes] = {}
        self._changed = Condition()
        self._membership_server = MembershipServer(self._changed)
        self._listener = Listener(listener, secret, PURPOSE, self._serve)
        self.address: tuple[str, int] = self._listener.address

    def close(self) -> None:
        self._listener.close()

    def _serve(self, line: socket.socket, *_: int) -> None:
        # Incarnations of the learners that have entered, or given signs of life, over this connection.
        living: dict[tuple[str, int], int] = {}
        with line:
            while True:
                try:
                    head, value = receive_frame(line, REQUEST)
                    answer, value = self._answer(head, value)
                    if head.get("act") in ("enter", "beat"):
                        living[head["group"], head["rank"]] = dict(answer["live"]).get(head["rank"], -1)
                    send_frame(line, encode_head(answer, len(value), REQUEST), value)
                except (OSError, EOFError, ValueError):
                    break  # the caller has closed the connection, or its request is malformed
        with self._changed:
            for (membership, rank), incarnation in living.items():
                self._membership_server.hung_up(membership, rank, incarnation)

    def _answer(self, head: dict[str, Any], value: bytes) -> tuple[dict[str, Any], bytes]:
        verbs: dict[str, Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]] = {
            "set": self._set,
            "add": self._add,
            "wait": self._wait,
            "swap": self._swap,
            "check": lambda h, _: ({"there": all(k in self._values for k in texts(h, "keys"))}, b""),
            "delete": lambda h, _: ({"there": self._values.pop(text(h, "key"), None) is not None}, b""),
            "membership": lambda h, _: (self._membership_server.answer(h), b""),
            "gone": lambda h, _: (self._membership_server.gone(h), b""),
            "size": lambda _, __: ({"total": len(self._values)}, b""),
        }
        verb = verbs.get(text(head, "do"))
        if verb is None:
            raise ValueError(f"the store knows no request {head['do']!r}")
        with self._changed:
            return verb(head, value)

    def _set(self, head: dict[str, Any], value: bytes) -> tuple[dict[str, Any], bytes]:
        self._put(text(head, "key"), value)
        return {}, b""

    def _add(self, head: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        key, amount = text(head, "key"), whole(head, "amount", -LARGEST, LARGEST)
        total = int(self._values.get(key, b"0")) + amount
        self._put(key, str(total).encode())
        return {"total": total}, b""

    def _swap(self, head: dict[str, Any], value: bytes) -> tuple[dict[str, Any], bytes]:
        key, expected = text(head, "key"), bytes.fromhex(text(head, "expected"))
        if self._values.get(key, b"") == expected:
            self._put(key, value)
        return {}, self._values.get(key, expected)

    def _wait(self, head: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        keys, deadline = texts(head, "keys"), awake_seconds() + seconds(head, "seconds")
        while missing := [k for k in keys if k not in self._values]:
            if (left := deadline - awake_seconds()) <= 0:
                return {"missing": missing}, b""
            self._changed.wait(left)
        return {"missing": []}, self._values[keys[0]]

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed.notify_all()


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
