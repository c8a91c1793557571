"""World of threads in one process: true concurrency without processes, for tests and laptops.

Gradients are computed one at a time, because torch's random generator belongs to the process and each gradient must
draw its own numbers. Averaging, sending and waiting run beside them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from threading import Condition, Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from murmur.core.group import Group, Message, PeerLost, check_alike, weighted_mean
from murmur.core.membership import NOTHING, LocalMembership, Membership, MembershipTable, Preparation, Shares, View
from murmur.core.trace import COMMUNICATING, COMPUTE, WAITING, Span, Trace
from murmur.core.world import Program
from murmur.worlds.real import Activity, Mailbox, RealSeat

T = TypeVar("T")


class ThreadHub:
    """State shared by the threads of one group."""

    def __init__(self, name: str, members: Sequence[int], timeout_seconds: float) -> None:
        self.name, self.members, self.timeout_seconds = name, list(members), timeout_seconds
        self.changed = Condition()
        self.meetings: dict[tuple[str, int], dict[int, Any]] = defaultdict(dict)
        self.left: dict[tuple[str, int], int] = defaultdict(int)
        self.gone: set[int] = set()
        self.failure: Exception | None = None
        self.boxes = [Mailbox() for _ in members]
        self.counters: dict[str, int] = defaultdict(int)
        self.parts: dict[str, ThreadHub] = {}
        self.table = MembershipTable.of(len(members))

    def meet(self, key: tuple[str, int], rank: int, value: Any) -> tuple[list[Any], float]:
        """Contribute a value and wait for all; return (values in order of rank, seconds waited)."""
        came = time.monotonic()
        with self.changed:
            given = self.meetings[key]
            given[rank] = value
            self.changed.notify_all()
            while len(given) < len(self.members):
                self._check(key, given)
                if not self.changed.wait(self.timeout_seconds):
                    absent = [self.members[r] for r in range(len(self.members)) if r not in given]
                    raise PeerLost(f"{key[0]} #{key[1]} of {self.name}: nothing from learners {absent}", absent[0])
            self.left[key] += 1
            if self.left[key] == len(self.members):
                del self.meetings[key], self.left[key]
            return [given[r] for r in range(len(self.members))], time.monotonic() - came

    def part(self, name: str, members: Sequence[int]) -> ThreadHub:
        """Return the state of a group of some members; those that have ended before it was made have ended there."""
        with self.changed:
            if name not in self.parts:
                made = self.parts[name] = ThreadHub(name, members, self.timeout_seconds)
                for rank in self.gone:
                    made.leave(self.members[rank], self.failure)
            return self.parts[name]

    def alive(self) -> None:
        """Raise PeerLost in all members if one has failed; the caller holds the lock."""
        if self.failure is not None:
            raise PeerLost(f"another learner failed: {self.failure}") from self.failure

    def _check(self, key: tuple[str, int], given: dict[int, Any]) -> None:
        self.alive()
        for rank in self.gone:
            if rank not in given:
                who = self.members[rank]
                raise PeerLost(f"{key[0]} #{key[1]} of {self.name} waits for learner {who}, which has ended", who)

    def leave(self, learner: int, failure: Exception | None) -> None:
        """Record that a learner has ended, with or without an error; end all waits for it."""
        with self.changed:
            if learner in self.members:
                self.gone.add(self.members.index(learner))
                if failure is None:  # after an error all fail, and none may save a checkpoint without this learner
                    self.table.leave(self.members.index(learner))
                for box in self.boxes:
                    box.lose(self.members.index(learner), PeerLost(f"learner {learner} has ended", learner))
            if failure is not None:
                self.failure = self.failure or failure
                for box in self.boxes:
                    box.fail(PeerLost(f"learner {learner} failed: {failure}", learner))
            parts = list(self.parts.values())
            self.changed.notify_all()
        for part in parts:
            part.leave(learner, failure)


class LockedMembership(Membership):
    def __init__(self, hub: ThreadHub, rank: int) -> None:
        self.hub, self.line = hub, LocalMembership(hub.table, rank)

    def view(self, fresh: bool = False) -> View:
        return self.line.view(fresh)  # a view is replaced, never changed

    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        with self.hub.changed:
            self.hub.alive()
            return self.line.claim(first, total, size)

    def divide(self, shares: Shares) -> None:
        with self.hub.changed:
            self.line.divide(shares)

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:
        with self.hub.changed:
            self.line.expect(seconds, preparation)

    def unfinished(self) -> Collection[int]:
        with self.hub.changed:
            return self.line.unfinished()

    @property
    def complete(self) -> bool:
        with self.hub.changed:
            return self.line.complete

    @property
    def spent(self) -> bool:
        with self.hub.changed:
            return self.line.spent

    @property
    def undone(self) -> int | None:
        with self.hub.changed:
            return self.line.undone

    def arrive(self, barrier: str) -> bool:
        with self.hub.changed:
            self.hub.alive()
            return self.line.arrive(barrier)

    def leave(self) -> None:
        with self.hub.changed:
            self.line.leave()


class ThreadGroup(Group):
    def __init__(self, hub: ThreadHub, rank: int, trace: Trace) -> None:
        self.hub, self.rank, self.trace = hub, rank, trace
        self.size, self.name = len(hub.members), hub.name
        self._calls: dict[str, int] = defaultdict(int)

    def _meet(self, verb: str, value: Any) -> list[Any]:
        self._calls[verb] += 1
        values, waited = self.hub.meet((verb, self._calls[verb]), self.rank, value)
        end = self.trace.now()
        self.trace.add(WAITING, end - waited, end, f"{verb} #{self._calls[verb]} of {self.name}")
        return values

    async def share_numbers(self, x: Tensor, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        given = self._meet("mean", (x, tuple(numbers)))
        check_alike([x for x, _ in given], self.name)
        return [said for _, said in given]

    async def mean_with(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        xs = self._meet("exchange of mean", x.clone())
        with self.trace.span(COMMUNICATING, f"mean of {self.name}"):
            return weighted_mean(xs, weights)

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        self._calls["sum"] += 1
        key = ("sum", self._calls["sum"])

        async def added() -> Tensor:
            return x.copy_(torch.stack(check_alike(self.hub.meet(key, self.rank, x.clone())[0], self.name)).sum(0))

        return Activity(
            added(), f"sum of {self.name}", lambda error: self.hub.leave(self.hub.members[self.rank], error)
        )

    def post(self, x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        self.hub.boxes[to].put(self.rank, tag, x.clone(), header)

    async def recv(self, source: int | None = None, tag: str = "") -> Message:
        whom = "anyone" if source is None else f"learner {self.hub.members[source]}"
        with self.trace.span(WAITING, f"a message {tag!r}"):
            return self.hub.boxes[self.rank].take(
                source,
                tag,
                self.hub.timeout_seconds if source is None else float("inf"),  # the end of a known learner is noticed
                lambda: PeerLost(f"no message {tag!r} from {whom} in {self.name} within {self.hub.timeout_seconds} s"),
            )

    async def poll(self, tag: str, seconds: float) -> Message | None:
        return self.hub.boxes[self.rank].wait(tag, seconds)

    @property
    def membership(self) -> Membership:
        return LockedMembership(self.hub, self.rank)

    async def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        return check_alike(self._meet("broadcast", x.clone()), self.name)[root].clone()

    def split(self, parts: Sequence[Sequence[int]]) -> ThreadGroup | None:
        self._calls["split"] += 1
        for number, part in enumerate(parts):
            if self.rank in part:
                name = f"{self.name}/{self._calls['split']}.{number}"
                hub = self.hub.part(name, [self.hub.members[r] for r in part])
                return ThreadGroup(hub, list(part).index(self.rank), self.trace)
        return None

    def count(self, counter: str, amount: int = 0) -> int:
        with self.hub.changed:
            self.hub.counters[counter] += amount
            return self.hub.counters[counter]


class ThreadSeat(RealSeat):
    def __init__(self, world: ThreadWorld, hub: ThreadHub, rank: int) -> None:
        super().__init__(rank, world.began, world.sink)
        self.world, self.hub = world, hub
        self.group = ThreadGroup(hub, rank, self.trace)

    async def work(self, job: Callable[[], T]) -> T:
        self.surface()
        with self.exclusive():
            result = self.compute(job)
        delay = self.world.delay(self.rank)
        if delay > 0:
            with self.trace.span(COMPUTE, "delay"):
                time.sleep(delay)
        self.surface()
        return result

    def exclusive(self) -> AbstractContextManager[object]:
        return self.world.turn

    def failed(self, error: Exception) -> None:
        self.hub.leave(self.rank, error)


class ThreadWorld:
    """`size` learners, one thread each.

    Args:
        size: Number of learners.
        timeout_seconds: Longest wait for another learner.
        delay: Extra seconds of a gradient, by learner (unequal speeds, for tests and demonstrations).
        sink: Receives the spans of the trace.
    """

    def __init__(
        self,
        size: int,
        timeout_seconds: float = 300.0,
        delay: Callable[[int], float] = lambda _: 0.0,
        sink: Callable[[Span], None] | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"a world needs at least one learner, got {size}")
        self.size, self.timeout_seconds, self.delay, self.sink = size, timeout_seconds, delay, sink
        self.turn = Lock()
        self.began = time.monotonic()

    def run(self, program: Program[T]) -> list[T]:
        """Run the program at every seat; raise the first error after all threads have ended."""
        self.began = time.monotonic()
        hub = ThreadHub("world", range(self.size), self.timeout_seconds)
        first: list[Exception] = []

        async def seated(rank: int) -> T:
            try:
                value = await program(ThreadSeat(self, hub, rank))
            except Exception as error:
                first.append(error)
                hub.leave(rank, error)
                raise
            hub.leave(rank, None)
            return value

        with torch.random.fork_rng(devices=[]):
            mains = [Activity(seated(rank), f"learner {rank}", lambda _: None) for rank in range(self.size)]
            for main in mains:
                main.join()
        if first:
            raise first[0]
        return [main.result() for main in mains]
