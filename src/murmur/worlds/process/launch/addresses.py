"""Addresses by which the learners of several hosts reach one another.

A host's own name is often a loopback address there (127.0.1.1 on Debian, localhost of a container), and the address
itself on other hosts. Learner 0 then listens on all interfaces. The learners of its host find their address on the
route to a learner of another host.
"""

from __future__ import annotations

import logging
import socket
import time
from ipaddress import ip_address

from murmur.core.group import PeerLost
from murmur.core.torch_private import Store
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.launch.environment import PORT_ERRORS, Place, addresses_of
from murmur.worlds.process.membership.stalls import ranks
from murmur.worlds.process.store.server import TELL_SECONDS, clock_time

log = logging.getLogger(__name__)
OUTER_KEY, LOOPBACK_KEY = "outer address", "loopback"  # of a learner of another host; of one that knows its host alone
POLL_SECONDS = 0.05
ALL_INTERFACES = "0.0.0.0"


def is_loopback(address: str) -> bool:
    """True if an address leads to the host itself."""
    return ip_address(address).is_loopback


def check_meeting_point(place: Place) -> None:
    """Check the name of the meeting point and, for the learner that opens it, the port, before anything else.

    Raises:
        ValueError: The name has no address here, or the port cannot be opened; says what to set.
    """
    where = f"{place.host}:{place.port}"
    if place.rank > 0 or place.store != "learner 0":
        addresses_of(place.host, place.named_by)
        return
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((listening_address(place), place.port))
    except OSError as error:
        if error.errno not in PORT_ERRORS:
            raise
        raise ValueError(
            f"learner 0 on {socket.gethostname()} cannot listen at {where}: {error.strerror}; set MASTER_ADDR to an"
            " address of learner 0's host and MASTER_PORT to a free port there, the same for all learners"
        ) from error


def listening_address(place: Place) -> str:
    """Return the address at which learner 0 opens the store: as narrow as the other learners allow.

    Raises:
        ValueError: The host of the store has no address.
    """
    found = addresses_of(place.host, place.named_by)
    one = len(found) == 1 and not is_loopback(found[0])
    return found[0] if one or not may_span_hosts(place) else ALL_INTERFACES


def may_span_hosts(place: Place) -> bool:
    """True unless all learners are known to be on this host. An address such as 127.0.0.1 says so, a name does not."""
    if place.store == "murmur":
        return False
    return place.local_size < place.size if place.local_known else not _is_loopback_address(place.host)


def _is_loopback_address(host: str) -> bool:
    try:
        return is_loopback(host)
    except ValueError:
        return False


def address_towards(host: str) -> str:
    """Return this host's address on the route to `host`: loopback for a store on loopback, no wider than needed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((addresses_of(host)[0], 9))  # a datagram socket: no packet is sent
        address: str = probe.getsockname()[0]
        return address


def own_address(place: Place, store: Store, seconds: float) -> str:
    """Return the address at which the other learners reach this one.

    Args:
        place: Place of this learner.
        store: Store of the launch.
        seconds: Longest wait for the first learner of another host.

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
    here, began = [f"{LOOPBACK_KEY}/{r}" for r in range(place.size)], awake_seconds()
    tell_at, until = began + TELL_SECONDS, clock_time(seconds)
    while not store.check([OUTER_KEY]):
        if store.check(here):
            return address
        now, absent = awake_seconds(), [r for r, key in enumerate(here) if not store.check([key])]
        if now > began + seconds and absent:
            raise PeerLost(
                f"training cannot begin: after {seconds:g} s (--start-seconds) learners {ranks(absent)} have not come"
                f" to {place.host}:{place.port} (from {place.named_by}), which is {address} on"
                f" {socket.gethostname()}; were they started, and is it another address on their hosts?",
                absent[0],
            )
        if now > tell_at:
            tell_at = now + TELL_SECONDS
            what = "learner %d waits until %s: learners %s have not come to the store at %s"
            log.warning(what, place.rank, until, ranks(absent), place.host)
        time.sleep(POLL_SECONDS)
    return address_towards(store.get(OUTER_KEY).decode())
