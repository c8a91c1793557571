from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from murmur.core.world import Program, Seat, World
from murmur.testing.worlds import check_group
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from pool import Pool, PooledWorld


@pytest.mark.timeout(60)
def test_virtual_world() -> None:
    check_group(VirtualWorld)


@pytest.mark.timeout(60)
def test_virtual_world_with_unequal_learners() -> None:
    check_group(lambda size: VirtualWorld(Cluster(learners=size, compute=LognormalSeconds(sigma=1.0))))


@pytest.mark.timeout(60)
def test_thread_world() -> None:
    check_group(lambda size: ThreadWorld(size, timeout_seconds=10))


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_torch_world(pool: Pool) -> None:
    check_group(lambda size: PooledWorld(pool, size))


@dataclass(frozen=True)
class Late:
    """World whose learner of one rank comes late to every program."""

    world: World
    rank: int

    @property
    def size(self) -> int:
        return self.world.size

    def run(self, program: Program[Any]) -> list[Any]:
        return self.world.run(LateProgram(program, self.rank))


@dataclass(frozen=True)
class LateProgram:
    program: Program[Any]
    rank: int

    async def __call__(self, seat: Seat) -> Any:
        if seat.group.rank == self.rank:
            await seat.sleep(0.02)
        return await self.program(seat)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "world", [VirtualWorld, lambda n: ThreadWorld(n, timeout_seconds=10)], ids=["virtual", "threads"]
)
def test_a_learner_may_come_late(world: Callable[[int], World], rank: int) -> None:
    check_group(lambda size: Late(world(size), rank), sizes=(2, 3))
