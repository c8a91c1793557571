"""Arrival of the learners of a launch: addresses by which they reach one another, and the wait for all of them."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
from torch.distributed import HashStore

from murmur.core.group import PeerLost
from murmur.worlds.process import arrival
from murmur.worlds.process.arrival import (
    ALL_INTERFACES,
    OUTER_KEY,
    Arrival,
    check_meeting_point,
    listening_address,
    may_span_hosts,
    own_address,
)
from murmur.worlds.process.environment import COME_KEY, READY_KEY, Place, addresses_of, place_of
from murmur.worlds.process.listener import Listener, listen
from murmur.worlds.process.membership_client import StoreMembership
from murmur.worlds.process.store_server import PURPOSE, StoreClient, StoreServer
from murmur.worlds.process.torch_store import NetStore, connect
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

    def silent(line: socket.socket, *_: int) -> None:
        held.wait(60)
        line.close()

    listener = Listener(listen(), b"", PURPOSE, silent)
    client = StoreClient(*listener.address, timeout_seconds=0.5)
    error = within(30, lambda: client.call({"do": "size"}))
    assert isinstance(error, ConnectionError)
    assert "does not answer" in str(error)
    held.set()
    listener.close()


NAMES = {
    "localhost": ["127.0.0.1"],
    "127.0.0.1": ["127.0.0.1"],
    "debian": ["127.0.1.1"],
    "outside": ["10.78.0.1"],
    "many": ["10.78.0.1", "10.79.0.1"],
    "10.78.0.2": ["10.78.0.2"],
}
ROUTES = {"10.78.0.2": "10.78.0.1"}  # from this host


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "addresses_of", lambda host, named_by="": NAMES[host])
    monkeypatch.setattr(arrival, "address_towards", lambda host: ROUTES.get(host, NAMES[host][0]))


def place(host: str, rank: int = 0, size: int = 2, local_size: str = "1") -> Place:
    given = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": host, "MASTER_PORT": "7"}
    found = place_of(given | ({"LOCAL_WORLD_SIZE": local_size} if local_size else {}))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("host", "local_size", "listens"),
    [
        ("localhost", "2", "127.0.0.1"),
        ("debian", "2", "127.0.1.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "1", ALL_INTERFACES),
        ("localhost", "1", ALL_INTERFACES),
        ("localhost", "", ALL_INTERFACES),
        ("debian", "1", ALL_INTERFACES),
        ("many", "1", ALL_INTERFACES),
        ("outside", "1", "10.78.0.1"),
        ("outside", "", "10.78.0.1"),
    ],
)
@pytest.mark.usefixtures("named")
def test_the_store_is_open_to_the_hosts_of_a_launch_and_to_no_others(host: str, local_size: str, listens: str) -> None:
    assert listening_address(place(host, local_size=local_size)) == listens


def test_learners_of_the_launcher_are_on_one_host() -> None:
    assert not may_span_hosts(Place(0, 4, 0, "127.0.0.1", 7))


@pytest.mark.parametrize("host", ["localhost", "debian"])
@pytest.mark.usefixtures("named")
def test_a_learner_at_a_loopback_name_waits_for_one_of_another_host_and_takes_the_route_to_it(host: str) -> None:
    store = HashStore()
    later = Timer(0.3, lambda: store.compare_set(OUTER_KEY, "", "10.78.0.2"))  # as learner 2 does
    later.start()
    assert own_address(place(host, size=3), store, 60) == "10.78.0.1"
    assert own_address(place(host, rank=1, size=3), store, 60) == "10.78.0.1"


@pytest.mark.usefixtures("named")
def test_a_learner_with_a_route_to_the_first_host_tells_its_address() -> None:
    store = HashStore()
    assert own_address(place("outside", rank=1), store, 60) == "10.78.0.1"
    assert store.get(OUTER_KEY) == b"10.78.0.1"


@pytest.mark.usefixtures("named")
def test_learners_of_one_host_stay_on_loopback() -> None:
    store = HashStore()
    Timer(0.2, lambda: own_address(place("localhost", rank=1), store, 60)).start()
    assert own_address(place("localhost"), store, 60) == "127.0.0.1"
    assert own_address(place("debian", local_size="2"), HashStore(), 60) == "127.0.1.1"


@pytest.mark.usefixtures("named")
def test_learners_that_never_come_are_named() -> None:
    with pytest.raises(
        PeerLost, match=r"learners 1-2 have not come to debian:7 \(from MASTER_ADDR\), which is 127.0.1.1"
    ):
        own_address(place("debian", size=3), HashStore(), 0.2)


def test_a_name_with_other_addresses_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(host: str, _port: Any, family: int = 0, *_: Any) -> list[Any]:
        if family == socket.AF_INET:
            raise socket.gaierror(socket.EAI_NODATA, "no address of this family")
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 0, 0, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(
        ValueError, match=r"^host name 'six' \(from MASTER_ADDR\) has no IPv4 address on .*set MASTER_ADDR"
    ):
        addresses_of("six")


LOOP = """
import torch, murmur
model = torch.nn.Linear(2, 1)
with murmur.join(murmur.KAVG(K=2), model, torch.optim.SGD(model.parameters(), 0.1)) as me:
    for _ in range(4):
        model(torch.ones(2, 2)).square().sum().backward()
        me.step()
print("end", me.rank)
"""
SPACES = ("murnames1", "murnames2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Path]:
    """Two hosts, nodea at 10.78.0.1 and nodeb at 10.78.0.2; each has its own name on loopback, as on Debian."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("network namespaces need root, ip and unshare")
    for space in SPACES:
        subprocess.run(["ip", "netns", "del", space], check=False, stderr=subprocess.DEVNULL)
        if subprocess.run(["ip", "netns", "add", space], check=False, stderr=subprocess.DEVNULL).returncode != 0:
            pytest.skip("this system makes no network namespaces")
    ip("link", "add", "names1", "netns", SPACES[0], "type", "veth", "peer", "name", "names2", "netns", SPACES[1])
    for n, space in enumerate(SPACES, 1):
        ip("-n", space, "addr", "add", f"10.78.0.{n}/24", "dev", f"names{n}")
        for device in ("lo", f"names{n}"):
            ip("-n", space, "link", "set", device, "up")
    (tmp_path / "hosts0").write_text("127.0.0.1 localhost\n127.0.1.1 nodea\n")
    (tmp_path / "hosts1").write_text("127.0.0.1 localhost\n127.0.1.1 nodeb\n10.78.0.1 nodea\n")
    yield tmp_path
    for space in SPACES:
        ip("netns", "del", space)


def start(folder: Path, host: int, rank: int, size: int, master: str, **more: str) -> subprocess.Popen[str]:
    (folder / "loop.py").write_text(LOOP)
    bind = f"hostname node{'ab'[host]}; mount --bind {folder}/hosts{host} /etc/hosts; exec {sys.executable} loop.py"
    place = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": master, "MASTER_PORT": "29511", **more}
    return subprocess.Popen(
        ["ip", "netns", "exec", SPACES[host], "unshare", "--uts", "--mount", "sh", "-c", bind],
        env={**os.environ, **place, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def ends(learners: list[subprocess.Popen[str]]) -> None:
    try:
        for rank, learner in enumerate(learners):
            said = learner.communicate(timeout=90)[0]
            assert learner.returncode == 0, said
            assert f"end {rank}" in said
    finally:
        for learner in learners:
            learner.kill()


@pytest.mark.processes
@pytest.mark.timeout(150)
def test_two_learners_of_the_first_host_and_one_of_another_train(hosts: Path) -> None:
    here = [start(hosts, 0, rank, 3, "nodea", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2") for rank in range(2)]
    ends([*here, start(hosts, 1, 2, 3, "nodea", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")])


@pytest.mark.processes
@pytest.mark.timeout(150)
def test_the_first_host_may_be_told_localhost_and_no_number_of_its_learners(hosts: Path) -> None:
    ends([start(hosts, 0, 0, 2, "localhost"), start(hosts, 1, 1, 2, "10.78.0.1")])
