"""The launch's store as a PyTorch store, for gloo rendezvous and counters: murmur's store server, or torchrun's own.

torchrun's agents may keep one store for all attempts, and each agent counts its own restarts, so that neither the store
nor the count separates the keys of two attempts. Learner 0 therefore offers a new name, the others answer with marks of
their own, and learner 0 confirms the marks. A name that an earlier process offered is never confirmed for a new mark.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from uuid import uuid4

from murmur.core.torch_private import PrefixStore, Store, TCPStore
from murmur.worlds.process.arrival import (
    check_meeting_point,
    is_loopback,
    listening_address,
    port_errors_named,
    wait_for,
)
from murmur.worlds.process.environment import Place
from murmur.worlds.process.listener import listen
from murmur.worlds.process.membership_client import ranks
from murmur.worlds.process.secret import draw
from murmur.worlds.process.store_server import StoreClient, StoreServer

log = logging.getLogger(__name__)
OFFER_KEY = "attempt"
REMEDY = (
    "if this follows a restart, torchrun's agents have given their learners different stores: start torchrun with"
    " TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
)


class NetStore(Store):
    """A `torch.distributed` Store over one connection to a store server; `clone` opens another one.

    Keys are stored under `prefix`, so that a restarted launch never sees those of the previous one. The methods are
    PyTorch's; `set_timeout` sets the longest wait of `get` and `wait`.
    """

    def __init__(self, client: StoreClient, prefix: str) -> None:
        super().__init__()
        self._client, self._prefix = client, prefix
        self._seconds = client.timeout_seconds

    def clone(self) -> NetStore:
        """Return the same keys over a separate connection."""
        return NetStore(self.line(), self._prefix)

    def under(self, prefix: str) -> NetStore:
        """Return a store of the keys that begin with `prefix` here, over the same connection."""
        return NetStore(self._client, self._prefix + prefix)

    def line(self) -> StoreClient:
        """Open a new connection to the server, for requests other than keys."""
        return self._client.again(self._seconds)

    def close(self) -> None:
        """Close the connection; a call under way in another thread ends with a ConnectionError."""
        self._client.close()

    def name_of(self, name: str) -> str:
        return self._prefix + name

    def set(self, key: str, value: bytes | str) -> None:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        self._client.call({"do": "set", "key": self._prefix + key}, raw)

    def get(self, key: str) -> bytes:
        return self._client.wait([self._prefix + key], self._seconds)

    def add(self, key: str, amount: int) -> int:
        return int(self._client.call({"do": "add", "key": self._prefix + key, "amount": amount})[0]["total"])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._client.wait([self._prefix + key for key in keys], seconds)

    def check(self, keys: list[str]) -> bool:
        return bool(self._client.call({"do": "check", "keys": [self._prefix + k for k in keys]})[0]["there"])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set the value to `desired` if it is `expected` (absent counts as empty); return the resulting value."""
        old = expected.encode() if isinstance(expected, str) else bytes(expected)
        new = desired.encode() if isinstance(desired, str) else bytes(desired)
        return self._client.call({"do": "swap", "key": self._prefix + key, "expected": old.hex()}, new)[1]

    def delete_key(self, key: str) -> bool:
        return bool(self._client.call({"do": "delete", "key": self._prefix + key})[0]["there"])

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()


def connect(place: Place, timeout_seconds: float) -> Store:
    """Connect this learner to the store of its launch: murmur's server, or torchrun's if torchrun started it.

    Raises:
        ConnectionError: No store answers there in time.
        ValueError: This learner has to open the store and cannot, or the host of the store has no address.
    """
    if place.store == "learner 0" and place.rank == 0:
        _open(place)
    else:
        check_meeting_point(place)
    if place.store != "torchrun":
        return NetStore(StoreClient(place.host, place.port, timeout_seconds, place.secret), place.prefix)
    try:
        seconds = timedelta(seconds=timeout_seconds)
        theirs = TCPStore(place.host, place.port, is_master=False, wait_for_workers=False, timeout=seconds)
    except RuntimeError as error:
        raise ConnectionError(
            f"learner {place.rank} found no store at {place.host}:{place.port}: is torchrun alive? ({error})"
        ) from error
    counted = place.local_size == place.size  # one agent counts the restarts of all learners
    return PrefixStore(place.prefix if counted else _attempt(Agents(place, theirs, timeout_seconds)), theirs)


@dataclass(frozen=True)
class Agents:
    """Launch by several of torchrun's agents; the same launch has the same place."""

    place: Place
    store: Store = field(compare=False)
    seconds: float = field(compare=False)


@cache  # a process belongs to one attempt
def _attempt(agents: Agents) -> str:
    return f"attempt-{agreed_attempt(agents.place, agents.store, agents.seconds)}/"


@cache  # a process opens the store of its launch once, for all that it does there
def _open(place: Place) -> StoreServer:
    """Open the store of a launch; it ends with this process."""
    address = listening_address(place)
    if not place.secret and not is_loopback(address):
        log.warning(
            "any process that can reach %s:%d can take part in this run: give every learner the same --secret-file",
            place.host,
            place.port,
        )
    with port_errors_named(place):
        return StoreServer(listen(address, place.port), place.secret)


def open_anywhere(place: Place) -> Place:
    """Open the store of a launch at a free port of this host; return the place with that port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as kept:  # no other process takes the port meanwhile
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((listening_address(place), 0))
        opened = replace(place, port=kept.getsockname()[1])
        _open(opened)
    return opened


def secret_of(place: Place, store: Store) -> bytes:
    """Return the secret of a run's mail: the launch's own, or one that its learners agree on in their store."""
    return place.secret or store.compare_set("mail/secret", "", draw().decode())


class Attempt:
    """One learner's side of the agreement; `step` is called until it returns a name."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._mark = uuid4().hex
        if rank == 0:
            store.set(OFFER_KEY, self._mark)

    def step(self) -> str | None:
        """Read and answer what the others have written; return the name once all have the same."""
        if self._rank == 0:
            return None if self.absent() else self._confirm()
        if not self._store.check([OFFER_KEY]):
            return None
        name = self._store.get(OFFER_KEY).decode()
        self._store.set(f"{OFFER_KEY}/{name}/{self._rank}", self._mark)
        confirmed = f"{OFFER_KEY}/{name}/all"
        if self._store.check([confirmed]) and self._mark in self._store.get(confirmed).decode().split():
            return name
        return None

    def absent(self) -> list[int]:
        """Return the learners that have not answered learner 0, as far as this learner can know."""
        if self._rank > 0:
            return [0]
        return [r for r in range(1, self._size) if not self._store.check([f"{OFFER_KEY}/{self._mark}/{r}"])]

    def _confirm(self) -> str:
        marks = [self._store.get(f"{OFFER_KEY}/{self._mark}/{r}").decode() for r in range(1, self._size)]
        self._store.set(f"{OFFER_KEY}/{self._mark}/all", " ".join(marks))
        return self._mark


def agreed_attempt(place: Place, store: Store, seconds: float) -> str:
    """Return the name of this attempt, the same on all learners; ConnectionError names those that do not come."""
    attempt = Attempt(store, place.rank, place.size)

    def status() -> str:
        where = f"{place.host}:{place.port}"
        return f"learners {ranks(attempt.absent())} have not come to the store at {where}; {REMEDY}"

    def too_late() -> ConnectionError:
        return ConnectionError(f"training cannot begin: after {seconds:g} s {status()}")

    return wait_for(attempt.step, place.rank, seconds, status, too_late)


@cache
def _name_of(_process: int) -> str:
    """Return a name of this process; its number would be used again after a restart, and a fork has its own name."""
    return uuid4().hex


@contextmanager
def store_of_next_block(place: Place, timeout_seconds: float) -> Iterator[tuple[Store, int]]:
    """Yield the store of this process's next block, and the number of the block; the first has the launch's own keys.

    A process may train several times in one launch, and the keys of each time are separate. The store counts the blocks
    of each process, so the learners' k-th blocks belong together. A process that was started again begins with the
    first block, as its program does; if others are in that block, it comes late.
    """
    launch = connect(place, timeout_seconds)
    try:
        number = int(launch.add(f"blocks/{place.rank}/{_name_of(os.getpid())}", 1)) - 1
        if number == 0:
            yield launch, number
        elif isinstance(launch, NetStore):
            yield launch.under(f"block-{number}/"), number
        else:
            yield PrefixStore(f"block-{number}/", launch), number
    finally:
        if isinstance(launch, NetStore):
            launch.close()
