"""Learners that count as lost near the end of a run and come back: the others have passed barriers without them."""

import random

import pytest

from murmur.core.learner import Strategy
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies.a2cid2 import A2CiD2
from murmur.strategies.adpsgd import ADPSGD
from murmur.strategies.own_shares import OwnShares
from murmur.strategies.quasi_global import QuasiGlobal
from murmur.worlds.virtual.cluster import Cluster, Kill, LognormalSeconds, Rejoin, Stop

MINIBATCHES = 40
LEASE_SECONDS = 0.05
MESSAGE_BYTES = 1e8  # exchanges take about as long as the lease, so that some are under way at any moment


def around_the_end(draw: random.Random, learners: int) -> list[Kill | Stop | Rejoin]:
    """Return faults of half of the learners: suspended before the end and back after it, or killed and started again.

    A few faults lie earlier, so that a learner that has ended its own work may be lost once more.
    """
    end = MINIBATCHES / learners * 0.1
    faults: list[Kill | Stop | Rejoin] = []
    for learner in draw.sample(range(learners), learners // 2):
        at = end * draw.uniform(0.3, 1.1)
        back = at + draw.uniform(LEASE_SECONDS, 0.8 * end)
        if draw.random() < 0.3:
            faults += [Kill(learner, at), Rejoin(learner, back)]
        else:
            faults.append(Stop(learner, at, back - at))
    return faults


@pytest.mark.parametrize("strategy", [ADPSGD(), A2CiD2(), QuasiGlobal(), OwnShares()], ids=lambda s: type(s).__name__)
def test_learners_do_not_wait_for_those_that_have_passed(strategy: Strategy) -> None:
    """A learner waited for exchanges, snapshots or means with learners that answered no more, and they for it."""
    for seed in range(120):
        draw = random.Random(seed)
        learners = draw.choice([2, 3, 4, 6, 8])
        cluster = Cluster(
            learners,
            LognormalSeconds(0.1, draw.choice([0.0, 0.2]), seed),
            message_bytes=MESSAGE_BYTES,
            faults=tuple(around_the_end(draw, learners)),
            lease_seconds=LEASE_SECONDS,
        )
        timing = time_strategy(strategy, cluster, MINIBATCHES)
        steps = sum(map(len, timing.staleness))
        assert steps >= MINIBATCHES or isinstance(strategy, OwnShares), f"seed {seed}: {steps} steps"
