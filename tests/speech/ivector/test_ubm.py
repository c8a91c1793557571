"""Background model: closed forms, EM, and its start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.ivector.ubm import Ubm, UbmConfig, train_ubm


def drawn(seed: int, frames: int = 300, dim: int = 3) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    centres = random.normal(scale=3.0, size=(4, dim))
    x = centres[random.integers(4, size=frames)] + random.normal(size=(frames, dim))
    return list(np.split(x.astype(np.float32), [frames // 3, frames // 2]))


def test_likelihoods_are_sums_of_densities() -> None:
    random = np.random.default_rng(0)
    ubm = Ubm(np.array([0.3, 0.7]), random.normal(size=(2, 3)), random.uniform(0.5, 2.0, size=(2, 3)))
    x = random.normal(size=(5, 3))
    density = np.exp(-0.5 * ((x[:, None] - ubm.means) ** 2 / ubm.variances).sum(2))
    joint = ubm.weights * density / np.sqrt((2 * np.pi * ubm.variances).prod(1))
    posteriors, log_likelihood = ubm.posteriors(x)
    assert log_likelihood == pytest.approx(np.log(joint.sum(1)))
    assert posteriors == pytest.approx(joint / joint.sum(1, keepdims=True))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6))
def test_the_likelihood_never_falls(seed: int, gaussians: int) -> None:
    ubm, course = train_ubm(drawn(seed), UbmConfig(gaussians, 8, 1e-6, seed))
    assert np.diff(course).min() >= -1e-9
    assert course[-1] > course[0]
    assert ubm.weights.sum() == pytest.approx(1.0)


def test_one_gaussian_has_mean_and_variance_of_all_frames() -> None:
    feats = drawn(3)
    ubm, _ = train_ubm(feats, UbmConfig(1, 1))
    x = np.concatenate(feats).astype(np.float64)
    assert ubm.means[0] == pytest.approx(x.mean(0))
    assert ubm.variances[0] == pytest.approx(x.var(0), rel=1e-5)


def test_frames_that_are_equal_do_not_make_equal_gaussians() -> None:
    feats = [*drawn(5), np.zeros((500, 3), np.float32)]  # digital silence
    ubm, course = train_ubm(feats, UbmConfig(8, 10))
    assert len(np.unique(ubm.means, axis=0)) == 8
    assert np.diff(course).min() >= -1e-9


def test_variances_have_a_floor_and_the_start_depends_on_the_seed_alone() -> None:
    feats = [*drawn(5), np.zeros((50, 3), np.float32)]  # one point many times
    first, again, other = (train_ubm(feats, UbmConfig(8, 5, 0.05, seed))[0] for seed in (1, 1, 2))
    assert (first.variances >= 0.05 * np.concatenate(feats).var(0) * 0.999).all()
    assert np.array_equal(first.means, again.means)
    assert not np.array_equal(first.means, other.means)
    with pytest.raises(ValueError, match="too few for a background model of 9"):
        train_ubm([np.zeros((8, 2))], UbmConfig(9))
