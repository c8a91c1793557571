"""Messages between two learners over TCP: posting never blocks, arrivals go to a mailbox, each exactly once.

Collectives are gloo's or NCCL's. Point-to-point messages have a transport of their own, because gloo's can be neither
polled nor given up without closing every pair of the group. A connection begins with a handshake, in which both
learners prove that they belong to the same run. Connections are made on first use, one for each direction, and a broken
one is opened again at once. Each message is one frame (`wire_format.py`) of a stream:

    sender     name of the stream, number of the first message that it keeps    ->
    receiver                                      <-   number of the next message wanted, memory that it has mapped
    sender     message, message, ...                                            ->
    receiver                                                                    <-   the same, after each
    sender     end                                                              ->

The sender keeps a message until the receiver has confirmed it. When a connection breaks, the kept messages are sent
again over the next one, from the first that the receiver wants. A stream has the name of one sender's memory: a learner
that was started again, or that was dropped by this one, begins another stream. Messages queued for a lost learner are
dropped; the next message finds the restarted learner at its new address.

A vector made in `room` lies in memory that learners of this host can map. The first message with it travels as a whole
and offers the memory. Once the receiver has mapped it, a message holds only the place of its vector
(`lent_vectors.py`).

The number of threads is bounded, however often learners are lost. One thread sends to each learner, even after that
learner was dropped. One thread receives from each learner, whose older connections end when a newer one arrives.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import torch
from torch import Tensor

from murmur.core.group import PeerLost
from murmur.core.torch_private import Store, cloned
from murmur.worlds.awake_clock import TICK_SECONDS, awake_seconds
from murmur.worlds.process.lent_vectors import Borrower, Lender
from murmur.worlds.process.listener import HungUp, Listener, dial, listen
from murmur.worlds.process.messages import DTYPES, NAMES, Closed, Encoded, encode, receive
from murmur.worlds.process.traffic import Flow, flow_of
from murmur.worlds.process.wire_format import END, Loan, MessageHead, exactly, send_frame
from murmur.worlds.real import Mailbox

CLOSING_SECONDS = 5.0
TRY_SECONDS = 2.0  # for the first try to reach a learner; each further try takes twice as long, up to
LONGEST_TRY_SECONDS = 8.0  # a listener waits no longer for a caller, and a new address is found as soon
RETURN_SECONDS = 10.0  # for a learner whose connection has broken to open another one
STUCK_SECONDS = 60.0  # during which successive connections may break without delivering a message
PAUSE_SECONDS = 0.02  # between a broken connection and the next one
OPENING, WANTED = struct.Struct("<QQ"), struct.Struct("<QQ")
LOOK_SECONDS = 0.25  # longest delay before a broken connection is noticed while messages are kept
IDLE_SECONDS = 1.0  # the same while none are kept
SHORT_BYTES = 1 << 12  # of a message that is sent by the thread that posts it
LAST_SECONDS = 5.0  # for the last confirmations
SILENT_SECONDS = 15  # without a confirmation, after which a connection counts as broken
STREAMS = 4  # number of streams of one sender that a receiver remembers


class Mail:
    """One learner's post office: a listener at `address`, a mailbox, and a sender for each peer.

    Learners find each other's ports in `store`. Processes without the secret can neither send to the mailbox nor
    receive. Another learner has `timeout_seconds` to answer.
    """

    def __init__(self, store: Store, rank: int, address: str, timeout_seconds: float, secret: bytes) -> None:
        self.rank, self.box, self._store, self._timeout = rank, Mailbox(), store, timeout_seconds
        self._secret = secret
        self._senders: dict[int, Outbox] = {}
        self._lines: dict[int, socket.socket] = {}
        self._calls: dict[int, socket.socket] = {}  # connections being opened
        self._threads: dict[int, Thread] = {}
        self._incoming: dict[int, tuple[int, socket.socket]] = {}  # latest connection of each learner
        self._inboxes: dict[int, Inbox] = defaultdict(Inbox)
        self._lender, self._borrowers = Lender(), defaultdict[int, Borrower](Borrower)
        self._lock = Lock()
        self._closing = False
        self._listener = Listener(listen(address), secret, f"mail to {rank}", self._receive)
        store.set(f"mail/{rank}", "{}:{}".format(*self._listener.address))

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        return self._lender.room(numel, dtype)

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float] = ()) -> None:
        """Queue a copy of x for learner `to`; return at once. Raises the errors of `encode`."""
        if to == self.rank:
            self.box.put(self.rank, tag, x.clone(), header)
            return
        message: Letter
        if x.numel() and self._lender.offer(x) is not None:
            message = LentLetter(self._lender, x, to, tag, header)
        else:
            message = Letter(*encode(x.detach().to("cpu", copy=True), tag, header))
        with self._lock:
            if to not in self._senders:
                self._senders[to] = Outbox()
                if to not in self._threads:
                    self._threads[to] = Thread(target=self._send_all, args=(to,), name=f"mail to {to}", daemon=True)
                    self._threads[to].start()
            self._senders[to].put(message)

    def lose(self, learner: int, failure: Exception) -> None:
        """Raise this error in all waits for a lost learner until it sends again; drop the messages queued for it."""
        self.box.lose(learner, failure)
        self.drop(learner)  # a process that replaces it has another address

    def drop(self, to: int) -> None:
        """Drop the messages queued for a learner; the next message opens another connection."""
        with self._lock:
            outbox, lines = self._senders.pop(to, None), [self._lines.pop(to, None), self._calls.pop(to, None)]
        self._lender.lose(to)
        if outbox is not None:
            outbox.put(None)
        for line in lines:
            if line is not None:
                with contextlib.suppress(OSError):  # it has already broken
                    line.shutdown(socket.SHUT_RDWR)

    def flows(self) -> dict[int, Flow]:
        """Return the flow to each learner, if the system reports it."""
        with self._lock:
            found = {to: flow_of(line) for to, line in self._lines.items() if line.fileno() >= 0}
        return {to: flow for to, flow in found.items() if flow is not None}

    def close(self) -> None:
        """Send queued messages, then close; do not wait long for a learner that does not take its messages."""
        self._closing = True
        deadline = awake_seconds() + CLOSING_SECONDS
        with self._lock:
            for outbox in self._senders.values():
                outbox.put(None)
            threads = list(self._threads.values())
        for thread in threads:
            while thread.is_alive() and (left := deadline - awake_seconds()) > 0:
                thread.join(min(left, TICK_SECONDS))
        self._listener.close()
        self._lender.close()
        self.box.fail(PeerLost("this learner has left the run"))  # ends activities that an error has left behind

    def _send_all(self, to: int) -> None:
        """Serve one outbox after another until there is none: a new one is made after the learner was dropped."""
        while True:
            with self._lock:
                outbox = self._senders.get(to)
                if outbox is None:
                    del self._threads[to]
                    return
            self._send(to, outbox)

    def _send(self, to: int, outbox: Outbox) -> None:
        try:
            confirmed, since = outbox.confirmed, awake_seconds()
            while (error := self._carry(to, outbox)) is not None:
                if outbox.confirmed > confirmed:
                    confirmed, since = outbox.confirmed, awake_seconds()
                elif awake_seconds() - since > STUCK_SECONDS:
                    raise ConnectionError(f"connections break one after another: {error}") from error
                time.sleep(PAUSE_SECONDS)
        except (OSError, RuntimeError) as error:
            if not self._given_up(to, outbox):  # otherwise a restarted learner would count as lost
                self.box.lose(to, PeerLost(f"learner {to} cannot be reached by mail: {error}", to))
        finally:
            with self._lock:
                if self._senders.get(to) is outbox:
                    del self._senders[to]
                    self._lines.pop(to, None)
                    self._calls.pop(to, None)

    def _carry(self, to: int, outbox: Outbox) -> Exception | None:
        """Send over one connection as long as it lasts; return the error that ended it, or None if all was sent."""
        with cloned(self._store) as store:
            line = self._line_to(to, outbox, store)
        with line:
            line.settimeout(self._timeout)
            with self._lock:
                if self._senders.get(to) is not outbox:
                    return None  # dropped in the meantime
                self._lines[to] = line
            try:
                outbox.carry(line)
            except (OSError, EOFError, ValueError) as error:
                return None if self._given_up(to, outbox) else error
            return None

    def _given_up(self, to: int, outbox: Outbox) -> bool:
        with self._lock:
            return self._senders.get(to) is not outbox

    def _line_to(self, to: int, outbox: Outbox, store: Store) -> socket.socket:
        """Open a connection to a learner. Its address is looked up for every try.

        While a host cannot be reached, its learner may be started again at another address. Messages that wait for the
        old address would be lost when it finally refuses the connection.
        """
        deadline, patience = awake_seconds() + self._timeout, TRY_SECONDS

        def trying(line: socket.socket) -> None:
            with self._lock:
                if self._senders.get(to) is not outbox:
                    raise ConnectionError("it is gone")
                self._calls[to] = line

        while True:
            where = store.get(f"mail/{to}").decode()
            host, port = where.rsplit(":", 1)
            left = deadline - awake_seconds()
            try:
                return dial((host, int(port)), self._secret, f"mail to {to}", self.rank, min(patience, left), trying)
            except (TimeoutError, HungUp):
                if left <= patience:
                    raise
                patience = min(2 * patience, LONGEST_TRY_SECONDS)
            except OSError:
                if store.get(f"mail/{to}").decode() == where:
                    raise
            if self._given_up(to, outbox):
                raise ConnectionError("it is gone")

    def _receive(self, line: socket.socket, source: int, arrival: int) -> None:
        if not self._is_latest(line, source, arrival):
            line.close()
            return
        try:
            with line:
                self._take_in(line, source)
        except (OSError, ValueError, EOFError) as error:
            self._await_return(line, source, error)

    def _take_in(self, line: socket.socket, source: int) -> None:
        """Put messages into the mailbox until a newer connection of the same learner arrives."""
        watch(line)
        name, first = OPENING.unpack(exactly(line, OPENING.size))
        with self._lock:
            wanted, borrower = self._inboxes[source].open(name, first), self._borrowers[source]
        while self._latest(source) is line:
            line.sendall(WANTED.pack(wanted, borrower.token))  # the sender may forget the earlier ones
            head, x = receive(line)
            with self._lock:  # a newer connection requests this message again, or finds that it has arrived
                if self._incoming.get(source, (0, None))[1] is not line:
                    return
                if head.offer is not None:
                    borrower.consider(head.offer)
                if head.loan is not None:  # not before: the vector would be given back if the message were refused
                    x = borrower.vector(head.loan, head.elements, DTYPES[head.dtype])
                wanted = self._inboxes[source].take(name)
                self.box.put(source, head.tag, x, head.numbers)
            del x  # a lent vector is given back when the last reader lets it go

    def _await_return(self, line: socket.socket, source: int, error: Exception) -> None:
        """Handle the end of a connection: its learner is lost if it ended on purpose, or opens no other one in time."""
        deadline = awake_seconds() + (0.0 if isinstance(error, Closed | ValueError) else RETURN_SECONDS)
        while self._latest(source) is line and not self._closing and awake_seconds() < deadline:
            time.sleep(PAUSE_SECONDS)
        with self._lock:
            is_latest = self._incoming.get(source, (0, None))[1] is line
            if is_latest:
                del self._incoming[source]
        if is_latest and not self._closing:  # otherwise a restarted learner would count as lost
            self.box.lose(source, PeerLost(f"the connection from learner {source} closed: {error}", source))

    def _latest(self, source: int) -> socket.socket | None:
        with self._lock:
            return self._incoming.get(source, (0, None))[1]

    def _is_latest(self, line: socket.socket, source: int, arrival: int) -> bool:
        """True if this is the latest connection of its learner; ends an older one, whose end may go unnoticed."""
        with self._lock:
            latest, older = self._incoming.get(source, (0, None))
            if arrival < latest:
                return False
            self._incoming[source] = (arrival, line)
        if older is not None:
            with contextlib.suppress(OSError):  # it has already closed
                older.shutdown(socket.SHUT_RD)
        return True


class Letter:
    """A message to be sent: the parts of its frame."""

    def __init__(self, head: bytes, payload: memoryview) -> None:
        self._frame = head, payload

    def frame(self, mapped: int) -> Encoded:  # noqa: ARG002 - the same for all receivers
        """Return the parts of the frame for a receiver that has mapped the memory with this token."""
        return self._frame


class LentLetter(Letter):
    """A message whose vector lies in memory that its receiver may have mapped."""

    def __init__(self, lender: Lender, x: Tensor, to: int, tag: str, header: Sequence[float]) -> None:
        self._lender, self._x, self._to = lender, x, to
        self._head = MessageHead(tag, NAMES[x.dtype], tuple(header), elements=x.numel())
        self._loan: Loan | None = None

    def frame(self, mapped: int) -> Encoded:
        if self._loan is None and mapped:
            self._loan = self._lender.lend(self._x, self._to, mapped)
        if self._loan is not None and self._loan.token == mapped:
            self._x = self._x[:0].clone()  # the loan alone keeps the slot from now on
            return replace(self._head, loan=self._loan).encode(0), memoryview(b"")
        if self._loan is not None:
            raise EOFError("the receiver has lost the memory in which a vector lies")
        payload = memoryview(self._x.view(torch.uint8).numpy().data)
        return replace(self._head, offer=self._lender.offer(self._x)).encode(len(payload)), payload


class Outbox:
    """Unconfirmed messages to one learner. Any thread may put.

    One thread sends. A short message that finds nothing before it is sent by the thread that puts it, which saves the
    time until another one runs.
    """

    def __init__(self) -> None:
        self._order = Lock()  # held for moments only
        self._queued = 0  # messages put for the sending thread, until they are sent
        self._line: socket.socket | None = None  # open, with all earlier messages sent
        self._new: SimpleQueue[Letter | None] = SimpleQueue()
        self._kept: deque[Letter] = deque()
        self._mapped = 0  # token of this learner's memory, if the receiver has mapped it
        self.confirmed = 0  # messages that the receiver has confirmed: the number of the first kept one
        self._ended = False
        self._name = secrets.randbits(64)
        self._partial = b""

    def put(self, message: Letter | None) -> None:
        with self._order:
            if message is None or self._queued or self._line is None or not self._send_short(message, self._line):
                self._queued += 1
                self._new.put(message)

    def _send_short(self, message: Letter, line: socket.socket) -> bool:
        """Send a message; return False if it is long, or would have to wait."""
        head, payload = message.frame(self._mapped)
        poll = select.poll()
        poll.register(line, select.POLLOUT)
        if len(head) + len(payload) > SHORT_BYTES or not poll.poll(0):
            return False
        self._kept.append(message)  # before it can be confirmed
        try:
            sent = line.send(head + payload)
        except OSError:
            sent = 0
        if sent < len(head) + len(payload):
            self._line = None
            with contextlib.suppress(OSError):  # it has already broken
                line.shutdown(socket.SHUT_RDWR)  # the kept messages are sent again over the next connection
        return True

    def carry(self, line: socket.socket) -> None:
        """Send kept and new messages over a new connection, until all are confirmed and no more come.

        Raises:
            OSError, EOFError, ValueError: The connection has broken.
        """
        try:
            self._carry(line)
        finally:
            with self._order:
                self._line = None

    def _carry(self, line: socket.socket) -> None:
        watch(line)
        self._partial = b""
        line.sendall(OPENING.pack(self._name, self.confirmed))
        self._confirm(*WANTED.unpack(exactly(line, WANTED.size)))
        for message in list(self._kept):
            send_frame(line, *message.frame(self._mapped))
            del message  # its vector may lie in a slot, which is used again once it is confirmed
            self._receive(line, 0.0)
        with self._order:
            self._line = line
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
            sent = False
            try:
                send_frame(line, *new.frame(self._mapped))
                sent = True
            finally:
                with self._order:
                    self._queued -= 1
                    self._line = line if sent else None  # nothing may follow a part of a frame
            del new
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
        whole = len(received) // WANTED.size * WANTED.size
        self._partial = received[whole:]
        if whole:
            self._confirm(*WANTED.unpack(received[whole - WANTED.size : whole]))

    def _confirm(self, wanted: int, mapped: int) -> None:
        if not self.confirmed <= wanted <= self.confirmed + len(self._kept):
            raise ValueError(f"message {wanted} is wanted of {self.confirmed} to {self.confirmed + len(self._kept)}")
        while self.confirmed < wanted:
            self._kept.popleft()
            self.confirmed += 1
        self._mapped = mapped


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


def watch(line: socket.socket) -> None:
    """Let the system detect an unreachable host, if it can."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", SILENT_SECONDS // 3), ("TCP_KEEPINTVL", SILENT_SECONDS // 3)):
        if hasattr(socket, option):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_SECONDS)
