"""Warp factors of speakers: brute force over the grid, known factors recovered, sweeps that never lose likelihood."""

from dataclasses import replace

import numpy as np
import pytest

from murmur.speech.features.cepstral_warp import MelCepstra, warp_matrix, warped
from murmur.speech.hmm.em import expect
from murmur.speech.hmm.fmllr import identity
from murmur.speech.hmm.mixtures import Mixtures
from murmur.speech.hmm.vtln import (
    SpeechGaussians,
    Vtln,
    VtlnConfig,
    best_factor,
    over_derivatives,
    refitted,
    speaker_factors,
    train_vtln,
    warp_stats,
    warps_of,
)

CEPSTRA, ANALYSIS = 6, MelCepstra(20, 0.0, 4000.0, "mean", 0.0)
MATRICES = {factor: warp_matrix(ANALYSIS, CEPSTRA, factor) for factor in VtlnConfig().factors}
TRUE = {"a": 0.9, "b": 1.0, "c": 1.12}


def vowels(rng, silent=1):
    """A mixture of eight classes of speech and some of silence, of cepstra with one order of derivatives."""
    means = np.concatenate([rng.standard_normal((8, CEPSTRA)), 0.1 * rng.standard_normal((8, CEPSTRA))], 1)
    means = np.concatenate([means, np.zeros((silent, 2 * CEPSTRA)) - 4.0])
    variances = np.full(means.shape, 0.02)
    weights = np.full(len(means), 1 / len(means))
    return SpeechGaussians(Mixtures(np.array([len(means)]), weights, means, variances), np.arange(8 + silent) < 8)


def frames(gaussians, rng, count, factor):
    """Frames whose warp by `factor` the mixture has drawn."""
    mixtures = gaussians.mixtures
    drawn = rng.integers(len(mixtures.weights), size=count)
    x = mixtures.means[drawn] + np.sqrt(mixtures.variances[drawn]) * rng.standard_normal((count, mixtures.dim))
    return warped(x.astype(np.float32), np.linalg.inv(MATRICES[factor]))


def log_likelihood(mixtures, feats, matrix):
    """Of frames under a warp, with its determinant, in float64: float32 hides the gain of a step that has converged."""
    _, log_det = np.linalg.slogdet(over_derivatives(matrix, mixtures.dim)[:, :-1])
    return expect(mixtures, warped(feats, matrix), np.zeros(len(feats), np.int64)).log_likelihood + len(feats) * log_det


@pytest.fixture
def set_of_speakers():
    rng = np.random.default_rng(0)
    gaussians = vowels(rng)
    feats = {f"{s}{k}": frames(gaussians, rng, 150, factor) for s, factor in TRUE.items() for k in range(2)}
    return gaussians, feats, {u: u[0] for u in feats}


def test_known_factors_are_recovered(set_of_speakers):
    gaussians, feats, speakers = set_of_speakers
    assert speaker_factors(gaussians, feats, speakers, MATRICES) == TRUE


def test_the_factor_maximises_the_likelihood_of_one_gaussian(set_of_speakers):
    """With one Gaussian Q is the log-likelihood up to a constant: brute force over the grid agrees."""
    _, feats, _ = set_of_speakers
    rng = np.random.default_rng(1)
    one = Mixtures(np.array([1]), np.ones(1), rng.standard_normal((1, 12)), rng.uniform(0.5, 2, (1, 12)))
    single = SpeechGaussians(one, np.ones(1, dtype=bool))
    for x in feats.values():
        stats = warp_stats(single, x, None)
        values = {f: log_likelihood(one, x, m) for f, m in MATRICES.items()}
        offset = stats.auxiliary(identity(12)) - values[1.0]
        for factor, matrix in MATRICES.items():
            found = stats.auxiliary(over_derivatives(matrix, 12))
            assert found - offset == pytest.approx(values[factor], rel=1e-5, abs=0.05)
        assert best_factor(stats, MATRICES) == max(values, key=values.__getitem__)


def test_both_steps_of_a_sweep_raise_the_likelihood(set_of_speakers):
    """New factors do under the Gaussians so far, and new Gaussians do under the new factors."""
    true, feats, speakers = set_of_speakers
    rng = np.random.default_rng(2)
    blurred = true.mixtures.means + 0.2 * rng.standard_normal(true.mixtures.means.shape)
    wide = replace(true.mixtures, means=blurred, variances=4 * true.mixtures.variances)
    gaussians = SpeechGaussians(wide, np.ones(len(true.speech), dtype=bool))

    def total(gaussians, factors):
        every = (log_likelihood(gaussians.mixtures, x, MATRICES[factors[speakers[u]]]) for u, x in feats.items())
        return sum(every)

    factors, gains = dict.fromkeys(TRUE, 1.0), []
    for _ in range(4):
        value = total(gaussians, factors)
        rounding = sum(map(len, feats.values())) * np.finfo(float).eps * abs(value)  # of a sum over all frames
        factors = speaker_factors(gaussians, feats, speakers, MATRICES, factors, rounds=1)
        assert total(gaussians, factors) >= value - rounding
        value = total(gaussians, factors)
        gaussians = refitted(gaussians, feats, speakers, MATRICES, factors, variance_floor=0.0)
        gains.append(total(gaussians, factors) - value)
        assert gains[-1] >= -rounding
    assert min(gains[:3]) > 1.0  # the fourth step has converged
    swept = train_vtln(SpeechGaussians(wide, gaussians.speech), feats, speakers, MATRICES, 4, variance_floor=0.0)
    np.testing.assert_array_equal(swept.mixtures.means, gaussians.mixtures.means)
    assert factors["a"] < factors["b"] < factors["c"]
    np.testing.assert_allclose(gaussians.mixtures.variances.mean(), true.mixtures.variances.mean(), rtol=0.1)


def test_silence_has_no_say(set_of_speakers):
    """Frames of silence, however many, change no factor, and count for nothing."""
    gaussians, feats, speakers = set_of_speakers
    rng = np.random.default_rng(3)
    quiet = (gaussians.mixtures.means[-1] + 0.1 * rng.standard_normal((2000, 12))).astype(np.float32)
    padded = {u: np.concatenate([x, quiet]) for u, x in feats.items()}
    assert speaker_factors(gaussians, padded, speakers, MATRICES) == TRUE
    plain, more = (warp_stats(gaussians, x, None) for x in (feats["a0"], padded["a0"]))
    assert more.frames == pytest.approx(plain.frames, abs=1e-6)
    assert plain.frames < len(feats["a0"])


def test_statistics_do_not_depend_on_the_size_of_the_pieces(set_of_speakers, monkeypatch):
    gaussians, feats, _ = set_of_speakers
    whole = warp_stats(gaussians, feats["c0"], MATRICES[1.1])
    monkeypatch.setattr("murmur.speech.hmm.vtln.FRAMES_AT_ONCE", 7)
    parts = warp_stats(gaussians, feats["c0"], MATRICES[1.1])
    np.testing.assert_allclose(parts.quadratic, whole.quadratic, rtol=1e-9, atol=1e-9)
    assert parts.frames == pytest.approx(whole.frames)


def test_the_warp_of_an_utterance_is_that_of_the_factor_of_its_speaker(set_of_speakers):
    gaussians, feats, speakers = set_of_speakers
    found = warps_of({"a": 0.9, "b": 1.0}, speakers, MATRICES)
    assert found.keys() == {"a0", "a1"}
    assert found["a0"] is MATRICES[0.9]
    vtln = Vtln(gaussians, ANALYSIS, CEPSTRA, tuple(MATRICES))
    estimated = vtln.warps(feats, speakers)
    assert estimated.keys() == {"a0", "a1", "c0", "c1"}  # the factor of b is 1
    np.testing.assert_array_equal(estimated["c1"], MATRICES[TRUE["c"]])


def test_refusals():
    with pytest.raises(ValueError, match="with 1 among them"):
        VtlnConfig(factors=(0.9, 1.1))
    with pytest.raises(ValueError, match="at least one sweep"):
        VtlnConfig(sweeps=0)
