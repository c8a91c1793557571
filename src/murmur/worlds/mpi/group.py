"""Groups of learners with MPI's collectives; all else is as among processes on torch.distributed.

Every group has a communicator of its own, so that a mean beside the gradients and one between them cannot interfere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from murmur.core.group import PeerLost
from murmur.core.torch_private import c10d
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.mpi.progress import MpiProgress, Operation
from murmur.worlds.process.group import TorchGroup, Wiring

SUMMED = (torch.float32, torch.float64, torch.int64)  # other types have no counterpart in MPI and travel as float32
POLL_SECONDS = 1e-3


@dataclass(frozen=True, kw_only=True)
class MpiWiring(Wiring):
    """State shared by all groups of one learner.

    Attributes:
        mpi: mpi4py's MPI.
        comm: Communicator of all learners.
        progress: Thread that calls MPI.
    """

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
            time.sleep(POLL_SECONDS)


class Collectives:
    """Backend of `TorchGroup` on one communicator."""

    def __init__(self, wiring: MpiWiring, comm: Any) -> None:
        self._wiring, self._comm = wiring, comm

    def _begin(self, start: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> Operation:
        return self._wiring.progress.submit(start, finish, self._wiring.timeout_seconds)

    def allreduce(self, xs: list[Tensor]) -> Operation:
        """Add the members' vectors up, in place."""
        (x,) = xs
        summed = x if x.dtype in SUMMED else x.float()
        numbers = summed.numpy()
        return self._begin(
            lambda: self._comm.Iallreduce(self._wiring.mpi.IN_PLACE, numbers),
            lambda: None if summed is x else x.copy_(summed),
        )

    def allgather(self, outs: list[list[Tensor]], xs: list[Tensor]) -> Operation:
        """Send the members' vectors to all members."""
        (out,), (x,) = outs, xs
        numbers, all_ = x.numpy(), torch.empty(len(out), x.numel(), dtype=x.dtype)

        def finish() -> None:
            for mine, theirs in zip(out, all_, strict=True):
                mine.copy_(theirs)

        return self._begin(lambda: self._comm.Iallgather(numbers, all_.numpy()), finish)

    def broadcast(self, xs: list[Tensor], options: c10d.BroadcastOptions) -> Operation:
        """Send the root's vector to all members, in place."""
        raw = xs[0].view(torch.uint8).numpy()
        root = options.rootRank
        return self._begin(lambda: self._comm.Ibcast(raw, root))
