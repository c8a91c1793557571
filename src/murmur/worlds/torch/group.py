"""A group of learner processes: collectives by gloo or NCCL, messages by mail, counters in the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from murmur.group import Group, Letter, PeerLost, WorldMismatch
from murmur.roll import Roll
from murmur.trace import COMMUNICATING, WAITING, Trace
from murmur.worlds.mailbox import PostOffice
from murmur.worlds.torch.environment import Backend, backend_of
from murmur.worlds.torch.rollcall import CountedRoll, NetRoll
from murmur.worlds.torch.store import NetStore, clone

Work = Any  # torch._C._distributed_c10d.Work


@dataclass(frozen=True)
class Wiring:
    """What all groups of one learner share.

    Attributes:
        store: keys of this launch.
        rank: the learner's position in the world.
        device: gloo's device, one for all groups: it owns a thread and descriptors.
        mail: its post office.
        hosts, devices: of all learners, in order of rank.
        timeout_seconds: how long a collective may take before its group is given up. Never infinite: an operation on
            a stopped learner can be neither aborted nor dropped.
        trace: where this learner's seconds go.
        lease_seconds: silence after which a learner counts as dead.
        late: whether the others have begun without this learner.
        rolls: lines to registers that groups of this learner have opened.
    """

    store: c10d.Store
    rank: int
    device: Any
    mail: PostOffice
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    timeout_seconds: float
    trace: Trace
    lease_seconds: float = 10.0
    late: bool = False
    rolls: list[Roll] = field(default_factory=list)


class Pending:
    """A collective under way; awaiting it blocks until it is done."""

    def __init__(self, work: Work, x: Tensor, finish: Callable[[Work, Tensor], Tensor]) -> None:
        self._work, self._x, self._finish = work, x, finish

    def __await__(self) -> Generator[Any, None, Tensor]:
        return self._finish(self._work, self._x)
        yield  # type: ignore[unreachable]  # what makes this a generator


class TorchGroup(Group):
    """Processes that work together; `members` are their positions in the world."""

    def __init__(self, wiring: Wiring, name: str, members: Sequence[int]) -> None:
        self.wiring, self.name, self.members = wiring, name, list(members)
        self.rank, self.size = self.members.index(wiring.rank), len(members)
        self._store = clone(wiring.store)  # kept: a store written in Python must outlive what C++ makes of it
        self._prefix = c10d.PrefixStore(name, self._store)
        self._splits = 0
        self._fastest: dict[int, float] = defaultdict(lambda: float("inf"))
        devices = [wiring.devices[m] for m in members]
        hosts = [wiring.hosts[m] for m in members]
        self.backend: Backend = backend_of(devices, hosts, dist.is_nccl_available())
        self._closed = False
        if not wiring.late:
            # All members are here. Two groups that two threads join in different orders would wait for each other.
            _ = self._group, self._nccl

    @cached_property
    def _group(self) -> Any:
        """gloo's group; a learner that comes late joins it with its first collective, and may never need one."""
        alone = self.size == 1 or self._closed
        return None if alone else _make_group(self._prefix, self.rank, self.size, self.wiring)

    @cached_property
    def _nccl(self) -> Any:
        nccl = self.backend == "nccl" and not self._closed
        return _make_nccl(self._prefix, self.rank, self.size) if nccl else None

    def close(self) -> None:
        """Drop the connections, so that members who still wait learn of it at once."""
        self._closed = True
        for name in ("_group", "_nccl"):
            self.__dict__.pop(name, None)

    async def _weigh(self, x: Tensor, weight: float) -> list[float]:
        if self._group is None:
            return [weight]
        # So small a message is nothing but waiting for the slowest learner.
        with self.wiring.trace.span(WAITING, f"mean of {self.name}"):
            return self._compare(x, weight, "mean")

    async def _mean(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        mine, positive = weights[self.rank], [w for w in weights if w > 0]
        equal = len(set(positive)) == 1
        scaled = x * (mine if not equal else 1.0) if mine > 0 else torch.zeros_like(x)
        with self.wiring.trace.span(COMMUNICATING, f"mean of {self.name}"):
            total = self._sum(scaled)
        return total.div_(len(positive) if equal else sum(positive))

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        if self._group is None:
            return Pending(None, x, lambda _, x: x)
        if x.device.type == "cuda" and self._nccl is None:
            return Pending(None, x, lambda _, x: x.copy_(self._sum(x)))
        work = (self._nccl or self._group).allreduce([x])
        return Pending(work, x, self._finish_sum)

    def _finish_sum(self, work: Work, x: Tensor) -> Tensor:
        start = self.wiring.trace.now()
        self._wait(work, "sum")
        end = self.wiring.trace.now()
        # The fastest sum of this size ever seen had nobody to wait for; what others take longer is waiting.
        self._fastest[x.numel()] = min(self._fastest[x.numel()], end - start)
        moving = start + self._fastest[x.numel()]
        self.wiring.trace.add(COMMUNICATING, start, moving, f"sum of {self.name}")
        self.wiring.trace.add(WAITING, moving, end, f"sum of {self.name}")
        return x

    def _sum(self, x: Tensor) -> Tensor:
        """The members' sum, in place where the backend can reach the device."""
        if self._group is None:
            return x
        if x.device.type == "cpu" or self._nccl is not None:
            self._wait((self._nccl or self._group).allreduce([x]), "sum")
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
        self._compare(x, 1.0, "broadcast")
        with self.wiring.trace.span(COMMUNICATING, f"broadcast of {self.name}"):
            self._wait(self._group.broadcast([there], options), "broadcast")
        return there.to(x.device)

    def post(self, x: Tensor, to: int, tag: str = "", note: Sequence[float] = ()) -> None:
        self.wiring.mail.post(x, self.members[to], f"{self.name} {tag}", note)

    async def recv(self, source: int | None = None, tag: str = "") -> Letter:
        whom = "anyone" if source is None else f"learner {self.members[source]}"
        seconds = self.wiring.timeout_seconds
        with self.wiring.trace.span(WAITING, f"a message {tag!r} from {whom}"):
            letter = self.wiring.mail.box.take(
                None if source is None else self.members[source],
                f"{self.name} {tag}",
                seconds,
                lambda: PeerLost(f"no message {tag!r} from {whom} in {self.name} within {seconds} s"),
            )
        return self._known(letter)

    async def hear(self, tag: str, seconds: float) -> Letter | None:
        letter = self.wiring.mail.box.wait(f"{self.name} {tag}", seconds)
        return None if letter is None else self._known(letter)

    def _known(self, letter: Letter) -> Letter:
        """A letter with its vector on this learner's device and its sender's rank in this group."""
        x = letter.x.to(self.wiring.devices[self.wiring.rank])
        return Letter(x, self.members.index(letter.source), letter.note)

    @cached_property
    def roll(self) -> Roll:
        store = self.wiring.store
        if isinstance(store, NetStore):
            name, lease = store.name_of(self.name), self.wiring.lease_seconds
            opened: Roll = NetRoll(store.line, name, self.rank, self.size, lease)
        else:
            opened = CountedRoll(self.count, self.rank, self.size)
        self.wiring.rolls.append(opened)
        return opened

    def split(self, parts: Sequence[Sequence[int]]) -> TorchGroup | None:
        self._splits += 1
        for number, part in enumerate(parts):
            if self.rank in part:
                return type(self)(self.wiring, f"{self.name}/{self._splits}.{number}", [self.members[r] for r in part])
        return None

    def count(self, counter: str, amount: int = 0) -> int:
        return int(self._prefix.add(f"count/{counter}", amount))

    def _compare(self, x: Tensor, weight: float, verb: str) -> list[float]:
        """The members' weights; their vectors must be alike, or gloo would read past the end of the shorter one."""
        assert self._group is not None
        mine = torch.tensor([weight, x.numel(), x.element_size()], dtype=torch.float64)
        all_ = [torch.empty_like(mine) for _ in range(self.size)]
        self._wait(self._group.allgather([all_], [mine]), verb)
        if any(not torch.equal(other[1:], mine[1:]) for other in all_):
            given = ", ".join(f"learner {m}: {int(n[1])}" for m, n in zip(self.members, all_, strict=True))
            raise WorldMismatch(f"the members of {self.name} gave vectors that differ ({given} elements): same model?")
        return [float(other[0]) for other in all_]

    def _wait(self, work: Work, verb: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise PeerLost(
                f"{verb} of {self.name}: a learner of {self.members} is gone or too late ({reason})"
            ) from error


def _make_group(store: c10d.Store, rank: int, size: int, wiring: Wiring) -> Any:
    options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [wiring.device]
    options._threads = 2
    options._timeout = timedelta(seconds=wiring.timeout_seconds)
    try:
        return c10d.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise PeerLost(f"learner {wiring.rank} could not reach all {size} learners: {error}") from error


def _make_nccl(store: c10d.Store, rank: int, size: int) -> Any:
    return c10d.ProcessGroupNCCL(c10d.PrefixStore("nccl", store), rank, size, c10d.ProcessGroupNCCL.Options())
