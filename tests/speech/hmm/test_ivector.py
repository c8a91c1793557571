"""i-vectors: dense conditioning, EM, a known subspace, sums of parts, files; the background model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.hmm.ivector import (
    Extractor,
    IvectorConfig,
    Sums,
    Ubm,
    UbmConfig,
    groups_of,
    ivectors,
    load_extractor,
    save_extractor,
    summed,
    train,
    train_extractor,
    train_ubm,
)

GAUSSIANS, FEATURES, DIMS = 3, 2, 2


def made(seed: int, size: float = 1.0) -> Extractor:
    random = np.random.default_rng(seed)
    means = 8.0 * random.normal(size=(GAUSSIANS, FEATURES))
    ubm = Ubm(np.full(GAUSSIANS, 1 / GAUSSIANS), means, random.uniform(0.5, 2.0, size=means.shape))
    return Extractor(ubm, size * random.normal(size=(GAUSSIANS, FEATURES, DIMS)))


def sums_of(seed: int) -> Sums:
    random = np.random.default_rng(seed)
    return Sums(random.uniform(0.0, 5.0, size=GAUSSIANS), random.normal(size=(GAUSSIANS, FEATURES)))


@given(st.integers(0, 1000), st.lists(st.integers(0, GAUSSIANS - 1), min_size=1, max_size=6))
def test_the_posterior_is_that_of_the_joint_gaussian(seed: int, classes: list[int]) -> None:
    """Frames of known Gaussians: condition the dense joint Gaussian of phi and all frames on the frames."""
    extractor, random = made(seed), np.random.default_rng(seed)
    ubm, x = extractor.ubm, random.normal(size=(len(classes), FEATURES))
    T = np.concatenate([extractor.matrix[c] for c in classes])
    noise = np.concatenate([ubm.variances[c] for c in classes])
    centred = x - ubm.means[classes]
    covariance = T @ T.T + np.diag(noise)
    mean = T.T @ np.linalg.solve(covariance, centred.ravel())
    spread = np.eye(DIMS) - T.T @ np.linalg.solve(covariance, T)
    counts = np.bincount(classes, minlength=GAUSSIANS).astype(float)
    first = np.zeros((GAUSSIANS, FEATURES))
    np.add.at(first, classes, centred)
    phi, precision = extractor.posterior(Sums(counts, first))
    assert phi == pytest.approx(mean, rel=1e-6, abs=1e-9)
    assert np.linalg.inv(precision) == pytest.approx(spread, rel=1e-6, abs=1e-9)

    def log_density(covariance: np.ndarray) -> float:
        quadratic = centred.ravel() @ np.linalg.solve(covariance, centred.ravel())
        return -0.5 * float(quadratic + np.linalg.slogdet(covariance)[1])

    marginal = log_density(covariance) - log_density(np.diag(noise))
    assert extractor.gain(Sums(counts, first)) == pytest.approx(marginal, rel=1e-6, abs=1e-8)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_the_marginal_likelihood_never_falls(seed: int) -> None:
    groups = [sums_of(seed + n) for n in range(7)]
    course: list[float] = []
    config = IvectorConfig(DIMS, 12, seed=seed)
    train_extractor(made(seed).ubm, groups, config, lambda _model, _number, _passes, gain: course.append(gain))
    assert np.diff(course).min() >= -1e-9
    assert course[-1] > course[0]


def test_no_frames_give_the_mean_of_the_prior() -> None:
    extractor = made(1)
    assert (extractor.ivector(Sums.none(extractor.ubm)) == 0).all()
    assert extractor.gain(Sums.none(extractor.ubm)) == 0


def spoken(extractor: Extractor, speakers: int, frames: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Frames of speakers whose Gaussians have moved by points of the extractor's prior, three utterances each."""
    random, feats = np.random.default_rng(seed), {}
    ubm = extractor.ubm
    for speaker in range(speakers):
        means = ubm.means + extractor.matrix @ random.normal(size=DIMS)
        for utterance in range(3):
            classes = random.integers(GAUSSIANS, size=frames)
            noise = np.sqrt(ubm.variances[classes]) * random.normal(size=(frames, FEATURES))
            feats[f"s{speaker:03}-{utterance}"] = means[classes] + noise
    return feats


def speakers_of(feats: dict[str, np.ndarray]) -> dict[str, str]:
    return {name: name.partition("-")[0] for name in feats}


def test_a_known_subspace_is_found_up_to_a_rotation() -> None:
    truth = made(4, size=0.8)
    feats = spoken(truth, speakers=150, frames=60)
    sums = [summed(truth.ubm, feats, group, 1.0) for group in groups_of(speakers_of(feats), 0)]
    found = train_extractor(truth.ubm, sums, IvectorConfig(DIMS, 60, 1.0))
    stacked = [np.linalg.qr(e.matrix.reshape(-1, DIMS))[0] for e in (truth, found)]
    cosines = np.linalg.svd(stacked[0].T @ stacked[1])[1]
    assert np.degrees(np.arccos(cosines.min().clip(-1, 1))) < 10


def test_utterances_of_a_speaker_are_closer_than_those_of_others() -> None:
    feats = spoken(made(4, size=0.8), speakers=30, frames=80, seed=1)
    config = IvectorConfig(DIMS, 15, 1.0, 1, ubm=UbmConfig(GAUSSIANS))
    extractor = train(feats, speakers_of(feats), config)
    points = ivectors(extractor, feats, speakers_of(feats), 1.0, utterances=1)
    every = np.stack([points[name] for name in sorted(feats)]).reshape(30, 3, DIMS)
    within = every.var(1).mean()
    assert every.mean(1).var(0).mean() > 5 * within
    shared = ivectors(extractor, feats, speakers_of(feats), 1.0)
    assert len({tuple(point) for point in shared.values()}) == 30


@given(st.integers(0, 100), st.integers(1, 29), st.floats(0.05, 1.0))
def test_sums_of_parts_are_those_of_the_whole(seed: int, cut: int, scale: float) -> None:
    random, ubm = np.random.default_rng(seed), made(seed).ubm
    x = 5 * random.normal(size=(30, FEATURES))
    whole = Sums.of(ubm, x, scale)
    parts = Sums.of(ubm, x[:cut], scale) + Sums.of(ubm, x[cut:], scale)
    for a, b in ((whole.counts, parts.counts), (whole.first, parts.first)):
        assert a == pytest.approx(b, abs=1e-9)
    assert whole.counts.sum() == pytest.approx(scale * 30)
    posteriors = scale * ubm.posteriors(x)[0]
    direct = np.einsum("tc,tcf->cf", posteriors, x[:, None] - ubm.means)
    assert whole.first == pytest.approx(direct, abs=1e-8)


def test_groups_hold_utterances_of_one_speaker() -> None:
    speakers = {"b2": "b", "a1": "a", "b1": "b", "b3": "b", "a2": "a"}
    assert groups_of(speakers, 2) == [("a1", "a2"), ("b1", "b2"), ("b3",)]
    assert groups_of(speakers, 0) == [("a1", "a2"), ("b1", "b2", "b3")]
    assert groups_of(speakers, 1) == [("a1",), ("a2",), ("b1",), ("b2",), ("b3",)]


def test_files_hold_extractors_to_the_bit_and_damage_is_named(tmp_path: Path) -> None:
    extractor, path = made(2), tmp_path / "extractor.npz"
    save_extractor(extractor, path)
    again = load_extractor(path)
    assert np.array_equal(again.matrix, extractor.matrix)
    assert np.array_equal(again.ubm.variances, extractor.ubm.variances)
    assert [file.name for file in tmp_path.iterdir()] == ["extractor.npz"]
    save_extractor(replace(extractor, matrix=np.full_like(extractor.matrix, np.nan)), path)
    with pytest.raises(ValueError, match="not all finite numbers"):
        load_extractor(path)
    save_extractor(extractor, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"extractor\.npz is damaged"):
        load_extractor(path)
    with pytest.raises(FileNotFoundError):
        load_extractor(tmp_path / "none.npz")


def drawn(seed: int, frames: int = 300, dim: int = 3) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    centres = random.normal(scale=3.0, size=(4, dim))
    x = centres[random.integers(4, size=frames)] + random.normal(size=(frames, dim))
    return list(np.split(x.astype(np.float32), [frames // 3, frames // 2]))


def trained(feats: list[np.ndarray], config: UbmConfig) -> tuple[Ubm, list[float]]:
    """The model, and the mean log-likelihood before each pass."""
    course: list[float] = []
    return train_ubm(feats, config, lambda _model, _number, _passes, value: course.append(value)), course


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
    ubm, course = trained(drawn(seed), UbmConfig(gaussians, 8, 1e-6, seed))
    assert np.diff(course).min() >= -1e-9
    assert course[-1] > course[0]
    assert ubm.weights.sum() == pytest.approx(1.0)


def test_one_gaussian_has_mean_and_variance_of_all_frames() -> None:
    feats = drawn(3)
    ubm = train_ubm(feats, UbmConfig(1, 1))
    x = np.concatenate(feats).astype(np.float64)
    assert ubm.means[0] == pytest.approx(x.mean(0))
    assert ubm.variances[0] == pytest.approx(x.var(0), rel=1e-5)


def test_frames_that_are_equal_do_not_make_equal_gaussians() -> None:
    feats = [*drawn(5), np.zeros((500, 3), np.float32)]  # digital silence
    ubm, course = trained(feats, UbmConfig(8, 10))
    assert len(np.unique(ubm.means, axis=0)) == 8
    assert np.diff(course).min() >= -1e-9


def test_variances_have_a_floor_and_the_start_depends_on_the_seed_alone() -> None:
    feats = [*drawn(5), np.zeros((50, 3), np.float32)]  # one point many times
    first, again, other = (train_ubm(feats, UbmConfig(8, 5, 0.05, seed)) for seed in (1, 1, 2))
    assert (first.variances >= 0.05 * np.concatenate(feats).var(0) * 0.999).all()
    assert np.array_equal(first.means, again.means)
    assert not np.array_equal(first.means, other.means)
    with pytest.raises(ValueError, match="too few for a background model of 9"):
        train_ubm([np.zeros((8, 2))], UbmConfig(9))
