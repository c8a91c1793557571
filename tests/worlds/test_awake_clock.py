"""Clock without the pauses of its process, and the leases that run on it: pauses of all, of some, of the server."""

from __future__ import annotations

import math
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.worlds.awake_clock import PAUSE_SECONDS, TICK_SECONDS, AwakeClock, awake_clock, wait_awake
from murmur.worlds.process.membership_server import RESUME_SECONDS, Instant, MembershipServer

LEASE = 1.0


class Machine:
    """A process with a fake monotonic clock; its own clock is read at every tick, as by the thread of the real one."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.clock = AwakeClock(lambda: self.time)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            self.time += TICK_SECONDS
            self.clock()

    def pause(self, seconds: float) -> None:
        self.time += seconds


@given(st.lists(st.tuples(st.booleans(), st.floats(PAUSE_SECONDS + 0.01, 1e6)), max_size=20))
def test_the_clock_counts_the_time_between_pauses(course: list[tuple[bool, float]]) -> None:
    machine, ran, pauses = Machine(), 0.0, 0
    began = machine.clock()
    for paused, seconds in course:
        if paused:
            machine.pause(seconds)
            assert machine.clock.settles(RESUME_SECONDS)
            pauses += 1
        else:
            machine.run(min(seconds, 10.0))
            ran += TICK_SECONDS * round(min(seconds, 10.0) / TICK_SECONDS)
    assert machine.clock() - began == pytest.approx(ran + TICK_SECONDS * pauses, abs=1e-4)
    machine.run(RESUME_SECONDS)
    assert not machine.clock.settles(RESUME_SECONDS)


def test_a_process_has_one_clock_and_its_waits_end() -> None:
    assert awake_clock() is awake_clock()
    assert not wait_awake(Event().wait, 0.01)
    come = Event()
    come.set()
    assert wait_awake(come.wait, math.inf)


class Server:
    """A membership server on a fake machine, and the learners of a group."""

    def __init__(self, size: int) -> None:
        self.machine, self.size = Machine(), size
        self._served = MembershipServer(self._now())
        for rank in range(size):
            self.ask(rank, "enter", size=size, lease=LEASE, entry=60.0)

    def ask(self, rank: int, act: str, **more: Any) -> list[int]:
        answer = self._served.answer({"act": act, "group": "world", "rank": rank, **more}, self._now())
        return sorted(rank for rank, _ in answer["live"])

    def _now(self) -> Instant:
        return Instant(self.machine.clock(), self.machine.clock.settles(RESUME_SECONDS))

    def beat(self, rank: int) -> list[int]:
        return self.ask(rank, "beat", lease=LEASE)

    def run(self, seconds: float, awake: list[int]) -> list[int]:
        """Let time pass while some learners give signs of life; return the live ones."""
        live = list(range(self.size))
        for _ in range(round(seconds / TICK_SECONDS)):
            self.machine.run(TICK_SECONDS)
            for rank in awake:
                live = self.beat(rank)
        return live


ALL = [0, 1, 2]


@pytest.mark.parametrize("seconds", [2.0, 25.0, 3600.0])
@pytest.mark.parametrize("first", ALL)
def test_a_pause_of_all_loses_no_learner(seconds: float, first: int) -> None:
    server = Server(3)
    server.run(5.0, ALL)
    server.machine.pause(seconds)
    assert server.beat(first) == ALL  # it is continued before the others
    assert server.run(min(seconds, RESUME_SECONDS) - 2 * TICK_SECONDS, [first]) == ALL
    assert server.run(10.0, ALL) == ALL


def test_many_pauses_in_a_row_lose_no_learner() -> None:
    server = Server(3)
    for seconds in (3.0, 30.0, 2.0, 7.0):
        server.run(1.0, ALL)
        server.machine.pause(seconds)
    assert server.run(2.0, ALL) == ALL


def test_a_learner_that_is_not_continued_with_the_others_is_lost() -> None:
    server = Server(3)
    server.run(5.0, ALL)
    server.machine.pause(25.0)
    assert server.run(RESUME_SECONDS + LEASE + 1.0, [0, 2]) == [0, 2]


def test_a_short_pause_delays_the_loss_of_a_stopped_learner_by_no_more_than_itself() -> None:
    server, pause = Server(3), PAUSE_SECONDS + 0.1
    server.run(5.0, ALL)
    server.run(LEASE / 2, [0, 2])
    server.machine.pause(pause)
    assert server.run(pause + LEASE, [0, 2]) == [0, 2]


def test_a_learner_that_is_stopped_alone_is_lost_after_its_lease() -> None:
    server = Server(3)
    server.run(5.0, ALL)
    assert server.run(LEASE - TICK_SECONDS, [0, 2]) == ALL
    assert server.run(2 * TICK_SECONDS, [0, 2]) == [0, 2]
    server.machine.pause(25.0)
    assert server.run(1.0, [0, 2]) == [0, 2], "a pause of the others does not bring it back"
