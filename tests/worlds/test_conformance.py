from __future__ import annotations

import pytest

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
