from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from threading import Thread

import pytest

from murmur.worlds.process.environment import Place
from murmur.worlds.process.listener import Listener, listen
from murmur.worlds.process.store_server import PURPOSE, MissingKey, StoreClient, StoreServer
from murmur.worlds.process.torch_store import NetStore, connect
from murmur.worlds.process.wire_format import REQUEST, receive_frame
from tests.support.frames import sealed


@pytest.fixture
def server() -> Iterator[StoreServer]:
    running = StoreServer(listen())
    yield running
    running.close()


def store_of(server: StoreServer, prefix: str = "") -> NetStore:
    return NetStore(StoreClient(*server.address, timeout_seconds=5), prefix)


def test_it_listens_on_loopback_only(server: StoreServer) -> None:
    assert server.address[0] == "127.0.0.1"


def test_values(server: StoreServer) -> None:
    store = store_of(server)
    store.set("a", b"\x00\xff")
    assert store.get("a") == b"\x00\xff"
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    assert store.delete_key("a")
    assert not store.delete_key("a")
    assert store.compare_set("c", "", "first") == b"first"
    assert store.compare_set("c", "", "second") == b"first"
    assert store.compare_set("c", "first", "second") == b"second"


def test_prefixes_keep_launches_apart(server: StoreServer) -> None:
    store_of(server, "generation-0/").set("key", "old")
    assert not store_of(server, "generation-1/").check(["key"])


def test_counters_lose_nothing(server: StoreServer) -> None:
    totals: list[int] = []

    def count() -> None:
        store = store_of(server)
        totals.extend(store.add("n", 1) for _ in range(100))

    threads = [Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(totals) == list(range(1, 401))


def test_a_waiting_clone_blocks_no_other(server: StoreServer) -> None:
    store = store_of(server)
    got: list[bytes] = []
    waiting = store.clone()
    thread = Thread(target=lambda: got.append(waiting.get("late")))
    thread.start()
    assert store.add("n", 1) == 1  # would block on a shared connection
    store.set("late", "here")
    thread.join(5)
    assert got == [b"here"]


def test_what_is_missing_is_named(server: StoreServer) -> None:
    with pytest.raises(MissingKey, match="has no never"):
        store_of(server).wait(["never"], timedelta(seconds=0.05))


def test_unauthenticated_callers_do_no_harm(server: StoreServer) -> None:
    for garbage in (b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 64, sealed(b"[]")):
        with socket.create_connection(server.address) as line:
            line.sendall(garbage)
    store = store_of(server)
    store.set("a", "b")
    assert store.get("a") == b"b"


def test_no_server_there() -> None:
    free = listen()
    port = free.getsockname()[1]
    free.close()
    with pytest.raises(ConnectionError, match=f"no store answers at 127.0.0.1:{port}"):
        connect(Place(0, 2, 0, "127.0.0.1", port), 0.2)


def test_requests_that_are_too_large_are_not_sent(server: StoreServer) -> None:
    store = store_of(server)
    with pytest.raises(ValueError, match="a frame of"):
        store.set("a", bytes(REQUEST.payload_bytes + 1))
    store.set("a", "b")
    assert store.get("a") == b"b"


def test_a_server_that_sends_no_frames_is_left() -> None:
    def serve(line: socket.socket, *_: int) -> None:
        with line:
            receive_frame(line, REQUEST)
            line.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

    listener = Listener(listen(), b"", PURPOSE, serve)
    client = StoreClient(*listener.address, timeout_seconds=5)
    with pytest.raises(ConnectionError, match="sends no frames"):
        client.call({"do": "size"})
    with pytest.raises(ConnectionError, match="is gone"):
        client.call({"do": "size"})
    listener.close()


def test_requests_ahead_get_the_answers_of_those_before() -> None:
    server = StoreServer(listen(), b"secret of a run.")
    line, other = (StoreClient(*server.address, 5, b"secret of a run.") for _ in range(2))
    add = {"do": "add", "key": "k", "amount": 2}
    assert line.call_ahead(add) is None
    assert [line.call_ahead(add), line.call_ahead(add)] == [{"total": 2}, {"total": 4}]
    deadline = time.monotonic() + 30.0
    while other.call({**add, "amount": 0})[0]["total"] < 6:  # all are added, though the last answer is not read
        assert time.monotonic() < deadline
    line.close()
    other.close()
    server.close()
