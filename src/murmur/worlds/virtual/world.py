"""A world on a virtual clock: real gradients, modelled seconds and bytes, one thread, the same bits every time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import torch

from murmur.group import PeerLost
from murmur.trace import COMPUTE, Span, Trace
from murmur.world import Program, Seat
from murmur.worlds.virtual.clock import Clock, Deadlock, Task
from murmur.worlds.virtual.cluster import Cluster, Kill
from murmur.worlds.virtual.group import Hub, VirtualGroup
from murmur.worlds.virtual.network import Network

T = TypeVar("T")


class VirtualSeat(Seat):
    """A learner of the virtual cluster."""

    def __init__(self, cluster: Cluster, hub: Hub, rank: int, sink: Callable[[Span], None] | None) -> None:
        clock = self.clock = hub.clock
        self.cluster, self.rank = cluster, rank
        self.trace = Trace(rank, lambda: clock.now, sink)
        self.group = VirtualGroup(hub, rank, self.trace)
        self._steps = 0
        self._spawned: list[Task[Any]] = []

    @property
    def now(self) -> float:
        return self.clock.now

    async def work(self, job: Callable[[], T]) -> T:
        """The gradient is real and taken now, at the start of its modelled seconds; then those pass."""
        self._surface()
        result = job()
        seconds = self.cluster.compute(self.rank, self._steps)
        self._steps += 1
        start = self.clock.now
        await self.clock.sleep(seconds, f"its gradient #{self._steps}")
        self.trace.add(COMPUTE, start, self.clock.now, f"gradient {self._steps}")
        self._surface()
        return result

    def spawn(self, activity: Coroutine[Any, Any, T], what: str) -> Awaitable[T]:
        task = self.clock.start(activity, what, self.rank)
        self._spawned.append(task)
        return task

    def _surface(self) -> None:
        for task in self._spawned:
            error = task.failed()
            if error is not None:
                raise RuntimeError(f"learner {self.rank}: its activity {task.what!r} failed: {error}") from error
        self._spawned = [task for task in self._spawned if not task.fired]


class VirtualWorld:
    """A simulated cluster.

    Attributes:
        cluster: what is simulated.
        clock, network: of the latest run: virtual seconds, number of events, bytes and messages a learner.
        killed: learners that the latest run's faults took away.
    """

    def __init__(self, cluster: Cluster | int, sink: Callable[[Span], None] | None = None) -> None:
        self.cluster = Cluster(learners=cluster) if isinstance(cluster, int) else cluster
        self.sink = sink
        self.clock = Clock()
        self.network = Network(self.clock, self.cluster)
        self.killed: list[int] = []

    @property
    def size(self) -> int:
        return self.cluster.learners

    def run(self, program: Program[T]) -> list[T]:
        """Run the program at every seat.

        Raises:
            PeerLost: learners wait for one that was killed.
            Deadlock: learners wait for each other.
        """
        clock = self.clock = Clock()
        self.network = Network(clock, self.cluster)
        self.killed = []
        hub = Hub(clock, self.network, "world", range(self.size))
        seats = [VirtualSeat(self.cluster, hub, rank, self.sink) for rank in range(self.size)]
        mains = [clock.start(_or_abort(clock, program(seat)), "training", seat.rank) for seat in seats]
        self._schedule_faults()
        with torch.random.fork_rng(devices=[]):
            try:
                clock.run()
            except Deadlock as stuck:
                if self.killed:
                    raise PeerLost(str(stuck), self.killed[0]) from stuck
                raise
            finally:
                clock.close()
        return [task.result() for rank, task in enumerate(mains) if rank not in self.killed]

    def _schedule_faults(self) -> None:
        for fault in self.cluster.faults:
            if isinstance(fault, Kill):
                self.clock.after(fault.at_seconds, lambda f=fault: self._kill(f))  # type: ignore[misc]
            else:
                self.clock.after(fault.at_seconds, lambda f=fault: self.clock.stop(f.learner, f.for_seconds))  # type: ignore[misc]

    def _kill(self, fault: Kill) -> None:
        self.killed.append(fault.learner)
        self.clock.notes.append(f"learner {fault.learner} was killed at t={fault.at_seconds:.3f}s")
        self.clock.kill(fault.learner)


async def _or_abort(clock: Clock, coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        return await coroutine
    except Exception as error:
        clock.abort(error)  # the others would wait for this learner for ever
        raise
