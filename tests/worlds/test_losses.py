"""Lock-step processes, one of which fails in the middle: the others are told at once, with its name."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from murmur.core.group import PeerLost
from murmur.core.world import Seat
from murmur.worlds.process.environment import Place
from murmur.worlds.process.listener import listen
from murmur.worlds.process.store_server import StoreServer
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld
from murmur.worlds.threads import ThreadWorld

pytestmark = pytest.mark.processes

BAR_SECONDS = 5.0
SIZE, VICTIM = 3, 1
STEP_SECONDS = 0.005
SHORT_SECONDS = 1.0


def crash() -> None:
    raise MemoryError("no room for the minibatch")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    os._exit(1)


@dataclass(frozen=True)
class Step:
    """One round of lock-step."""

    verb: str

    async def __call__(self, seat: Seat) -> None:
        await seat.work(lambda: time.sleep(STEP_SECONDS))
        x = torch.ones(50_000)
        if self.verb == "mean":
            await seat.group.mean(x)
        elif self.verb == "sums behind a gradient":
            for each in [seat.group.start_sum(part) for part in x.chunk(4)]:
                await each
        elif self.verb == "mixing":
            await seat.group.mix(x, {j: 1 / SIZE for j in range(SIZE)})
        else:
            await seat.spawn(seat.group.mean(x), "averaging")


def take_part(place: Place, step: Step, failure: Callable[[], None], at: int, pipe: Connection) -> None:
    """Run a learner that steps until a failure; report the failure, or the message received and its time."""
    torch.set_num_threads(1)

    async def program(seat: Seat) -> None:
        for turn in range(100_000):
            if place.rank == VICTIM and turn == at:
                pipe.send(time.monotonic())
                failure()
            await step(seat)

    try:
        ProcessWorld(place, store=connect(place, 30)).run(program)
    except PeerLost as error:
        pipe.send((time.monotonic(), error.learner, str(error)))
    except MemoryError:
        pass  # raised by the victim itself
    pipe.send("ended")  # the world has ended, not only the program


async def patience(seat: Seat) -> float:
    """Let member 1 wait for a message of member 0 for longer than the world's timeout."""
    if seat.group.rank == 0:
        await seat.sleep(2 * SHORT_SECONDS)
        seat.group.post(torch.tensor([7.0]), 1, "late")
        return 0.0
    return float((await seat.group.recv(0, "late")).x)


def wait_for_each_other(place: Place, pipe: Connection) -> None:
    """Run a learner of a world with a short timeout of collectives."""
    torch.set_num_threads(1)
    pipe.send(ProcessWorld(place, timeout_seconds=SHORT_SECONDS, store=connect(place, 30)).run(patience)[0])


@dataclass
class StartedLearners:
    """Learners with their own store."""

    processes: list[Any]
    pipes: list[Connection]

    def poll(self, rank: int) -> Any:
        assert self.pipes[rank].poll(60), f"learner {rank} says nothing"
        return self.pipes[rank].recv()


@pytest.fixture
def start() -> Iterator[Callable[..., StartedLearners]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["murmur.worlds.process.world"])
    server = StoreServer(listen())
    all_started: list[StartedLearners] = []

    def begin(size: int, target: Callable[..., None], *arguments: Any) -> StartedLearners:
        started = StartedLearners([], [])
        for rank in range(size):
            ours, theirs = context.Pipe()
            place = Place(rank, size, rank, "127.0.0.1", server.address[1], generation=len(all_started))
            process = context.Process(target=target, args=(place, *arguments, theirs))
            process.start()
            theirs.close()
            started.processes.append(process)
            started.pipes.append(ours)
        all_started.append(started)
        return started

    yield begin
    for started in all_started:
        for process in started.processes:
            process.kill()
            process.join()
    server.close()


WHY = {
    kill: "its process has ended",
    leave: "its process has ended",
    crash: "MemoryError: no room for the minibatch",
    stop: "no sign of life",
}
VERBS = ["mean", "sums behind a gradient", "mixing", "mean beside"]
FEW = [
    *((stop, VERBS[1]), (kill, VERBS[2]), (crash, VERBS[0])),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in [(stop, VERBS[2]), (stop, VERBS[3]), (leave, VERBS[3])]),
]


def named(value: Any) -> str:
    return value if isinstance(value, str) else str(value.__name__)


@pytest.mark.parametrize(("failure", "verb"), FEW, ids=named)
def test_the_others_learn_the_name_of_the_lost(
    start: Callable[..., StartedLearners], failure: Callable[[], None], verb: str
) -> None:
    check_loss(start, failure, verb, 80)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_whenever_it_happens(start: Callable[..., StartedLearners], seed: int) -> None:
    draw = random.Random(seed)
    check_loss(start, draw.choice(list(WHY)), draw.choice(VERBS), draw.randrange(60, 400))


def check_loss(start: Callable[..., StartedLearners], failure: Callable[[], None], verb: str, at: int) -> None:
    started = start(SIZE, take_part, Step(verb), failure, at)
    failed = started.poll(VICTIM)
    for rank in set(range(SIZE)) - {VICTIM}:
        told, learner, message = started.poll(rank)
        assert told - failed < BAR_SECONDS
        assert learner == VICTIM
        assert f"learner {VICTIM} on " in message
        assert WHY[failure] in message
        assert started.poll(rank) == "ended"
        assert time.monotonic() - failed < 2 * BAR_SECONDS, "nothing holds the process back"


@pytest.mark.parametrize("world", ["threads", "processes"])
def test_a_silent_member_that_lives_is_waited_for(start: Callable[..., StartedLearners], world: str) -> None:
    if world == "threads":
        assert ThreadWorld(2, timeout_seconds=0.1).run(patience) == [0.0, 7.0]
    else:
        started = start(2, wait_for_each_other)
        assert [started.poll(rank) for rank in range(2)] == [0.0, 7.0]


def test_no_wait_for_a_thread_that_has_ended() -> None:
    async def program(seat: Seat) -> None:
        if seat.group.rank == 1:
            seat.group.post(torch.ones(1), 0, "first")
            return
        assert (await seat.group.recv(1, "first")).x == 1
        await seat.group.recv(1, "second")

    began = time.monotonic()
    with pytest.raises(PeerLost, match="learner 1 has ended"):
        ThreadWorld(2).run(program)
    assert time.monotonic() - began < BAR_SECONDS


def test_a_group_that_is_made_after_a_failure_knows_it() -> None:
    async def program(seat: Seat) -> None:
        if seat.group.rank == 1:
            raise MemoryError("no room for the minibatch")
        while not seat.group.hub.gone:  # type: ignore[attr-defined]
            time.sleep(0.01)
        with pytest.raises(PeerLost, match="no room for the minibatch"):
            await seat.group.twin().mean(torch.ones(1))

    began = time.monotonic()
    with pytest.raises(MemoryError):
        ThreadWorld(2).run(program)
    assert time.monotonic() - began < BAR_SECONDS
