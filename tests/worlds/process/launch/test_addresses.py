"""Addresses of learners on several hosts: the name of the first host leads to itself there, or to several addresses."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from torch.distributed import HashStore

from murmur.core.group import PeerLost
from murmur.worlds.process.launch import addresses
from murmur.worlds.process.launch.addresses import (
    ALL_INTERFACES,
    OUTER_KEY,
    listening_address,
    may_span_hosts,
    own_address,
)
from murmur.worlds.process.launch.environment import Place, addresses_of, place_of

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
    monkeypatch.setattr(addresses, "addresses_of", lambda host, named_by="": NAMES[host])
    monkeypatch.setattr(addresses, "address_towards", lambda host: ROUTES.get(host, NAMES[host][0]))


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
