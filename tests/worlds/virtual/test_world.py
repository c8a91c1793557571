"""The virtual world: time, faults, and gradients that are computed in batches, at the weights of their start."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.flat import Layout
from murmur.core.group import PeerLost
from murmur.core.source import Gradient, PendingGradient
from murmur.core.trace import COMMUNICATING, COMPUTE, WAITING, Span
from murmur.core.weights import Weights
from murmur.core.world import Seat
from murmur.worlds.virtual import clock as clocks
from murmur.worlds.virtual.clock import Clock, Deadlock, Livelock
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Link, LognormalSeconds, Rejoin, Stop
from murmur.worlds.virtual.network import Network
from murmur.worlds.virtual.world import GradientExecutor, VirtualWorld
from tests.support.averaging_only import Still
from tests.support.tasks import Point


async def averages(seat: Seat) -> float:
    for _ in range(3):
        await seat.work(lambda: None)
        await seat.group.mean(torch.zeros(1))
    return seat.now


def test_time_is_that_of_the_slowest_learner() -> None:
    link = Link(latency_seconds=0.0, bytes_per_second=1e12)
    cluster = Cluster(3, ConstantSeconds(0.1, {2: 4.0}), link)
    assert VirtualWorld(cluster).run(averages) == pytest.approx([1.2] * 3)


def test_spans_say_where_time_went() -> None:
    spans: list[Span] = []
    cluster = Cluster(2, ConstantSeconds(0.1, {1: 3.0}), Link(0.0, 1000.0), message_bytes=100.0)
    VirtualWorld(cluster, spans.append).run(averages)
    spent = {
        (learner, kind): sum(s.end_seconds - s.start_seconds for s in spans if (s.learner, s.kind) == (learner, kind))
        for learner in (0, 1)
        for kind in (COMPUTE, WAITING, COMMUNICATING)
    }
    assert spent[0, COMPUTE] == pytest.approx(0.3)
    assert spent[1, COMPUTE] == pytest.approx(0.9)
    assert spent[0, WAITING] == pytest.approx(0.6)
    assert spent[1, WAITING] == 0.0
    assert spent[0, COMMUNICATING] == spent[1, COMMUNICATING] == pytest.approx(3 * 0.1)  # 2 (L-1)/L b / B per round


def test_a_deadlock_names_all_waits() -> None:
    async def program(seat: Seat) -> None:
        if seat.group.rank == 2:
            await seat.group.recv(0, "answer")
        await seat.group.mean(torch.zeros(1))

    with pytest.raises(Deadlock) as stuck:
        VirtualWorld(3).run(program)
    assert "learner 0 (training): waiting since t=0.000s for mean #1 of world" in str(stuck.value)
    assert "learner 2 (training): waiting since t=0.000s for a message 'answer' from learner 0 in world" in str(
        stuck.value
    )


def test_livelock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "STILL_EVENTS", 100)

    async def program(seat: Seat) -> None:
        while True:
            seat.group.post(torch.zeros(1), seat.group.rank)
            await seat.group.recv()

    with pytest.raises(Livelock, match="100 events without time passing at t=0"):
        VirtualWorld(1).run(program)


def test_polls_without_end_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learner 0 looks for a message again and again, learner 1 sleeps again and again, learner 2 waits for 0."""
    monkeypatch.setattr(clocks, "IDLE_POLLS", 100)

    async def program(seat: Seat) -> None:
        await seat.work(lambda: None)
        while seat.rank == 0:
            await seat.group.poll("request", 0.25)
        while seat.rank == 1:
            await seat.sleep(0.5)
        await seat.group.recv(0, "answer")

    with pytest.raises(Livelock, match=r"wait without end: 100 polls and no other event up to t=\d") as stuck:
        VirtualWorld(3).run(program)
    assert "learner 0 (training): waiting since t=" in str(stuck.value)
    assert "for a message 'request' from anyone in world" in str(stuck.value)
    assert "for 0.5 s to pass" in str(stuck.value)
    assert "for a message 'answer' from learner 0 in world" in str(stuck.value)


def test_messages_without_end_and_without_gradients_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners 0 and 2 send each other messages again and again, learner 1 waits after a long gradient."""
    monkeypatch.setattr(clocks, "IDLE_EVENTS", 100)

    async def program(seat: Seat) -> None:
        if seat.rank == 1:
            await seat.work(lambda: None)
            await seat.group.recv(0, "answer")
        while True:
            seat.group.post(torch.zeros(1), 2 - seat.rank, "news")
            await seat.group.poll("news", 1.0)

    cluster = Cluster(3, ConstantSeconds(5.0), Link(0.01, 1e6))
    with pytest.raises(Livelock, match="wait without end: 100 events and no gradient up to t=") as stuck:
        VirtualWorld(cluster).run(program)
    assert "learner 1 (training): waiting since t=5.000s for a message 'answer'" in str(stuck.value)


@pytest.mark.parametrize("waits_for", ["gradient", "message", "suspended learner", "lost learner"])
def test_long_waits_for_something_are_no_livelock(waits_for: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learner 0 polls 4000 times, until learner 1 is there or is lost."""
    monkeypatch.setattr(clocks, "IDLE_POLLS", 100)

    async def program(seat: Seat) -> int:
        if seat.rank == 1:
            await seat.work(lambda: None)
            seat.group.post(torch.zeros(1), 0, "done")
            await seat.group.recv(0, "seen")
            return 0
        polls = 1
        while await seat.group.poll("done", 0.25) is None and seat.group.membership.view().live == (0, 1):
            polls += 1
        seat.group.post(torch.zeros(1), 1, "seen")
        return polls

    seconds = 1000.0 if waits_for == "gradient" else 0.1
    link = Link(1000.0 if waits_for == "message" else 0.0, 1e12)
    faults = {"suspended learner": (Stop(1, 0.05, 1000.0),), "lost learner": (Kill(1, 0.05),)}.get(waits_for, ())
    cluster = Cluster(2, ConstantSeconds(seconds), link, faults=faults, lease_seconds=1000.0)
    assert VirtualWorld(cluster).run(program)[0] == pytest.approx(4000, abs=2)


def test_activities_end_with_their_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that comes after the end leaves its activities as they are. The run went on without end."""
    monkeypatch.setattr(clocks, "IDLE_POLLS", 100)

    async def answers(seat: Seat) -> None:
        while True:
            await seat.group.poll("request", 0.25)

    async def program(seat: Seat) -> float:
        seat.spawn(answers(seat), "answers")
        await seat.sleep(1.0)
        return seat.now

    assert VirtualWorld(2).run(program) == [1.0, 1.0]


def test_a_killed_learner_is_named() -> None:
    with pytest.raises(PeerLost, match=r"learner 1 was killed at t=0\.150s") as lost:
        VirtualWorld(Cluster(3, faults=(Kill(1, 0.15),))).run(averages)
    assert lost.value.learner == 1


def test_a_learner_that_is_killed_twice_and_started_again_is_not_lost() -> None:
    async def program(seat: Seat) -> int:
        for _ in range(10):
            await seat.work(lambda: None)
        return seat.group.rank

    world = VirtualWorld(Cluster(2, ConstantSeconds(0.1), faults=(Kill(1, 0.3), Kill(1, 0.4), Rejoin(1, 0.5))))
    assert world.run(program) == [0, 1]
    assert world.killed == []


def test_a_stopped_learner_goes_on_later() -> None:
    link = Link(latency_seconds=0.0, bytes_per_second=1e12)
    cluster = Cluster(2, ConstantSeconds(0.1), link, faults=(Stop(1, 0.15, 5.0),))
    assert VirtualWorld(cluster).run(averages) == pytest.approx([5.15 + 0.1] * 2)


def test_what_a_learner_sent_before_its_end_arrives_and_then_waits_for_it_fail() -> None:
    """Learner 1 waits twice for learner 0, whose message arrives a second after its end; learner 2 asks later."""

    async def program(seat: Seat) -> str:
        if seat.rank == 0:
            seat.group.post(torch.zeros(1), 1, "last")
            return "ended"
        if seat.rank == 2:
            await seat.sleep(5.0)
        else:
            await seat.group.recv(0, "last")
        assert seat.now == pytest.approx({1: 1.0, 2: 5.0}[seat.rank])
        with pytest.raises(PeerLost, match="learner 0 is gone, and another one waits for it in world"):
            await seat.group.recv(0, "never")
        return f"noticed at {seat.now:.1f}"

    cluster = Cluster(3, link=Link(1.0, 1e12), message_bytes=1.0)
    assert VirtualWorld(cluster).run(program) == ["ended", "noticed at 1.0", "noticed at 5.0"]


def test_a_wait_for_a_learner_fails_when_it_ends() -> None:
    async def program(seat: Seat) -> float:
        await seat.sleep(2.0 * (1 - seat.rank))
        if seat.rank == 1:
            with pytest.raises(PeerLost, match="learner 0 is gone"):
                await seat.group.recv(0, "never")
        return seat.now

    assert VirtualWorld(2).run(program) == [2.0, 2.0]


async def three_claims(seat: Seat) -> int:
    while seat.group.membership.claim(0, 3) is not None:
        await seat.work(lambda: None)
    return seat.rank


def test_a_suspended_learner_that_comes_back_after_the_end_is_lost() -> None:
    world = VirtualWorld(Cluster(2, ConstantSeconds(0.1), faults=(Stop(1, 0.15, 5.0),), lease_seconds=0.1))

    async def program(seat: Seat) -> int:
        while not seat.group.membership.spent:
            await three_claims(seat)
            await seat.sleep(0.01)
        return seat.rank

    assert world.run(program) == [0]
    assert world.killed == [1]
    assert world.clock.notes == ["learner 1 gave up at t=5.150s: the others had ended the run before it came back"]


def test_a_suspended_learner_goes_on_alone_with_the_minibatches_that_are_left() -> None:
    world = VirtualWorld(Cluster(2, ConstantSeconds(0.1), faults=(Stop(1, 0.15, 5.0),), lease_seconds=1.0))
    assert world.run(three_claims) == [0, 1]
    assert world.killed == []


def test_a_suspended_learner_goes_on_if_all_others_were_killed() -> None:
    faults = (Stop(1, 0.15, 5.0), Kill(0, 0.2))
    world = VirtualWorld(Cluster(2, ConstantSeconds(0.1), faults=faults, lease_seconds=1.0))

    async def program(seat: Seat) -> int:
        for _ in range(3):
            await seat.work(lambda: None)
        return seat.rank

    assert world.run(program) == [1]
    assert world.killed == [0]


def test_awaiting_inside_no_grad_is_refused() -> None:
    async def program(seat: Seat) -> None:
        with torch.no_grad():
            await seat.group.mean(torch.zeros(1))

    with pytest.raises(RuntimeError, match="awaited something inside no_grad"):
        VirtualWorld(2).run(program)
    assert torch.is_grad_enabled()


def test_the_first_error_ends_the_run() -> None:
    async def program(seat: Seat) -> None:
        await seat.work(lambda: None)
        if seat.group.rank == 1:
            raise ValueError("planted")
        await seat.group.mean(torch.zeros(1))

    with pytest.raises(ValueError, match="planted"):
        VirtualWorld(3).run(program)


def arrivals(cluster: Cluster, messages: list[tuple[float, int, int, int]]) -> list[float]:
    """Return the arrival time of each message (time of sending, source, to, bytes)."""
    clock = Clock()
    network = Network(clock, cluster)
    came = [0.0] * len(messages)

    def send(i: int) -> None:
        _, source, to, size = messages[i]

        def arrive() -> None:
            came[i] = clock.now

        network.send(source, to, size, arrive)

    async def wait() -> None:
        await clock.sleep(1000.0, "the end")

    for i, message in enumerate(messages):
        clock.after(message[0], lambda i=i: send(i))  # type: ignore[misc]
    clock.start(wait(), "waiting", 0)
    clock.run()
    return came


def test_one_message_takes_latency_and_transfer() -> None:
    assert arrivals(Cluster(2, link=Link(0.5, 100.0)), [(0.0, 0, 1, 200)]) == pytest.approx([0.5 + 2.0])


def test_a_slow_sender_does_not_block_a_fast_one() -> None:
    """Two senders of unequal speed to one receiver: the fast one's message is complete long before the slow one's."""
    cluster = Cluster(3, link=Link(0.0, 100.0), links={0: Link(0.0, 1.0)})
    slow, fast = arrivals(cluster, [(0.0, 0, 2, 100), (0.0, 1, 2, 100)])
    assert fast == pytest.approx(1.0)
    assert slow == pytest.approx(100.0)


def test_incast_shares_the_receiver() -> None:
    """n equal simultaneous messages to one receiver: the last arrives when the card has received all of them."""
    came = arrivals(Cluster(5, link=Link(0.0, 100.0)), [(0.0, i, 4, 100) for i in range(4)])
    assert max(came) == pytest.approx(4.0)


@given(st.integers(2, 64), st.floats(1.0, 1e9), st.floats(0.0, 1.0), st.floats(1.0, 1e9))
def test_ring_allreduce_by_its_closed_form(learners: int, size: float, latency: float, bandwidth: float) -> None:
    cluster = Cluster(learners, link=Link(latency, bandwidth), message_bytes=size)
    seconds = Network(Clock(), cluster).allreduce_seconds(range(learners), 4)
    assert seconds == pytest.approx(2 * (learners - 1) * latency + 2 * (learners - 1) / learners * size / bandwidth)


def test_impossible_clusters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Link.bytes_per_second must be positive and finite, got 0"):
        Link(bytes_per_second=0)
    with pytest.raises(ValueError, match=r"ConstantSeconds.seconds must be positive and finite, got -1"):
        ConstantSeconds(-1)
    with pytest.raises(ValueError, match=r"learner 4 is named"):
        Cluster(4, links={4: Link()})
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Cluster(0)


def test_random_compute_times_repeat() -> None:
    times = LognormalSeconds(0.1, 0.5, seed=3)
    draws = [times(learner, step) for learner in range(20) for step in range(50)]
    assert draws == [times(learner, step) for learner in range(20) for step in range(50)]
    assert sorted(draws)[len(draws) // 2] == pytest.approx(0.1, rel=0.1)  # the median


async def broadcast_after_a_pause(seat: Seat) -> str:
    if seat.group.rank == 0:
        await seat.sleep(0.2)
    sent = seat.group.start_broadcast(torch.ones(2), 0, "weights")
    if seat.group.rank == 0:
        await seat.sleep(0.5)  # computes while the vector is under way
    try:
        await sent
    except PeerLost:
        return "lost"
    return "arrived"


def test_a_broadcast_that_a_suspended_learner_begins_after_its_loss_goes_nowhere() -> None:
    """The members are told of the loss once, and the vector does not arrive after it."""
    cluster = Cluster(learners=2, faults=(Stop(0, 0.1, 1.0),), lease_seconds=0.3)
    assert VirtualWorld(cluster).run(broadcast_after_a_pause) == ["lost", "lost"]


def pending(n: int) -> tuple[PendingGradient, Weights, Layout]:
    layout = Layout.trainable(Point(2))
    weights = Weights(layout)
    return PendingGradient(Still(layout, 10), n, weights, None), weights, layout


def test_all_that_have_begun_are_computed_when_the_first_is_needed() -> None:
    seen: list[list[tuple[int, float]]] = []
    layouts: dict[int, Layout] = {}

    def together(drawings: Sequence[PendingGradient]) -> list[Gradient]:
        seen.append([(d.n, float(layouts[d.n].gather()[0])) for d in drawings])
        return [Gradient(torch.tensor([float(d.n)]), [True], 1.0, 0.0) for d in drawings]

    executor = GradientExecutor(together)
    jobs, results = {}, {}
    for n in range(4):
        jobs[n], weights, layouts[n] = pending(n)
        results[n] = executor.begin(jobs[n])
        weights.add_(torch.full((2,), 10.0 + n, dtype=torch.float64))  # lands while the gradient is under way
    assert executor.begin(lambda: "other work is done at once")() == "other work is done at once"
    executor.forget(jobs[3])  # its learner was killed
    assert not seen
    assert float(results[1]().g) == 1.0
    assert seen == [[(0, 0.0), (1, 0.0), (2, 0.0)]], "at the weights of the start"
    assert float(layouts[0].gather()[0]) == 0.0, "the next step takes over what has landed"
    executor.forget(jobs[1])
    jobs[4], _, layouts[4] = pending(4)
    executor.begin(jobs[4])
    assert [float(results[n]().g) for n in (0, 2)] == [0.0, 2.0]
    assert len(seen) == 1, "they were there already"
