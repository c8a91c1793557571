import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.hmm.em_loop import allocate, split
from murmur.speech.hmm.mixtures import Mixtures, expect, maximise, one_gaussian_each

seeds = st.integers(0, 10_000)


def random_mixtures(random, sizes=(2, 1, 3), dim=3):
    total = sum(sizes)
    weights = np.concatenate([random.dirichlet(np.ones(s)) for s in sizes])
    means, variances = random.normal(size=(total, dim)), random.uniform(0.3, 2, size=(total, dim))
    return Mixtures(np.array(sizes), np.maximum(weights, 1e-3), means, variances)


def density(x, mean, variance):
    """The density of one diagonal Gaussian, computed value by value."""
    out = 1.0
    for value, m, v in zip(x, mean, variance, strict=True):
        out *= np.exp(-((value - m) ** 2) / (2 * v)) / np.sqrt(2 * np.pi * v)
    return out


def gaussians_of(mixtures, pdf):
    return range(mixtures.starts[pdf], mixtures.starts[pdf] + mixtures.sizes[pdf])


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_log_likelihoods_equal_the_sum_of_densities(seed):
    random = np.random.default_rng(seed)
    mixtures = random_mixtures(random)
    x = random.normal(size=(5, 3)).astype(np.float32)
    expected = [
        [
            np.log(
                sum(
                    mixtures.weights[g] * density(f, mixtures.means[g], mixtures.variances[g])
                    for g in gaussians_of(mixtures, p)
                )
            )
            for p in range(3)
        ]
        for f in x.astype(float)
    ]
    assert mixtures.loglikes(x) == pytest.approx(np.array(expected), abs=1e-4)


def test_library_object_scores_alike():
    random = np.random.default_rng(0)
    mixtures = random_mixtures(random)
    x = random.normal(size=(4, 3)).astype(np.float32)
    library = mixtures.to_library()
    scores = [[library.log_likelihood(p, f) for p in range(3)] for f in x]
    assert mixtures.loglikes(x) == pytest.approx(np.array(scores), abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_e_step_equals_enumeration_of_frames_and_gaussians(seed):
    random = np.random.default_rng(seed)
    mixtures = random_mixtures(random)
    x, pdfs = random.normal(size=(12, 3)).astype(np.float32), random.integers(0, 3, size=12)
    occupancy, first, second, total = np.zeros(6), np.zeros((6, 3)), np.zeros((6, 3)), 0.0
    for frame, pdf in zip(x.astype(float), pdfs, strict=True):
        own = gaussians_of(mixtures, pdf)
        joint = {g: mixtures.weights[g] * density(frame, mixtures.means[g], mixtures.variances[g]) for g in own}
        total += np.log(sum(joint.values()))
        for g in own:
            gamma = joint[g] / sum(joint.values())
            occupancy[g] += gamma
            first[g] += gamma * frame
            second[g] += gamma * frame**2
    stats = expect(mixtures, x, pdfs)
    assert stats.occupancy == pytest.approx(occupancy)
    assert stats.first == pytest.approx(first)
    assert stats.second == pytest.approx(second)
    assert stats.log_likelihood == pytest.approx(total)
    assert stats.frames == 12


def test_statistics_add_up_over_blocks():
    random = np.random.default_rng(3)
    mixtures = random_mixtures(random)
    x, pdfs = random.normal(size=(12, 3)), random.integers(0, 3, size=12)
    whole, parts = expect(mixtures, x, pdfs), expect(mixtures, x[:5], pdfs[:5]) + expect(mixtures, x[5:], pdfs[5:])
    assert parts.occupancy == pytest.approx(whole.occupancy)
    assert parts.second == pytest.approx(whole.second)
    assert parts.log_likelihood == pytest.approx(whole.log_likelihood)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_likelihood_never_falls(seed):
    random = np.random.default_rng(seed)
    mixtures = random_mixtures(random)
    x, pdfs = random.normal(size=(80, 3)), random.integers(0, 3, size=80)
    before = -np.inf
    for _ in range(8):
        stats = expect(mixtures, x, pdfs)
        assert stats.log_likelihood >= before - 1e-9
        before = stats.log_likelihood
        mixtures = maximise(mixtures, stats, np.full(3, 1e-3), min_occupancy=0.0)


def test_single_gaussian_becomes_mean_and_variance_of_its_frames():
    x = np.random.default_rng(4).normal(size=(50, 3))
    flat = one_gaussian_each(np.zeros(3), np.ones(3), 2)
    fitted = maximise(flat, expect(flat, x, np.zeros(50, dtype=int)), np.full(3, 1e-3), min_occupancy=3)
    assert fitted.means[0] == pytest.approx(x.mean(0))
    assert fitted.variances[0] == pytest.approx(x.var(0))
    assert np.array_equal(fitted.means[1], flat.means[1]), "a pdf without frames stays as it is"


def test_variances_are_floored():
    flat = one_gaussian_each(np.zeros(2), np.ones(2), 1)
    x = np.random.default_rng(0).normal(size=(50, 2)) * [1.0, 1e-4]
    fitted = maximise(flat, expect(flat, x, np.zeros(50, dtype=int)), np.array([0.1, 0.2]), 1.0)
    assert fitted.variances[0, 1] == 0.2
    assert fitted.variances[0, 0] > 0.5


def test_rare_gaussians_are_removed_but_the_fullest_stays():
    x = np.concatenate([np.zeros((20, 1)), np.full((2, 1), 100.0)]) + 0.01 * np.arange(22)[:, None]
    mixtures = Mixtures(np.array([2]), np.array([0.5, 0.5]), np.array([[0.0], [100.0]]), np.ones((2, 1)))
    stats = expect(mixtures, x, np.zeros(22, dtype=int))
    for min_occupancy in (5, 21):
        kept = maximise(mixtures, stats, np.full(1, 1e-3), min_occupancy)
        assert kept.sizes.tolist() == [1]
        assert kept.means[0, 0] < 1
        assert kept.weights.tolist() == [1.0]


@given(seeds)
def test_split_keeps_weights_and_centre_of_mass(seed):
    random = np.random.default_rng(seed)
    mixtures = random_mixtures(random)
    grown = split(mixtures, np.array([4, 1, 3]), np.random.default_rng(1))
    assert grown.sizes.tolist() == [4, 1, 3]
    for pdf in range(3):
        old, new = list(gaussians_of(mixtures, pdf)), list(gaussians_of(grown, pdf))
        assert grown.weights[new].sum() == pytest.approx(mixtures.weights[old].sum())
        assert grown.weights[new] @ grown.means[new] == pytest.approx(mixtures.weights[old] @ mixtures.means[old])
    again = split(mixtures, np.array([4, 1, 3]), np.random.default_rng(1))
    assert np.array_equal(again.means, grown.means)
    assert not np.array_equal(split(mixtures, np.array([4, 1, 3]), np.random.default_rng(2)).means, grown.means)


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=8), st.integers(1, 40))
def test_allocation_is_greedy_and_never_splits_too_finely(held, total):
    counts = allocate(np.array(held), total, 0.25, 10.0)
    assert counts.min() >= 1
    assert counts.sum() <= max(total, len(held))
    assert all(c == 1 or c * 10.0 <= h for c, h in zip(counts, held, strict=True))
    if counts.sum() < total:
        assert all((c + 1) * 10.0 > h for c, h in zip(counts, held, strict=True))


def test_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        random_mixtures(np.random.default_rng(0)).loglikes(np.zeros((2, 3), dtype=np.float32))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_bad_values_are_refused_with_what_is_wrong():
    mixtures = random_mixtures(np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"\(2, 4\) where \(frames, 3\)"):
        mixtures.loglikes(np.zeros((2, 4), dtype=np.float32))
    with pytest.raises(ValueError, match="first is frame 1"):
        mixtures.loglikes(np.array([[0, 0, 0], [0, np.nan, 0]], dtype=np.float32))
    with pytest.raises(ValueError, match="variances must be positive"):
        Mixtures(np.array([1]), np.ones(1), np.zeros((1, 2)), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="shapes"):
        Mixtures(np.array([2]), np.ones(1), np.zeros((1, 2)), np.ones((1, 2)))
