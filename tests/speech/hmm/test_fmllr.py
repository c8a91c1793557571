import numpy as np
import pytest

from murmur.speech.hmm import fmllr, lda_mllt
from murmur.speech.hmm.fmllr import (
    FmllrStats,
    SingularSumsError,
    best_row,
    estimate_fmllr,
    fmllr_stats,
    frame_sums,
    identity,
)
from murmur.speech.hmm.mixtures import Mixtures
from murmur.speech.hmm.model import adapt

DIM, PDFS, FRAMES = 4, 5, 4000


def draw_mixtures(random, gaussians_per_pdf):
    total = PDFS * gaussians_per_pdf
    weights = random.uniform(0.5, 1.0, (PDFS, gaussians_per_pdf))
    return Mixtures(
        np.full(PDFS, gaussians_per_pdf),
        (weights / weights.sum(1, keepdims=True)).ravel(),
        3.0 * random.standard_normal((total, DIM)),
        random.uniform(0.3, 2.0, (total, DIM)),
    )


def stats_of(mixtures, feats, pdfs, weights=None):
    weights = np.ones(len(feats)) if weights is None else weights
    return fmllr_stats(frame_sums(mixtures, feats, pdfs, weights, mixtures), feats, weights)


def draw_stats(seed=0, gaussians_per_pdf=2):
    random = np.random.default_rng(seed)
    mixtures = draw_mixtures(random, gaussians_per_pdf)
    pdfs = random.integers(PDFS, size=FRAMES)
    return stats_of(mixtures, 2 * random.standard_normal((FRAMES, DIM)), pdfs), random


def test_sums_equal_those_of_a_loop_over_frames_and_gaussians():
    random = np.random.default_rng(1)
    mixtures, pdfs = draw_mixtures(random, 2), random.integers(PDFS, size=30)
    feats, weights = random.standard_normal((30, DIM)), random.uniform(0, 1, 30)
    linear, quadratic = np.zeros((DIM, DIM + 1)), np.zeros((DIM, DIM + 1, DIM + 1))
    for x, pdf, weight in zip(feats, pdfs, weights, strict=True):
        own = slice(2 * pdf, 2 * pdf + 2)
        spread = mixtures.variances[own]
        score = np.log(mixtures.weights[own]) - 0.5 * (np.log(spread) + (x - mixtures.means[own]) ** 2 / spread).sum(1)
        posterior = np.exp(score) / np.exp(score).sum()
        xi = np.append(x, 1.0)
        for g, mean, variance in zip(posterior, mixtures.means[own], spread, strict=True):
            linear += weight * g * np.outer(mean / variance, xi)
            quadratic += weight * g * np.einsum("i,j,k->ijk", 1 / variance, xi, xi)
    found = stats_of(mixtures, feats, pdfs, weights)
    assert found.frames == pytest.approx(weights.sum())
    np.testing.assert_allclose(found.linear, linear, rtol=1e-10)
    np.testing.assert_allclose(found.quadratic, quadratic, rtol=1e-10)


def test_an_updated_row_is_the_best_of_all_rows():
    stats, random = draw_stats()
    inverses = np.linalg.inv(stats.quadratic)
    transform = identity(DIM) + 0.3 * random.standard_normal((DIM, DIM + 1))
    value = stats.auxiliary(transform)
    for i in [*range(DIM), *range(DIM)]:
        cofactors = np.append(np.linalg.inv(transform[:, :-1])[:, i], 0.0)
        transform[i] = best_row(stats.frames, stats.linear[i], inverses[i], cofactors)
        updated = stats.auxiliary(transform)
        assert updated >= value - 1e-9 * stats.frames
        for width in (1e-3, 0.1, 3.0):
            other = transform.copy()
            other[i] += width * random.standard_normal(DIM + 1)
            assert stats.auxiliary(other) < updated
        flipped = transform.copy()
        flipped[i] = -flipped[i]  # on the other side of det A = 0
        assert stats.auxiliary(flipped) < updated
        value = updated


def test_q_is_stationary_at_the_answer(monkeypatch):
    monkeypatch.setattr(fmllr, "SMALLEST_GAIN", 1e-12)
    stats, _ = draw_stats()
    answer = estimate_fmllr(stats)
    assert stats.auxiliary(answer) > stats.auxiliary(identity(DIM))
    step = 1e-5
    for place in np.ndindex(answer.shape):
        change = np.zeros_like(answer)
        change[place] = step
        slope = (stats.auxiliary(answer + change) - stats.auxiliary(answer - change)) / (2 * step)
        assert abs(slope) < 1e-3 * stats.frames
        assert stats.auxiliary(answer + change) < stats.auxiliary(answer) + 1e-9 * stats.frames


def test_the_answer_does_not_depend_on_the_start(monkeypatch):
    monkeypatch.setattr(fmllr, "SMALLEST_GAIN", 1e-12)
    stats, random = draw_stats()
    start = identity(DIM) + 0.1 * random.standard_normal((DIM, DIM + 1))
    np.testing.assert_allclose(estimate_fmllr(stats, start), estimate_fmllr(stats), atol=1e-3)


def test_a_known_transform_is_recovered():
    random = np.random.default_rng(2)
    mixtures, pdfs = draw_mixtures(random, 1), random.integers(PDFS, size=20 * FRAMES)
    adapted = mixtures.means[pdfs] + np.sqrt(mixtures.variances[pdfs]) * random.standard_normal((len(pdfs), DIM))
    known = np.hstack([np.eye(DIM) + 0.3 * random.standard_normal((DIM, DIM)), random.standard_normal((DIM, 1))])
    feats = np.linalg.solve(known[:, :-1], (adapted - known[:, -1]).T).T
    found = estimate_fmllr(stats_of(mixtures, feats, pdfs))
    np.testing.assert_allclose(found, known, atol=0.03)


def test_without_means_and_offset_it_is_the_mllt(monkeypatch):
    random = np.random.default_rng(3)
    factors = random.standard_normal((DIM, DIM, 50))
    scatter = FRAMES * np.einsum("ijk,ilk->ijl", factors, factors)
    quadratic = np.zeros((DIM, DIM + 1, DIM + 1))
    quadratic[:, :DIM, :DIM], quadratic[:, DIM, DIM] = scatter, FRAMES
    for sweeps in (1, 2, 20):
        monkeypatch.setattr(fmllr, "SWEEPS", sweeps)
        monkeypatch.setattr(fmllr, "SMALLEST_GAIN", 0.0)
        monkeypatch.setattr(lda_mllt, "SWEEPS", sweeps)
        found = fmllr.estimate_fmllr(FmllrStats(float(FRAMES), np.zeros((DIM, DIM + 1)), quadratic))
        expected = lda_mllt.estimate_mllt(lda_mllt.MlltStats(float(FRAMES), scatter))
        np.testing.assert_allclose(found[:, :-1], expected, rtol=1e-10)
        assert np.array_equal(found[:, -1], np.zeros(DIM))


def test_the_identity_leaves_every_likelihood_the_same_to_the_bit():
    random = np.random.default_rng(4)
    mixtures = draw_mixtures(random, 3)
    feats = random.standard_normal((50, DIM)).astype(np.float32)
    assert np.array_equal(mixtures.loglikes(adapt(identity(DIM), feats)), mixtures.loglikes(feats))
    assert adapt(None, feats) is feats


def test_adapted_frames_are_w_xi():
    random = np.random.default_rng(5)
    feats, transform = random.standard_normal((7, DIM)).astype(np.float32), random.standard_normal((DIM, DIM + 1))
    expected = feats.astype(np.float64) @ transform[:, :-1].T + transform[:, -1]
    np.testing.assert_allclose(adapt(transform, feats), expected, atol=1e-5)


def test_few_frames_give_the_identity():
    stats, _ = draw_stats()
    assert np.array_equal(estimate_fmllr(stats, min_frames=FRAMES + 1), identity(DIM))
    assert not np.array_equal(estimate_fmllr(stats, min_frames=FRAMES), identity(DIM))


def test_frames_that_do_not_span_the_features_are_refused():
    random = np.random.default_rng(6)
    mixtures, pdfs = draw_mixtures(random, 1), random.integers(PDFS, size=FRAMES)
    feats = random.standard_normal((FRAMES, DIM))
    feats[:, 1] = feats[:, 0]
    with pytest.raises(SingularSumsError, match="too few or too alike"):
        estimate_fmllr(stats_of(mixtures, feats, pdfs))
