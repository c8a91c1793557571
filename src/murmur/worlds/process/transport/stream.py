"""Letters from one learner to another, in order and each exactly once, over connections that may break.

    sender     name of the stream, number of the first letter that it keeps     ->
    receiver                                                                    <-   number of the letter wanted next
    sender     letter, letter, ...                                              ->
    receiver                                                                    <-   number wanted next, after each

The sender keeps a letter until the receiver has confirmed it. What is kept when a connection breaks is sent again over
the next one, from the letter on that the receiver wants. A stream has the name of one sender's memory: a learner that
was started again, or that was dropped by this one, begins another stream.
"""

from __future__ import annotations

import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from murmur.worlds.process.transport.wire_format import exactly

Message = tuple[bytes, Tensor]  # header and vector, on the CPU
LENGTH = struct.Struct("<I")
NO_MORE = LENGTH.pack(0)  # in the place of a header's length: the sender has sent all and closes
OPENING, NUMBER = struct.Struct("<QQ"), struct.Struct("<Q")
LOOK_SECONDS = 0.25  # how soon a broken connection is noticed while letters are kept
IDLE_SECONDS = 1.0  # and while none are
LAST_SECONDS = 5.0  # for the last confirmations
SILENT_SECONDS = 15  # a connection whose other host confirms nothing for so long counts as broken
STREAMS = 4  # of one sender that a receiver remembers


class Outbox:
    """The letters to one learner that it has not confirmed yet. Any thread may put; one thread sends."""

    def __init__(self) -> None:
        self._new: SimpleQueue[Message | None] = SimpleQueue()
        self._kept: deque[Message] = deque()
        self._first = 0  # number of the first that is kept
        self._ended = False
        self._name = secrets.randbits(64)
        self._heard = b""

    @property
    def confirmed(self) -> int:
        """How many letters the receiver has taken in."""
        return self._first

    def put(self, message: Message | None) -> None:
        """Send a letter after those before it; None: there will be no more."""
        self._new.put(message)

    def carry(self, line: socket.socket, sent: Callable[[int], None]) -> None:
        """Send over a new connection what is kept and what comes, until all has been confirmed and no more comes.

        Args:
            line: from this learner to the other one.
            sent: told the bytes of each letter.

        Raises:
            OSError, EOFError, ValueError: the connection has broken.
        """
        watch(line)
        self._heard = b""
        line.sendall(OPENING.pack(self._name, self._first))
        self._confirm(*NUMBER.unpack(exactly(line, NUMBER.size)))
        for message in list(self._kept):
            sent(_send(line, message))
            self._hear(line, 0.0)
        while not self._ended:
            try:
                new = self._new.get(timeout=LOOK_SECONDS if self._kept else IDLE_SECONDS)
            except Empty:
                self._hear(line, 0.0)
                continue
            if new is None:
                self._ended = True
                break
            self._kept.append(new)
            sent(_send(line, new))
            self._hear(line, 0.0)
        deadline = time.monotonic() + LAST_SECONDS
        while self._kept and time.monotonic() < deadline:
            self._hear(line, LOOK_SECONDS)
        line.sendall(NO_MORE)

    def _hear(self, line: socket.socket, seconds: float) -> None:
        """Take in confirmations that have come, or come within so many seconds."""
        poll = select.poll()
        poll.register(line, select.POLLIN)
        if not poll.poll(1000 * seconds):
            return
        heard = line.recv(1 << 16)
        if not heard:
            raise EOFError("the other side has closed the connection")
        heard = self._heard + heard
        whole = len(heard) // NUMBER.size * NUMBER.size
        self._heard = heard[whole:]
        if whole:
            self._confirm(*NUMBER.unpack(heard[whole - NUMBER.size : whole]))

    def _confirm(self, wanted: int) -> None:
        if not self._first <= wanted <= self._first + len(self._kept):
            raise ValueError(f"letter {wanted} is wanted of {self._first} to {self._first + len(self._kept)}")
        while self._first < wanted:
            self._kept.popleft()
            self._first += 1


class Inbox:
    """What one learner has received from another one. Not safe for threads by itself."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}  # by the names of streams

    def open(self, name: int, first: int) -> int:
        """A connection of a stream has come in whose sender keeps letters from `first` on; the one wanted next."""
        wanted = self._wanted.pop(name, first)
        self._wanted[name] = wanted  # the latest stands last
        while len(self._wanted) > STREAMS:
            del self._wanted[next(iter(self._wanted))]
        return wanted

    def take(self, name: int) -> int:
        """The wanted letter of a stream has come; the one wanted next."""
        self._wanted[name] += 1
        return self._wanted[name]


def opening(line: socket.socket) -> tuple[int, int]:
    """The name of the stream of a new connection, and the number of the first letter that its sender keeps.

    Raises:
        EOFError: the other side has closed the connection.
    """
    name, first = OPENING.unpack(exactly(line, OPENING.size))
    return name, first


def want(line: socket.socket, number: int) -> None:
    """Tell the sender which letter is wanted next; it may forget those before."""
    line.sendall(NUMBER.pack(number))


def watch(line: socket.socket) -> None:
    """Let the system notice that the other host is out of reach, where it can."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", SILENT_SECONDS // 3), ("TCP_KEEPINTVL", SILENT_SECONDS // 3)):
        if hasattr(socket, option):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_SECONDS)


def _send(line: socket.socket, message: Message) -> int:
    head, x = message
    line.sendall(LENGTH.pack(len(head)) + head)
    line.sendall(x.contiguous().view(torch.uint8).numpy().data if x.numel() else b"")
    return LENGTH.size + len(head) + x.numel() * x.element_size()
