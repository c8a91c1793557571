"""Vectors in memory that learners of one host share: their bits, lost peers, and memory out of sight."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from murmur.core.group import Message, PeerLost
from murmur.worlds.process import lent_vectors, mail
from murmur.worlds.process.lent_vectors import LEAST_BYTES, SLOTS, Borrower, Lender, LentMemory
from murmur.worlds.process.listener import listen
from murmur.worlds.process.mail import Mail
from murmur.worlds.process.store_server import StoreClient, StoreServer
from murmur.worlds.process.torch_store import NetStore
from murmur.worlds.process.wire_format import Loan
from tests.support.descriptors import settled_descriptors

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="this system has no files of memory (memfd_create)"
)
SECRET, N = b"0123456789abcdef", 50_000


@dataclass
class Pair:
    """Two learners' mail in this process."""

    server: StoreServer
    first: Mail
    second: Mail

    def send(self, x: Tensor) -> Message:
        self.first.post(x, 1, "a", (1.5,))
        return self.second.box.take(0, "a", 30.0, lambda: TimeoutError("nothing came"))

    def close(self) -> None:
        self.first.close()
        self.second.close()
        self.server.close()


def office(server: StoreServer, rank: int) -> Mail:
    return Mail(NetStore(StoreClient(*server.address, 5, SECRET), ""), rank, "127.0.0.1", 30, SECRET)


@pytest.fixture
def pair() -> Iterator[Pair]:
    server = StoreServer(listen(), SECRET)
    made = Pair(server, office(server, 0), office(server, 1))
    yield made
    made.close()


def vector(seed: int, n: int = N) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def in_room(owner: Mail, x: Tensor) -> Tensor:
    """Return a copy of a vector in the memory for vectors to be posted, once there is room."""
    deadline = time.monotonic() + 30.0
    while (room := owner.room(x.numel(), x.dtype)) is None:
        assert time.monotonic() < deadline, "no slot became free"
        time.sleep(0.01)
    return room.copy_(x)


def until_mapped(owner: Mail, to: int = 1) -> None:
    """Wait until an owner knows that the receiver of its messages has mapped its memory."""
    deadline = time.monotonic() + 30.0
    while owner._senders[to]._mapped == 0:
        assert time.monotonic() < deadline, "the memory is not mapped"
        time.sleep(0.01)


def is_lent(x: Tensor, by: Mail) -> bool:
    """True if a change of the vector shows in the memory of the learner that has posted it."""
    memory = by._lender._memory
    assert memory is not None
    place, before = memory._area[lent_vectors.PAGE :].view("float32"), x[0].item()
    x[0] = 12345.0
    found = bool((place == 12345.0).any())
    x[0] = before
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_the_bits_are_those_of_a_vector_that_travels(pair: Pair, dtype: torch.dtype) -> None:
    for seed in range(5):
        x = (100 * vector(seed)).to(dtype)
        plain, lent = pair.send(x), pair.send(in_room(pair.first, x))
        assert (lent.header, lent.source) == (plain.header, plain.source) == ((1.5,), 0)
        assert torch.equal(plain.x, x)
        assert torch.equal(lent.x, x)
        assert lent.x.dtype == dtype


def test_vectors_are_lent_once_their_memory_is_mapped(pair: Pair) -> None:
    first = pair.send(in_room(pair.first, vector(0)))
    until_mapped(pair.first)
    second = pair.send(in_room(pair.first, vector(1)))
    assert [is_lent(each.x, pair.first) for each in (first, second)] == [False, True]
    assert torch.equal(second.x, vector(1))
    del second
    for seed in range(2, 9):  # a slot is used again as soon as its reader has let go
        assert torch.equal(pair.send(in_room(pair.first, vector(seed))).x, vector(seed))


def test_no_slot_is_written_while_it_is_read(pair: Pair) -> None:
    pair.send(in_room(pair.first, vector(0)))
    until_mapped(pair.first)
    held = [pair.send(in_room(pair.first, vector(seed))) for seed in range(SLOTS)]
    assert pair.first.room(N, torch.float32) is None
    assert torch.equal(pair.send(vector(9)).x, vector(9))  # over the connection
    assert all(torch.equal(message.x, vector(seed)) for seed, message in enumerate(held))
    del held[0]
    assert pair.first.room(N, torch.float32) is not None


def test_a_vector_is_not_written_while_its_owner_holds_it() -> None:
    memory = LentMemory(LEAST_BYTES)
    held = [memory.take(4, torch.float32) for _ in range(SLOTS + 1)]
    assert [x is None for x in held] == [False] * SLOTS + [True]
    part = held[0][1:]  # type: ignore[index]
    held.clear()
    another = memory.take(4, torch.float32)
    assert another is not None
    assert memory.take(4, torch.float32) is None
    del part
    assert memory.take(4, torch.float32) is not None
    memory.close()


def test_small_vectors_and_those_after_the_end_have_no_room() -> None:
    lender = Lender()
    assert lender.room(LEAST_BYTES // 4 - 1, torch.float32) is None
    assert lender.room(LEAST_BYTES // 4, torch.float32) is not None
    lender.close()
    assert lender.room(LEAST_BYTES // 4, torch.float32) is None


@pytest.mark.parametrize("hidden", ["other network", "other container"])
def test_memory_out_of_sight_is_not_used(pair: Pair, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hidden == "other network":
        pair.first._lender._network += 1
    else:
        monkeypatch.setattr(lent_vectors, "_mapped", lambda _: None)
    for seed in range(6):
        message = pair.send(in_room(pair.first, vector(seed)))
        assert torch.equal(message.x, vector(seed))
        assert not is_lent(message.x, pair.first)
    assert pair.second._borrowers[0].token == 0


def test_another_file_of_the_same_number_is_not_mapped() -> None:
    """Two containers may have processes of the same number."""
    lender, other = Lender(), LentMemory(LEAST_BYTES)
    x = lender.room(LEAST_BYTES, torch.uint8)
    assert x is not None
    offer, reader = lender.offer(x), Borrower()
    assert offer is not None
    reader.consider(offer._replace(descriptor=other.descriptor, token=offer.token + 1))
    assert reader.token == 0
    with pytest.raises(ValueError, match="not mapped"):
        reader.vector(Loan(offer.token, 0, 0, 1), 4, torch.float32)
    reader.consider(offer)
    assert reader.token == offer.token
    with pytest.raises(ValueError, match="not mapped"):
        reader.vector(Loan(offer.token, SLOTS, 0, 1), 4, torch.float32)
    other.close()
    lender.close()


def test_a_broken_connection_repeats_what_is_lent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was not taken in is not given back; it comes once, whole, over the next connection."""
    pair.send(in_room(pair.first, vector(0)))
    until_mapped(pair.first)
    receive, cut = mail.receive, []

    def breaks_once(line: socket.socket) -> object:
        found = receive(line)
        if found[0].loan is not None and not cut:
            cut.append(line)
            raise OSError("broken by the test")
        return found

    monkeypatch.setattr(mail, "receive", breaks_once)
    pair.send(torch.zeros(1))  # the receiving thread now waits in the function above
    message = pair.send(in_room(pair.first, vector(1)))
    assert len(cut) == 1
    assert torch.equal(message.x, vector(1))
    assert is_lent(message.x, pair.first)
    assert pair.second.box.wait("a", 0.1) is None


def test_slots_of_a_lost_reader_are_never_written_again(pair: Pair) -> None:
    """It may be a stopped process that reads on when it wakes up."""
    pair.send(in_room(pair.first, vector(0)))
    until_mapped(pair.first)
    message = pair.send(in_room(pair.first, vector(1)))
    pair.first.drop(1)
    for seed in range(2, 6):
        pair.first.post(in_room(pair.first, vector(seed)), 1, "a")
        assert torch.equal(taken_after_a_loss(pair.second).x, vector(seed))
    assert torch.equal(message.x, vector(1))


def taken_after_a_loss(reader: Mail) -> Message:
    """Return the next message of learner 0, which counts as lost until it comes."""
    deadline = time.monotonic() + 30.0
    while True:
        try:
            return reader.box.take(0, "a", 30.0, lambda: TimeoutError("nothing came"))
        except PeerLost:
            assert time.monotonic() < deadline, "nothing came over the new connection"
            time.sleep(0.01)


def test_no_descriptors_are_left() -> None:
    before = settled_descriptors()
    server = StoreServer(listen(), SECRET)
    both = Pair(server, office(server, 0), office(server, 1))
    for seed in range(3):
        both.send(in_room(both.first, vector(seed)))
    lines = [each._store.line() for each in (both.first, both.second)]
    for each in (both.first, both.second):
        each._store.close()  # type: ignore[attr-defined]
    for line in lines:
        line.close()
    both.close()
    del both, each
    deadline = time.monotonic() + 30.0
    while settled_descriptors() != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert settled_descriptors() == before


OWNER = """
import os, signal, sys, time
import torch
from tests.worlds.process.test_lent_vectors import N, in_room, until_mapped, vector
from murmur.worlds.process.mail import Mail
from murmur.worlds.process.store_server import StoreClient
from murmur.worlds.process.torch_store import NetStore
own = Mail(NetStore(StoreClient("127.0.0.1", int(sys.argv[1]), 30, b"0123456789abcdef"), ""), 0, "127.0.0.1", 30,
           b"0123456789abcdef")
own.post(in_room(own, vector(0)), 1, "a")
own.box.take(1, "mapped", 30.0, lambda: TimeoutError("no answer"))
until_mapped(own)
own.post(in_room(own, vector(1)), 1, "a")
own.box.take(1, "mapped", 30.0, lambda: TimeoutError("no answer"))
in_room(own, torch.full((N,), 7.0))[: N // 2] = 8.0  # the next vector is under way
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_owner_killed_before_its_message_leaves_whole_vectors() -> None:
    """What came before stays whole though its owner is dead, and what was under way never comes."""
    server = StoreServer(listen(), SECRET)
    reader = office(server, 1)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(server.address[1])])
    found = []
    for _ in range(2):
        found.append(reader.box.take(0, "a", 60.0, lambda: TimeoutError("nothing came")))
        reader.post(torch.zeros(1), 0, "mapped")
    assert owner.wait(60) == -signal.SIGKILL
    assert reader._borrowers[0].token != 0
    assert (
        reader._borrowers[0]._area[: lent_vectors.PAGE].view("int64")[1] == 0
    )  # the second one is lent, and not given back
    assert [torch.equal(message.x, vector(seed)) for seed, message in enumerate(found)] == [True, True]
    reader.lose(0, PeerLost("learner 0 is lost", 0))
    with pytest.raises(PeerLost):
        reader.box.take(0, "a", 30.0, lambda: TimeoutError("nothing came"))
    reader.close()
    server.close()


READER = (
    OWNER.partition("own.post")[0].replace('""), 0,', '""), 1,')
    + """
first = own.box.take(0, "a", 30.0, lambda: TimeoutError("nothing came"))
own.post(torch.zeros(1), 0, "mapped")
second = own.box.take(0, "a", 30.0, lambda: TimeoutError("nothing came"))
assert torch.equal(second.x, vector(1))
os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_a_reader_killed_before_it_gives_back_blocks_no_vector() -> None:
    server = StoreServer(listen(), SECRET)
    owner = office(server, 0)
    reader = subprocess.Popen([sys.executable, "-c", READER, str(server.address[1])])
    deadline = time.monotonic() + 60
    while not NetStore(StoreClient(*server.address, 5, SECRET), "").check(["mail/1"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    owner.post(in_room(owner, vector(0)), 1, "a")
    owner.box.take(1, "mapped", 60.0, lambda: TimeoutError("no answer"))
    until_mapped(owner)
    owner.post(in_room(owner, vector(1)), 1, "a")
    assert reader.wait(60) == -signal.SIGKILL
    memory = owner._lender._memory
    assert memory is not None
    assert memory.is_lent_to(1)
    owner.lose(1, PeerLost("learner 1 is lost", 1))
    second = office(server, 1)  # it is started again
    for seed in range(2, 5):
        owner.post(in_room(owner, vector(seed)), 1, "a")
        message = second.box.take(0, "a", 30.0, lambda: TimeoutError("nothing came"))
        assert torch.equal(message.x, vector(seed))
        until_mapped(owner)
    assert is_lent(message.x, owner)
    owner.close()
    second.close()
    server.close()
