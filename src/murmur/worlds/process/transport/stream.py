"""Messages from one learner to another, in order and each exactly once, over connections that may break.

    sender     name of the stream, number of the first message that it keeps    ->
    receiver                                                                    <-   number of the next message wanted
    sender     message, message, ...                                            ->
    receiver                                                                    <-   next number wanted, after each
    sender     end                                                              ->

The sender keeps a message until the receiver has confirmed it. When a connection breaks, the kept messages are sent
again over the next one, from the first that the receiver wants. A stream has the name of one sender's memory: a learner
that was started again, or that was dropped by this one, begins another stream.
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.transport.wire_format import END, exactly, send_frame

Message = tuple[bytes, memoryview]  # header and payload of a frame
OPENING, NUMBER = struct.Struct("<QQ"), struct.Struct("<Q")
LOOK_SECONDS = 0.25  # longest delay before a broken connection is noticed while messages are kept
IDLE_SECONDS = 1.0  # the same while none are kept
LAST_SECONDS = 5.0  # for the last confirmations
SILENT_SECONDS = 15  # without a confirmation, after which a connection counts as broken
STREAMS = 4  # number of streams of one sender that a receiver remembers


class Outbox:
    """Unconfirmed messages to one learner. Any thread may put; one thread sends."""

    def __init__(self) -> None:
        self._new: SimpleQueue[Message | None] = SimpleQueue()
        self._kept: deque[Message] = deque()
        self._first = 0  # number of the first kept message
        self._ended = False
        self._name = secrets.randbits(64)
        self._partial = b""

    @property
    def confirmed(self) -> int:
        """Number of messages that the receiver has confirmed."""
        return self._first

    def put(self, message: Message | None) -> None:
        """Send a message after the earlier ones; None: there will be no more."""
        self._new.put(message)

    def carry(self, line: socket.socket, sent: Callable[[int], None]) -> None:
        """Send kept and new messages over a new connection, until all are confirmed and no more come.

        Args:
            line: Connection from this learner to the other one.
            sent: Called with the bytes of each message.

        Raises:
            OSError, EOFError, ValueError: The connection has broken.
        """
        watch(line)
        self._partial = b""
        line.sendall(OPENING.pack(self._name, self._first))
        self._confirm(*NUMBER.unpack(exactly(line, NUMBER.size)))
        for message in list(self._kept):
            sent(_send(line, message))
            self._receive(line, 0.0)
        while not self._ended:
            try:
                new = self._new.get(timeout=LOOK_SECONDS if self._kept else IDLE_SECONDS)
            except Empty:
                self._receive(line, 0.0)
                continue
            if new is None:
                self._ended = True
                break
            self._kept.append(new)
            sent(_send(line, new))
            self._receive(line, 0.0)
        deadline = awake_seconds() + LAST_SECONDS
        while self._kept and awake_seconds() < deadline:
            self._receive(line, LOOK_SECONDS)
        line.sendall(END)

    def _receive(self, line: socket.socket, seconds: float) -> None:
        """Receive confirmations that arrive within `seconds`."""
        poll = select.poll()
        poll.register(line, select.POLLIN)
        if not poll.poll(1000 * seconds):
            return
        received = line.recv(1 << 16)
        if not received:
            raise EOFError("the other side has closed the connection")
        received = self._partial + received
        whole = len(received) // NUMBER.size * NUMBER.size
        self._partial = received[whole:]
        if whole:
            self._confirm(*NUMBER.unpack(received[whole - NUMBER.size : whole]))

    def _confirm(self, wanted: int) -> None:
        if not self._first <= wanted <= self._first + len(self._kept):
            raise ValueError(f"message {wanted} is wanted of {self._first} to {self._first + len(self._kept)}")
        while self._first < wanted:
            self._kept.popleft()
            self._first += 1


class Inbox:
    """Messages received by one learner from another one. Not safe for threads by itself."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}  # next number wanted, by name of the stream

    def open(self, name: int, first: int) -> int:
        """Accept a connection of a stream whose sender keeps messages from `first` on; return the next one wanted."""
        wanted = self._wanted.pop(name, first)
        self._wanted[name] = wanted  # the latest stream comes last
        while len(self._wanted) > STREAMS:
            del self._wanted[next(iter(self._wanted))]
        return wanted

    def take(self, name: int) -> int:
        """Count the wanted message of a stream as received; return the next one wanted."""
        self._wanted[name] += 1
        return self._wanted[name]


def opening(line: socket.socket) -> tuple[int, int]:
    """Receive the name of a new connection's stream, and the number of the first message that its sender keeps.

    Raises:
        EOFError: The other side has closed the connection.
    """
    name, first = OPENING.unpack(exactly(line, OPENING.size))
    return name, first


def want(line: socket.socket, number: int) -> None:
    """Tell the sender the next message wanted; it may forget the earlier ones."""
    line.sendall(NUMBER.pack(number))


def watch(line: socket.socket) -> None:
    """Let the system detect an unreachable host, if it can."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", SILENT_SECONDS // 3), ("TCP_KEEPINTVL", SILENT_SECONDS // 3)):
        if hasattr(socket, option):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_SECONDS)


def _send(line: socket.socket, message: Message) -> int:
    head, payload = message
    send_frame(line, head, payload)
    return len(head) + len(payload)
