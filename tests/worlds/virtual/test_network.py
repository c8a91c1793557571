"""Virtual network against closed forms, and against a fluid calculation in small steps of time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.strategies import ASGD
from murmur.worlds.virtual.clock import Clock
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Link, LognormalSeconds, RecordedSeconds, Stop
from murmur.worlds.virtual.network import Network
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.tasks import Quadratic, fit
from tests.support.unscaled import Experiment

Message = tuple[float, int, int, int]  # sent at, source, to, bytes


def arrivals(cluster: Cluster, messages: list[Message]) -> list[float]:
    """Return the time at which the virtual network has received each message."""
    clock = Clock()
    network = Network(clock, cluster)
    came = [float("nan")] * len(messages)

    def post(i: int) -> Callable[[], None]:
        def arrive() -> None:
            came[i] = clock.now

        return lambda: network.send(*messages[i][1:], arrive)

    async def wait() -> None:
        await clock.sleep(1e6, "the end")

    for i, message in enumerate(messages):
        clock.after(message[0], post(i))
    clock.start(wait(), "waiting", 0)
    clock.run()
    return came


def stepped(cluster: Cluster, messages: list[Message], dt: float) -> list[float]:
    """Compute the same by brute force, with one learner per node.

    In every `dt`, each card sends its bytes in equal parts; any part that a receiver's card leaves over goes to the
    others. Then every card receives the bytes that have arrived, first those of the message whose last byte comes
    first.
    """
    out = [float(m[3]) for m in messages]
    came: list[list[float]] = [[] for _ in messages]
    while max(out) > 1e-9:
        now = len(came[0]) * dt
        for arrived in came:
            arrived.append(0.0)
        for card in range(cluster.learners):
            going = [i for i, m in enumerate(messages) if m[1] == card and m[0] <= now + 1e-9 and out[i] > 1e-9]
            left = cluster.link_of(card).bytes_per_second
            going.sort(key=lambda i: cluster.link_of(messages[i][2]).bytes_per_second)
            for place, i in enumerate(going):
                rate = min(cluster.link_of(messages[i][2]).bytes_per_second, left / (len(going) - place))
                left -= rate
                came[i][-1] = min(out[i], rate * dt)
                out[i] -= came[i][-1]
    last = [max(step for step, moved in enumerate(arrived) if moved > 0) for arrived in came]
    done = [0.0] * len(messages)
    for card in range(cluster.learners):
        coming = sorted((i for i, m in enumerate(messages) if m[2] == card), key=lambda i: last[i])
        waiting, left_of, step = dict.fromkeys(coming, 0.0), {i: float(messages[i][3]) for i in coming}, 0
        while left_of:
            room = cluster.link_of(card).bytes_per_second * dt
            for i in [i for i in coming if i in left_of]:
                waiting[i] += came[i][step] if step < len(came[i]) else 0.0
                moved = min(room, waiting[i])
                room, waiting[i], left_of[i] = room - moved, waiting[i] - moved, left_of[i] - moved
                if left_of[i] <= 1e-6:
                    done[i] = (step + 1) * dt
                    del left_of[i]
            step += 1
    return done


def test_two_senders_of_unequal_speed_to_one_receiver() -> None:
    """The slow one trickles in beside the fast one, which waits only for bytes that were complete before its own."""
    cluster = Cluster(3, link=Link(0.0, 100.0), links={0: Link(0.0, 10.0)})
    assert arrivals(cluster, [(0.0, 0, 2, 100), (0.0, 1, 2, 100)]) == pytest.approx([10.0, 1.0])
    # Ends at 10, when the fast one has been arriving for one second of its two: 10 of 110 bytes remain to be served.
    assert arrivals(cluster, [(0.0, 0, 2, 100), (9.0, 1, 2, 200)]) == pytest.approx([10.0, 11.1])


def test_a_card_is_shared_on_the_way_out() -> None:
    """Three simultaneous messages from one card: the short one is complete when all have sent as many bytes."""
    cluster = Cluster(4, link=Link(0.0, 100.0))
    came = arrivals(cluster, [(0.0, 0, 1, 50), (0.0, 0, 2, 100), (0.0, 0, 3, 150)])
    assert came == pytest.approx([1.5, 2.5, 3.0])


def test_a_slow_receiver_leaves_the_way_out_to_others() -> None:
    cluster = Cluster(3, link=Link(0.0, 100.0), links={1: Link(0.0, 10.0)})
    assert arrivals(cluster, [(0.0, 0, 1, 100), (0.0, 0, 2, 90)]) == pytest.approx([10.0, 1.0])


def test_an_exchange_of_all_with_all_fills_every_card() -> None:
    """L - 1 messages from every learner to each other take as long as one card needs for L - 1, in and out at once."""
    cluster = Cluster(5, link=Link(0.0, 100.0))
    came = arrivals(cluster, [(0.0, i, j, 100) for i in range(5) for j in range(5) if i != j])
    assert came == pytest.approx([4.0] * 20)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_agrees_with_a_fluid_calculation_in_small_steps(data: st.DataObject) -> None:
    """Random cards and messages, with constant rates while a message is under way, as the way in assumes.

    Each receiver's messages come from different senders that send nothing else, or one sender sends several.
    """
    learners = data.draw(st.integers(2, 5))
    speeds = st.sampled_from([50.0, 100.0, 200.0])
    links = {i: Link(0.0, data.draw(speeds)) for i in range(learners)}
    cluster = Cluster(learners, links=links)
    starts = st.integers(0, 20).map(lambda t: t / 10)
    if data.draw(st.booleans()):
        messages = [(data.draw(starts), i, 0, data.draw(st.integers(20, 200))) for i in range(1, learners)]
    else:
        size = data.draw(st.integers(20, 200))
        messages = [(0.0, 0, i, size) for i in range(1, learners)]
    dt = 5e-3
    speed = {i: link.bytes_per_second for i, link in links.items()}
    alone = sorted(begun + size / min(speed[sender], speed[to]) for begun, sender, to, size in messages)
    if messages[0][2] == 0:  # two that reach the card at one moment may pass it in either order
        assume(all(later - earlier > 2 * dt for earlier, later in pairwise(alone)))
    assert arrivals(cluster, messages) == pytest.approx(stepped(cluster, messages, dt), abs=5 * dt)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 4), st.integers(0, 4), st.integers(1, 300)), max_size=12))
def test_no_card_carries_more_than_it_can(messages: list[Message]) -> None:
    """No message arrives before its own transfer, and no card is faster than its bytes per second."""
    bandwidth = 100.0
    messages = [m for m in messages if m[1] != m[2]]
    came = arrivals(Cluster(5, link=Link(0.0, bandwidth)), messages)
    for m, at in zip(messages, came, strict=True):
        assert at >= m[0] + m[3] / bandwidth - 1e-9
    for card in range(5):
        for end in (1, 2):
            through = sorted((at, m) for m, at in zip(messages, came, strict=True) if m[end] == card)
            for first in range(len(through)):
                for last in range(first, len(through)):
                    among = [m for at, m in through[: last + 1] if m[0] >= through[first][1][0]]
                    if among:
                        begun = min(m[0] for m in among)
                        assert through[last][0] - begun >= sum(m[3] for m in among) / bandwidth - 1e-6


def test_incast_at_a_parameter_server() -> None:
    """n learners push b and pull b in turn, for ever: the server's card passes one gradient every b / B."""
    learners, rounds, size, bandwidth = 9, 20, 100.0, 1000.0
    clock = Clock()
    network = Network(clock, Cluster(learners, link=Link(0.0, bandwidth)))
    served = []

    def push(i: int, left: int) -> None:
        def at_server() -> None:
            served.append(clock.now)
            network.send(0, i, int(size), lambda: push(i, left - 1))

        if left:
            network.send(i, 0, int(size), at_server)

    async def wait() -> None:
        await clock.sleep(1e3, "the end")

    for i in range(1, learners):
        push(i, rounds)
    clock.start(wait(), "waiting", 0)
    clock.run()
    assert len(served) == (learners - 1) * rounds
    between = (served[-1] - served[learners]) / (len(served) - 1 - learners)
    assert between == pytest.approx(size / bandwidth, rel=0.15)
    assert between >= size / bandwidth * (1 - 1e-6)


def chained(cluster: Cluster, hop: Callable[[int], int], steps: int, size: int, in_step: bool = True) -> float:
    """Return the seconds of `steps` steps of messages i -> hop(i), each begun after the last one: of all, or here."""
    clock = Clock()
    network = Network(clock, cluster)
    received = [0] * cluster.learners
    ended = [0.0]

    def send(i: int, step: int) -> None:
        if step < steps:
            network.send(i, hop(i), size, lambda: arrive(hop(i), step))

    def arrive(to: int, step: int) -> None:
        received[to] += 1
        ended[0] = clock.now
        if not in_step:
            send(to, step + 1)
        elif min(received) == step + 1:
            for i in range(cluster.learners):
                send(i, step + 1)

    async def wait() -> None:
        await clock.sleep(1e6, "the end")

    for i in range(cluster.learners):
        send(i, 0)
    clock.start(wait(), "waiting", 0)
    clock.run()
    assert received == [steps] * cluster.learners
    return ended[0]


@pytest.mark.parametrize("per_node", [1, 2, 4])
@pytest.mark.parametrize("latency", [0.0, 0.3])
def test_ring_allreduce_message_by_message(per_node: int, latency: float) -> None:
    learners, part = 8, 100
    cluster = Cluster(learners, link=Link(latency, 50.0), learners_per_node=per_node, inside=Link(latency / 10, 400.0))
    steps = 2 * (learners - 1)
    closed = Network(Clock(), cluster).allreduce_seconds(range(learners), part * learners)
    assert chained(cluster, lambda i: (i + 1) % learners, steps, part) == pytest.approx(closed)
    # With different links and without lock-step, latencies overlap other messages.
    free = chained(cluster, lambda i: (i + 1) % learners, steps, part, in_step=False)
    assert free == pytest.approx(closed) if per_node == 1 else 0.85 * closed < free < 1.03 * closed


def test_hierarchical_allreduce_message_by_message() -> None:
    """Rings inside nodes, then one ring per member through all nodes over shared cards, then inside again."""
    nodes, width, size = 4, 4, 1600
    cluster = Cluster(
        nodes * width, link=Link(0.1, 50.0), learners_per_node=width, inside=Link(0.01, 400.0), allreduce="hierarchical"
    )
    within = chained(cluster, lambda i: i - i % width + (i + 1) % width, width - 1, size // width)
    between = chained(cluster, lambda i: (i + width) % (nodes * width), 2 * (nodes - 1), size // width // nodes)
    closed = Network(Clock(), cluster).allreduce_seconds(range(nodes * width), size)
    assert 2 * within + between == pytest.approx(closed)


def test_tree_allreduce_message_by_message() -> None:
    """Up a binomial tree, where every level waits for the one below, and down again."""
    learners, size = 8, 100
    cluster = Cluster(learners, link=Link(0.1, 50.0), allreduce="tree", reduce_bytes_per_second=200.0)
    clock = Clock()
    network = Network(clock, cluster)
    children = {i: [i + 2**k for k in range(3) if i % 2 ** (k + 1) == 0] for i in range(learners)}
    missing = {i: len(c) for i, c in children.items()}
    came: list[float] = []

    def down(i: int) -> None:
        came.append(clock.now)
        relay(i, list(reversed(children[i])))

    def relay(i: int, to: list[int]) -> None:
        if to:  # one child after another, the deepest first, each with a full message
            network.send(i, to[0], size, lambda: down(to[0]))
            clock.after(size / cluster.link.bytes_per_second, lambda: relay(i, to[1:]))

    def up(i: int) -> None:
        if missing[i]:
            return
        if i == 0:
            down(0)
        else:
            parent = i - (i & -i)
            network.send(i, parent, size, lambda: clock.after(size / 200.0, lambda: added(parent)))

    def added(i: int) -> None:
        missing[i] -= 1
        up(i)

    async def wait() -> None:
        await clock.sleep(1e3, "the end")

    for i in range(learners):
        up(i)
    clock.start(wait(), "waiting", 0)
    clock.run()
    closed = Network(Clock(), cluster).allreduce_seconds(range(learners), size)
    assert max(came) <= closed + 1e-9  # the bound for a tree whose levels are not in step
    assert max(came) >= closed - 2 * 3 * cluster.link.latency_seconds - 1e-9


def test_learners_of_a_node_share_its_card() -> None:
    cluster = Cluster(4, link=Link(0.0, 100.0), learners_per_node=2, inside=Link(0.0, 1000.0))
    assert arrivals(cluster, [(0.0, 0, 2, 100), (0.0, 1, 3, 100)]) == pytest.approx([2.0, 2.0])
    assert arrivals(cluster, [(0.0, 0, 1, 100), (0.0, 2, 3, 100)]) == pytest.approx([0.1, 0.1])


def test_copies_between_device_and_host_take_turns() -> None:
    cluster = Cluster(3, link=Link(0.0, 1000.0), copy_bytes_per_second=100.0)
    came = arrivals(cluster, [(0.0, 0, 1, 100), (0.0, 0, 2, 100)])
    assert came == pytest.approx([1.0 + 0.1 + 1.0, 2.0 + 0.1 + 1.0])
    at_once = Cluster(4, link=Link(0.0, 100.0))
    extra = [
        Network(Clock(), c).allreduce_seconds(range(3), 100) for c in (cluster, Cluster(3, link=Link(0.0, 1000.0)))
    ]
    assert extra[0] - extra[1] == pytest.approx(2.0)
    assert arrivals(at_once, [(0.0, 0, 1, 100)]) == pytest.approx([1.0])


@pytest.mark.parametrize("kind", ["ring", "tree", "hierarchical"])
def test_adding_takes_its_time(kind: str) -> None:
    fast = Cluster(8, allreduce=kind, learners_per_node=2)
    slow = Cluster(8, allreduce=kind, learners_per_node=2, reduce_bytes_per_second=100.0)
    share = {"ring": 7 / 8, "tree": 3.0, "hierarchical": 1 / 2 + 3 / 8}[kind]
    took = [Network(Clock(), c).allreduce_seconds(range(8), 1000) for c in (slow, fast)]
    assert took[0] - took[1] == pytest.approx(share * 1000 / 100)


def test_sums_of_gradients_begin_behind_the_backward_pass() -> None:
    """A vector of 1 MiB, two buckets of 25 MiB, and a last one of 10 MiB, at 61 MiB/s: two learners take 1 s."""
    mib = 2**20
    cluster = Cluster(2, link=Link(0.0, 61 * mib), message_bytes=61 * mib)
    assert Network(Clock(), cluster).allreduce_seconds(range(2), 1) == pytest.approx(1.0)
    for gradient, exposed in ((0.3, 0.8), (1.2, 0.2), (1.5, 10 / 61), (90.0, 10 / 61)):
        found = Network(Clock(), cluster).exposed_allreduce_seconds(range(2), 1, gradient)
        assert found == pytest.approx(exposed), gradient


def test_no_small_sum_is_hidden() -> None:
    """All tensors but the last 1 MiB are one bucket, which also carries the flags."""
    mib = 2**20
    cluster = Cluster(2, link=Link(0.0, mib), message_bytes=8 * mib)
    assert Network(Clock(), cluster).exposed_allreduce_seconds(range(2), 1, 100.0) == pytest.approx(7.0)
    assert Network(Clock(), cluster).exposed_allreduce_seconds(range(2), 1, 0.0) == pytest.approx(8.0)


def test_devices_of_one_node_reach_each_other_directly() -> None:
    """Sums and broadcasts of devices on several nodes pass through host memory, and nothing of them is hidden."""
    cluster = Cluster(4, learners_per_node=2, inside=Link(0.0, 100.0), link=Link(0.0, 50.0), message_bytes=1000.0)
    copying = replace(cluster, copy_bytes_per_second=500.0)
    inside, across = range(2), range(4)
    for learners, copies in ((inside, 0.0), (across, 4.0)):
        for ask in (
            lambda network, learners: network.allreduce_seconds(learners, 1),
            lambda network, learners: network.broadcast_seconds(learners, 1, 0),
        ):
            without, with_copies = (ask(Network(Clock(), c), learners) for c in (cluster, copying))
            assert with_copies - without == pytest.approx(copies)
    large = replace(copying, message_bytes=100 * 2.0**20)
    for learners, hidden in ((inside, True), (across, False)):
        seconds = Network(Clock(), large).allreduce_seconds(learners, 1)
        assert (Network(Clock(), large).exposed_allreduce_seconds(learners, 1, 1e9) < seconds) == hidden


def test_broadcasts_by_hand() -> None:
    """Three hops inside a node; two levels inside and one among two nodes of three."""
    chain = Cluster(4, learners_per_node=4, inside=Link(0.5, 100.0), message_bytes=1000.0)
    network = Network(Clock(), chain)
    assert network.broadcast_seconds(range(4), 1, 2) == pytest.approx(3 * 0.5 + 10.0)
    assert [network.sent_bytes[i] for i in range(4)] == [1000.0, 1000.0, 1000.0, 0.0]
    assert sum(network.card_bytes.values()) == 0
    wide = Cluster(6, learners_per_node=3, inside=Link(0.5, 100.0), link=Link(1.0, 10.0), message_bytes=1000.0)
    network = Network(Clock(), wide)
    assert network.broadcast_seconds(range(6), 1, 0) == pytest.approx(2 * 10.5 + 101.0)
    assert (sum(network.sent_bytes.values()), sum(network.card_bytes.values())) == (5000.0, 1000.0)
    assert Network(Clock(), wide).broadcast_seconds([3], 1, 3) == 0


def test_recorded_times_are_replayed(tmp_path: Path) -> None:
    spans = [
        {"ph": "X", "cat": "compute", "pid": 1, "ts": 5.0, "dur": 2e6},
        {"ph": "X", "cat": "waiting", "pid": 0, "ts": 2.0, "dur": 9e6},
        {"ph": "X", "cat": "compute", "pid": 0, "ts": 7.0, "dur": 3e6},
        {"ph": "X", "cat": "compute", "pid": 0, "ts": 1.0, "dur": 1e6},
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(spans))
    times = RecordedSeconds.read(trace, {1: 10.0})
    assert times.seconds == ((1.0, 3.0), (2.0,))
    assert [times(0, step) for step in range(3)] == [1.0, 3.0, 1.0]
    assert times(1, 7) == 20.0
    assert [times(2, step) for step in range(2)] == [3.0, 1.0]  # learner 0's row, from another start
    trace.write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(ValueError, match="holds no spans of kind 'compute'"):
        RecordedSeconds.read(trace)
    for text in ("[1]", '[{"ph": "X"}\n{"ph"\n{"ph": "X"}', '{"traceEvents": [', ""):
        trace.write_text(text)
        with pytest.raises(ValueError, match="is not a Chrome trace"):
            RecordedSeconds.read(trace)


@pytest.mark.parametrize("end", ["", "{}}]\n"])
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 7])
def test_the_times_of_a_killed_run_are_read(cut: int, end: str, tmp_path: Path) -> None:
    """The array is open, and its last line, of a span or of the array's end, counts once its line feed is written."""
    lines = [json.dumps({"ph": "X", "cat": "compute", "pid": 0, "ts": n, "dur": 1e6 * n}) for n in (1, 2, 3)]
    text = "[\n" + "".join(f"{line},\n" for line in lines) + (f'{{"ph":"M","args":{end}' if end else "")
    trace = tmp_path / "trace.json"
    trace.write_text(text[: len(text) - cut])
    assert RecordedSeconds.read(trace).seconds == ((1.0, 2.0) if cut and not end else (1.0, 2.0, 3.0),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster(9, nodes=2, learners_per_node=4), r"Cluster.learners=9 do not fit into Cluster.nodes=2 x"),
        (lambda: Cluster(2, nodes=0), "Cluster.nodes must be at least 1, got 0"),
        (lambda: Cluster(2, learners_per_node=-1), "Cluster.learners_per_node must be at least 1, got -1"),
        (lambda: Cluster(8, learners_per_node=4, links={2: Link()}), "nodes 0..1, but Cluster.links: node 2 is named"),
        (lambda: Cluster(2, faults=(Kill(2, 1.0),)), "but Cluster.faults: learner 2 is named"),
        (lambda: Cluster(2, faults=(Stop(0, 1.0, -2.0),)), "for_seconds=-2.0.* must last a finite time"),
        (lambda: Cluster(2, message_bytes=-1.0), "Cluster.message_bytes must be finite and not negative, got -1"),
        (lambda: Cluster(2, reduce_bytes_per_second=0.0), "Cluster.reduce_bytes_per_second must be positive, got 0"),
        (lambda: Cluster(2, copy_bytes_per_second=-5.0), "Cluster.copy_bytes_per_second must be positive, got -5"),
        (lambda: Cluster(2, allreduce="star"), "Cluster.allreduce must be one of ring, tree, hierarchical, got 'star'"),
        (lambda: ConstantSeconds(0.1, {3: 0.0}), r"ConstantSeconds.factors\[3\] must be positive and finite, got 0"),
        (
            lambda: LognormalSeconds(0.1, 0.1, 0, {3: -1.0}),
            r"LognormalSeconds.factors\[3\] must be positive and finite, got -1",
        ),
        (
            lambda: RecordedSeconds(((1.0, -1.0),)),
            r"RecordedSeconds.seconds\[0\]\[1\] must be positive and finite, got -1",
        ),
        (lambda: RecordedSeconds(()), "RecordedSeconds.seconds needs at least one time"),
        (lambda: RecordedSeconds(((1.0,),), {0: 0.0}), r"RecordedSeconds.factors\[0\] must be positive"),
        (lambda: Link(-1.0), "Link.latency_seconds must be finite and not negative, got -1"),
    ],
)
def test_impossible_clusters_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 99)), max_size=30), st.integers(1, 4))
def test_the_ledger_of_cards_holds_what_leaves_a_node(messages: list[tuple[int, int, int]], width: int) -> None:
    network = Network(Clock(), Cluster(8, learners_per_node=width))
    for source, to, size in messages:
        network.send(source, to, size, lambda: None)
    for node in range(-(-8 // width)):
        left = sum(b for i, j, b in messages if i // width == node != j // width)
        assert network.card_bytes[node] == left
    for learner in range(8):
        assert network.sent_bytes[learner] == sum(b for i, _, b in messages if i == learner)


@pytest.mark.parametrize(("elements", "share"), [(12, 1.0), (6, 0.5), (1, 1 / 12), (0, 0.0), (13, 1.0)])
def test_a_part_of_a_vector_costs_its_share(elements: int, share: float) -> None:
    """A whole vector takes 2 s; a longer message, such as a compressed vector with its scales, costs no more."""
    clock = Clock()
    network = Network(clock, Cluster(2, link=Link(0.0, 500.0), message_bytes=1000.0))
    network.whole = 12
    came: list[float] = []

    async def wait() -> None:
        network.send(0, 1, 4 * elements, lambda: came.append(clock.now), elements)
        await clock.sleep(10.0, "the end")

    clock.start(wait(), "waiting", 0)
    clock.run()
    assert came == [pytest.approx(2.0 * share)]
    assert network.sent_bytes[0] == pytest.approx(1000.0 * share)


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_a_gradient_in_parts_costs_a_vector(servers: int) -> None:
    """Learners push 20 gradients more of a model of 10 elements, and servers answer."""
    sent = []
    for minibatches in (20, 40):
        world = VirtualWorld(Cluster(2 + servers, link=Link(0.0, 500.0), message_bytes=1000.0))
        fit(Experiment(Quadratic(size=10), ASGD(servers=servers), Budget(minibatches=minibatches), SGD(0.1)), world)
        sent.append(sum(world.network.sent_bytes.values()))
    assert sent[1] - sent[0] == pytest.approx(2 * 20 * 1000.0)


def test_a_mean_of_weights_and_moments_costs_three_vectors() -> None:
    """A few numbers beside the weights cost nothing, and a part its share."""
    network = Network(Clock(), Cluster(2, link=Link(0.0, 1000.0), message_bytes=1000.0))
    network.whole = 100
    whole = network.allreduce_seconds(range(2), 400)
    for numel, vectors in ((50, 0.5), (100, 1), (102, 1), (199, 1), (308, 3)):
        assert network.allreduce_seconds(range(2), 4 * numel, numel) == pytest.approx(vectors * whole)
