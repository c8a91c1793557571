"""Loops of processes that give no sign of life for a while, because a call holds Python's lock."""

from __future__ import annotations

import math
import time

import pytest

from murmur.user_loop.joined import Plan
from murmur.worlds.process.launcher import Launch
from tests.support.learner_programs import python

pytestmark = pytest.mark.processes
HELD_SECONDS = 4  # 200 median steps
LOOP = """
import ctypes, time, torch, murmur
model = torch.nn.Linear(2, 1)
with murmur.join(murmur.SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.1){plan}) as me:
    for n in range(40):
        model(torch.ones(3, 2)).sum().backward()
        time.sleep(0.02)  # the store is told of a deadline from the median step
        if (me.rank, n) == (1, 30):
            ctypes.PyDLL(None).sleep({held})  # Python's lock is held: no other thread of the process runs
        me.step()
"""


def status(plan: str) -> tuple[int, float]:
    """Status of two learners with this plan, and the seconds that they took."""
    began = time.monotonic()
    program = LOOP.replace("{plan}", plan).replace("{held}", str(HELD_SECONDS))
    return Launch(lambda *_: python(program), 2, threads=1).run(), time.monotonic() - began


def test_a_loop_that_holds_pythons_lock_is_not_lost() -> None:
    found, seconds = status("")
    assert found == 0
    assert seconds > HELD_SECONDS


def test_a_plan_sets_the_lease() -> None:
    assert status(", murmur.Plan(lease_seconds=0.5)")[0] != 0


def test_a_plan_sets_the_longest_wait_for_a_learner_that_lives() -> None:
    assert status(", murmur.Plan(timeout_seconds=1.0)")[0] != 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_lease_is_positive_and_finite(seconds: float) -> None:
    with pytest.raises(ValueError, match="lease_seconds"):
        Plan(lease_seconds=seconds)
