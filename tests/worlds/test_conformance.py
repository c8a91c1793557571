from __future__ import annotations

from collections.abc import Callable

import pytest

from murmur.core.world import Seat, World
from murmur.testing.worlds import check_group
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.before import Before
from tests.support.pool import Pool, PooledWorld


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


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "world", [VirtualWorld, lambda n: ThreadWorld(n, timeout_seconds=10)], ids=["virtual", "threads"]
)
def test_a_learner_may_come_late(world: Callable[[int], World], rank: int) -> None:
    async def late(seat: Seat) -> None:
        if seat.group.rank == rank:
            await seat.sleep(0.02)

    check_group(lambda size: Before(world(size), late), sizes=(2, 3))
