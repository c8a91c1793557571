"""Connections cut while both their learners live: no message is lost or duplicated, and the mean stays."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.learner import Gradient, Learner
from murmur.core.weights import Weights
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, SuperLearners
from murmur.worlds.process import listener
from murmur.worlds.process.environment import Place
from murmur.worlds.process.group import TorchGroup
from murmur.worlds.process.listener import listen
from murmur.worlds.process.mail import Mail
from murmur.worlds.process.store_server import StoreClient, StoreServer
from murmur.worlds.process.torch_store import NetStore, connect
from murmur.worlds.process.world import ProcessWorld
from tests.support.averaging_only import Averaging, Still
from tests.support.pool import Pool
from tests.support.tasks import Point

SECRET = b"0123456789abcdef"


@contextmanager
def cutting(mail: Mail, seed: int, every_seconds: float) -> Iterator[Callable[[], int]]:
    """Shut down a learner's connections at random moments; yield a function that counts the cuts so far."""
    draw, over, cut = random.Random(seed), threading.Event(), [0]

    def run() -> None:
        while not over.wait(draw.uniform(0.0, 2 * every_seconds)):
            with mail._lock:
                lines = [line for line in mail._lines.values() if line.fileno() >= 0]
                if lines:
                    with contextlib.suppress(OSError):  # it is not connected any more
                        draw.choice(lines).shutdown(socket.SHUT_RDWR)
                        cut[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: cut[0]
    finally:
        over.set()
        thread.join()


def post_all(mail: Mail, to: int, messages: int, seed: int) -> None:
    draw = random.Random(seed)
    for n in range(messages):
        mail.post(torch.full((draw.choice([0, 1, 1000, 300_000]),), float(n)), to, "a", (float(n),))
        time.sleep(draw.uniform(0.0, 0.004))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_messages_survive_their_connections(seed: int) -> None:
    server, messages = StoreServer(listen(), SECRET), 300
    mails = [
        Mail(NetStore(StoreClient(*server.address, 5, SECRET), ""), rank, "127.0.0.1", 60, SECRET) for rank in (0, 1)
    ]
    with cutting(mails[0], seed, 0.03) as first, cutting(mails[1], seed + 100, 0.03) as second:
        posts = [threading.Thread(target=post_all, args=(mails[r], 1 - r, messages, seed + r)) for r in (0, 1)]
        for post in posts:
            post.start()
        for rank in (0, 1):
            for n in range(messages):
                message = mails[rank].box.take(1 - rank, "a", 60.0, lambda: TimeoutError("a message was lost"))
                assert message.header == (float(n),)
                assert bool((message.x == n).all())
        for post in posts:
            post.join()
        assert first() >= 5
        assert second() >= 5
    assert all(mail.box.wait("a", 0.1) is None for mail in mails), "a message came twice"
    for mail in mails:
        mail.close()
    server.close()


def test_a_broken_connection_is_opened_again_though_nothing_is_to_be_sent() -> None:
    """A learner that waits for a silent one does not count it as lost."""
    server = StoreServer(listen(), SECRET)
    first, second = (
        Mail(NetStore(StoreClient(*server.address, 5, SECRET), ""), rank, "127.0.0.1", 60, SECRET) for rank in (0, 1)
    )
    first.post(torch.zeros(1), 1, "a")
    second.box.take(0, "a", 30.0, lambda: TimeoutError("nothing came"))
    before = first._lines[1]
    before.shutdown(socket.SHUT_RDWR)
    deadline = time.monotonic() + 30.0
    while first._lines.get(1) in (before, None) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert first._lines[1] is not before
    first.post(torch.ones(1), 1, "a")
    assert second.box.take(0, "a", 30.0, lambda: TimeoutError("nothing came")).x.tolist() == [1.0]
    for mail in (first, second):
        mail.close()
    server.close()


@pytest.mark.parametrize("error", [ConnectionAbortedError, ConnectionResetError, BrokenPipeError])
def test_messages_survive_a_connection_that_breaks_while_it_opens(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = StoreServer(listen(), SECRET)
    first, second = (
        Mail(NetStore(StoreClient(*server.address, 5, SECRET), ""), rank, "127.0.0.1", 60, SECRET) for rank in (0, 1)
    )
    call, tries = listener.call_in, []

    def breaks_twice(line: socket.socket, secret: bytes, purpose: str, *arguments: Any) -> None:
        if purpose == "mail to 1":
            tries.append(line)
            if len(tries) <= 2:
                raise error("broken by the system")
        call(line, secret, purpose, *arguments)

    monkeypatch.setattr(listener, "call_in", breaks_twice)
    for n in range(3):
        first.post(torch.full((2,), float(n)), 1, "a")
    for n in range(3):
        assert second.box.take(0, "a", 10.0, lambda: TimeoutError("a message was lost")).x.tolist() == [n, n]
    assert len(tries) == 3
    for mail in (first, second):
        mail.close()
    server.close()


class Slow(Still):
    """Source with gradients of zero that take two milliseconds."""

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        time.sleep(0.002)
        return super().draw(n, before_backward)


@dataclass(frozen=True)
class CutAveraging(Averaging):
    """Average while this learner's connections are cut; return its weights and the number of cuts."""

    async def __call__(self, seat: Seat) -> tuple[list[float], int]:  # type: ignore[override]
        assert isinstance(seat.group, TorchGroup)
        layout = Layout.trainable(Point(self.start.shape[1]))
        layout.scatter(self.start[seat.group.rank])
        source: Any = Slow(layout, self.minibatches)
        me = Learner(seat, Weights(layout), source, Facts.of(self.strategy).lock_step)
        with cutting(seat.group.wiring.mail, seat.group.rank, 0.05) as cuts:
            await self.strategy(me)
        return me.weights.snapshot().tolist(), cuts()


def averaged_in_process(place: Place, program: CutAveraging) -> tuple[list[float], int]:
    torch.set_num_threads(1)
    (found,) = ProcessWorld(place, timeout_seconds=60, store=connect(place, 60), lease_seconds=30).run(program)
    return found  # type: ignore[return-value]


@pytest.mark.processes
@pytest.mark.parametrize("strategy", [ADPSGD(), SuperLearners(ADPSGD(), 2)], ids=["learners", "nodes"])
def test_the_mean_stays_and_every_exchange_ends_when_connections_are_cut(strategy: object, pool: Pool) -> None:
    start = torch.randn(4, 2000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if isinstance(strategy, SuperLearners):
        start = start[::2].repeat_interleave(2, 0)  # the members of a super-learner begin alike
    program = CutAveraging(strategy, start, 2000)  # type: ignore[arg-type]
    ends = pool.call(averaged_in_process, 4, program)
    assert sum(cuts for _, cuts in ends) >= 10
    for weights, _ in ends:
        assert torch.allclose(torch.tensor(weights, dtype=torch.float64), start.mean(0), rtol=0, atol=1e-10)
