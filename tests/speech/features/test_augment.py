"""Linear transforms of cepstra for warp factors: identity, composition, agreement with warped analyses."""

import numpy as np
import pytest

from murmur.speech.features.analysis import Mfcc, analyse
from murmur.speech.features.augment import MelCepstra, at_speed, warp_matrix, warped_hz

ANALYSES = (MelCepstra(), MelCepstra(40, 133.33, 6855.5, "mean", 0.0), MelCepstra(30, 0.0, 4000.0, "mean", 22.0))


@pytest.mark.parametrize("analysis", ANALYSES)
def test_factor_one_changes_nothing(analysis):
    np.testing.assert_allclose(warp_matrix(analysis, 13, 1.0), np.eye(13), atol=1e-13)


@pytest.mark.parametrize("analysis", ANALYSES)
def test_small_warps_compose(analysis):
    """T(a) T(b) = T(ab) for smooth spectra: the series ends after K cepstra, which cuts what moves beyond them."""
    small, large, together = (warp_matrix(analysis, 20, factor)[:, :6] for factor in (1.01, 1.02, 1.01 * 1.02))
    change = np.abs(together - np.eye(20, 6)).max()
    assert np.abs(warp_matrix(analysis, 20, 1.01) @ large - together).max() < 0.02 * change
    back = warp_matrix(analysis, 20, 1 / 1.02) @ large
    assert np.abs(back - np.eye(20, 6)).max() < 0.02 * np.abs(large - np.eye(20, 6)).max()
    assert np.abs(small - together).max() > 0.5 * change


def test_the_warp_is_continuous_increasing_and_keeps_the_ends():
    hz = np.linspace(0, 4000, 8001)
    for factor in (0.8, 0.95, 1.0, 1.1, 1.25):
        found = warped_hz(hz, factor, 4000.0)
        steps = np.diff(found)
        assert (steps > 0).all()
        assert steps.max() < 4 * 0.5
        assert found[0] == 0.0
        assert found[-1] == pytest.approx(4000.0)
        assert found[2000] == pytest.approx(factor * 1000)


def resonances(hz, formants):
    """Log spectrum of wide resonances."""
    return sum(2.0 * np.exp(-(((hz - f) / (350 + 0.25 * f)) ** 2)) for f in formants) - hz / 3000


def cepstra_of(analysis, log_spectrum, cepstra):
    """Mel cepstra by explicit triangular filters over a fine frequency axis."""
    hz = np.linspace(0.0, analysis.high_hz, 20001)
    mel = 1127 * np.log1p(hz / 700)
    low, high = 1127 * np.log1p(np.array([analysis.low_hz, analysis.high_hz]) / 700)
    edges = np.linspace(low, high, analysis.bins + 2)
    found = np.empty(analysis.bins)
    for b in range(analysis.bins):
        width = edges[1] - edges[0]
        filter_ = np.clip(1 - np.abs(mel - edges[b + 1]) / width, 0, None)
        found[b] = np.log(filter_ @ np.exp(log_spectrum(hz)) / filter_.sum())
    cosines = np.cos(np.pi * np.outer(np.arange(cepstra), np.arange(analysis.bins) + 0.5) / analysis.bins)
    norms = np.full(cepstra, np.sqrt(2 / analysis.bins))
    norms[0] = np.sqrt(1 / analysis.bins)
    if analysis.scaling == "mean":
        norms[:] = 1 / analysis.bins
    if analysis.lifter:
        norms *= 1 + analysis.lifter / 2 * np.sin(np.pi * np.arange(cepstra) / analysis.lifter)
    return norms * (cosines @ found)


@pytest.mark.parametrize("analysis", ANALYSES)
@pytest.mark.parametrize("factor", [0.9, 0.95, 1.05, 1.1])
def test_the_transform_agrees_with_the_analysis_of_a_warped_spectrum(analysis, factor):
    formants = [f for f in (500, 1500, 2500, 3500) if f < 0.6 * analysis.high_hz]

    def bent(hz):
        return resonances(warped_hz(hz, factor, analysis.high_hz), formants)

    plain = cepstra_of(analysis, lambda hz: resonances(hz, formants), 13)
    wanted = cepstra_of(analysis, bent, 13)
    found = warp_matrix(analysis, 13, factor) @ plain
    assert np.linalg.norm(found - wanted) < 0.2 * np.linalg.norm(wanted - plain)


def test_the_default_is_the_scaling_of_our_mfcc():
    """Formants of synthetic vowels move as the transform of the library's own MFCC says."""
    rng = np.random.default_rng(0)
    t = np.arange(16000) / 16000
    pulses = (np.diff(np.floor(t * 60), prepend=0) > 0) + 0.003 * rng.standard_normal(16000)

    def vowel(formants):
        spectrum = np.fft.rfft(pulses)
        hz = np.fft.rfftfreq(16000, 1 / 16000)
        shaped = np.fft.irfft(spectrum * np.exp(0.5 * resonances(hz, formants)), 16000)
        return (0.1 * shaped / shaped.std()).astype(np.float32)

    def mean_cepstra(formants):
        return analyse(vowel(formants), Mfcc())[5:-5].mean(0).astype(np.float64)

    plain, moved = mean_cepstra((600, 1700, 2900)), mean_cepstra((660, 1870, 3190))
    found = warp_matrix(MelCepstra(), 13, 1 / 1.1) @ plain
    assert np.linalg.norm((found - moved)[1:]) < 0.5 * np.linalg.norm((plain - moved)[1:])


def test_a_copy_at_another_speed_has_other_formants_and_fewer_frames():
    """A glide of known cepstra: frame u of the copy is the warped frame in the middle of its own time span."""
    analysis = MelCepstra(40, 133.33, 6855.5, "mean", 0.0)
    ends = np.random.default_rng(2).standard_normal((2, 13))
    feats = (np.linspace(0, 1, 50)[:, None] * ends[1] + np.linspace(1, 0, 50)[:, None] * ends[0]).astype(np.float32)
    found = at_speed(feats, analysis, 1.25)
    assert found.shape == (40, 13)
    times = (np.arange(40) + 0.5) * 1.25 - 0.5
    between = np.stack([np.interp(times, np.arange(50), feats[:, k]) for k in range(13)], 1)
    np.testing.assert_allclose(found, between @ warp_matrix(analysis, 13, 0.8).T, atol=1e-5)
    assert at_speed(feats, analysis, 1.0) is feats
    assert len(at_speed(feats, analysis, 0.5)) == 100
    with pytest.raises(ValueError, match="must be positive"):
        at_speed(feats, analysis, -1.0)
