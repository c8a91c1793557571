"""A world of processes on torch.distributed: this process holds one learner, the store brings them together."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import torch
from torch._C import _distributed_c10d as c10d

from murmur.group import PeerLost
from murmur.roll import ENDED, Roll
from murmur.trace import Span
from murmur.world import Program, drive
from murmur.worlds.real import RealSeat
from murmur.worlds.torch.connections import Device
from murmur.worlds.torch.environment import Place, address_towards
from murmur.worlds.torch.group import TorchGroup, Wiring
from murmur.worlds.torch.mail import Mail
from murmur.worlds.torch.netroll import WORLD, NetRoll
from murmur.worlds.torch.presence import LEAST_SECONDS, Presence
from murmur.worlds.torch.store import NetStore, connect, secret_of
from murmur.worlds.torch.traffic import Flow, Traffic

T = TypeVar("T")
TIMEOUT_SECONDS = 300.0
STARTING_LEASE_SECONDS = 10.0  # until it is known how long rounds take
POLL_SECONDS = 0.02
LAST_WORDS_SECONDS = 5.0


class TorchSeat(RealSeat):
    """This process's learner.

    Attributes:
        wiring: what its groups share; None where it has none of this kind.
        traffic: what it sends.
    """

    wiring: Wiring | None = None
    traffic: Traffic | None = None

    def sending(self) -> tuple[float, float]:
        return (math.nan, math.nan) if self.traffic is None else self.traffic.since_last()

    @property
    def presence(self) -> Presence | None:
        """Who of the others is still here, where the store knows it."""
        return None if self.wiring is None else self.wiring.presence

    def host_of(self, learner: int) -> str:
        return "" if self.wiring is None else self.wiring.told(learner)[0]

    @property
    def overlaps(self) -> bool:
        return self.group.size > 1

    async def work(self, job: Callable[[], T]) -> T:
        self.surface()
        began = self.now
        result = self.compute(job)
        if self.presence is not None:
            self.presence.took(self.now - began)
        self.surface()
        return result


class Told:
    """What learners have told of themselves: (host, device) by rank; asked once."""

    def __init__(self, store: c10d.Store) -> None:
        self._store = store
        self._known: dict[int, tuple[str, str]] = {}

    def __call__(self, rank: int) -> tuple[str, str]:
        if rank not in self._known:
            host, device = self._store.get(f"host/{rank}").decode().split()
            self._known[rank] = host, device
        return self._known[rank]


class TorchWorld:
    """All learners of a launch, one a process.

    Args:
        place: this process's place (see `place_of`).
        device: where this learner's model lives, "cpu" or "cuda:0".
        timeout_seconds: how long a collective may take before it is given up; must be finite.
        lease_seconds: silence after which the others go on without a learner, where the strategy can; ten median rounds
            where they last longer.
        sink: receives the spans of the trace.
        store: an open store of this launch; None connects to the one that `place` names.
    """

    def __init__(
        self,
        place: Place,
        device: str = "cpu",
        timeout_seconds: float = TIMEOUT_SECONDS,
        sink: Callable[[Span], None] | None = None,
        store: c10d.Store | None = None,
        lease_seconds: float = LEAST_SECONDS,
    ) -> None:
        if not 0 < timeout_seconds < float("inf"):
            raise ValueError(f"timeout_seconds must be positive and finite, got {timeout_seconds}")
        if not 0 < lease_seconds < float("inf"):
            raise ValueError(f"lease_seconds must be positive and finite, got {lease_seconds}")
        self.place, self.device, self.timeout_seconds, self.sink = place, device, timeout_seconds, sink
        self.store, self.lease_seconds = store, lease_seconds

    @property
    def size(self) -> int:
        return self.place.size

    def run(self, program: Program[T]) -> list[T]:
        """Run the program at this process's seat; ends together with the other learners.

        Raises:
            PeerLost: a learner is gone, or took longer than `timeout_seconds`.
            ConnectionError: there is no store.
        """
        with self.seated() as seat:
            return [drive(program(seat))]

    @contextmanager
    def seated(self) -> Iterator[TorchSeat]:
        """This process's seat, for whoever runs a program piece by piece; the end is together with the others.

        Raises:
            PeerLost, ConnectionError: as `run`.
        """
        store = self.store or connect(self.place, self.timeout_seconds)
        store.set_timeout(timedelta(seconds=self.timeout_seconds))
        address = address_towards(self.place.host)
        seat = TorchSeat(self.place.rank, time.monotonic(), self.sink)
        seat.device = self.device
        # An earlier process of this learner was here, or it is one more than there were.
        seat.late = self.place.rank >= self.size or bool(store.check([f"mail/{self.place.rank}"]))
        mail = Mail(store, self.place.rank, address, self.timeout_seconds, secret_of(self.place, store))
        try:
            wiring = self._wire(store, mail, address, seat)
            seat.wiring, seat.traffic = wiring, Traffic(lambda: _flows(mail, wiring))
            if wiring.presence is not None:
                wiring.presence.roll.waiting = wiring.waits.longest
            try:
                seat.group = TorchGroup(wiring, WORLD, range(self.size))
                yield seat
                self._part(seat, wiring.rolls, store)
            except BaseException as error:
                _abandon(wiring, error)
                raise
        finally:
            mail.close()

    def _wire(self, store: c10d.Store, mail: Mail, address: str, seat: TorchSeat) -> Wiring:
        rank, size = self.place.rank, self.size
        device = Device.at(address)
        store.set(f"gloo/{rank}", "{}:{}".format(*device.address))
        store.set(f"host/{rank}", f"{socket.gethostname()} {self.device}")
        told = Told(store)
        for r in range(size):
            told(r)  # who begins together waits for all the others here
        presence, lease = None, max(STARTING_LEASE_SECONDS, self.lease_seconds)
        if isinstance(store, NetStore) and size > 1:
            roll = NetRoll(store.line, store.name_of(WORLD), rank, size, lease)
            presence = Presence(roll, lambda r: told(r)[0], mail, self.lease_seconds)
        return Wiring(
            store=store,
            rank=rank,
            device=device,
            mail=mail,
            told=told,
            timeout_seconds=self.timeout_seconds,
            trace=seat.trace,
            late=seat.late,
            lease_seconds=lease,
            presence=presence,
            rolls=[] if presence is None else [presence.roll],
        )

    def _part(self, seat: TorchSeat, rolls: Sequence[Roll], store: c10d.Store) -> None:
        """Nobody closes its connections while another learner still reads from them; the lost are not waited for."""
        for roll in rolls:
            while seat.waits and not roll.reach(ENDED):
                time.sleep(POLL_SECONDS)
            roll.leave()
        if int(store.add("ended", 1)) == self.size:
            store.set("all ended", "")
        if seat.waits and not rolls:
            store.wait(["all ended"], timedelta(seconds=self.timeout_seconds))
        if rolls and self.place.store == "learner 0" and self.place.rank == 0:
            # The store ends with this process, and who is alive has a few words left for it; the lost have none.
            deadline = time.monotonic() + LAST_WORDS_SECONDS
            while int(store.add("ended", 0)) < self.size and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)


def _flows(mail: Mail, wiring: Wiring) -> dict[Hashable, Flow]:
    """What goes by mail and in all groups."""
    found: dict[Hashable, Flow] = {f"mail to {to}": flow for to, flow in mail.flows().items()}
    for group in list(wiring.groups):
        for connection, flow in group.flows().items():
            found[connection] = flow
    return found


def _abandon(wiring: Wiring, error: BaseException) -> None:
    """End before the others: tell them why, and let nobody wait."""
    if wiring.presence is not None:
        with suppress(ConnectionError):  # there is nobody left to tell
            after = f"it gave up after the loss of learner {error.learner}" if isinstance(error, PeerLost) else ""
            wiring.presence.roll.fail(after or f"{type(error).__name__}: {error}")
    for group in list(wiring.groups):
        group.close()


def device_of(place: Place) -> str:
    """The device of a learner: its own GPU where the host has one for it, else the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{place.local_rank % count}" if count else "cpu"
