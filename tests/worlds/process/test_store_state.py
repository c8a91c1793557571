"""The store's state without IO: parked requests, replaced processes, answers without the view."""

from __future__ import annotations

import math
from typing import Any

import pytest

from murmur.worlds.process.membership_server import Instant
from murmur.worlds.process.store_state import SPARE_ENDS, Reply, StoreState


class Clients:
    """Clients of a state, each with one connection of its number."""

    def __init__(self) -> None:
        self.state, self.now = StoreState(Instant(0.0)), 0.0

    def send(self, client: int, value: bytes = b"", /, **head: Any) -> dict[int, dict[str, Any]]:
        """Send a request; return the heads of the replies by client."""
        return by_client(self.state.receive(client, head, value, Instant(self.now)))

    def member(self, client: int, act: str, **more: Any) -> dict[int, dict[str, Any]]:
        return self.send(client, do="membership", act=act, group="g", **{"rank": client, **more})

    def enter(self, client: int, rank: int, size: int = 2) -> int:
        return int(self.member(client, "enter", rank=rank, size=size, lease=10.0)[client]["process"])

    def pass_time(self, seconds: float) -> dict[int, dict[str, Any]]:
        self.now += seconds
        return by_client(self.state.pass_time(Instant(self.now)))


def by_client(replies: list[Reply]) -> dict[int, dict[str, Any]]:
    found = {reply.client: dict(reply.head) for reply in replies}
    assert len(found) == len(replies), "two replies to one request"
    return found


def test_a_wait_ends_with_its_last_key_or_its_time() -> None:
    clients = Clients()
    for client in range(3):
        assert clients.send(client, do="wait", keys=["a", "b"], seconds=5.0 + client) == {}
    assert clients.send(9, b"x", do="set", key="b") == {9: {}}
    assert clients.state.due() == 5.0
    assert clients.pass_time(5.0) == {0: {"missing": ["a"]}}
    assert by_client(clients.state.hang_up(1)) == {}
    assert clients.send(9, b"x", do="set", key="a") == {9: {}, 2: {"missing": []}}
    assert clients.state.due() == math.inf


def test_ends_of_requests_that_are_answered_are_dropped() -> None:
    clients = Clients()
    for _ in range(10 * SPARE_ENDS):
        assert clients.send(0, do="wait", keys=["a"], seconds=1000.0) == {}
        assert set(clients.send(1, b"x", do="set", key="a")) == {0, 1}
        clients.send(1, do="delete", key="a")
    assert len(clients.state._ends) <= SPARE_ENDS + 2
    assert not clients.state._waiting


def test_a_sign_of_life_is_answered_with_the_next_view() -> None:
    clients = Clients()
    for rank in range(2):
        clients.enter(rank, rank)
    beat = {"known": 0, "lease": 10.0, "seconds": 1.0}
    assert clients.member(0, "beat", **beat) == {}
    assert clients.pass_time(1.0) == {0: {"number": 0}}, "nothing new: the view is not repeated"
    assert clients.member(0, "beat", **beat) == {}
    (told,) = by_client(clients.state.hang_up(1)).values()
    assert (told["number"], told["live"]) == (1, [(0, 0)])


@pytest.mark.parametrize("act", ["claim", "arrive", "spent"])
def test_an_answer_leaves_out_a_view_that_is_known(act: str) -> None:
    clients = Clients()
    clients.enter(0, 0)
    more = {"first": 0, "total": 9, "size": 1, "doing": [], "done": [], "count": 1, "barrier": "b"}
    assert "live" in clients.member(0, act, **more)[0]
    assert "live" in clients.member(0, act, known=7, **more)[0]
    assert "live" not in clients.member(0, act, known=0, **more)[0]


def test_a_process_that_was_replaced_changes_nothing() -> None:
    clients = Clients()
    claim = {"rank": 0, "first": 0, "total": 4, "size": 1, "doing": [], "done": [], "count": 1}
    old = clients.enter(0, 0)
    new = clients.enter(10, 0)
    assert old != new
    assert clients.member(10, "claim", process=new, **claim)[10]["claims"] == [(0, 1)]
    assert clients.member(0, "claim", process=old, **claim)[0]["claims"] == []
    for act in ("leave", "fail"):
        clients.member(0, act, process=old, why="")
    clients.member(0, "beat", process=old, known=-1, lease=10.0, seconds=0.0)
    assert not clients.member(0, "arrive", process=old, barrier="b")[0]["all"]
    assert by_client(clients.state.hang_up(0)) == {}
    seen = clients.member(10, "unfinished", rank=0)[10]
    assert (seen["numbers"], dict(seen["live"])[0]) == ([0], new)
