"""Minibatches as functions of an integer: cover, repeatability, grouping; chunks with context."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.batching import Permutation, UtteranceBatches, pad
from murmur.speech.features.chunks import IGNORED, ChunkTable, FramesInMemory

lengths = st.lists(st.integers(1, 90), min_size=1, max_size=40)


@given(lengths, st.integers(1, 9), st.integers(0, 99), st.integers(0, 5))
@settings(deadline=None)
def test_every_utterance_once_per_epoch(frames, size, seed, epoch):
    batches = UtteranceBatches(tuple(frames), size, seed)
    numbers = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
    seen = [i for n in numbers for i in batches[n]]
    assert sorted(seen) == list(range(len(frames)))
    assert sorted(i for group in batches.in_order() for i in group) == list(range(len(frames)))


def test_a_minibatch_depends_on_its_number_and_seed_alone():
    frames = tuple(np.random.default_rng(0).integers(10, 500, 300).tolist())
    forwards = [UtteranceBatches(frames, 8, 3)[n] for n in range(100)]
    batches = UtteranceBatches(frames, 8, 3)
    assert [batches[n] for n in reversed(range(100))] == forwards[::-1]
    assert [UtteranceBatches(frames, 8, 4)[n] for n in range(100)] != forwards
    per_epoch = batches.per_epoch
    assert {frozenset(g) for g in forwards[:per_epoch]} != {frozenset(g) for g in forwards[per_epoch : 2 * per_epoch]}


def test_groups_hold_similar_lengths():
    frames = np.random.default_rng(0).integers(10, 500, 400)
    batches = UtteranceBatches(tuple(frames.tolist()), 8)
    padding = [1 - frames[list(g)].mean() / frames[list(g)].max() for g in (batches[n] for n in range(50))]
    assert np.mean(padding) < 0.08
    first, second = ({frozenset(batches[n]) for n in range(50 * e, 50 * e + 50)} for e in range(2))
    assert not first & second


@pytest.mark.parametrize(("frames", "size"), [((), 4), ((3,), 0)])
def test_nothing_to_batch_is_refused(frames, size):
    with pytest.raises(ValueError, match="need utterances and size"):
        UtteranceBatches(frames, size)


def test_padding_is_zero_and_lengths_are_told():
    feats, frames = pad([np.ones((2, 3), np.float32), np.full((4, 3), 2, np.float32)])
    assert frames.tolist() == [2, 4]
    assert feats.sum((1, 2)).tolist() == [6, 24]
    assert feats[0, 2:].abs().sum() == 0


def numbered(frames):
    """Frames that encode their place: [frame, utterance], targets 1000 utterance + frame."""
    feats = {f"u{i}": np.stack([np.arange(n), np.full(n, i)], 1).astype(np.float32) for i, n in enumerate(frames)}
    return FramesInMemory(feats, {f"u{i}": 1000 * i + np.arange(n) for i, n in enumerate(frames)})


@given(lengths, st.integers(1, 30), st.integers(1, 7), st.integers(0, 3), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_every_frame_is_trained_once_per_epoch_with_its_own_context(frames, longest, size, epoch, parts):
    parts = min(parts, ChunkTable(frames, longest).chunks)
    table, corpus = ChunkTable(frames, longest, 3, 2, size, seed=1, parts=parts), numbered(frames)
    trained = []
    for n in range(epoch * table.per_epoch, (epoch + 1) * table.per_epoch):
        batch = table.batch(n, corpus)
        assert 1 <= len(batch.feats) <= size + (parts > 1)
        for feats_TF, targets_T in zip(batch.feats, batch.targets, strict=True):
            own = torch.nonzero(targets_T != IGNORED).flatten()
            assert 1 <= len(own) <= longest
            trained += targets_T[own].tolist()
            utterance, last = int(feats_TF[0, 1]), frames[int(feats_TF[0, 1])] - 1
            assert (feats_TF[own, 0] + 1000 * utterance).long().tolist() == targets_T[own].tolist()
            first = int(feats_TF[own[0], 0])
            window = [min(max(t, 0), last) for t in range(first - 3, first - 3 + len(feats_TF))]
            assert feats_TF[:, 0].tolist() == window
    assert sorted(trained) == sorted(t for values in corpus.labels.values() for t in values.tolist())


def test_a_part_of_the_chunks_belongs_to_one_learner_for_all_epochs():
    table = ChunkTable([100] * 37, frames=20, size=4, parts=3)
    seen = {learner: [set(), set()] for learner in range(3)}
    for n in range(2 * table.per_epoch):
        seen[n % 3][n // table.per_epoch] |= {(c.utterance, c.first) for c in table[n]}
    assert all(first == second for first, second in seen.values())
    assert sum(len(first) for first, _ in seen.values()) == table.chunks
    assert {len(first) for first, _ in seen.values()} == {61, 62}
    neighbours = [sorted(u for u, _ in first) for first, _ in seen.values()]
    assert all(own[0] < 5 and own[-1] > 31 for own in neighbours)  # assigned at random, not cut off


def test_chunks_are_even_and_their_order_is_seeded():
    table = ChunkTable([101], frames=40)
    assert [c.last - c.first for c in table.cut(np.arange(3))] == [33, 34, 34]
    many = [100] * 50
    assert ChunkTable(many, seed=1)[0] == ChunkTable(many, seed=1)[0] != ChunkTable(many, seed=2)[0]
    assert ChunkTable(many, seed=1)[0] != ChunkTable(many, seed=1)[ChunkTable(many).per_epoch]


@pytest.mark.parametrize(
    ("frames", "changes"),
    [
        ([], {}),
        ([0], {}),
        ([3, 0], {}),
        ([3], {"frames": 0}),
        ([3], {"size": 0}),
        ([3], {"parts": 2}),
        ([3], {"parts": 0}),
    ],
)
def test_impossible_tables_are_refused(frames, changes):
    with pytest.raises(ValueError, match=r"chunks"):
        ChunkTable(frames, **changes)


def test_targets_of_another_length_are_refused():
    with pytest.raises(ValueError, match="a has 3 frames and 4 targets"):
        FramesInMemory({"a": np.zeros((3, 1))}, {"a": np.zeros(4, int)})


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 2**20))
@settings(deadline=None)
def test_spec_augment_only_writes_zeros_within_its_limits(frames, bins, seed):
    augment, ones = SpecAugment(time_masks=2, time_frames=10, bin_masks=1, bins=4), np.ones((frames, bins), np.float32)
    masked = augment(ones, np.random.default_rng(seed))
    assert set(np.unique(masked)) <= {0.0, 1.0}
    assert (ones == 1).all()
    zero_frames, zero_bins = (masked == 0).all(1).sum(), (masked == 0).all(0).sum()
    assert zero_frames <= 2 * min(10, frames // 5) or zero_bins == bins
    assert zero_bins <= 4 or zero_frames == frames
    np.testing.assert_array_equal(masked, augment(ones, np.random.default_rng(seed)))


def test_a_chunk_batch_is_augmented_by_its_number():
    feats = {n: np.ones((40, 8), np.float32) for n in "ab"}
    table, corpus = ChunkTable([40, 40], size=2), FramesInMemory(feats, dict.fromkeys("ab", np.zeros(40, int)))
    masked = [table.batch(n, corpus, SpecAugment()).feats for n in (0, 0, 1)]
    assert (feats["a"] == 1).all()
    assert torch.equal(masked[0], masked[1])
    assert not torch.equal(masked[0], masked[2])
    assert (masked[0] == 0).any()


@given(st.integers(1, 60), st.integers(0, 2**20))
@settings(deadline=None)
def test_tempo_resamples_a_straight_line_to_a_straight_line(frames, seed):
    line = np.arange(frames, dtype=np.float32)[:, None]
    changed = SpecAugment(tempo=0.2, time_masks=0, bin_masks=0)(line, np.random.default_rng(seed))
    assert 0.8 * frames - 1 <= len(changed) <= 1.2 * frames + 1
    np.testing.assert_allclose(changed[:, 0], np.linspace(0, frames - 1, len(changed)), atol=1e-4)


@given(st.integers(2, 40), st.integers(0, 2**20))
@settings(deadline=None)
def test_warp_stretches_the_bin_axis_about_its_low_end(bins, seed):
    line = np.tile(np.arange(bins, dtype=np.float32), (3, 1))
    warped = SpecAugment(warp=0.2, time_masks=0, bin_masks=0)(line, np.random.default_rng(seed))
    factor = 1 + np.random.default_rng(seed).uniform(-0.2, 0.2)
    np.testing.assert_allclose(warped, np.tile(np.minimum(np.arange(bins) * factor, bins - 1), (3, 1)), atol=1e-4)


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 2**31))
@settings(max_examples=200, deadline=None)
def test_every_value_stands_in_one_place(size, seed, epoch):
    assert sorted(Permutation(size, (seed, epoch))(range(size)).tolist()) == list(range(size))


@given(st.integers(2, 2**45), st.data())
@settings(max_examples=50, deadline=None)
def test_places_can_be_asked_one_by_one_in_any_order(size, data):
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    order = Permutation(size, (3, 1))
    together = order(places)
    assert [int(order([place])[0]) for place in places] == together.tolist()
    assert together.max() < size
    assert len(set(together.tolist())) == len(set(places))


def test_names_tell_orders_apart_and_equal_names_give_the_same_numbers():
    assert Permutation(10, (7, 0))(range(10)).tolist() == [5, 8, 3, 2, 1, 7, 4, 9, 0, 6]  # on every machine
    orders = {tuple(Permutation(50, (seed, epoch))(range(50))) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


def test_it_looks_like_a_draw():
    """Chi-square of values by place, of successors, and the correlation of place and value."""
    size, draws = 12, 6000
    orders = np.stack([Permutation(size, (1, epoch))(range(size)) for epoch in range(draws)])
    wanted = draws / size
    stands = np.stack([np.bincount(orders[:, place], minlength=size) for place in range(size)])
    assert ((stands - wanted) ** 2 / wanted).sum() < 121 + 5 * np.sqrt(2 * 121)
    follows = np.bincount((orders[:, :-1] * size + orders[:, 1:]).ravel(), minlength=size * size)
    pairs = follows.reshape(size, size)[~np.eye(size, dtype=bool)]
    expected = draws * (size - 1) / (size * (size - 1))
    assert ((pairs - expected) ** 2 / expected).sum() < 131 + 5 * np.sqrt(2 * 131)
    long = Permutation(100_000, (5,))(range(100_000))
    assert abs(np.corrcoef(np.arange(100_000), long)[0, 1]) < 0.015
    assert abs(np.corrcoef(long[:-1], long[1:])[0, 1]) < 0.015


def test_no_memory_however_long():
    order = Permutation(10**12, (0, 0))
    order(range(64))
    tracemalloc.start()
    order(range(64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000
