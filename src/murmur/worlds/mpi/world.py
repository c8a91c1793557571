"""World of processes started by an MPI launcher: each process holds one learner, and MPI moves the vectors.

    mpiexec -n 4 murmur train ctc --world mpi

MPI does not tolerate the loss of a process. A learner that fails therefore tells the others the cause, and they give up
at once. The launch is aborted when the first of their programs ends, so that no learner waits for a lost one.
"""

from __future__ import annotations

import atexit
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np

from murmur.core.group import PeerLost
from murmur.core.membership import ENDED
from murmur.core.trace import Span
from murmur.core.world import Program, drive
from murmur.worlds.mpi.group import MpiGroup, MpiWiring
from murmur.worlds.mpi.mail import MpiMail
from murmur.worlds.mpi.progress import MpiProgress, settle
from murmur.worlds.process.launch.environment import Place, meeting_host
from murmur.worlds.process.launch.secret import draw
from murmur.worlds.process.membership.client import StoreMembership
from murmur.worlds.process.store.server import StoreClient, StoreServer
from murmur.worlds.process.store.torch_store import NetStore
from murmur.worlds.process.transport.listener import listen
from murmur.worlds.process.world import POLL_SECONDS, TIMEOUT_SECONDS, ProcessSeat, device_of

T = TypeVar("T")
LEASE_SECONDS = 30.0  # longer than in other worlds: a learner considered dead ends the run
SAYING_SECONDS = 0.5  # for the last output of learners to reach mpiexec, which drops it when the launch is aborted
FAREWELL_SECONDS = 2.0  # for the others to learn of a failure, before the failed learner ends
LOST_STATUS = 75  # a temporary failure, as in all worlds after the loss of a learner
NAME_BYTES = 256


def open_mpi() -> Any:
    """Start mpi4py's MPI so that one thread at a time may call it, and return it.

    Raises:
        ValueError: mpi4py or an MPI library is missing, or the library allows only its first thread to call it.
    """
    try:
        from mpi4py import MPI  # noqa: PLC0415 - an optional dependency, and importing it begins MPI
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            f"no MPI world without mpi4py and an MPI library ({error}): pip install 'murmur[mpi]'"
        ) from None
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ValueError(
            "this MPI library lets only its first thread call it, murmur needs MPI_THREAD_SERIALIZED: take another"
            " library, or leave mpi4py.rc.thread_level alone"
        )
    return MPI


@dataclass(frozen=True)
class PeerWatch:
    """Signs of life of all processes, and the causes of their failures."""

    store: NetStore
    membership: StoreMembership
    size: int

    @classmethod
    def begin(cls, store: NetStore, place: Place, lease_seconds: float) -> PeerWatch:
        """Enter the membership of processes."""
        membership = StoreMembership(store.line, store.name_of("processes"), place.rank, place.size, lease_seconds)
        return cls(store, membership, place.size)

    def poll(self) -> bool:
        """Check for failures; never makes progress itself.

        Raises:
            PeerLost: A learner has failed or is gone.
            ConnectionError: Learner 0, which keeps the membership, is gone.
        """
        view = self.membership.view()
        if len(view.live) + view.left < self.size:
            lost = sorted(set(range(self.size)) - set(view.live))
            raise PeerLost(self._why(f"learners {lost} give no signs of life, and MPI cannot go on without them"))
        return False

    def _why(self, why: str) -> str:
        """Return the cause of the end of the run, as told by the first learner that knew it."""
        return self.store.compare_set("fault", "", why).decode()

    def tell(self, why: str) -> None:
        """Give up: tell the others the cause, and give them a moment to receive it."""
        with suppress(ConnectionError):  # learner 0 is gone, and with it the store
            self._why(why)
            self.membership.leave()
            deadline = time.monotonic() + FAREWELL_SECONDS
            self.store.add("told", 1)
            while int(self.store.add("told", 0)) < self.size and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)


def _abort(mpi: Any, status: int) -> None:
    """End the launch, and all its processes at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(SAYING_SECONDS)
    mpi.COMM_WORLD.Abort(status)


class MpiWorld:
    """All learners of an MPI launch, one per process; all of them create it together.

    Args:
        device: Device of this learner's model; None: a GPU of its own if the host has one for it, else the CPU.
        timeout_seconds: Longest duration of a collective before it is given up; must be finite.
        sink: Receives the spans of the trace.
        lease_seconds: Silence after which a learner counts as dead, and the run is given up.
        comm: Communicator of the learners; None: of all processes of the launch.

    Attributes:
        place: This process's place.

    Raises:
        ValueError: There is no MPI here.
        PeerLost: Some processes did not come in time.
    """

    def __init__(
        self,
        device: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        sink: Callable[[Span], None] | None = None,
        lease_seconds: float = LEASE_SECONDS,
        comm: Any = None,
    ) -> None:
        if not 0 < timeout_seconds < float("inf"):
            raise ValueError(f"timeout_seconds must be positive and finite, got {timeout_seconds}")
        self.timeout_seconds, self.sink, self.lease_seconds = timeout_seconds, sink, lease_seconds
        self._mpi = open_mpi()
        self._owed: Callable[[], None] | None = None
        self._owe(1)
        # A communicator of its own keeps these messages apart from other uses of MPI in this process.
        self._comm, made = (self._mpi.COMM_WORLD if comm is None else comm).Idup()
        settle(made, timeout_seconds)
        self._hosts = self._all(socket.gethostname())
        rank, size = self._comm.rank, self._comm.size
        local = [r for r in range(size) if self._hosts[r] == self._hosts[rank]]
        self.place = Place(rank, size, local.index(rank), "", 0, local_size=len(local), store="learner 0")
        self.device = device_of(self.place) if device is None else device
        self._devices = self._all(self.device)

    @property
    def size(self) -> int:
        return self.place.size

    def run(self, program: Program[T]) -> list[T]:
        """Run the program at this process's seat; end together with the other learners.

        Raises:
            PeerLost: A learner has failed or is gone, or took longer than `timeout_seconds`.
        """
        with self.seated() as seat:
            return [drive(program(seat))]

    @contextmanager
    def seated(self) -> Iterator[ProcessSeat]:
        """Yield this process's seat, for a caller that runs a program piece by piece; end together with the others.

        After an error the process must not use MPI any more; the launch is aborted when its program ends.

        Raises:
            PeerLost: As for `run`.
        """
        self._owe(1)
        server, store = self._open_store()
        watch = PeerWatch.begin(store.clone(), self.place, self.lease_seconds)
        mail = MpiMail(self._mpi, self._comm, [watch.poll])
        progress = mail.progress
        seat = ProcessSeat(self.place.rank, time.monotonic(), self.sink)
        seat.device = self.device
        try:
            group = MpiGroup(self._wire(store, mail, progress, seat), "world", range(self.size))
            seat.group = group
            yield seat
            self._part(seat, group.wiring, watch)
            self._owe(0)
        except BaseException as error:
            self._owe(LOST_STATUS if isinstance(error, PeerLost | ConnectionError) else 1)
            watch.tell(f"learner {self.place.rank} failed: {type(error).__name__}: {error}")
            raise
        finally:
            progress.stop()
            if server is not None:
                server.close()

    def _owe(self, status: int) -> None:
        """Have the launch aborted with a status when this program ends; 0: the launch ends normally.

        An abort is pending from the start to a successful end. A process that left in between would wait for the others
        at the end of MPI, and they for it.
        """
        if self._owed is not None:
            atexit.unregister(self._owed)
        self._owed = partial(_abort, self._mpi, status) if status else None
        if self._owed is not None:
            atexit.register(self._owed)

    def _open_store(self) -> tuple[StoreServer | None, NetStore]:
        """Open the store of claims and membership in a thread of learner 0; MPI carries its address and its secret."""
        server, told = None, ""
        if self.place.rank == 0:
            secret = draw()
            server = StoreServer(listen(meeting_host(self._hosts)), secret)
            told = "{} {} {}".format(*server.address, secret.decode())
        host, port, shared = self._all(told)[0].split()
        store = NetStore(StoreClient(host, int(port), self.timeout_seconds, shared.encode()), "")
        store.set_timeout(timedelta(seconds=self.timeout_seconds))
        return server, store

    def _all(self, text: str) -> tuple[str, ...]:
        """Return a short text of every learner, in order of rank."""
        mine = np.frombuffer(text.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0"), np.uint8)
        found = np.empty((self._comm.size, NAME_BYTES), np.uint8)
        settle(self._comm.Iallgather(mine, found), self.timeout_seconds)
        return tuple(row.tobytes().rstrip(b"\0").decode() for row in found)

    def from_first(self, text: str) -> str:
        """Return the text of learner 0 on every learner; the others wait for it as long as learner 0 needs."""
        raw = text.encode()
        size = np.array([len(raw)], np.int64)
        settle(self._comm.Ibcast(size, 0), math.inf)
        data = np.frombuffer(raw, np.uint8).copy() if self._comm.rank == 0 else np.empty(int(size[0]), np.uint8)
        settle(self._comm.Ibcast(data, 0), self.timeout_seconds)
        return data.tobytes().decode()

    def _wire(self, store: NetStore, mail: MpiMail, progress: MpiProgress, seat: ProcessSeat) -> MpiWiring:
        return MpiWiring(
            store=store,
            rank=self.place.rank,
            device=None,
            mail=mail,
            told=lambda r: (self._hosts[r], self._devices[r]),
            timeout_seconds=self.timeout_seconds,
            trace=seat.trace,
            lease_seconds=self.lease_seconds,
            mpi=self._mpi,
            comm=self._comm,
            progress=progress,
        )

    def _part(self, seat: ProcessSeat, wiring: MpiWiring, watch: PeerWatch) -> None:
        """End together, even learners that do not wait in other worlds: MPI ends for all at once."""
        for membership in wiring.memberships:
            self._wait_until(lambda membership=membership: not seat.waits or membership.arrive(ENDED), wiring.progress)  # type: ignore[misc]
            membership.leave()
        self._wait_until(lambda: wiring.progress.idle, wiring.progress)
        self._wait_until(lambda: watch.membership.arrive(ENDED), wiring.progress)
        wiring.progress.stop()
        watch.membership.leave()
        settle(self._comm.Ibarrier(), self.timeout_seconds)  # learner 0's store is not needed any more

    def _wait_until(self, come: Callable[[], bool], progress: MpiProgress) -> None:
        while not come():
            progress.check()
            time.sleep(POLL_SECONDS)
