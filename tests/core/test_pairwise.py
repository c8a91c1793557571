"""Stale messages: from lost learners, and to learners that were considered dead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest
import torch
from torch import Tensor

from murmur.core import local_steps
from murmur.core.flat import Layout
from murmur.core.learner import Learner
from murmur.core.membership import ENDED, RunOver
from murmur.core.pairwise import GOSSIP, SWAP, PairwiseAverager
from murmur.core.weights import Weights
from murmur.core.world import Seat
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.group import VirtualGroup
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.averaging_only import Still
from tests.support.tasks import Point


def averager_of(seat: Seat) -> PairwiseAverager:
    return PairwiseAverager(seat.group, Weights(Layout.trainable(Point(2))), lambda: seat.now)


async def messages_to_a_learner_considered_dead(seat: Seat) -> tuple[int, int]:
    """Lose learner 0 in the membership table while a snapshot is on its way to it."""
    averager = averager_of(seat)
    if seat.group.rank == 1:
        seat.group.post(torch.ones(2, dtype=torch.float64), 0, GOSSIP, (SWAP, 0.0, 0.0, 0.5))
        await seat.sleep(5.0)  # the sender stays in the view all along
        return 0, 0
    message = await seat.group.poll(GOSSIP, 1.0)
    assert message is not None
    assert isinstance(seat.group, VirtualGroup)
    seat.group.hub.table.lose(0)
    averager._take(message)  # the refreshed view does not hold this learner
    averager.gossip({0: 0.5, 1: 0.5})
    averager._take(message)
    return averager.dropped, averager.exchanges


def test_a_learner_considered_dead_drops_messages_and_lives() -> None:
    dropped, exchanges = VirtualWorld(2).run(messages_to_a_learner_considered_dead)[0]
    assert (dropped, exchanges) == (1, 1)


async def messages_of_an_earlier_incarnation(seat: Seat) -> tuple[int, list[float]]:
    averager = averager_of(seat)
    if seat.group.rank == 1:
        for incarnation in (0.0, 5.0):
            seat.group.post(torch.ones(2, dtype=torch.float64), 0, GOSSIP, (SWAP, incarnation, 0.0, 0.5))
        return 0, []
    assert isinstance(seat.group, VirtualGroup)
    seat.group.hub.table.join(1)  # the second incarnation is number 1: neither message belongs to it
    assert averager.live == (0, 1)  # refreshed first in every round
    for _ in range(2):
        message = await seat.group.poll(GOSSIP, 1.0)
        assert message is not None
        averager._take(message)
    return averager.dropped, averager.weights.snapshot().tolist()


def test_messages_of_other_incarnations_change_nothing() -> None:
    assert VirtualWorld(2).run(messages_of_an_earlier_incarnation)[0] == (2, [0.0, 0.0])


async def a_neighbour_is_lost_while_it_is_answered(seat: Seat) -> tuple[int, int]:
    """Let a second thread of learner 0 detect the loss of learner 1 while its averaging answers learner 1."""
    averager = averager_of(seat)
    group = seat.group
    assert isinstance(group, VirtualGroup)
    if group.rank == 1:
        group.post(torch.ones(2, dtype=torch.float64), 0, GOSSIP, (SWAP, 0.0, 0.0, 0.5))
        return 0, 0
    message = await group.poll(GOSSIP, 1.0)
    assert message is not None
    looks: list[Thread] = []
    really = group.post

    def post(x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        really(x, to, tag, header)
        group.hub.table.lose(1)
        looks.append(Thread(target=lambda: averager.live))
        looks[0].start()
        looks[0].join(0.2)

    group.post = post  # type: ignore[method-assign]
    averager._take(message)
    looks[0].join(5.0)
    return averager.exchanges, len(averager._begun)


def test_an_exchange_is_not_interrupted_by_a_refreshed_view() -> None:
    assert VirtualWorld(2).run(a_neighbour_is_lost_while_it_is_answered)[0] == (1, 0)


async def messages_lost_with_a_connection(seat: Seat, lost: int, late: bool) -> tuple[list[float], float]:
    """Let learner 0 request learner 1's weights; the first messages in one direction are lost."""
    averager = averager_of(seat)
    group = seat.group
    assert isinstance(group, VirtualGroup)
    if group.rank == 1:
        averager.weights.set_(torch.ones(2, dtype=torch.float64))
    really, left = group.post, [lost]

    def post(x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        if left[0] > 0 and to != group.rank:
            left[0] -= 1
        else:
            really(x, to, tag, header)

    group.post = post  # type: ignore[method-assign]
    if group.rank == 0 and late:
        await averager.catch_up()
        return averager.weights.snapshot().tolist(), seat.now
    if group.rank == 0:
        return (await averager.snapshots())[1].tolist(), seat.now
    while seat.now < 60.0:
        message = await group.poll(GOSSIP, 0.1)
        if message is not None:
            averager._take(message)
    return [], seat.now


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(("lost", "seconds"), [(0, 0.0), (1, 5.0), (2, 15.0), (3, 35.0)])
def test_requests_are_repeated_after_lost_messages(late: bool, lost: int, seconds: float) -> None:
    """Requests are repeated after 5, 15 and 35 seconds, whether requests or answers are lost."""
    for asks, answers in ((lost, 0), (0, lost)):

        async def program(seat: Seat, asks: int = asks, answers: int = answers) -> tuple[list[float], float]:
            return await messages_lost_with_a_connection(seat, answers if seat.group.rank else asks, late)

        weights, at = VirtualWorld(2).run(program)[0]
        assert weights == [1.0, 1.0]
        assert seconds <= at <= seconds + 1.0


def test_gradients_and_averaging_that_begin_together_share_one_averager(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Slow(PairwiseAverager):
        def __init__(self, *around: object) -> None:
            time.sleep(0.05)
            made.append(self)
            super().__init__(*around)  # type: ignore[arg-type]

    monkeypatch.setattr(local_steps, "PairwiseAverager", Slow)

    async def program(seat: Seat) -> list[PairwiseAverager]:
        layout = Layout.trainable(Point(2))
        me = Learner(seat, Weights(layout), Still(layout, 1), lock_step=False)  # type: ignore[arg-type]
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda _: me.averager, range(4)))

    (found,) = ThreadWorld(1).run(program)
    assert found == [made[0]] * 4
    assert len(made) == 1


async def coming_after_the_end(seat: Seat) -> str:
    """The only learner that held the model has left in order; another one still waits."""
    averager = averager_of(seat)
    averager.holders = (0,)
    if seat.group.rank != 2:
        await seat.sleep(1.0)
        return ""
    assert isinstance(seat.group, VirtualGroup)
    seat.group.hub.table.arrive(0, ENDED)
    seat.group.hub.table.leave(0)
    try:
        await averager.catch_up()
    except RunOver:
        return "over"
    return "caught up"


def test_a_learner_that_comes_after_the_end_is_told_so() -> None:
    assert VirtualWorld(3).run(coming_after_the_end) == ["", "", "over"]
