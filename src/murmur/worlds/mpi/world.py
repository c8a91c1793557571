"""World of processes started by an MPI launcher: each process holds one learner, and MPI moves the vectors.

    mpiexec -n 4 murmur train ctc --world mpi

MPI does not tolerate the loss of a process. A learner that fails therefore tells the others the cause, and they give up
at once. The launch is aborted when the first of their programs ends, so that no learner waits for a lost one.

Every group has a communicator of its own, so that a mean beside the gradients and one between them cannot interfere.
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
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from murmur.core.group import PeerLost
from murmur.core.membership import ENDED
from murmur.core.torch_private import c10d
from murmur.core.trace import Span
from murmur.core.world import Program, drive
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.mpi.progress import MpiMail, MpiProgress, Operation, settle
from murmur.worlds.process.environment import Place, meeting_host
from murmur.worlds.process.group import TorchGroup, Wiring
from murmur.worlds.process.listener import listen
from murmur.worlds.process.membership_client import StoreMembership
from murmur.worlds.process.secret import draw
from murmur.worlds.process.store_server import StoreClient, StoreServer
from murmur.worlds.process.torch_store import NetStore
from murmur.worlds.process.world import POLL_SECONDS, TIMEOUT_SECONDS, ProcessSeat, device_of

T = TypeVar("T")
LEASE_SECONDS = 30.0  # longer than in other worlds: a learner considered dead ends the run
SAYING_SECONDS = 0.5  # for the last output of learners to reach mpiexec, which drops it when the launch is aborted
FAREWELL_SECONDS = 2.0  # for the others to learn of a failure, before the failed learner ends
LOST_STATUS = 75  # a temporary failure, as in all worlds after the loss of a learner
BEGIN_SECONDS = 1e-3  # between two looks at who has come to begin a communicator
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
            f"no MPI world without mpi4py and an MPI library ({error}): pip install 'murmur-asr[mpi]'"
        ) from None
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ValueError(
            "this MPI library lets only its first thread call it, murmur needs MPI_THREAD_SERIALIZED: take another"
            " library, or leave mpi4py.rc.thread_level alone"
        )
    return MPI


class PeerWatch:
    """Signs of life of all processes, and the causes of their failures."""

    def __init__(self, store: NetStore, place: Place, lease_seconds: float) -> None:
        self.store, self.size, name = store, place.size, store.name_of("processes")
        self.membership = StoreMembership(store.line, name, place.rank, place.size, lease_seconds)

    def poll(self) -> bool:
        """Raise PeerLost if a learner has failed or is gone, ConnectionError if learner 0 is; never makes progress."""
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
        """
        self._owe(1)
        server, store = self._open_store()
        watch = PeerWatch(store.clone(), self.place, self.lease_seconds)
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
        return server, NetStore(StoreClient(host, int(port), self.timeout_seconds, shared.encode()), "")

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


SUMMED = (torch.float32, torch.float64, torch.int64)  # other types have no counterpart in MPI and travel as float32


@dataclass(frozen=True, kw_only=True)
class MpiWiring(Wiring):
    """State shared by all groups of one learner, the communicator of all learners, and the thread that calls MPI."""

    mpi: Any
    comm: Any
    progress: MpiProgress


class MpiGroup(TorchGroup):
    """Processes of one MPI launch that work together; `members` are their positions in the world."""

    wiring: MpiWiring

    @cached_property
    def _group(self) -> Any:
        return None if self.size == 1 or self._closed else Collectives(self.wiring, self._open())

    def _open(self) -> Any:
        """Open a communicator of the members.

        MPI makes one only while all members wait for each other inside MPI. The members meet in the store first, so
        that these waits are short. One communicator is made at a time in the whole world: two groups with common
        members, formed by two threads each, could otherwise begin in different orders and wait for each other for ever.
        """
        store, name = self._store, f"communicator of {self.name}"
        if int(store.add(f"{name}/here", 1)) == self.size:
            self._until(lambda: store.compare_set("communicator", "", name) == name.encode())
            store.set(f"{name}/go", "")
        self._until(lambda: bool(store.check([f"{name}/go"])))
        made: list[Any] = []

        def make() -> None:
            made.append(self.wiring.comm.Create_group(self.wiring.comm.group.Incl(self.members)))

        self._wait(self.wiring.progress.submit(make, lambda: None, self.wiring.timeout_seconds), "beginning")
        if int(store.add(f"{name}/made", 1)) == self.size:
            store.compare_set("communicator", name, "")
        return made[0]

    def _until(self, come: Callable[[], bool]) -> None:
        deadline = awake_seconds() + self.wiring.timeout_seconds
        while not come():
            self.wiring.progress.check()
            if awake_seconds() > deadline:
                raise PeerLost(f"not all of learners {self.members} came to begin {self.name}")
            time.sleep(BEGIN_SECONDS)


class Collectives:
    """Backend of `TorchGroup` on one communicator."""

    def __init__(self, wiring: MpiWiring, comm: Any) -> None:
        self._wiring, self._comm = wiring, comm

    def _begin(self, start: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> Operation:
        return self._wiring.progress.submit(start, finish, self._wiring.timeout_seconds)

    def allreduce(self, xs: list[Tensor]) -> Operation:
        (x,) = xs
        summed = x if x.dtype in SUMMED else x.float()
        numbers = summed.numpy()
        return self._begin(
            lambda: self._comm.Iallreduce(self._wiring.mpi.IN_PLACE, numbers),
            lambda: None if summed is x else x.copy_(summed),
        )

    def allgather(self, outs: list[list[Tensor]], xs: list[Tensor]) -> Operation:
        (out,), (x,) = outs, xs
        numbers, all_ = x.numpy(), torch.empty(len(out), x.numel(), dtype=x.dtype)

        def finish() -> None:
            for mine, theirs in zip(out, all_, strict=True):
                mine.copy_(theirs)

        return self._begin(lambda: self._comm.Iallgather(numbers, all_.numpy()), finish)

    def broadcast(self, xs: list[Tensor], options: c10d.BroadcastOptions) -> Operation:
        raw = xs[0].view(torch.uint8).numpy()
        root = options.rootRank
        return self._begin(lambda: self._comm.Ibcast(raw, root))
