"""Arrival of the learners of a launch: addresses by which they reach one another, and the wait for all of them.

A host's own name is often a loopback address there (127.0.1.1 on Debian, localhost of a container), and the address
itself on other hosts. Learner 0 then listens on all interfaces. The learners of its host find their address on the
route to a learner of another host.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeVar

from murmur.core.group import PeerLost
from murmur.core.torch_private import Store
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.environment import COME_KEY, PORT_ERRORS, READY_KEY, Place, addresses_of
from murmur.worlds.process.membership_client import ranks
from murmur.worlds.process.store_server import TELL_SECONDS, clock_time

log = logging.getLogger(__name__)
POLL_SECONDS = 0.05
OUTER_KEY = "outer address"  # of a learner of another host
LOOPBACK_KEY = "loopback"  # of a learner with a loopback address only
ALL_INTERFACES = "0.0.0.0"
T = TypeVar("T")


def wait_for(
    found: Callable[[], T | None],
    rank: int,
    seconds: float,
    status: Callable[[], str],
    too_late: Callable[[], Exception],
) -> T:
    """Return what `found` finds, asked repeatedly; log `status` every few seconds, raise `too_late()` at the end."""
    began, until = awake_seconds(), clock_time(seconds)
    tell_at = began + TELL_SECONDS
    while (result := found()) is None:
        now = awake_seconds()
        if now > began + seconds:
            raise too_late()
        if now > tell_at:
            tell_at = now + TELL_SECONDS
            log.warning("learner %d waits until %s: %s", rank, until, status())
        time.sleep(POLL_SECONDS)
    return result


@dataclass(frozen=True)
class Arrival:
    """One learner's wait at start until all learners can be reached; it ends early if one is known to be lost.

    `lost` returns the causes of losses by rank, as the membership knows them.
    """

    store: Store
    rank: int
    size: int
    seconds: float
    lost: Callable[[], Mapping[int, str]]

    def wait(self) -> None:
        """Return once all learners can be reached.

        Raises:
            PeerLost: A learner is lost, or some have not come in time; names them all.
            ConnectionError: The store is gone.
        """
        wait_for(self._all_here, self.rank, self.seconds, self._status, self._too_late)

    def _all_here(self) -> bool | None:
        if self.store.check([f"{READY_KEY}/{r}" for r in range(self.size)]):
            return True
        if lost := {r: why for r, why in self.lost().items() if r < self.size}:
            named = "; ".join(f"{self._named(r)} is lost: {why}" for r, why in lost.items())
            raise PeerLost(f"training cannot begin: {named}", next(iter(lost)))
        return None

    def _too_late(self) -> PeerLost:
        return PeerLost(
            f"training cannot begin: after {self.seconds:g} s (--start-seconds) {self._status()}; were they started,"
            " and can their hosts reach the store?",
            self._absent()[0],
        )

    def _absent(self) -> list[int]:
        """Return the learners waited for; at least one, as all may have come since the last check."""
        absent = [r for r in range(self.size) if not self.store.check([f"{READY_KEY}/{r}"])]
        return absent or [self.size - 1]

    def _status(self) -> str:
        """Describe the absent and the present learners, with hosts."""
        absent = self._absent()
        never = [r for r in absent if not self._has_come(r)]
        here = [self._named(r) for r in range(self.size) if r not in absent]
        many = f"learner {ranks(never)} has" if len(never) == 1 else f"learners {ranks(never)} have"
        found = [f"{many} not come to the store"] if never else []
        found += [f"{self._named(r)} has come and is still starting" for r in absent if r not in never]
        return ", ".join([*found, f"here: {', '.join(here)}"])

    def _has_come(self, rank: int) -> bool:
        return self.store.check([f"{COME_KEY}/{rank}"])

    def _named(self, rank: int) -> str:
        """Return a learner's name with its host, if known."""
        if not self._has_come(rank):
            return f"learner {rank}"
        return f"learner {rank} ({self.store.get(f'{COME_KEY}/{rank}').decode().split()[0]})"


def is_loopback(host: str) -> bool:
    """True for an address that leads to the host itself; a name is none."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def port_errors_named(place: Place) -> Iterator[None]:
    """Raise the error of a port that learner 0 cannot open as a ValueError that says what to set."""
    try:
        yield
    except OSError as error:
        if error.errno not in PORT_ERRORS:
            raise
        raise ValueError(
            f"learner 0 on {socket.gethostname()} cannot listen at {place.host}:{place.port}: {error.strerror}; set"
            " MASTER_ADDR to an address of learner 0's host and MASTER_PORT to a free port there, the same for all"
            " learners"
        ) from error


def check_meeting_point(place: Place) -> None:
    """Check the name of the meeting point and, for the learner that opens it, the port, before anything else.

    Raises:
        ValueError: The name has no address here, or the port cannot be opened; says what to set.
    """
    if place.rank > 0 or place.store != "learner 0":
        addresses_of(place.host, place.named_by)
        return
    with port_errors_named(place), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((listening_address(place), place.port))


def listening_address(place: Place) -> str:
    """Return the address at which learner 0 opens the store: as narrow as the other learners allow."""
    found = addresses_of(place.host, place.named_by)
    one = len(found) == 1 and not is_loopback(found[0])
    return found[0] if one or not may_span_hosts(place) else ALL_INTERFACES


def may_span_hosts(place: Place) -> bool:
    """True unless all learners are known to be on this host. An address such as 127.0.0.1 says so, a name does not."""
    if place.store == "murmur":  # an added learner takes the address of its route to the store
        return place.rank < place.size and place.local_size < place.size and not is_loopback(place.host)
    return place.local_size < place.size if place.local_known else not is_loopback(place.host)


def address_towards(host: str) -> str:
    """Return this host's address on the route to `host`: loopback for a store on loopback, no wider than needed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((addresses_of(host)[0], 9))  # a datagram socket: no packet is sent
        address: str = probe.getsockname()[0]
        return address


def own_address(place: Place, store: Store, seconds: float) -> str:
    """Return the address at which the other learners reach this one.

    Waits for the first learner of another host, or for all of this one, up to `seconds`.

    Raises:
        PeerLost: No learner of another host has come, and not all learners are on this host.
    """
    address = address_towards(place.host)
    if not is_loopback(address):
        store.compare_set(OUTER_KEY, "", address)
        return address
    if not may_span_hosts(place) and not store.check([OUTER_KEY]):
        return address
    store.set(f"{LOOPBACK_KEY}/{place.rank}", "")
    here = [f"{LOOPBACK_KEY}/{r}" for r in range(place.size)]

    def found() -> str | None:
        if store.check([OUTER_KEY]):
            return address_towards(store.get(OUTER_KEY).decode())
        return address if store.check(here) else None

    def absent() -> list[int]:
        return [r for r, key in enumerate(here) if not store.check([key])] or [place.size - 1]

    def too_late() -> PeerLost:
        return PeerLost(
            f"training cannot begin: after {seconds:g} s (--start-seconds) learners {ranks(absent())} have not come to"
            f" {place.host}:{place.port} (from {place.named_by}), which is {address} on {socket.gethostname()}; were"
            " they started, and is it another address on their hosts?",
            absent()[0],
        )

    def status() -> str:
        return f"learners {ranks(absent())} have not come to the store at {place.host}"

    return wait_for(found, place.rank, seconds, status, too_late)
