"""Messages between two learners over TCP: posting never blocks, arrivals go to a mailbox.

Collectives are gloo's or NCCL's. Point-to-point messages have a transport of their own, because gloo's can be neither
polled nor given up without closing every pair of the group. A connection begins with a handshake, in which both
learners prove that they belong to the same run. Each message is one frame (`wire_format.py`). Connections are made on
first use, one for each direction. A broken one is opened again at once; no message is lost or duplicated while both
learners live (`stream.py`). Messages queued for a lost learner are dropped; the next message finds the restarted
learner at its new address.

The number of threads is bounded, however often learners are lost. One thread sends to each learner, even after that
learner was dropped. One thread receives from each learner, whose older connections end when a newer one arrives.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from threading import Lock, Thread

from torch import Tensor

from murmur.core.group import PeerLost
from murmur.core.torch_private import Store
from murmur.worlds.awake_clock import TICK_SECONDS, awake_seconds
from murmur.worlds.mailbox import Mailbox
from murmur.worlds.process.store.torch_store import cloned
from murmur.worlds.process.transport.listener import HungUp, Listener, dial, listen
from murmur.worlds.process.transport.messages import Closed, encode, receive
from murmur.worlds.process.transport.stream import Inbox, Outbox, opening, want, watch
from murmur.worlds.process.transport.traffic import Flow, flow_of

CLOSING_SECONDS = 5.0
TRY_SECONDS = 2.0  # for the first try to reach a learner; each further try takes twice as long, up to
LONGEST_TRY_SECONDS = 8.0  # a listener waits no longer for a caller, and a new address is found as soon
RETURN_SECONDS = 10.0  # for a learner whose connection has broken to open another one
STUCK_SECONDS = 60.0  # during which successive connections may break without delivering a message
PAUSE_SECONDS = 0.02  # between a broken connection and the next one


class Mail:
    """One learner's post office: a listener, a mailbox, and a sender for each peer.

    Args:
        store: Store of the run, where learners find each other's ports.
        rank: Rank of the learner.
        address: Address of the interface to listen on.
        timeout_seconds: Time for another learner to answer.
        secret: Secret of the run; processes without it can neither send to the mailbox nor receive.
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
        self._lock = Lock()
        self._closing = False
        self.sent_bytes = 0
        self._listener = Listener(listen(address), secret, f"mail to {rank}", self._receive)
        store.set(f"mail/{rank}", "{}:{}".format(*self._listener.address))

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float] = ()) -> None:
        """Queue a copy of x for learner `to`; return at once.

        Raises:
            ValueError: A reader would refuse the message (`messages.encode`).
        """
        if to == self.rank:
            self.box.put(self.rank, tag, x.clone(), header)
            return
        message = encode(x.detach().to("cpu", copy=True), tag, header)
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
        """Open a connection to a learner. Its address is looked up for every try.

        While a host cannot be reached, its learner may be started again at another address. Messages that wait for the
        old address would be lost when it finally refuses the connection.
        """
        with cloned(self._store) as store:
            return self._try_line_to(to, outbox, store)

    def _try_line_to(self, to: int, outbox: Outbox, store: Store) -> socket.socket:
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
        """Put messages into the mailbox until a newer connection of the same learner arrives."""
        watch(line)
        name, first = opening(line)
        with self._lock:
            wanted = self._inboxes[source].open(name, first)
        while self._latest(source) is line:
            want(line, wanted)
            tag, x, header = receive(line)
            with self._lock:  # a newer connection requests this message again, or finds that it has arrived
                if self._incoming.get(source, (0, None))[1] is not line:
                    return
                wanted = self._inboxes[source].take(name)
                self.box.put(source, tag, x, header)

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

    def _is_latest(self, line: socket.socket, source: int) -> bool:
        """True if this is the latest connection of its learner; ends an older one, whose end may go unnoticed."""
        arrival = self._listener.arrival(line)
        with self._lock:
            latest, older = self._incoming.get(source, (0, None))
            if arrival < latest:
                return False
            self._incoming[source] = (arrival, line)
        if older is not None:
            with contextlib.suppress(OSError):  # it has already closed
                older.shutdown(socket.SHUT_RD)
        return True
