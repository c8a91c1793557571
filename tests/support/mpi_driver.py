"""Programs of an MPI launch for the tests: python mpi_driver.py PROGRAM. Learner 0 prints the results."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from murmur.core.world import Program, Seat
from murmur.strategies import ADPSGD, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.testing.worlds import check_group
from murmur.worlds.mpi.world import MpiWorld, open_mpi
from tests.support.user_loops import ForeignLoop, moved

TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True)
class BatchedExecutor:
    """World of the first `size` processes of the launch; every process gets the values of all, or the first error."""

    size: int

    def run(self, program: Program[Any]) -> list[Any]:
        everybody = open_mpi().COMM_WORLD
        part = everybody.Split(int(everybody.rank < self.size))
        given: tuple[bool, Any] = (True, None)
        if everybody.rank < self.size:
            try:
                given = True, MpiWorld(timeout_seconds=TIMEOUT_SECONDS, comm=part).run(program)[0]
            except Exception as error:
                given = False, error
        answers = everybody.allgather(given)[: self.size]
        for good, error in answers:
            if not good:
                raise error
        return [value for _, value in answers]


def conformance() -> None:
    check_group(BatchedExecutor, sizes=(1, 3, 4))


def joined() -> None:
    """Run uneven user loops, which end with the same bits on all learners."""
    for strategy in (SyncSGD(), KAVG(3), DelayByOne(), ADPSGD(), SuperLearners(SyncSGD(), 2)):
        ends = BatchedExecutor(4).run(ForeignLoop(strategy, (17, 19, 18, 11)))
        assert moved(ends[0][0]), strategy
        assert all(torch.equal(end, ends[0][0]) for end, _ in ends), strategy


def _fail() -> None:
    raise ValueError("planted")


def _signalled(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _one_ends(how: Callable[[], None], busy_seconds: float = 0.0) -> Program[None]:
    """Let learner 1 end between two means, while learner 2 computes for `busy_seconds` and receives nothing."""

    async def program(seat: Seat) -> None:
        await seat.group.mean(torch.zeros(3))
        if seat.group.rank == 1:
            print(f"failed at {time.time()}", flush=True)
            how()
        if seat.group.rank == 2:
            time.sleep(busy_seconds)
        await seat.group.mean(torch.zeros(3))

    return program


def in_world(program: Program[None]) -> None:
    MpiWorld(timeout_seconds=TIMEOUT_SECONDS, lease_seconds=2.0).run(program)


def leaves_before() -> None:
    """End a process between the meeting of all and its seat."""
    world = MpiWorld(timeout_seconds=TIMEOUT_SECONDS)
    if world.place.rank == 1:
        print(f"failed at {time.time()}", flush=True)
        raise SystemExit("nothing to train on here")
    world.run(_one_ends(_fail, 60.0))


PROGRAMS = {
    "conformance": conformance,
    "joined": joined,
    "one fails": lambda: in_world(_one_ends(_fail, 60.0)),
    "one is killed": lambda: in_world(_one_ends(_signalled(signal.SIGKILL))),
    "one stops": lambda: in_world(_one_ends(_signalled(signal.SIGSTOP))),
    "leaves before": leaves_before,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        PROGRAMS[name]()
        if open_mpi().COMM_WORLD.rank == 0:
            print(f"{name}: good", flush=True)
        open_mpi().COMM_WORLD.Barrier()  # after failed runs, the first process to end aborts the launch and its output
