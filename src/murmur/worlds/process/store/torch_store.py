"""The launch's store as PyTorch sees it: gloo rendezvous and counters over our key-value server, or torchrun's own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from murmur.core.torch_private import PrefixStore, Store, TCPStore
from murmur.worlds.process.launch.environment import PORT_ERRORS, Place, resolve
from murmur.worlds.process.launch.secret import draw
from murmur.worlds.process.store.server import StoreClient, StoreServer
from murmur.worlds.process.transport.listener import listen

log = logging.getLogger(__name__)


class NetStore(Store):
    """A `torch.distributed` Store over one connection to our server; `clone` opens another one.

    Keys are seen under `prefix`, so that a restarted launch never meets those of the launch before.
    """

    def __init__(self, client: StoreClient, prefix: str) -> None:
        super().__init__()
        self._client, self._prefix = client, prefix
        self._seconds = client.timeout_seconds

    def clone(self) -> NetStore:
        """The same keys over a connection of its own."""
        twin = NetStore(self.line(), self._prefix)
        twin._seconds = self._seconds
        return twin

    def line(self) -> StoreClient:
        """A fresh connection to the server, for what is no store of keys."""
        return self._client.again(self._seconds)

    def close(self) -> None:
        """Hang up; a call that another thread has under way ends with a ConnectionError."""
        self._client.close()

    def name_of(self, name: str) -> str:
        """A name under this store's prefix."""
        return self._prefix + name

    def set(self, key: str, value: bytes | str) -> None:
        """Put a value."""
        raw = value.encode() if isinstance(value, str) else bytes(value)
        self._client.call({"do": "set", "key": self._prefix + key}, raw)

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        return self._client.wait([self._prefix + key], self._seconds)

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return the sum."""
        return int(self._client.call({"do": "add", "key": self._prefix + key, "amount": amount})[0]["total"])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there."""
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._client.wait([self._prefix + key for key in keys], seconds)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._client.call({"do": "check", "keys": [self._prefix + k for k in keys]})[0]["there"])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Put `desired` if the value is `expected` (absent counts as empty); the value afterwards."""
        old = expected.encode() if isinstance(expected, str) else bytes(expected)
        new = desired.encode() if isinstance(desired, str) else bytes(desired)
        return self._client.call({"do": "swap", "key": self._prefix + key, "expected": old.hex()}, new)[1]

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return bool(self._client.call({"do": "delete", "key": self._prefix + key})[0]["there"])

    def num_keys(self) -> int:
        """Keys of the whole server."""
        return int(self._client.call({"do": "size"})[0]["total"])

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `get` and `wait` wait."""
        self._seconds = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        """How long `get` and `wait` wait."""
        return timedelta(seconds=self._seconds)


def connect(place: Place, timeout_seconds: float) -> Store:
    """This learner's connection to the store of its launch: our server's, or torchrun's where that started us.

    Raises:
        ConnectionError: no store answers there in time.
        ValueError: this learner has to open the store and cannot.
    """
    if place.store == "learner 0" and place.rank == 0:
        StoreServer(_listen_at(place), place.secret)
        if not place.secret and not place.host.startswith("127."):
            log.warning(
                "whoever can reach %s:%d can take part in this run: give every learner the same --secret-file",
                place.host,
                place.port,
            )
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
    return PrefixStore(place.prefix, theirs)


def _listen_at(place: Place) -> socket.socket:
    try:
        return listen(resolve(place.host, place.named_by), place.port)
    except OSError as error:
        if error.errno not in PORT_ERRORS:
            raise
        raise ValueError(f"learner 0 cannot listen at {place.host}:{place.port}: {error.strerror}") from error


def secret_of(place: Place, store: Store) -> bytes:
    """The secret of a run's mail: the launch's own, or one that its learners agree on in their store."""
    return place.secret or store.compare_set("mail/secret", "", draw().decode())


@contextmanager
def cloned(store: Store) -> Iterator[Store]:
    """The same store over a connection of its own, which is closed behind the block."""
    twin = clone(store)
    try:
        yield twin
    finally:
        if isinstance(twin, NetStore):
            twin.close()


def clone(store: Store) -> Store:
    """The same store over a connection of its own, for another thread."""
    twin: Store = store.clone()  # type: ignore[attr-defined]
    return twin
