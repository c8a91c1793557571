"""World on a virtual clock: real gradients, modelled seconds and bytes, one thread, the same bits every time.

A gradient is a function of the weights at its start, which its learner's model keeps, and of its minibatch. It may
therefore be computed at any moment until its modelled seconds are over. When the first gradient under way is needed,
all of them are computed in one call. For learners at the same pace, nearly all are in every call, whatever the jitter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from murmur.core.group import PeerLost
from murmur.core.membership import MembershipTable
from murmur.core.source import ComputeBatch, Gradient, PendingGradient
from murmur.core.trace import COMPUTE, Span, Trace, Transfer
from murmur.core.weights import Weights
from murmur.core.world import Program, Seat
from murmur.worlds.virtual.clock import Clock, ClockTask, Deadlock, EventKind
from murmur.worlds.virtual.cluster import Cluster, Kill, MeasuredSeconds, Rejoin, Stop
from murmur.worlds.virtual.group import VirtualGroup, VirtualHub
from murmur.worlds.virtual.network import Network

T = TypeVar("T")


class GradientExecutor:
    """Computes each gradient when it begins, or, when one is needed, all that have begun in one call of `together`."""

    def __init__(self, together: ComputeBatch | None) -> None:
        self._together = together
        self._waiting: list[PendingGradient] = []
        self._done: dict[PendingGradient, Gradient] = {}

    def begin(self, job: Callable[[], T]) -> Callable[[], T]:
        """Add a gradient to those under way, or do a job at once; return a function that returns the result."""
        together = self._together
        if together is None or not isinstance(job, PendingGradient):
            result = job()
            return lambda: result
        job.begin()
        self._waiting.append(job)
        return lambda: self._result(job, together)

    def forget(self, job: Callable[[], Any]) -> None:
        """Drop a gradient whose learner is gone, or has it."""
        if isinstance(job, PendingGradient):
            self._done.pop(job, None)
            if job in self._waiting:
                self._waiting.remove(job)

    def _result(self, job: PendingGradient, together: ComputeBatch) -> Any:
        if job not in self._done:
            waiting, self._waiting = self._waiting, []
            for pending, gradient in zip(waiting, together(waiting), strict=True):
                pending.end()
                self._done[pending] = gradient
        return self._done[job]


class VirtualSeat(Seat):
    def __init__(
        self, world: VirtualWorld, hub: VirtualHub, executor: GradientExecutor, rank: int, late: bool = False
    ) -> None:
        self.late, self.device = late, world.device
        clock = self.clock = hub.clock
        self.cluster, self.rank = world.cluster, rank
        self._executor = executor
        self.trace = Trace(rank, lambda: clock.now, world.sink)
        self.group = VirtualGroup(hub, rank, self.trace)
        self._network = hub.network
        self._steps = 0
        self._spawned: list[ClockTask[Any]] = []

    @property
    def now(self) -> float:
        return self.clock.now

    async def work(self, job: Callable[[], T]) -> T:
        """Compute a real gradient of the weights at the start of its modelled seconds, and let those pass."""
        self._surface()
        result = self._executor.begin(job)
        try:
            seconds = self.cluster.compute(self.rank, self._steps)
            self._steps += 1
            self._network.gradient_seconds[self.rank] = seconds
            start = self.clock.now
            await self.clock.sleep(seconds, f"its gradient #{self._steps}", EventKind.WORK)
            self.trace.add(COMPUTE, start, self.clock.now, f"gradient {self._steps}")
            self._surface()
            return result()
        finally:
            self._executor.forget(job)

    def loop_computed(self, seconds: float) -> None:
        compute = self.cluster.compute
        if isinstance(compute, MeasuredSeconds):
            compute.note(self.rank, seconds)

    def counted(self) -> Mapping[str, list[float]]:
        return {"sent_bytes": [self._network.sent_bytes[learner] for learner in range(self.cluster.learners)]}

    def holds(self, weights: Weights) -> None:
        self._network.whole, self._network.element_bytes = weights.layout.numel, weights.layout.dtype.itemsize

    async def sleep(self, seconds: float) -> None:
        self._surface()  # a learner that only polls must learn that its averaging has failed
        await self.clock.sleep(seconds, f"{seconds:.3g} s to pass", EventKind.POLL)

    def spawn(self, activity: Coroutine[Any, Any, T], what: str) -> Awaitable[T]:
        task = self.clock.start(activity, what, self.rank)
        self._spawned.append(task)
        return task

    def _surface(self) -> None:
        for task in self._spawned:
            error = task.error
            if isinstance(error, PeerLost):
                raise error  # it is not a failure of the activity itself
            if error is not None:
                raise RuntimeError(f"learner {self.rank}: its activity {task.what!r} failed: {error}") from error
        self._spawned = [task for task in self._spawned if not task.fired]


class VirtualWorld:
    """A simulated cluster.

    Attributes:
        cluster: Cluster to simulate.
        sink: Receives every learner's spans of time.
        together: Computes gradients of many learners in one call; None: each is computed alone.
        sent_bytes: Bytes sent by each learner before this launch, if the run is continued.
        device: Device of all models and vectors, such as "cuda".
        transfers: As that of the network (`Network`).
        clock, network: Clock and network of the latest run, with virtual seconds, events, bytes and messages.
        killed: Learners killed by the latest run's faults, or that gave up after the loss of another one.
    """

    def __init__(
        self,
        cluster: Cluster | int,
        sink: Callable[[Span], None] | None = None,
        together: ComputeBatch | None = None,
        sent_bytes: Sequence[float] = (),
        device: str = "cpu",
        transfers: Callable[[Transfer], None] | None = None,
    ) -> None:
        self.transfers = transfers
        self.cluster = Cluster(learners=cluster) if isinstance(cluster, int) else cluster
        self.sink, self.together, self.sent_bytes, self.device = sink, together, sent_bytes, device
        self.clock = Clock()
        self.network = Network(self.clock, self.cluster)
        self.killed: list[int] = []

    @property
    def size(self) -> int:
        return self.cluster.learners

    def run(self, program: Program[T]) -> list[T]:
        """Run the program at every seat; return the values of the learners that reached the end, in order of rank.

        Raises:
            PeerLost: Learners wait for one that was killed, or none reached the end but those that came too late.
            Deadlock: Learners wait for each other.
        """
        clock = self.clock = Clock()
        self.network = Network(clock, self.cluster)
        self.network.transfers = self.transfers
        self.network.sent_bytes.update(enumerate(self.sent_bytes))
        self.killed = []
        run = _Run(self, VirtualHub(clock, self.network, "world", range(self.size)), program)
        for rank in range(self.size):
            run.start(rank, late=False)
        for fault in self.cluster.faults:
            clock.after(fault.at_seconds, partial(run.happen, fault), EventKind.WORK)
        with torch.random.fork_rng(devices=[]):
            try:
                clock.run()
            except (Deadlock, PeerLost) as stuck:
                if self.killed:
                    raise PeerLost("\n".join([str(stuck), *clock.notes]), self.killed[0]) from stuck
                raise
            finally:
                clock.close()
        ended = [rank for rank in range(self.size) if not run.is_lost(rank)]
        if run.has_no_end(ended):
            what = "all learners were lost before the end" if run.first_loss is None else str(run.first_loss)
            first = self.killed[0] if run.first_loss is None else run.first_loss.learner
            raise PeerLost("\n".join([what, *clock.notes]), first)
        return [run.mains[rank].result() for rank in ended]


class _Run(Generic[T]):
    """One run of a world: its learners and their faults."""

    def __init__(self, world: VirtualWorld, hub: VirtualHub, program: Program[T]) -> None:
        self.world, self.hub, self.program, self.clock = world, hub, program, hub.clock
        self.mains: dict[int, ClockTask[T]] = {}
        self.seats: dict[int, VirtualSeat] = {}
        self.first_loss: PeerLost | None = None
        self._executor = GradientExecutor(world.together)

    def start(self, rank: int, late: bool) -> None:
        seat = self.seats[rank] = VirtualSeat(self.world, self.hub, self._executor, rank, late)
        self.mains[rank] = self.clock.start(self._seated(seat), "training", rank)

    async def _seated(self, seat: VirtualSeat) -> T:
        try:
            value = await self.program(seat)
        except PeerLost as error:
            self.first_loss = self.first_loss or error
            self.clock.after(0.0, partial(self._crash, seat.rank, error))  # after the end of this program
            raise
        except Exception as error:
            self.clock.abort(error)  # the others would wait for this learner for ever
            raise
        self.hub.leave(seat.rank)
        self.clock.after(0.0, partial(self.clock.kill, seat.rank))  # activities that are left end with the process
        return value

    def happen(self, fault: Kill | Stop | Rejoin) -> None:
        main = self.mains[fault.learner]
        if main.fired or (main.dead and not isinstance(fault, Rejoin)):
            return  # it has ended already, or no process is there to kill or to suspend
        if isinstance(fault, Kill):
            self._end(fault.learner, f"was killed at t={fault.at_seconds:.3f}s")
        elif isinstance(fault, Stop):
            self.clock.stop(fault.learner, fault.for_seconds)
            if fault.for_seconds > self.world.cluster.lease_seconds:
                self._lease_ends(fault.learner)
                self._return_after(fault.for_seconds, fault.learner)
        elif fault.learner in self.world.killed and any(
            not main.fired and not main.dead for main in self.mains.values()
        ):
            self.world.killed.remove(fault.learner)
            self.clock.notes.append(f"learner {fault.learner} was started again at t={fault.at_seconds:.3f}s")
            self.hub.lose(fault.learner)  # its lease may not have ended, but another process has its place now
            self.hub.everywhere(fault.learner, MembershipTable.join)
            self.hub.welcome(fault.learner)
            self.start(fault.learner, late=True)

    def is_lost(self, rank: int) -> bool:
        """True if a learner did not reach the end of the run."""
        return rank in self.world.killed or isinstance(self.mains[rank].error, PeerLost)

    def has_no_end(self, ended: Sequence[int]) -> bool:
        """True if no learner has written the model: those that ended came too late, and the others were lost."""
        seats = [self.seats[rank] for rank in ended]
        gave_up = self.first_loss is not None and not any(seat.waits for seat in seats)
        return gave_up or all(seat.missed for seat in seats)

    def _crash(self, learner: int, why: PeerLost | str) -> None:
        """End a learner that cannot go on after a loss, its own or of another one; the others may go on."""
        self._end(learner, f"gave up at t={self.clock.now:.3f}s: {why}")

    def _end(self, learner: int, note: str) -> None:
        self.world.killed.append(learner)
        self.clock.notes.append(f"learner {learner} {note}")
        self.clock.kill(learner)
        self.hub.forget(learner)
        self._lease_ends(learner)

    def _lease_ends(self, learner: int) -> None:
        """Let the lease of a learner end that renews it no more."""
        lease = self.world.cluster.lease_seconds
        self.clock.after(lease, partial(self._expire, learner, self.mains[learner]), EventKind.WORK)

    def _expire(self, learner: int, main: ClockTask[T]) -> None:
        """End a learner's lease, unless it was started again in the meantime."""
        if self.mains[learner] is main:
            self.hub.lose(learner)

    def _return_after(self, seconds: float, learner: int) -> None:
        self.clock.after(seconds, partial(self._return, learner, self.mains[learner]), EventKind.WORK)

    def _return(self, learner: int, main: ClockTask[T]) -> None:
        """Take a suspended learner in again whose lease has ended, unless the others have ended the run without it.

        It goes on alone if minibatches are left, as those of its own share are.
        """
        if self.mains[learner] is not main or main.dead or main.fired:
            return  # another process may have its place now
        if (pause := self.clock.pause_of(learner)) > 0:  # it was suspended again in the meantime
            self._return_after(pause, learner)
            return
        if learner in self.hub.table.view.incarnations:
            return
        others = [main for rank, main in self.mains.items() if rank != learner and not self.is_lost(rank)]
        if others and all(main.fired for main in others) and self.hub.table.spent:
            self._crash(learner, "the others had ended the run before it came back")
            return
        self.hub.dead.discard(learner)
        self.hub.everywhere(learner, MembershipTable.join)
