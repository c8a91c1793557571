"""Messages between two learners over TCP: posting never blocks, arrivals go to a mailbox.

Collectives are gloo's or NCCL's. Point-to-point messages are our own because gloo's can be neither polled nor given up
without closing every pair of the group. A line begins with a handshake, in which both learners prove that they are of
the same run. A frame is the length of a JSON header, the header (tag, type, number of elements), the raw elements in
little-endian order. Connections are made on first use, one for each direction. One that breaks is opened again at once;
no letter is lost or comes twice while both learners live (`stream.py`). What is queued for a learner that is gone is
dropped; the next letter finds the learner that was started again at its new address.

Threads do not add up however often learners are lost: one sends to each learner, whatever it was doing when its learner
was dropped, and one receives from each learner, whose older connections end when a newer one has come in.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from threading import Lock, Thread

import numpy as np
import torch
from torch import Tensor

from murmur.core.group import PeerLost
from murmur.core.torch_private import Store
from murmur.worlds.mailbox import Mailbox
from murmur.worlds.process.store.torch_store import cloned
from murmur.worlds.process.transport.listener import HungUp, Listener, dial, listen
from murmur.worlds.process.transport.stream import LENGTH, Inbox, Outbox, opening, want, watch
from murmur.worlds.process.transport.traffic import Flow, flow_of
from murmur.worlds.process.transport.wire_format import Head, exactly, parse_head, text, whole

TYPES = {str(t): t for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8)}
HEADER_BYTES = 1 << 16  # a longer header is not ours
LETTER_BYTES = 1 << 36  # nor is a longer vector
CLOSING_SECONDS = 5.0
TRY_SECONDS = 2.0  # to reach a learner; each further try twice as long, up to
LONGEST_TRY_SECONDS = 8.0  # a door waits no longer for a caller, and a new address is found as soon
RETURN_SECONDS = 10.0  # so long a learner whose connection has broken may take to open another one
STUCK_SECONDS = 60.0  # so long one connection after another may break before any letter has got through
PAUSE_SECONDS = 0.02  # between a connection that broke and the next one


class Closed(EOFError):
    """The sender has sent all that it had."""


class Mail:
    """One learner's post office: an open port, a sender a peer, a mailbox.

    Args:
        store: of the run; where learners find each other's ports.
        rank: the learner's.
        address: of the interface that the port is opened on.
        timeout_seconds: how long another learner may take to answer.
        secret: of the run; who does not have it can put nothing into the mailbox, and gets nothing.
    """

    def __init__(self, store: Store, rank: int, address: str, timeout_seconds: float, secret: bytes) -> None:
        self.rank, self.box, self._store, self._timeout = rank, Mailbox(), store, timeout_seconds
        self._secret = secret
        self._senders: dict[int, Outbox] = {}
        self._lines: dict[int, socket.socket] = {}
        self._calls: dict[int, socket.socket] = {}  # being connected
        self._threads: dict[int, Thread] = {}
        self._incoming: dict[int, tuple[int, socket.socket]] = {}  # the latest of each learner
        self._inboxes: dict[int, Inbox] = defaultdict(Inbox)
        self._lock = Lock()
        self._closing = False
        self.sent_bytes = 0
        self._door = Listener(listen(address), secret, f"mail to {rank}", self._receive)
        store.set(f"mail/{rank}", "{}:{}".format(*self._door.address))

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float] = ()) -> None:
        """Queue a copy of x for learner `to`; returns at once."""
        if to == self.rank:
            self.box.put(self.rank, tag, x.clone(), header)
            return
        head = {"tag": tag, "type": str(x.dtype), "numel": x.numel(), "note": list(header)}
        with self._lock:
            if to not in self._senders:
                self._senders[to] = Outbox()
                if to not in self._threads:
                    self._threads[to] = Thread(target=self._send_all, args=(to,), name=f"mail to {to}", daemon=True)
                    self._threads[to].start()
            self._senders[to].put((json.dumps(head).encode(), x.detach().to("cpu", copy=True)))

    def drop(self, to: int) -> None:
        """The learner at the other end is gone, and what is queued with it; the next letter opens another line."""
        with self._lock:
            outbox, lines = self._senders.pop(to, None), [self._lines.pop(to, None), self._calls.pop(to, None)]
        if outbox is not None:
            outbox.put(None)
        for line in lines:
            if line is not None:
                with contextlib.suppress(OSError):  # it has broken by itself
                    line.shutdown(socket.SHUT_RDWR)

    def flows(self) -> dict[int, Flow]:
        """How much has gone to each learner, where the system tells."""
        with self._lock:
            found = {to: flow_of(line) for to, line in self._lines.items() if line.fileno() >= 0}
        return {to: flow for to, flow in found.items() if flow is not None}

    def close(self) -> None:
        """Send what is queued, then close; a learner that does not take its letters is not waited for long."""
        self._closing = True
        deadline = time.monotonic() + CLOSING_SECONDS
        with self._lock:
            for outbox in self._senders.values():
                outbox.put(None)
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._door.close()

    def _send_all(self, to: int) -> None:
        """Serve one outbox after the other until there is none: a new one is made after the learner was dropped."""
        while True:
            with self._lock:
                outbox = self._senders.get(to)
                if outbox is None:
                    del self._threads[to]
                    return
            self._send(to, outbox)

    def _send(self, to: int, outbox: Outbox) -> None:
        try:
            confirmed, since = outbox.confirmed, time.monotonic()
            while (error := self._carry(to, outbox)) is not None:
                if outbox.confirmed > confirmed:
                    confirmed, since = outbox.confirmed, time.monotonic()
                elif time.monotonic() - since > STUCK_SECONDS:
                    raise ConnectionError(f"connections break one after another: {error}") from error
                time.sleep(PAUSE_SECONDS)
        except (OSError, RuntimeError) as error:
            if not self._given_up(to, outbox):  # or whoever is there again by now would be taken for lost
                self.box.lose(to, PeerLost(f"learner {to} cannot be reached by mail: {error}", to))
        finally:
            with self._lock:
                if self._senders.get(to) is outbox:
                    del self._senders[to]
                    self._lines.pop(to, None)
                    self._calls.pop(to, None)

    def _carry(self, to: int, outbox: Outbox) -> Exception | None:
        """Send over one connection as long as it lasts; why it broke, or None if nothing is left to send."""
        with self._line_to(to, outbox) as line:
            line.settimeout(self._timeout)
            with self._lock:
                if self._senders.get(to) is not outbox:
                    return None  # dropped in the meantime
                self._lines[to] = line
            try:
                outbox.carry(line, self._count)
            except (OSError, EOFError, ValueError) as error:
                return None if self._given_up(to, outbox) else error
            return None

    def _count(self, num_bytes: int) -> None:
        with self._lock:
            self.sent_bytes += num_bytes

    def _given_up(self, to: int, outbox: Outbox) -> bool:
        with self._lock:
            return self._senders.get(to) is not outbox

    def _line_to(self, to: int, outbox: Outbox) -> socket.socket:
        """A line to a learner. Its address is looked up for every try.

        While a host cannot be reached its learner may be started again, at another address; whatever waits for the old
        one would then be lost when the old one refuses at last.
        """
        with cloned(self._store) as store:
            return self._try_line_to(to, outbox, store)

    def _try_line_to(self, to: int, outbox: Outbox, store: Store) -> socket.socket:
        deadline, patience = time.monotonic() + self._timeout, TRY_SECONDS

        def trying(line: socket.socket) -> None:
            with self._lock:
                if self._senders.get(to) is not outbox:
                    raise ConnectionError("it is gone")
                self._calls[to] = line

        while True:
            where = store.get(f"mail/{to}").decode()
            host, port = where.rsplit(":", 1)
            left = deadline - time.monotonic()
            try:
                return dial((host, int(port)), self._secret, f"mail to {to}", self.rank, min(patience, left), trying)
            except (TimeoutError, HungUp):
                if left <= patience:
                    raise
                patience = min(2 * patience, LONGEST_TRY_SECONDS)
            except OSError:
                if store.get(f"mail/{to}").decode() == where:
                    raise
            with self._lock:
                if self._senders.get(to) is not outbox:
                    raise ConnectionError("it is gone")

    def _receive(self, line: socket.socket, source: int) -> None:
        if not self._is_latest(line, source):
            line.close()
            return
        try:
            with line:
                self._take_in(line, source)
        except (OSError, ValueError, EOFError) as error:
            self._await_return(line, source, error)

    def _take_in(self, line: socket.socket, source: int) -> None:
        """Put letters into the mailbox as long as no newer connection of the same learner is here."""
        watch(line)
        name, first = opening(line)
        with self._lock:
            wanted = self._inboxes[source].open(name, first)
        while self._latest(source) is line:
            want(line, wanted)
            tag, x, header = receive_message(line)
            with self._lock:  # a newer connection asks for this letter again, or finds that it has come
                if self._incoming.get(source, (0, None))[1] is not line:
                    return
                wanted = self._inboxes[source].take(name)
                self.box.put(source, tag, x, header)

    def _await_return(self, line: socket.socket, source: int, error: Exception) -> None:
        """A connection has ended: its learner is lost if it meant that, sent no letter, or opens no other one."""
        deadline = time.monotonic() + (0.0 if isinstance(error, Closed | ValueError) else RETURN_SECONDS)
        while self._latest(source) is line and not self._closing and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
        with self._lock:
            is_latest = self._incoming.get(source, (0, None))[1] is line
            if is_latest:
                del self._incoming[source]
        if is_latest and not self._closing:  # else whoever is there again by now would be taken for lost
            self.box.lose(source, PeerLost(f"the line from learner {source} closed: {error}", source))

    def _latest(self, source: int) -> socket.socket | None:
        with self._lock:
            return self._incoming.get(source, (0, None))[1]

    def _is_latest(self, line: socket.socket, source: int) -> bool:
        """Whether no newer line from the same learner is here; ends the older one, whose end may never be told."""
        arrival = self._door.arrival(line)
        with self._lock:
            latest, older = self._incoming.get(source, (0, None))
            if arrival < latest:
                return False
            self._incoming[source] = (arrival, line)
        if older is not None:
            with contextlib.suppress(OSError):  # it has closed by itself
                older.shutdown(socket.SHUT_RD)
        return True


def receive_message(line: socket.socket) -> tuple[str, Tensor, list[float]]:
    """The tag, the vector and the note of the next letter.

    Raises:
        Closed: there will be no more.
        EOFError: the other side has closed the connection.
        ValueError: it is no letter of ours.
    """
    (length,) = LENGTH.unpack(exactly(line, LENGTH.size))
    if length == 0:
        raise Closed("it has sent all and closed the connection")
    if length > HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    head = parse_head(exactly(line, length))
    tag, dtype, header = text(head, "tag"), TYPES.get(text(head, "type")), _note(head)
    if dtype is None:
        raise ValueError(f"a vector of {head['type']!r}")
    count = whole(head, "numel", 0, LETTER_BYTES // dtype.itemsize) * dtype.itemsize
    # The system gives pages as they are first written to: what is promised and never comes takes no memory.
    try:
        raw = np.empty(count, np.uint8)
    except MemoryError as error:
        raise ValueError(f"a vector of {count} bytes, more than there is memory") from error
    view = memoryview(raw.data)
    while view:
        got = line.recv_into(view)
        if got == 0:
            raise EOFError("the other side has closed the connection in the middle of a vector")
        view = view[got:]
    return tag, torch.from_numpy(raw).view(dtype) if count else torch.empty(0, dtype=dtype), header


def _note(head: Head) -> list[float]:
    header = head.get("note")
    if not isinstance(header, list) or not all(isinstance(each, int | float) for each in header):
        raise ValueError(f"a note that is {header!r}, not a list of numbers")
    try:
        return [float(each) for each in header]  # a loss among them may well be none or endless
    except OverflowError as error:
        raise ValueError("a note of numbers beyond all measure") from error
