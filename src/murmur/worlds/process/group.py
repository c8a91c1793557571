"""Groups of learner processes: collectives by gloo or NCCL, messages by mail, counters in the store."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, partial
from typing import Any
from weakref import ReferenceType, WeakSet, finalize
from weakref import ref as weak

import torch
import torch.distributed as dist
from torch import Tensor

from murmur.accelerator.device import is_accelerator
from murmur.core.group import Group, Message, PeerLost, WorldMismatch, weighted_mean
from murmur.core.membership import Membership
from murmur.core.torch_private import c10d, clone
from murmur.core.trace import COMMUNICATING, WAITING, Trace
from murmur.core.world import drive
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.backends import (
    Connection,
    Device,
    GlooSockets,
    address_of,
    connections,
    drop,
    ended,
    make_gloo,
)
from murmur.worlds.process.environment import Backend, backend_of
from murmur.worlds.process.failure_detector import LOOK_SECONDS, FailureDetector
from murmur.worlds.process.membership_client import WORLD, CountedMembership, StoreMembership, Waits, ranks
from murmur.worlds.process.shared_memory import (
    NUMBERS,
    SLOTS,
    RecurringMeans,
    SharedSum,
    SharedVectors,
    network_of_host,
    parts_of,
)
from murmur.worlds.process.store_server import StoreClient
from murmur.worlds.process.torch_store import NetStore
from murmur.worlds.process.traffic import Flow
from murmur.worlds.real import Activity, PostOffice

Work = Any  # torch._C._distributed_c10d.Work
GLOO_SECONDS = 30 * 86400.0  # gloo's own timeout where this module has one: gloo's runs while a process is stopped
FORMING_SECONDS = 10.0  # short, because a member of a new group may die before it is formed


@dataclass(frozen=True)
class Wiring:
    """State shared by all groups of one learner, whose position in the world is `rank`.

    Attributes:
        device: gloo's device, one for all groups; None if nothing travels by gloo.
        told: Returns the host and device of a learner, by rank.
        timeout_seconds: Longest duration of a collective before its group is given up. Never infinite: not every store
            detects a stopped learner.
        lease_seconds: Silence after which a learner counts as dead.
        late: True if the others have begun without this learner.
        failure_detector: Detector of lost learners, if the store supports one.
        memberships, groups: Those opened by, and made for, this learner.
    """

    store: c10d.Store
    rank: int
    device: Device | None
    mail: PostOffice
    told: Callable[[int], tuple[str, str]]
    timeout_seconds: float
    trace: Trace
    lease_seconds: float = 10.0
    late: bool = False
    failure_detector: FailureDetector | None = None
    waits: Waits = field(default_factory=Waits)
    memberships: list[Membership] = field(default_factory=list)
    groups: WeakSet[TorchGroup] = field(default_factory=WeakSet)


class Pending:
    """A collective under way; awaiting it blocks until `finish` returns the result."""

    def __init__(self, finish: Callable[[], Tensor]) -> None:
        self._finish = finish

    def __await__(self) -> Generator[Any, None, Tensor]:
        return self._finish()
        yield  # type: ignore[unreachable]  # makes this function a generator


class TorchGroup(Group):
    """Processes that work together; `members` are their positions in the world.

    A group lives no longer than each of its members. When one is lost, every collective under way or begun later raises
    PeerLost with its name within about `LOOK_SECONDS`, and the group is closed. The remaining ones may form another.
    """

    def __init__(self, wiring: Wiring, name: str, members: Sequence[int], patience: float | None = None) -> None:
        self.wiring, self.name, self.members = wiring, name, list(members)
        self.tolerates_loss = wiring.failure_detector is not None
        self._patience = wiring.timeout_seconds if patience is None else patience  # for all members to arrive
        self.rank, self.size = self._place_of(wiring.rank), len(members)
        self._store = clone(wiring.store)  # kept alive: gloo holds only the C++ side of a store written in Python
        if isinstance(self._store, NetStore):
            finalize(self, self._store.close)  # the connection ends with the group
        self._prefix = c10d.PrefixStore(name, self._store)
        self._splits, self._closed = 0, False
        self._ahead: dict[str, tuple[StoreClient, int]] = {}  # connection and last value of counters
        self._fastest: dict[int, float] = defaultdict(lambda: float("inf"))
        hosts, devices = zip(*(wiring.told(m) for m in members), strict=True)
        self.backend: Backend = backend_of(devices, hosts, dist.is_nccl_available())
        self._connections: GlooSockets | None = None
        self._on_one_host = len(set(hosts)) == 1 and all(device == "cpu" for device in devices)
        here, device = wiring.told(wiring.rank)
        self._has_neighbour = device == "cpu" and here in {wiring.told(m)[0] for m in members if m != wiring.rank}
        self._shared: dict[str, SharedVectors | None] = {}
        self._means = RecurringMeans(self._sum_of) if self._on_one_host and self.size > 1 else None
        self._ready: tuple[Tensor, SharedSum] | None = None  # vector of the mean under way, and its sum
        self._given: tuple[ReferenceType[Tensor], SharedSum] | None = None  # result of the latest mean, and its sum
        self._broadcasts: dict[str, int] = defaultdict(int)
        self._who = f"{name} with learners {ranks(self.members)}"
        self._born = {} if wiring.failure_detector is None else wiring.failure_detector.incarnations(self.members)
        wiring.groups.add(self)
        if not wiring.late:
            # Wait for all members here: two groups joined in different orders by two threads would dead-lock.
            _ = self._group, self._nccl

    @cached_property
    def _group(self) -> Any:
        """gloo's group. A late learner joins it with its first collective, and may never need one."""
        if self.size == 1:
            return None
        if self._closed:
            raise PeerLost(f"{self.name} has been closed")
        devices = [address_of(self.wiring.store, member) for member in self.members]
        before = connections()
        assert self.wiring.device is not None
        check = None if self.wiring.failure_detector is None else self._check
        try:
            made = make_gloo(self._prefix, self.rank, self.size, self.wiring.device, self._patience, check)
        except PeerLost as lost:
            if isinstance(self._store, NetStore):
                self._store.close()  # ends gloo's open requests
            if lost.learner is None:
                self._blame("forming")
            raise
        own = self.wiring.timeout_seconds if check is None else GLOO_SECONDS
        made.set_timeout(timedelta(seconds=own))
        self._connections = GlooSockets(devices, before)
        return made

    @cached_property
    def _nccl(self) -> Any:
        if self.backend != "nccl" or self._closed:
            return None
        store, options = c10d.PrefixStore("nccl", self._prefix), c10d.ProcessGroupNCCL.Options()
        return c10d.ProcessGroupNCCL(store, self.rank, self.size, options)

    def flows(self) -> dict[Connection, Flow]:
        return {} if self._connections is None else self._connections.flows()

    def close(self) -> None:
        """Cut the connections, so that waiting members, and waiting threads of this one, fail at once."""
        self._closed = True
        if self._connections is not None:
            self._connections.cut()
        drop([self.__dict__.pop(name, None) for name in ("_group", "_nccl")])

    async def share_numbers(self, x: Tensor, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        if self._group is None:
            return [tuple(numbers)]
        # The time of so small a message is the wait for the slowest learner.
        with self.wiring.trace.span(WAITING, f"mean of {self.name}"):
            if self._means is None:
                return self._compare(x, numbers, "mean")
            told = self._compare(x, (*self._means.offer(x), *numbers), "mean")
        ready = self._means.accept(x, self.rank, [each[:NUMBERS] for each in told])
        self._ready = None if ready is None else (x, ready)
        return [each[NUMBERS:] for each in told]

    async def mean_with(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] is x:
            mean = ready[1].mean(weights)
            self._given = weak(mean), ready[1]
            return mean
        if self._means is not None and self._means.begins(x):
            return self._gathered_mean(x, weights)
        mine, positive = weights[self.rank], [w for w in weights if w > 0]
        equal = len(set(positive)) == 1
        scaled = x * (mine if not equal else 1.0) if mine > 0 else torch.zeros_like(x)
        with self.wiring.trace.span(COMMUNICATING, f"mean of {self.name}"):
            total = self._sum(scaled)
        return total.div_(len(positive) if equal else sum(positive))

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        return None if self._means is None else self._means.room(numel, dtype)

    def keep(self, mean: Tensor) -> Callable[[], Tensor]:
        if self._given is not None and self._given[0]() is mean:
            return self._given[1].latest
        return super().keep(mean)

    def _gathered_mean(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        """Return a mean with the bits of one in shared memory: gloo adds in another order and rounds elsewhere."""
        assert self._group is not None
        mean = torch.empty_like(x)
        with self.wiring.trace.span(COMMUNICATING, f"mean of {self.name}"):
            for part in parts_of(x.numel(), self.size):
                given = [torch.empty_like(x[part]) for _ in self.members]
                self._wait(self._group.allgather([given], [x[part].contiguous()]), "mean")
                mean[part] = weighted_mean(given, weights)
        return mean

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        if self._group is None:
            return Pending(lambda: x)
        if is_accelerator(x.device) and self._nccl is None:
            return Pending(lambda: x.copy_(self._sum(x)))
        work = (self._nccl or self._group).allreduce([x])
        return Pending(lambda: self._finish_sum(work, x))

    def _finish_sum(self, work: Work, x: Tensor) -> Tensor:
        start = self.wiring.trace.now()
        self._wait_on_device(work, "sum")
        end = self.wiring.trace.now()
        # The fastest sum of this size had no wait; the excess of any other is counted as waiting.
        self._fastest[x.numel()] = min(self._fastest[x.numel()], end - start)
        moving = start + self._fastest[x.numel()]
        self.wiring.trace.add(COMMUNICATING, start, moving, f"sum of {self.name}")
        self.wiring.trace.add(WAITING, moving, end, f"sum of {self.name}")
        return x

    def _sum(self, x: Tensor) -> Tensor:
        """Return the members' sum, in place if the backend can reach the device."""
        if self._group is None:
            return x
        if x.device.type == "cpu" or self._nccl is not None:
            self._wait_on_device((self._nccl or self._group).allreduce([x]), "sum")
            return x
        there = x.cpu()
        self._wait(self._group.allreduce([there]), "sum")
        return there.to(x.device)

    async def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        if self._group is None:
            return x.clone()
        there = x.cpu().clone()
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._compare(x, (), "broadcast")
        with self.wiring.trace.span(COMMUNICATING, f"broadcast of {self.name}"):
            self._wait(self._group.broadcast([there], options), "broadcast")
        return there.to(x.device)

    def start_broadcast(self, x: Tensor, root: int, tag: str) -> Awaitable[Tensor]:
        """Begin a broadcast: through shared memory between processes of one host, else by gloo or NCCL."""
        if self._group is None:
            return Pending(lambda: x)
        if tag not in self._shared:
            self._shared[tag] = self._share(x, root) if self._on_one_host and hasattr(os, "memfd_create") else None
        shared, number = self._shared[tag], self._broadcasts[tag] % SLOTS
        self._broadcasts[tag] += 1
        if shared is None:
            return self._broadcast_beside(x, root)
        # The slot is part of the name: the thread of a later broadcast may be faster than that of this one.
        slot, name = shared.slots[number], f"broadcast {tag} {number}"

        def read() -> Tensor:
            drive(self.recv(root, name))  # the root has written the vector
            return slot

        async def write() -> Tensor:
            slot.copy_(x)
            for member in range(self.size):
                if member != root:
                    self.post(x[:0], member, name)
            return x

        if self.rank != root:
            return Pending(read)
        return Activity(write(), name, lambda _: None)  # a failure is raised where the broadcast is awaited

    def _share(self, x: Tensor, root: int) -> SharedVectors | None:
        """Map the root's vectors on all members; None if a member cannot see them."""
        found = self._share_of(x, [root])
        return None if found is None else found[0]

    def _share_of(self, x: Tensor, roots: Sequence[int]) -> list[SharedVectors] | None:
        """Map vectors like x of some members on all members; None if a member cannot see them."""
        own = SharedVectors.make(x.numel(), x.dtype) if self.rank in roots else None
        told = self._compare(x, (os.getpid(), -1 if own is None else own.descriptor, network_of_host()), "sharing")
        apart = len({network for *_, network in told}) > 1
        opened = [
            own if self.rank == root else SharedVectors.open(int(told[root][0]), int(told[root][1]), x.numel(), x.dtype)
            for root in roots
        ]
        shared = [vectors for vectors in opened if vectors is not None]
        everywhere = self._compare(x, (float(len(shared) == len(roots) and not apart),), "sharing")
        if own is not None:
            own.close()
        return shared if all(found for (found,) in everywhere) else None

    def sum_in_place(self, like: Tensor) -> SharedSum | None:
        if self._group is None or not self._on_one_host or not hasattr(os, "memfd_create"):
            return None
        shared = self._share_of(like, range(self.size))
        return None if shared is None else self._sum_of(shared)

    def _sum_of(self, vectors: Sequence[SharedVectors]) -> SharedSum:
        def meet() -> None:
            self._compare(vectors[0].slots[0][:0], (), "sum")

        spent = partial(self.wiring.trace.span, COMMUNICATING, f"sum of {self.name}")
        return SharedSum(vectors, self.rank, meet, spent)

    def _broadcast_beside(self, x: Tensor, root: int) -> Awaitable[Tensor]:
        there = x if x.device.type == "cpu" or self._nccl is not None else x.cpu()
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0

        work = (self._nccl or self._group).broadcast([there], options)

        def finish() -> Tensor:
            with self.wiring.trace.span(COMMUNICATING, f"broadcast of {self.name}"):
                self._wait_on_device(work, "broadcast")
            return there.to(x.device)

        return Pending(finish)

    def post_room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        return self.wiring.mail.room(numel, dtype) if self._has_neighbour else None

    def post(self, x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        self.wiring.mail.post(x, self._learner(to), f"{self.name} {tag}", header)

    async def recv(self, source: int | None = None, tag: str = "") -> Message:
        whom = "anyone" if source is None else f"learner {self._learner(source)}"
        # A member that serves others may let this one wait for a whole run; its death would be noticed. One that is not
        # there is awaited for a start.
        known = source is not None and self._is_live(source)
        seconds = float("inf") if known else self.wiring.timeout_seconds
        missing = PeerLost(f"no message {tag!r} from {whom} in {self.name} within {seconds} s")
        sender = None if source is None else self._learner(source)
        try:
            what = f"a message {tag!r} from {whom}"
            with self.wiring.trace.span(WAITING, what), self.wiring.waits.on(f"{what} in {self.name}"):
                message = self.wiring.mail.box.take(sender, f"{self.name} {tag}", seconds, lambda: missing)
        except PeerLost:
            self._blame(f"message {tag!r}")
            raise
        return self._known(message)

    def _is_live(self, rank: int) -> bool:
        """True if a member is known to be there; False also without a store that detects losses."""
        failure_detector = self.wiring.failure_detector
        return failure_detector is not None and self._learner(rank) in failure_detector.membership.view().incarnations

    async def poll(self, tag: str, seconds: float) -> Message | None:
        message = self.wiring.mail.box.wait(f"{self.name} {tag}", seconds)
        return None if message is None else self._known(message)

    def _known(self, message: Message) -> Message:
        x = message.x.to(self.wiring.told(self.wiring.rank)[1])
        return Message(x, self._place_of(message.source), message.header)

    def _place_of(self, learner: int) -> int:
        """Return the rank here of a learner of the world; added learners keep theirs in the group of all."""
        return learner if self.name == WORLD else self.members.index(learner)

    def _learner(self, rank: int) -> int:
        return rank if self.name == WORLD else self.members[rank]

    @cached_property
    def membership(self) -> Membership:
        store, failure_detector = self.wiring.store, self.wiring.failure_detector
        if failure_detector is not None and self.name == WORLD:
            return failure_detector.membership
        if isinstance(store, NetStore):
            line = StoreMembership(
                store.line, store.name_of(self.name), self.rank, self.size, self.wiring.lease_seconds
            )
            opened: Membership = line if failure_detector is None else failure_detector.adopted(line)
        else:
            opened = CountedMembership(self.count, self.rank, self.size)
        self.wiring.memberships.append(opened)
        return opened

    def split(self, parts: Sequence[Sequence[int]]) -> TorchGroup | None:
        self._splits += 1
        for number, part in enumerate(parts):
            if self.rank in part:
                return type(self)(self.wiring, f"{self.name}/{self._splits}.{number}", [self.members[r] for r in part])
        return None

    def among(self, ranks: Sequence[int], name: str) -> TorchGroup:
        if not self.tolerates_loss:
            raise PeerLost(f"{self.name} cannot go on with {list(ranks)} alone: its store detects no losses")
        members = [self._learner(r) for r in ranks]
        patience = min(FORMING_SECONDS, self.wiring.timeout_seconds)
        return type(self)(self.wiring, f"{self.name}/{name}", members, patience)

    def count(self, counter: str, amount: int = 0) -> int:
        return int(self._prefix.add(f"count/{counter}", amount))

    def count_ahead(self, counter: str, amount: int) -> int:
        if not isinstance(self._store, NetStore):
            return self.count(counter, amount)
        if counter not in self._ahead:
            line = self._store.line()
            finalize(self, line.close)
            self._ahead[counter] = line, self.count(counter)
        line, heard = self._ahead[counter]
        answer = line.call_ahead({"do": "add", "key": self._key(f"count/{counter}"), "amount": amount})
        heard = heard if answer is None else int(answer["total"])
        self._ahead[counter] = line, heard
        return heard + amount

    def _key(self, name: str) -> str:
        assert isinstance(self._store, NetStore)
        return self._store.name_of(f"{self.name}/{name}")

    def _compare(self, x: Tensor, numbers: Sequence[float], verb: str) -> list[tuple[float, ...]]:
        """Share numbers among the members; check that their vectors are alike: gloo would read past a shorter one."""
        assert self._group is not None
        mine = torch.tensor([x.numel(), x.element_size(), *numbers], dtype=torch.float64)
        all_ = [torch.empty_like(mine) for _ in range(self.size)]
        self._wait(self._group.allgather([all_], [mine]), verb)
        if any(not torch.equal(other[:2], mine[:2]) for other in all_):
            given = ", ".join(f"learner {m}: {int(n[0])}" for m, n in zip(self.members, all_, strict=True))
            raise WorldMismatch(
                f"the members of {self.name} passed vectors that differ ({given} elements): same model?"
            )
        return [tuple(other[2:].tolist()) for other in all_]

    def _wait(self, work: Work, verb: str) -> None:
        """Wait until gloo's collective has ended, or until a member is known to be lost."""
        failure_detector = self.wiring.failure_detector
        with self.wiring.waits.on(f"the {verb} of {self._who}") as wait:
            deadline = awake_seconds() + self.wiring.timeout_seconds
            while failure_detector is not None and not ended(work, LOOK_SECONDS):
                self._give_up(failure_detector.missing(self.members, self._born), verb)
                if awake_seconds() > deadline:
                    self._give_up(PeerLost(f"not all took part within {self.wiring.timeout_seconds:g} s"), verb)
                if wait.is_long():
                    failure_detector.tell_stalls()
        self._complete(work, verb)

    def _wait_on_device(self, work: Work, verb: str) -> None:
        """Wait for a collective of NCCL, or of gloo in a group without NCCL.

        For the CPU, NCCL's work ends when it has been queued; waiting longer would end the overlap.
        """
        if self._nccl is None:
            self._wait(work, verb)
        else:
            self._complete(work, verb)

    def _complete(self, work: Work, verb: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            self._blame(verb)
            reason = str(error).splitlines()[0]
            raise PeerLost(
                f"{verb} of {self.name}: a learner of {self.members} is gone or too late ({reason})"
            ) from error

    def _check(self) -> None:
        """Raise PeerLost if a member is lost while the group is formed."""
        assert self.wiring.failure_detector is not None
        lost = self.wiring.failure_detector.missing(self.members, self._born)
        if lost is not None:
            raise PeerLost(f"{self.name} cannot be formed: {lost}", lost.learner)

    def _blame(self, verb: str) -> None:
        """Raise PeerLost for a broken connection, with the name of a member that the membership has lost, if any."""
        failure_detector = self.wiring.failure_detector
        if failure_detector is not None:
            self._give_up(failure_detector.await_missing(self.members, self._born), verb)

    def _give_up(self, lost: PeerLost | None, verb: str) -> None:
        if lost is not None:
            self.close()
            if self.wiring.failure_detector is not None:
                self.wiring.failure_detector.tell_stalls()
            raise PeerLost(f"{verb} of {self.name} cannot be finished: {lost}", lost.learner)
