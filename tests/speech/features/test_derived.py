"""Features and labels that are computed as they are taken."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path

import numpy as np

from murmur.speech.features.analysis import deltas
from murmur.speech.features.by_utterance import part_of
from murmur.speech.features.derived import ChangedArrays, DerivedFeatures, is_finite, shape_of
from murmur.speech.features.feature_store import ShardRows

SPEAKERS = {"a1": "a", "a2": "a", "b1": "b"}


def stored(folder: Path, feats: dict[str, np.ndarray]) -> ShardRows:
    """The features as rows of one shard, the last utterance first."""
    names = sorted(feats, reverse=True)
    joined = np.concatenate([feats[name] for name in names])
    np.save(folder / "00003.feats.npy", joined)
    firsts = np.cumsum([0, *(len(feats[name]) for name in names)]).tolist()
    places = {name: (3, first, len(feats[name])) for name, first in zip(names, firsts, strict=False)}
    return ShardRows(folder, places, {3: joined.shape})


def drawn() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal((5 + n, 2)).astype(np.float32) for n, name in enumerate(SPEAKERS)}


def test_gaussian_features_are_deltas_of_cepstra_less_the_mean_of_the_speaker(tmp_path: Path) -> None:
    feats = drawn()
    means = {s: np.concatenate([x for n, x in feats.items() if SPEAKERS[n] == s]).mean(0) for s in "ab"}
    for source in (feats, stored(tmp_path, feats)):
        found = DerivedFeatures.gaussian(source, SPEAKERS)
        for name, x in feats.items():
            np.testing.assert_allclose(found[name], deltas(x - means[SPEAKERS[name]]), atol=1e-5)
            assert shape_of(found, name) == found[name].shape == (len(x), 6)
        assert set(found) == set(feats)
        assert "b2" not in found


def test_a_part_has_the_same_bits_after_pickling_and_from_plain_values(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    feats = {name: random.standard_normal((4000, 2)).astype(np.float32) for name in SPEAKERS}
    whole = DerivedFeatures.gaussian(stored(tmp_path, feats), SPEAKERS)
    part = part_of(whole, ["b1", "a1"])
    assert list(part) == ["b1", "a1"]
    content = pickle.dumps(part)
    assert len(content) < feats["a1"].nbytes / 10
    header, arrays = part.plain()  # type: ignore[attr-defined]
    again = DerivedFeatures.of_plain(json.loads(json.dumps(header)), arrays)
    for other in (pickle.loads(content), again):
        assert list(other) == ["b1", "a1"]
        assert all(np.array_equal(other[name], whole[name]) for name in other)
    plain = DerivedFeatures(stored(tmp_path, feats), None, 1).part(["a2"])
    again = DerivedFeatures.of_plain(*plain.plain())
    assert np.array_equal(again["a2"], deltas(feats["a2"], 1))


def test_values_that_are_not_finite_are_found_without_derivatives(tmp_path: Path) -> None:
    feats = drawn()
    feats["a2"][2, 1] = np.nan
    derived = DerivedFeatures(stored(tmp_path, feats), None, 2)
    assert [is_finite(derived, name) for name in SPEAKERS] == [True, False, True]
    assert [is_finite(feats, name) for name in SPEAKERS] == [True, False, True]
    normalised = DerivedFeatures.gaussian(feats, SPEAKERS)  # the mean of the speaker is not finite
    assert [is_finite(normalised, name) for name in SPEAKERS] == [False, False, True]


def plus(amount: int, name: str, values: np.ndarray) -> np.ndarray:
    return values + amount + len(name)


def test_computed_values_are_those_of_the_source(tmp_path: Path) -> None:
    found = ChangedArrays({"x": np.arange(3), "long": np.arange(2)}, partial(plus, 10))
    assert found["x"].tolist() == [11, 12, 13]
    assert part_of(found, ["long"])["long"].tolist() == [14, 15]
    assert list(part_of(found, ["long"])) == ["long"]
    assert ("x" in found, "y" in found, len(found)) == (True, False, 2)
    counted = ChangedArrays(DerivedFeatures(stored(tmp_path, drawn()), None, 1), never, columns=7)
    assert shape_of(part_of(counted, ["a2"]), "a2") == (6, 7)


def never(_name: str, _values: np.ndarray) -> np.ndarray:
    raise AssertionError("the shape is known")
