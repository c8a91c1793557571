"""Wait of learners at start: its messages, and its ends."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event, Thread

import pytest

from murmur.core.group import PeerLost
from murmur.worlds.process.launch import arrival
from murmur.worlds.process.launch.addresses import check_meeting_point
from murmur.worlds.process.launch.arrival import Arrival
from murmur.worlds.process.launch.environment import COME_KEY, READY_KEY, Place, addresses_of, place_of
from murmur.worlds.process.membership.client import StoreMembership
from murmur.worlds.process.store.server import PURPOSE, StoreClient, StoreServer
from murmur.worlds.process.store.torch_store import NetStore, connect
from murmur.worlds.process.transport.listener import Listener, listen
from murmur.worlds.process.world import ProcessWorld

NOWHERE = "no-such-host.invalid"
PLACE = Place(0, 4, 0, "127.0.0.1", 0, store="learner 0", named_by="SLURM_STEP_NODELIST")
LONG_SECONDS = 300.0  # far longer than any of these tests


@pytest.fixture
def server() -> Iterator[StoreServer]:
    serving = StoreServer(listen())
    yield serving
    serving.close()


@pytest.fixture
def store(server: StoreServer) -> NetStore:
    """Store of four learners: 0 and 2 are here, 1 has come and is not ready, 3 has never come."""
    found = NetStore(StoreClient(*server.address, timeout_seconds=30), "")
    for rank, host in ((0, "a"), (2, "c"), (1, "b")):
        found.set(f"{COME_KEY}/{rank}", f"{host} cpu")
    for rank in (0, 2):
        found.set(f"{READY_KEY}/{rank}", "")
    return found


def within(seconds: float, what: Callable[[], object]) -> object:
    """Return the result, or the error, of a call that might otherwise wait for minutes."""
    found: list[object] = []

    def work() -> None:
        try:
            found.append(what())
        except Exception as error:
            found.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"still waiting after {seconds} s"
    return found[0]


def test_all_that_have_not_come_are_named_and_so_are_those_that_have(
    store: NetStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(arrival, "TELL_SECONDS", 0.2)
    store.delete_key(f"{COME_KEY}/1")
    with caplog.at_level(logging.WARNING), pytest.raises(PeerLost) as caught:
        Arrival(store, 0, 4, 1.0, dict).wait()
    named = "learners 1, 3 have not come to the store, here: learner 0 (a), learner 2 (c)"
    assert named in str(caught.value)
    assert "after 1 s (--start-seconds)" in str(caught.value)
    assert 2 <= len(caplog.messages) <= 4
    assert all(line.startswith("learner 0 waits until ") and named in line for line in caplog.messages)


def test_one_that_has_come_and_is_not_ready_is_named_with_its_host(store: NetStore) -> None:
    with pytest.raises(PeerLost, match=r"learner 3 has not come to the store, learner 1 \(b\) has come and is still"):
        Arrival(store, 0, 4, 0.2, dict).wait()


def test_a_loss_ends_the_wait_at_once(server: StoreServer, store: NetStore) -> None:
    def membership(rank: int) -> StoreMembership:
        return StoreMembership(lambda: StoreClient(*server.address), "world", rank, 4, 60.0)

    memberships = [membership(rank) for rank in range(2)]
    line = StoreClient(*server.address)
    Thread(
        target=lambda: [
            time.sleep(0.3),
            line.call({"do": "gone", "group": "world", "rank": 3, "why": "its process ended with signal 9"}),
        ],
        daemon=True,
    ).start()

    def lost() -> dict[int, str]:
        return dict(memberships[0].lost)

    error = within(30, Arrival(store, 0, 4, LONG_SECONDS, lost).wait)
    assert isinstance(error, PeerLost)
    assert error.learner == 3  # which had never come to the store
    assert "learner 3 is lost: its process ended with signal 9" in str(error)
    memberships[1].fail("ValueError: no such folder")
    deadline = time.monotonic() + 20
    while 1 not in lost() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(PeerLost, match=r"learner 1 \(b\) is lost: ValueError: no such folder"):
        Arrival(store, 0, 4, LONG_SECONDS, lambda: {1: lost()[1]}).wait()
    memberships[0].leave()


def test_learners_end_soon_after_one_that_is_not_waited_for(server: StoreServer) -> None:
    """Two of three come. The second gives up first; the first, with minutes left, gives up soon after it."""

    def world(rank: int, seconds: float) -> ProcessWorld:
        return ProcessWorld(Place(rank, 3, rank, *server.address), start_seconds=seconds, timeout_seconds=60)

    first: list[object] = []
    waiting = Thread(target=lambda: first.append(within(60, lambda: world(0, LONG_SECONDS).run(None))), daemon=True)  # type: ignore[arg-type]
    waiting.start()
    StoreClient(*server.address).wait([f"generation-0/{READY_KEY}/0"], 60)  # gloo's devices are opened one by one
    second = within(60, lambda: world(1, 1.0).run(None))  # type: ignore[arg-type]
    assert isinstance(second, PeerLost)
    assert "learner 2 has not come" in str(second)
    waiting.join(60)
    assert isinstance(first[0], PeerLost)
    assert "learner 1" in str(first[0])
    assert "it gave up after the loss of learner 2" in str(first[0])


def test_a_name_without_an_address_says_where_it_comes_from_and_what_to_set() -> None:
    for call in (
        lambda: addresses_of(NOWHERE, "SLURM_STEP_NODELIST"),
        lambda: check_meeting_point(replace(PLACE, host=NOWHERE)),
    ):
        with pytest.raises(
            ValueError, match=f"'{NOWHERE}' \\(from SLURM_STEP_NODELIST\\) has no address.*set MASTER_ADDR"
        ):
            call()
    later = replace(PLACE, rank=2, host=NOWHERE)
    with pytest.raises(ValueError, match="SLURM_STEP_NODELIST"):
        check_meeting_point(later)  # only learner 0 tries the port
    error = within(60, lambda: StoreClient(NOWHERE, 1, LONG_SECONDS))
    assert isinstance(error, ConnectionError)


def test_the_name_of_slurms_first_host_is_attributed_to_slurm() -> None:
    slurm = {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "7",
    }
    found = [place_of(slurm), place_of({**slurm, "MASTER_ADDR": "n1"})]
    assert [place and place.named_by for place in found] == ["SLURM_STEP_NODELIST", "MASTER_ADDR"]


def test_a_port_that_cannot_be_opened_is_told_with_its_host_and_what_to_set() -> None:
    with listen() as taken:
        port = taken.getsockname()[1]
        place = replace(PLACE, port=port)
        with pytest.raises(
            ValueError, match=f"127.0.0.1:{port}: Address already in use; set MASTER_ADDR .* MASTER_PORT"
        ):
            check_meeting_point(place)
        with pytest.raises(ValueError, match=f"127.0.0.1:{port}: Address already in use"):
            connect(place, 1.0)
        check_meeting_point(replace(place, rank=1))  # it opens nothing
    elsewhere = replace(PLACE, host="192.0.2.1", port=port)  # an address that no host has
    with pytest.raises(ValueError, match=r"192\.0\.2\.1:.*set MASTER_ADDR"):
        check_meeting_point(elsewhere)


def test_a_store_that_does_not_answer_any_more_ends_a_call() -> None:
    """The server's process is stopped: the connection stays open, and no answer arrives."""
    held = Event()

    def silent(line: socket.socket, _: int) -> None:
        held.wait(60)
        line.close()

    listener = Listener(listen(), b"", PURPOSE, silent)
    client = StoreClient(*listener.address, timeout_seconds=0.5)
    error = within(30, lambda: client.call({"do": "size"}))
    assert isinstance(error, ConnectionError)
    assert "does not answer" in str(error)
    held.set()
    listener.close()
