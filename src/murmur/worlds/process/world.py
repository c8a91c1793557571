"""World of processes on torch.distributed: each process holds one learner, and the learners meet in a store."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import TypeVar

from murmur.accelerator.device import own_device
from murmur.core.group import PeerLost
from murmur.core.membership import ENDED, Membership
from murmur.core.torch_private import c10d
from murmur.core.trace import Span
from murmur.core.world import Program, drive
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.arrival import Arrival, own_address
from murmur.worlds.process.backends import Device
from murmur.worlds.process.environment import BEGUN_KEY, COME_KEY, ENDED_KEY, READY_KEY, Place
from murmur.worlds.process.failure_detector import LEAST_SECONDS, FailureDetector
from murmur.worlds.process.group import TorchGroup, Wiring
from murmur.worlds.process.mail import Mail
from murmur.worlds.process.membership_client import WORLD, StoreMembership, Waits
from murmur.worlds.process.torch_store import NetStore, connect, secret_of
from murmur.worlds.process.traffic import Flow, Traffic
from murmur.worlds.real import RealSeat

T = TypeVar("T")
TIMEOUT_SECONDS = START_SECONDS = 300.0
STARTING_LEASE_SECONDS = 10.0  # before the duration of rounds is known
POLL_SECONDS = 0.02
LAST_WORDS_SECONDS = 5.0


class ProcessSeat(RealSeat):
    """Seat of this process's learner. `wiring` is shared by its groups; None in a world without such groups."""

    _begun = False
    wiring: Wiring | None = None
    traffic: Traffic | None = None

    def sending(self) -> tuple[float, float]:
        return (math.nan, math.nan) if self.traffic is None else self.traffic.since_last()

    @property
    def failure_detector(self) -> FailureDetector | None:
        return None if self.wiring is None else self.wiring.failure_detector

    def host_of(self, learner: int) -> str:
        return "" if self.wiring is None else self.wiring.told(learner)[0]

    @property
    def overlaps(self) -> bool:
        return self.group.size > 1

    def begin(self) -> None:
        if not self._begun and self.wiring is not None:
            self._begun = True
            self.wiring.store.set(f"{BEGUN_KEY}/{self.rank}", "")

    async def work(self, job: Callable[[], T]) -> T:
        self.surface()
        began = self.now
        result = self.compute(job)
        if self.failure_detector is not None:
            self.failure_detector.took(self.now - began)
        self.surface()
        return result


class ProcessWorld:
    """All learners of a launch, one per process.

    Args:
        place: This process's place (see `place_of`).
        device: Device of this learner's model, "cpu" or "cuda:0".
        timeout_seconds: Longest duration of a collective before it is given up; must be finite.
        lease_seconds: Silence after which the others go on without a learner, if the strategy tolerates loss; ten
            median rounds if they last longer.
        sink: Receives the spans of the trace.
        store: Open store of this launch; None connects to the one named by `place`.
        start_seconds: Time that learners wait at start for all to arrive.
    """

    def __init__(
        self,
        place: Place,
        device: str = "cpu",
        timeout_seconds: float = TIMEOUT_SECONDS,
        sink: Callable[[Span], None] | None = None,
        store: c10d.Store | None = None,
        lease_seconds: float = LEAST_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        if not 0 < timeout_seconds < float("inf"):
            raise ValueError(f"timeout_seconds must be positive and finite, got {timeout_seconds}")
        if not 0 < lease_seconds < float("inf"):
            raise ValueError(f"lease_seconds must be positive and finite, got {lease_seconds}")
        self.place, self.device, self.timeout_seconds, self.sink = place, device, timeout_seconds, sink
        self.store, self.lease_seconds, self.start_seconds = store, lease_seconds, start_seconds

    @property
    def size(self) -> int:
        return self.place.size

    def run(self, program: Program[T]) -> list[T]:
        """Run the program at this process's seat; end together with the other learners.

        Raises:
            PeerLost: A learner is gone, or took longer than `timeout_seconds`.
            ConnectionError: There is no store.
        """
        with self.seated() as seat:
            return [drive(program(seat))]

    @contextmanager
    def seated(self) -> Iterator[ProcessSeat]:
        """Yield this process's seat, for a caller that runs a program piece by piece; end together with the others."""
        store = connect(self.place, self.start_seconds) if self.store is None else self.store
        store.set_timeout(timedelta(seconds=self.timeout_seconds))
        seat = ProcessSeat(self.place.rank, time.monotonic(), self.sink)
        seat.device = self.device
        address = own_address(self.place, store, self.start_seconds)
        # True if an earlier process of this learner was here, or if the learner was added.
        seat.late = self.place.rank >= self.size or bool(store.check([f"{READY_KEY}/{self.place.rank}"]))
        waits = Waits()
        membership: StoreMembership | None = None
        try:
            mail = Mail(store, self.place.rank, address, self.timeout_seconds, secret_of(self.place, store))
            with closing(mail):  # before the membership: a learner that knows of this one can reach it
                membership = self._enter(store, waits)
                store.set(f"{COME_KEY}/{self.place.rank}", f"{socket.gethostname()} {self.device}")
                wiring = seat.wiring = self._wire(store, mail, address, seat, membership, waits)
                seat.traffic = Traffic(lambda: _flows(mail, wiring))
                seat.group = TorchGroup(wiring, WORLD, range(self.size))
                yield seat
                self._part(seat, wiring.memberships, store)
        except BaseException as error:
            _abandon(membership, () if seat.wiring is None else seat.wiring.groups, error)
            raise
        finally:
            if isinstance(store, NetStore) and store is not self.store:
                store.close()

    def _enter(self, store: c10d.Store, waits: Waits) -> StoreMembership | None:
        """Enter the membership, so that the others learn of this learner's loss at once from now on."""
        if not isinstance(store, NetStore) or self.size == 1:
            return None
        lease = max(STARTING_LEASE_SECONDS, self.lease_seconds)
        entry = self.start_seconds + STARTING_LEASE_SECONDS  # learners themselves report those that come too late
        name = store.name_of(WORLD)
        return StoreMembership(store.line, name, self.place.rank, self.size, lease, entry, waits.longest)

    def _wire(
        self,
        store: c10d.Store,
        mail: Mail,
        address: str,
        seat: ProcessSeat,
        membership: StoreMembership | None,
        waits: Waits,
    ) -> Wiring:
        rank, device = self.place.rank, Device.at(address)

        @cache
        def told(learner: int) -> tuple[str, str]:
            host, name = store.get(f"{COME_KEY}/{learner}").decode().split()
            return host, name

        store.set(f"gloo/{rank}", "{}:{}".format(*device.address))
        store.set(f"{READY_KEY}/{rank}", "")
        if not seat.late:
            Arrival(store, rank, self.size, self.start_seconds, lambda: _lost(membership)).wait()
        failure_detector = None
        if membership is not None:
            failure_detector = FailureDetector(membership, lambda r: told(r)[0], mail, self.lease_seconds)
        return Wiring(
            store=store,
            rank=rank,
            device=device,
            mail=mail,
            told=told,
            timeout_seconds=self.timeout_seconds,
            trace=seat.trace,
            late=seat.late,
            lease_seconds=max(STARTING_LEASE_SECONDS, self.lease_seconds),
            failure_detector=failure_detector,
            waits=waits,
            memberships=[] if membership is None else [membership],
        )

    def _part(self, seat: ProcessSeat, memberships: Sequence[Membership], store: c10d.Store) -> None:
        """Wait for all live learners, so that none closes its connections while another still reads from them."""
        store.set(f"{ENDED_KEY}/{self.place.rank}", "")
        for membership in memberships:
            while seat.waits and not membership.arrive(ENDED):
                time.sleep(POLL_SECONDS)
            membership.leave()
        if int(store.add("ended", 1)) == self.size:
            store.set("all ended", "")
        if seat.waits and not memberships:
            store.wait(["all ended"], timedelta(seconds=self.timeout_seconds))
        if memberships and self.place.store == "learner 0" and self.place.rank == 0:
            # The store ends with this process. Live learners have a few last requests to it; lost ones have none.
            deadline = awake_seconds() + LAST_WORDS_SECONDS
            while int(store.add("ended", 0)) < self.size and awake_seconds() < deadline:
                time.sleep(POLL_SECONDS)


def _flows(mail: Mail, wiring: Wiring) -> dict[Hashable, Flow]:
    found: dict[Hashable, Flow] = {f"mail to {to}": flow for to, flow in mail.flows().items()}
    for group in list(wiring.groups):
        for connection, flow in group.flows().items():
            found[connection] = flow
    return found


def _lost(membership: StoreMembership | None) -> Mapping[int, str]:
    """Return the causes of losses, by rank, as this learner's view shows them."""
    if membership is None:
        return {}
    live = membership.view().live
    return {r: why for r, why in dict(membership.lost).items() if r not in live}


def _abandon(membership: StoreMembership | None, groups: Iterable[TorchGroup], error: BaseException) -> None:
    """End before the others: tell them the cause, and end all waits."""
    if membership is not None:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, PeerLost):
            first = error.learner
            why = f"it gave up: {error}" if first is None else f"it gave up after the loss of learner {first}"
        with suppress(ConnectionError):  # the store is gone, and with it the way to the others
            membership.fail(why)
    for group in list(groups):
        group.close()


def device_of(place: Place) -> str:
    """Return the device of a learner: a GPU of its own if the host has one for it, else the CPU."""
    return own_device(place.local_rank)
