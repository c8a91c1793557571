"""The launch's store as a PyTorch store, for gloo rendezvous and counters: murmur's store server, or torchrun's own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache

from murmur.core.torch_private import PrefixStore, Store, TCPStore
from murmur.worlds.process.launch.addresses import check_meeting_point, is_loopback, listening_address
from murmur.worlds.process.launch.environment import PORT_ERRORS, Place
from murmur.worlds.process.launch.secret import draw
from murmur.worlds.process.store.attempt import agreed_attempt
from murmur.worlds.process.store.server import StoreClient, StoreServer
from murmur.worlds.process.transport.listener import listen

log = logging.getLogger(__name__)


class NetStore(Store):
    """A `torch.distributed` Store over one connection to a store server; `clone` opens another one.

    Keys are stored under `prefix`, so that a restarted launch never sees those of the previous one.
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
        """Return a name under this store's prefix."""
        return self._prefix + name

    def set(self, key: str, value: bytes | str) -> None:
        """Set a key."""
        raw = value.encode() if isinstance(value, str) else bytes(value)
        self._client.call({"do": "set", "key": self._prefix + key}, raw)

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        return self._client.wait([self._prefix + key], self._seconds)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return the sum."""
        return int(self._client.call({"do": "add", "key": self._prefix + key, "amount": amount})[0]["total"])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist."""
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._client.wait([self._prefix + key for key in keys], seconds)

    def check(self, keys: list[str]) -> bool:
        """True if all keys exist."""
        return bool(self._client.call({"do": "check", "keys": [self._prefix + k for k in keys]})[0]["there"])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set the value to `desired` if it is `expected` (absent counts as empty); return the resulting value."""
        old = expected.encode() if isinstance(expected, str) else bytes(expected)
        new = desired.encode() if isinstance(desired, str) else bytes(desired)
        return self._client.call({"do": "swap", "key": self._prefix + key, "expected": old.hex()}, new)[1]

    def delete_key(self, key: str) -> bool:
        """Remove a key; True if it existed."""
        return bool(self._client.call({"do": "delete", "key": self._prefix + key})[0]["there"])

    def num_keys(self) -> int:
        """Number of keys on the whole server."""
        return int(self._client.call({"do": "size"})[0]["total"])

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the longest wait of `get` and `wait`."""
        self._seconds = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        """Longest wait of `get` and `wait`."""
        return timedelta(seconds=self._seconds)


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
        where = f"{place.host}:{place.port}"
        raise ConnectionError(
            f"learner {place.rank} found no store at {where}: is torchrun alive? ({error})"
        ) from error
    return PrefixStore(_prefix_in(place, theirs, timeout_seconds), theirs)


def _prefix_in(place: Place, theirs: Store, timeout_seconds: float) -> str:
    """Return the prefix of this attempt's keys in torchrun's store; one agent counts the restarts of all learners."""
    return place.prefix if place.local_size == place.size else _attempt(Agents(place, theirs, timeout_seconds))


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
    check_meeting_point(place)
    if not place.secret and not is_loopback(listening_address(place)):
        log.warning(
            "any process that can reach %s:%d can take part in this run: give every learner the same --secret-file",
            place.host,
            place.port,
        )
    return StoreServer(_listen_at(place), place.secret)


def _listen_at(place: Place) -> socket.socket:
    try:
        return listen(listening_address(place), place.port)
    except OSError as error:
        if error.errno not in PORT_ERRORS:
            raise
        raise ValueError(f"learner 0 cannot listen at {place.host}:{place.port}: {error.strerror}") from error


def secret_of(place: Place, store: Store) -> bytes:
    """Return the secret of a run's mail: the launch's own, or one that its learners agree on in their store."""
    return place.secret or store.compare_set("mail/secret", "", draw().decode())


@contextmanager
def cloned(store: Store) -> Iterator[Store]:
    """Yield the same store over a separate connection, which is closed after the block."""
    twin = clone(store)
    try:
        yield twin
    finally:
        if isinstance(twin, NetStore):
            twin.close()


def clone(store: Store) -> Store:
    """Return the same store over a separate connection, for another thread."""
    twin: Store = store.clone()  # type: ignore[attr-defined]
    return twin
