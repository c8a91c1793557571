"""Bytes and seconds of collectives: sums over all members, broadcasts by both verbs, buckets behind a backward pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.core.mean_gradient import BUCKET_BYTES, FIRST_BUCKET_BYTES
from murmur.core.weights import Weights
from murmur.core.world import Seat
from murmur.simulation.planner.timing import NoLayout, time_strategy
from murmur.strategies import KAVG, Compressed
from murmur.strategies.compressed import COMPRESSIONS, CompressedGroup
from murmur.worlds.virtual.clock import Clock
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link
from murmur.worlds.virtual.network import Network
from murmur.worlds.virtual.world import VirtualWorld

SHAPES = st.tuples(st.integers(1, 20), st.integers(1, 8))  # learners, learners of a node


@given(SHAPES)
def test_every_edge_of_a_tree_carries_the_vector_up_and_down(shape: tuple[int, int]) -> None:
    """A tree of L members has L - 1 edges, N - 1 of them between nodes; no member is charged for another's bytes."""
    learners, width = shape
    cluster = Cluster(learners, learners_per_node=width, allreduce="tree")
    network = Network(Clock(), cluster)
    network.allreduce_seconds(range(learners), 1000)
    nodes = -(-learners // width)
    assert sum(network.sent_bytes.values()) == pytest.approx(2 * (learners - 1) * 1000)
    assert sum(network.card_bytes.values()) == pytest.approx(2 * (nodes - 1) * 1000)


@given(SHAPES, st.data())
def test_both_broadcasts_cost_the_same(shape: tuple[int, int], data: st.DataObject) -> None:
    learners, width = shape
    root = data.draw(st.integers(0, learners - 1))
    inside, card = Link(0.5, 1000.0), Link(1.0, 100.0)
    cluster = Cluster(learners, learners_per_node=width, inside=inside, link=card, message_bytes=100.0)

    async def awaited(seat: Seat) -> tuple[float, float]:
        got = await seat.group.broadcast(torch.full((25,), float(seat.group.rank)), root)
        return got[0].item(), seat.now

    async def started(seat: Seat) -> tuple[float, float]:
        got = await seat.group.start_broadcast(torch.full((25,), float(seat.group.rank)), root, "x")
        return got[0].item(), seat.now

    found = []
    for program in (awaited, started):
        world = VirtualWorld(cluster)
        ends = world.run(program)
        found.append((ends, dict(world.network.sent_bytes), dict(world.network.card_bytes)))
    assert found[0] == found[1]
    assert {got for got, _ in found[0][0]} == {float(root)}
    assert sum(found[0][1].values()) == (learners - 1) * 100.0


@given(st.integers(0, 8), st.sampled_from([-1, 0, 1, 12345]), st.sampled_from([0, FIRST_BUCKET_BYTES]))
def test_the_last_bucket_is_never_empty(buckets: int, more: int, first: int) -> None:
    """All buckets together are the vector: one of 1 MiB, whole ones of 25 MiB, and the last."""
    size = max(1, first + buckets * BUCKET_BYTES + more)
    last = Cluster().last_bucket_bytes(size)
    if size <= FIRST_BUCKET_BYTES:
        assert last == size
    else:
        assert 0 < last <= BUCKET_BYTES
        assert (size - FIRST_BUCKET_BYTES - last) % BUCKET_BYTES == 0


async def _averages_compressed(seat: Seat, form: str, vectors: float) -> None:
    weights = Weights(NoLayout())
    seat.holds(weights)
    group = CompressedGroup(seat.group, COMPRESSIONS[form])
    await group.mean(torch.zeros(int(vectors * weights.layout.numel)))
    group.post(torch.zeros(int(vectors * weights.layout.numel)), (seat.group.rank + 1) % seat.group.size, "x")
    await group.recv(None, "x")


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["bfloat16", "float16", "int8"]),
    st.sampled_from([0.25, 1, 3]),
    st.integers(2, 5),
    st.floats(1.0, 1e9),
)
def test_compression_saves_the_same_share_of_a_vector_of_any_size(
    form: str, vectors: float, learners: int, size: float
) -> None:
    """The bytes of a run with `message_bytes` are those of the real vectors, times the ratio of the two sizes."""
    sent = []
    for message_bytes in (None, size):
        world = VirtualWorld(Cluster(learners, message_bytes=message_bytes))
        world.run(lambda seat: _averages_compressed(seat, form, vectors))
        sent.append(sum(world.network.sent_bytes.values()))
    assert sent[1] / size == pytest.approx(sent[0] / (4 * NoLayout().numel))


def test_compression_saves_bytes_and_seconds_in_a_run_without_gradients() -> None:
    cluster = Cluster(4, ConstantSeconds(1.0), Link(0.0, 1e6), message_bytes=1e6)
    plain, half, quarter = (
        time_strategy(strategy, cluster, 40)
        for strategy in (KAVG(2), Compressed(KAVG(2), "bfloat16"), Compressed(KAVG(2), "int8"))
    )
    assert sum(half.sent_bytes) / sum(plain.sent_bytes) == pytest.approx(0.5)
    assert sum(quarter.sent_bytes) / sum(plain.sent_bytes) == pytest.approx(0.25, rel=0.03)
    assert half.seconds < plain.seconds
    assert quarter.seconds < half.seconds
