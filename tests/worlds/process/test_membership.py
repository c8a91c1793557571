"""Membership tables in the store server: closed connections, expired leases, learners that return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

from murmur.core.membership import ENDED, MembershipTable
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.listener import listen
from murmur.worlds.process.membership_client import BEAT_SECONDS, CountedMembership, StoreMembership
from murmur.worlds.process.store_server import StoreClient, StoreServer

LONG_SECONDS = 60.0


@pytest.fixture
def server() -> Iterator[StoreServer]:
    serving = StoreServer(listen())
    yield serving
    serving.close()


def nothing() -> tuple[str, float]:
    return "", 0.0


def member(
    server: StoreServer,
    rank: int,
    size: int = 2,
    lease_seconds: float = LONG_SECONDS,
    waiting: Callable[[], tuple[str, float]] = nothing,
) -> StoreMembership:
    return StoreMembership(
        lambda: StoreClient(*server.address), "group", rank, size, lease_seconds, LONG_SECONDS, waiting
    )


def eventually(what: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return what()


def test_a_closed_line_is_a_death_long_before_the_lease(server: StoreServer) -> None:
    first, second = member(server, 0), member(server, 1)
    assert [second.claim(0, 2), first.claim(0, 2)] == [range(1), range(1, 2)]
    begun = awake_seconds()
    assert eventually(lambda: second._answered > begun)  # the server knows the line from its first sign of life on
    second._pulse._line.shutdown(2)  # as the system does for a killed process
    assert eventually(lambda: first.view().live == (0,))
    assert (first.claim(0, 2), first.spent) == (range(1), False)  # the claim of the lost one
    assert (first.claim(0, 2), first.spent) == (None, True)
    first.leave()


def test_a_learner_that_dies_before_its_first_sign_of_life_is_lost_at_once(server: StoreServer) -> None:
    first = member(server, 0)
    brief = StoreClient(*server.address)
    brief.call({"do": "membership", "act": "enter", "group": "group", "rank": 1, "size": 2, "lease": LONG_SECONDS})
    brief.close()
    assert eventually(lambda: first.view().live == (0,))
    first.leave()


def test_a_learner_that_enters_after_a_loss_knows_its_cause(server: StoreServer) -> None:
    brief = StoreClient(*server.address)
    brief.call({"do": "membership", "act": "enter", "group": "group", "rank": 1, "size": 2, "lease": LONG_SECONDS})
    brief.close()
    asking = StoreClient(*server.address)
    view = {"do": "membership", "act": "view", "group": "group", "rank": 0}
    assert eventually(lambda: asking.call(view)[0]["live"] == [[0, 0]])
    first = member(server, 0)
    assert list(first.lost) == [1]
    assert "process has ended" in first.lost[1]
    first.leave()


def test_a_process_that_ends_before_any_learner_has_entered_is_lost(server: StoreServer) -> None:
    launcher = StoreClient(*server.address)
    launcher.call({"do": "gone", "group": "group", "rank": 1, "why": "its process was killed"})
    first = member(server, 0)
    assert (first.view().live, dict(first.lost)) == ((0,), {1: "its process was killed"})
    again = member(server, 1)  # started again
    assert eventually(lambda: first.view().live == (0, 1))
    assert not first.lost
    again.leave()
    first.leave()


def test_silence_ends_with_the_lease(server: StoreServer) -> None:
    first = member(server, 0)
    silent = StoreClient(*server.address)  # enters, and gives no sign of life
    silent.call({"do": "membership", "act": "enter", "group": "group", "rank": 1, "size": 2, "lease": 0.3})
    assert first.view(fresh=True).live == (0, 1)
    assert eventually(lambda: first.view().live == (0,))
    silent.call(
        {"do": "membership", "act": "beat", "group": "group", "rank": 1, "lease": 60.0, "known": -1, "seconds": 0.0}
    )
    assert eventually(lambda: first.view().live == (0, 1))
    assert first.view().incarnations[1] > 0, "it is not taken for the one before"
    first.leave()


def test_a_learner_considered_lost_is_told(server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    runs_again = Event()

    def starve() -> tuple[str, float]:
        runs_again.wait(60)
        return "", 0.0

    first, starved = member(server, 0), member(server, 1, lease_seconds=0.3, waiting=starve)
    assert eventually(lambda: first.view().live == (0,))
    assert not caplog.text
    runs_again.set()
    assert eventually(lambda: "learner 1 was silent for longer than 0.30 s" in caplog.text)
    caplog.clear()
    starved.leave()
    first.leave()
    assert not caplog.text


def test_losses_are_reported_with_their_cause_before_the_view_shows_them(server: StoreServer) -> None:
    first, second = member(server, 0, 3), member(server, 1, 3)
    member(server, 2, 3).fail("before the reports")
    assert eventually(lambda: 2 not in first.view().live)
    reports: list[tuple[int, str, tuple[int, ...]]] = []
    first.report_losses(lambda rank, why: reports.append((rank, why, first.view().live)))
    second.fail("MemoryError: full")
    assert eventually(lambda: first.view().live == (0,))
    assert reports == [(1, "MemoryError: full", (0, 1))]
    with pytest.raises(RuntimeError, match="the losses of group are reported already"):
        first.report_losses(lambda rank, why: None)
    first.leave()


class SlowLine(StoreClient):
    """A connection whose last requests arrive after the learner's next signs of life."""

    def call(
        self, head: dict[str, Any], value: bytes = b"", seconds: float | None = None
    ) -> tuple[dict[str, Any], bytes]:
        if head["act"] in ("leave", "fail"):
            time.sleep(4 * BEAT_SECONDS)
        return super().call(head, value, seconds)


@pytest.mark.parametrize(("last", "told"), [("leave", {}), ("fail", {1: "MemoryError: full"})])
def test_the_last_request_of_a_learner_comes_before_the_end_of_its_signs_of_life(
    server: StoreServer, last: str, told: dict[int, str]
) -> None:
    first = member(server, 0)
    second = StoreMembership(lambda: SlowLine(*server.address), "group", 1, 2, LONG_SECONDS, LONG_SECONDS, nothing)
    reports: dict[int, str] = {}
    first.report_losses(reports.__setitem__)
    if last == "leave":
        second.leave()
    else:
        second.fail("MemoryError: full")
    assert eventually(lambda: first.view().live == (0,))
    assert first.lost == told
    assert reports == (told or {1: "it has ended"})
    first.leave()


def test_another_process_of_a_learner_is_another_incarnation(server: StoreServer) -> None:
    first, second = member(server, 0), member(server, 1)
    before = first.view().incarnations[1]
    again = member(server, 1)
    assert eventually(lambda: first.view().incarnations.get(1, -1) > before)
    assert second.rank == 1  # kept alive until here: its own connection has not closed
    assert again.claim(0, 1) == range(1)
    again.leave()
    first.leave()


def test_without_its_server_a_learner_is_told(server: StoreServer) -> None:
    membership = member(server, 0, size=1)
    membership._pulse._line.shutdown(2)
    membership._line._line.shutdown(2)
    with pytest.raises(ConnectionError):
        membership.claim(0, 1)
    assert eventually(lambda: membership._failure is not None)
    with pytest.raises(ConnectionError, match="learner 0 cannot reach the store"):
        membership.view()


def test_leaving_before_the_end_does_not_end_the_run() -> None:
    table = MembershipTable.of(3)
    table.leave(2)
    assert table.view.left == 0
    table.arrive(1, ENDED)
    table.leave(1)
    assert (table.view.left, table.view.live) == (1, (0,))


def test_counters_can_stand_for_a_register() -> None:
    counters: dict[str, int] = {}

    def count(name: str, amount: int) -> int:
        counters[name] = counters.get(name, 0) + amount
        return counters[name]

    memberships = [CountedMembership(count, rank, 2) for rank in range(2)]
    assert [memberships[0].claim(3, 6), memberships[1].claim(3, 6, 2), memberships[0].claim(3, 6)] == [
        range(3, 4),
        range(4, 6),
        None,
    ]
    assert (memberships[1].claim(3, 6), memberships[1].spent) == (None, True)
    assert (memberships[0].claim(3, 6), memberships[0].spent) == (None, True)
    assert [
        memberships[0].arrive("a"),
        memberships[0].arrive("a"),
        memberships[1].arrive("a"),
        memberships[0].arrive("a"),
    ] == [
        False,
        False,
        True,
        True,
    ]


def test_a_learner_that_is_not_started_again_is_reported_to_those_that_came_after_its_loss(server: StoreServer) -> None:
    first, found = member(server, 0, size=4), {rank: list[int]() for rank in (0, 1, 3)}
    first.report_losses(lambda rank, _: found[0].append(rank))
    launcher = StoreClient(*server.address)
    gone = {"do": "gone", "group": "group", "rank": 2, "why": "its process ended with signal 9"}
    launcher.call(gone)
    assert eventually(lambda: found[0] == [2])
    second = member(server, 1, size=4)  # it may wait for learner 2, which may be started again
    second.report_losses(lambda rank, _: found[1].append(rank))
    second.view(fresh=True)
    assert found[1] == []
    launcher.call({**gone, "final": True})
    assert eventually(lambda: found[1] == [2])
    third = member(server, 3, size=4)
    third.report_losses(lambda rank, _: found[3].append(rank))
    assert found[3] == [2]
    assert set(found[0]) == {2}
    for each in (first, second, third):
        each.leave()
    launcher.close()


def test_a_learner_that_was_given_up_and_comes_back_is_no_longer_final(server: StoreServer) -> None:
    first, launcher, found = member(server, 0), StoreClient(*server.address), list[int]()
    launcher.call({"do": "gone", "group": "group", "rank": 1, "why": "is stopped", "final": True})
    second = member(server, 1)
    late = member(server, 0)
    late.report_losses(lambda rank, _: found.append(rank))
    assert found == []
    for each in (first, second, late):
        each.leave()
    launcher.close()
