"""Claims ahead of need: their times and numbers; none is lost or done twice."""

from __future__ import annotations

import time
from collections import deque
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.membership import Preparation
from murmur.worlds.process.claims import MOST_AHEAD, Holdings
from murmur.worlds.process.listener import listen
from murmur.worlds.process.membership_client import BEAT_SECONDS, StoreMembership
from murmur.worlds.process.store_server import StoreClient, StoreServer

seconds = st.floats(0.001, 10.0)


@given(pace=seconds, trip=seconds, elapsed=seconds, held=st.integers(0, 20))
def test_no_number_is_asked_for_before_two_round_trips_ahead(
    pace: float, trip: float, elapsed: float, held: int
) -> None:
    has = Holdings(
        range(1), deque(range(n, n + 1) for n in range(1, 1 + held)), due=pace, pace_seconds=pace, trips=deque([trip])
    )
    wanted = has.wanted(elapsed)
    last_needed_at = pace + (held + wanted - 1) * pace
    if wanted:
        assert last_needed_at <= elapsed + 2 * trip + 1e-6
    assert held + wanted <= max(held, MOST_AHEAD)
    if held + wanted < MOST_AHEAD:  # then every claim needed by now has been requested
        assert last_needed_at + pace > elapsed + 2 * trip - 1e-6
    until = has.seconds_until_wanted(elapsed)
    if held >= MOST_AHEAD:
        assert until is None  # otherwise the thread would poll without end
    else:
        assert until is not None
        assert (until > 0) == (wanted == 0) or until < 1e-6


def test_nothing_is_asked_for_where_none_are_left_or_no_gradient_is_under_way() -> None:
    for has in (Holdings(due=None, pace_seconds=1.0), Holdings(due=0.0, pace_seconds=1.0, none_left=True)):
        assert (has.wanted(100.0), has.seconds_until_wanted(100.0)) == (0, None)


class SlowLine:
    """Connection with slow requests, which it records."""

    def __init__(self, server: StoreServer, trip_seconds: float) -> None:
        self._line, self._trip_seconds = StoreClient(*server.address), trip_seconds
        self.acts: list[str] = []

    def call(self, head: dict[str, Any], value: bytes = b"") -> tuple[dict[str, Any], bytes]:
        self.acts.append(head["act"])
        time.sleep(self._trip_seconds)
        return self._line.call(head, value)

    def close(self) -> None:
        self._line.close()


class Member:
    """A learner's membership client, and the connections it opened: the second carries its signs of life."""

    def __init__(self, server: StoreServer, rank: int, size: int, trip_seconds: float) -> None:
        self.lines: list[SlowLine] = []
        self.membership = StoreMembership(lambda: self.open(server, trip_seconds), "group", rank, size, 60.0)

    def open(self, server: StoreServer, trip_seconds: float) -> SlowLine:
        self.lines.append(SlowLine(server, 0.0 if len(self.lines) == 1 else trip_seconds))
        return self.lines[-1]

    def work(self, total: int, gradient_seconds: float, at_most: int) -> list[int]:
        """Return the numbers in the order in which they were done."""
        done: list[int] = []
        while len(done) < at_most and (claim := self.membership.claim(0, total)) is not None:
            self.membership.expect(gradient_seconds)
            time.sleep(gradient_seconds)
            done.extend(claim)
        return done

    @property
    def direct_claims(self) -> int:
        return self.lines[0].acts.count("claim")


@pytest.fixture
def server() -> Any:
    serving = StoreServer(listen())
    yield serving
    serving.close()


@pytest.mark.parametrize("trip_seconds", [0.01, 0.06])  # shorter and longer than a gradient
def test_a_far_learner_waits_for_its_first_claim_and_its_last(server: StoreServer, trip_seconds: float) -> None:
    far = Member(server, 0, 1, trip_seconds)
    assert far.work(30, 0.03, at_most=100) == list(range(30))
    assert far.membership.spent
    assert far.direct_claims <= 4  # every other one was there when it was needed, or on its way
    far.membership.leave()


def test_a_near_learner_asks_when_it_needs_to(server: StoreServer) -> None:
    near = Member(server, 0, 1, 0.0)
    near.membership.claim(0, 5)
    near.membership.expect(100.0)
    assert near.membership._ahead._thread is None
    near.membership.leave()


def test_what_takes_time_to_prepare_is_claimed_ahead_and_begun(server: StoreServer) -> None:
    near, begun = Member(server, 0, 1, 0.0), list[int]()
    preparation = Preparation(0.02, begun.extend)
    for number in range(12):
        assert near.membership.claim(0, 12) == range(number, number + 1)
        # On a busy machine round trips are slow, and more claims are rightly requested ahead.
        assert number == 0 or begun[:number] == list(range(1, number + 1))
        near.membership.expect(0.05, preparation)
        time.sleep(0.05)
        most = time.monotonic() + 2.0  # the thread that claims ahead may come late on a busy machine
        while number < 11 and len(begun) <= number and time.monotonic() < most:
            time.sleep(0.005)
    assert near.membership.claim(0, 12) is None
    near.membership.leave()


def test_a_straggler_holds_nothing_that_others_could_do(server: StoreServer) -> None:
    slow, quick = Member(server, 0, 2, 0.05), Member(server, 1, 2, 0.0)
    assert slow.membership.claim(0, 20) == range(1)
    slow.membership.expect(4.0)
    assert quick.work(20, 0.001, at_most=100) == list(range(1, 20))
    assert not quick.membership.spent
    assert (slow.membership.claim(0, 20), quick.membership.spent) == (None, True)
    for member in (slow, quick):
        member.membership.leave()


def test_what_a_lost_learner_held_is_done_by_another(server: StoreServer) -> None:
    far, other = Member(server, 0, 2, 0.05), Member(server, 1, 2, 0.0)
    finished = far.work(40, 0.01, at_most=6)
    assert far.membership._ahead._has.held, "it holds some ahead"
    far.lines[1]._line._line.shutdown(2)  # as the system does for a killed process
    while other.membership.view().live != (1,):
        time.sleep(0.01)
    rest = other.work(40, 0.001, at_most=100)
    assert other.membership.spent
    assert set(finished) | set(rest) == set(range(40))
    assert len(rest) == len(set(rest))
    other.membership.leave()


def test_a_learner_considered_dead_drops_its_claims(server: StoreServer) -> None:
    far, other = Member(server, 0, 2, 0.05), Member(server, 1, 2, 0.0)
    far.work(40, 0.01, at_most=6)
    held = [n for claim in far.membership._ahead._has.held for n in claim]
    assert held
    server._state.membership._tables["group"].lose(0)
    assert set(held) <= set(other.work(40, 0.0, at_most=100))
    while 0 not in far.membership.view(fresh=True).live:  # its next sign of life brings it back
        time.sleep(0.01)
    assert far.membership.claim(0, 40) is None
    for member in (far, other):
        member.membership.leave()


def test_a_claim_before_news_of_a_loss_is_kept(server: StoreServer) -> None:
    """A request over a restored network is answered with a view that signs of life have not shown yet."""
    far, table = Member(server, 0, 2, 0.05), server._state.membership._tables["group"]
    first = far.work(60, 0.01, at_most=6)
    while far.membership._ahead._has.asking:
        time.sleep(0.01)
    unaware, far.membership._see = far.membership._see, lambda answer: None  # type: ignore[method-assign]
    before = far.membership._view
    time.sleep(2 * BEAT_SECONDS)  # the sign of life under way still reports its view
    table.lose(0)
    table.join(0)
    rest = far.work(60, 0.01, at_most=20)
    while far.membership._ahead._has.asking:
        time.sleep(0.01)
    assert far.membership._view is before, "it does not know yet"
    assert far.membership._ahead._has.held
    far.membership._see = unaware  # type: ignore[method-assign]
    while far.membership.view(fresh=True) is before:
        time.sleep(0.01)
    rest += far.work(60, 0.01, at_most=100)
    assert set(first) | set(rest) == set(range(60))
    assert far.membership.spent
    far.membership.leave()


def test_the_server_is_told_of_done_minibatches(server: StoreServer) -> None:
    far = Member(server, 0, 1, 0.02)
    far.work(40, 0.01, at_most=5)
    latest = far.membership.claim(0, 40)
    assert latest is not None
    table = server._state.membership._tables["group"]
    deadline = time.monotonic() + 10.0
    while (still := min(table._open[0])) < latest.start and time.monotonic() < deadline:
        time.sleep(0.01)
    assert still == latest.start
    far.membership.leave()


def test_nothing_is_asked_ahead_while_the_learner_asks_itself(server: StoreServer) -> None:
    far = Member(server, 0, 1, 0.02)
    assert far.work(5, 0.01, at_most=100) == list(range(5))  # the last claim went to the server directly
    assert far.membership._ahead._has.due is None
    far.membership.leave()


def test_a_broken_line_for_claims_is_told(server: StoreServer) -> None:
    far = Member(server, 0, 1, 0.05)
    far.work(100, 0.02, at_most=4)
    far.lines[2]._line._line.shutdown(2)
    with pytest.raises(ConnectionError, match="connection for claims"):
        far.work(100, 0.02, at_most=100)
    far.membership.leave()


def test_two_far_learners_cover_the_budget(server: StoreServer) -> None:
    both = [Member(server, rank, 2, 0.04) for rank in range(2)]
    done: list[list[int]] = [[], []]

    def run(rank: int) -> None:
        done[rank] = both[rank].work(50, 0.01 * (1 + rank), at_most=100)

    threads = [Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done[0] + done[1]) == list(range(50))
    for member in both:
        assert member.membership.spent
        member.membership.leave()
