"""Messages to a learner that has another address by the time they can be delivered."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from threading import Thread, Timer
from typing import Any

import pytest
import torch

from murmur.core.group import PeerLost
from murmur.worlds.process import mail as mail_module
from murmur.worlds.process.listener import HungUp, dial, listen
from murmur.worlds.process.mail import Mail
from murmur.worlds.process.store_server import StoreClient, StoreServer
from murmur.worlds.process.torch_store import NetStore

SECRET = b"0123456789abcdef"


@pytest.fixture
def store() -> Iterator[NetStore]:
    server = StoreServer(listen(), SECRET)
    yield NetStore(StoreClient(*server.address, 5, SECRET), "")
    server.close()


class Restarted(NetStore):
    """Store in which a learner's address changes once it has been read, as after a restart."""

    before: str

    def get(self, key: str) -> bytes:
        found, type(self).before = type(self).before, ""
        return found.encode() or super().get(key)


def nothing() -> Exception:
    return PeerLost("nothing came", 0)


def deliver(first: Mail, second: Mail, seconds: float, to: int = 1) -> list[float]:
    first.post(torch.arange(3.0), to, "a")
    first.post(torch.arange(4.0), to, "a")
    took = [second.box.take(1 - to, "a", seconds, nothing).x.numel() for _ in range(2)]
    return [float(n) for n in took]


def test_messages_follow_a_learner_whose_first_address_is_silent(
    store: NetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a pulled cable, with the learner behind it started again."""
    monkeypatch.setattr(mail_module, "TRY_SECONDS", 0.2)
    first, second = (Mail(store, rank, "127.0.0.1", 30, SECRET) for rank in (0, 1))
    with listen() as silent:  # accepts connections and sends nothing
        address = store.get("mail/1")
        store.set("mail/1", "{}:{}".format(*silent.getsockname()))
        Timer(0.5, lambda: store.clone().set("mail/1", address)).start()
        assert deliver(first, second, 20.0) == [3.0, 4.0]
    first.close()
    second.close()


def test_messages_wait_for_a_listener_that_closes(store: NetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with too many unauthenticated callers does; the address of the learner stays."""
    first, second = (Mail(store, rank, "127.0.0.1", 30, SECRET) for rank in (0, 1))
    calls, really = [], mail_module.dial

    def dial(*where: Any) -> socket.socket:
        calls.append(where)
        if len(calls) <= 3:
            raise HungUp("too many callers")
        return really(*where)

    monkeypatch.setattr(mail_module, "dial", dial)
    assert deliver(first, second, 20.0) == [3.0, 4.0]
    assert len(calls) == 4
    first.close()
    second.close()


def test_messages_follow_a_learner_whose_first_address_is_closed(store: NetStore) -> None:
    second = Mail(store, 1, "127.0.0.1", 30, SECRET)
    with listen() as closed:
        Restarted.before = "{}:{}".format(*closed.getsockname())
    first = Mail(Restarted(store.line(), ""), 0, "127.0.0.1", 30, SECRET)
    first._store.clone = lambda: first._store  # type: ignore[method-assign]
    assert deliver(first, second, 20.0) == [3.0, 4.0]
    first.close()
    second.close()


@pytest.mark.parametrize("silent", [True, False])
def test_a_learner_that_stays_away_is_told(store: NetStore, silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_module, "TRY_SECONDS", 0.1)
    first = Mail(store, 0, "127.0.0.1", 0.6, SECRET)
    with listen() as listener:
        store.set("mail/1", "{}:{}".format(*listener.getsockname()))
        if not silent:
            listener.close()
        first.post(torch.zeros(1), 1, "a")
        with pytest.raises(PeerLost, match="learner 1 cannot be reached by mail"):
            first.box.take(1, "b", 20.0, nothing)
    first.close()


def test_messages_to_a_lost_learner_are_given_up(store: NetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_module, "TRY_SECONDS", 0.1)
    first = Mail(store, 0, "127.0.0.1", 30, SECRET)
    with listen() as silent:
        store.set("mail/1", "{}:{}".format(*silent.getsockname()))
        first.post(torch.zeros(1), 1, "a")
        (thread,) = first._threads.values()
        time.sleep(0.05)
        first.drop(1)
        first.box.put(1, "a", torch.zeros(1))  # the sender is here again
        thread.join(20.0)
        assert not thread.is_alive()
    with pytest.raises(PeerLost, match="nothing came"):  # not an error of a lost learner
        first.box.take(1, "b", 0.1, nothing)
    first.close()


def test_a_lost_learner_ends_waits_until_it_sends_again(store: NetStore) -> None:
    first, second = Mail(store, 0, "127.0.0.1", 30, SECRET), Mail(store.clone(), 1, "127.0.0.1", 30, SECRET)
    assert deliver(second, first, 20.0, to=0) == [3.0, 4.0]
    first.lose(1, PeerLost("learner 1 is lost", 1))
    with pytest.raises(PeerLost, match="learner 1 is lost"):
        first.box.take(1, "a", 20.0, nothing)
    second.post(torch.arange(5.0), 0, "a")
    assert first.box.wait("a", 20.0) is not None
    with pytest.raises(PeerLost, match="nothing came"):
        first.box.take(1, "a", 0.1, nothing)
    first.close()
    second.close()


def test_the_flow_to_a_learner_counts_what_it_has_got(store: NetStore) -> None:
    first, second = Mail(store, 0, "127.0.0.1", 30, SECRET), Mail(store.clone(), 1, "127.0.0.1", 30, SECRET)
    assert first.flows() == {}
    deliver(first, second, 20.0)
    before = first.flows()
    first.post(torch.zeros(25_000), 1, "a")
    assert second.box.take(0, "a", 20.0, nothing).x.numel() == 25_000
    deadline = time.monotonic() + 10
    while first.flows()[1].sent_bytes - before[1].sent_bytes < 100_000:  # once the last packet is acknowledged
        assert time.monotonic() < deadline
    assert set(first.flows()) == {1}
    first.close()
    second.close()


def threads_named(*names: str) -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name in names]


def wait_for_threads(most: int, *names: str) -> None:
    """Wait until no more than `most` threads of these names are alive, with a generous limit for a busy machine."""
    deadline = time.monotonic() + 30.0
    while len(threads_named(*names)) > most and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(threads_named(*names)) <= most


def test_a_learner_dropped_many_times_has_one_sender(store: NetStore) -> None:
    """Each drop comes while its sender still waits for an answer from the silent address."""
    first = Mail(store, 0, "127.0.0.1", 60, SECRET)
    with listen() as silent:
        store.set("mail/1", "{}:{}".format(*silent.getsockname()))
        for _ in range(20):
            first.post(torch.zeros(1), 1, "a")
            time.sleep(0.01)
            first.drop(1)
            assert len(threads_named("mail to 1")) <= 1
        wait_for_threads(0, "mail to 1")
        second = Mail(store.clone(), 1, "127.0.0.1", 60, SECRET)  # it came back
        assert deliver(first, second, 20.0) == [3.0, 4.0]
    first.close()
    second.close()


def test_a_learner_that_vanished_many_times_has_one_receiver(store: NetStore) -> None:
    """Connections without a visible end, as of learners killed while their network was down."""
    mail = Mail(store, 0, "127.0.0.1", 60, SECRET)
    lines = [dial(mail._listener.address, SECRET, "mail to 0", 1, 20.0) for _ in range(20)]
    wait_for_threads(1, "line: mail to 0")
    second = Mail(store.clone(), 1, "127.0.0.1", 60, SECRET)
    second.post(torch.arange(3.0), 0, "a")
    assert mail.box.take(1, "a", 20.0, nothing).x.numel() == 3  # nor does it count as lost
    wait_for_threads(1, "line: mail to 0")
    for line in lines:
        line.close()
    second.close()
    mail.close()


def test_an_older_connection_that_is_let_in_late_does_not_end_the_newer_one(
    store: NetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = Mail(store, 0, "127.0.0.1", 60, SECRET)
    second = Mail(store.clone(), 1, "127.0.0.1", 60, SECRET)
    second.post(torch.arange(3.0), 0, "a")
    assert mail.box.take(1, "a", 20.0, nothing).x.numel() == 3
    serve = mail._listener._serve
    monkeypatch.setattr(mail._listener, "_serve", lambda line, number, _: serve(line, number, 0))
    with dial(mail._listener.address, SECRET, "mail to 0", 1, 20.0) as late:
        late.settimeout(20.0)
        assert late.recv(1) == b""  # it is closed
    second.post(torch.arange(4.0), 0, "a")
    assert mail.box.take(1, "a", 20.0, nothing).x.numel() == 4
    second.close()
    mail.close()
