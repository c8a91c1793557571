"""Acoustic models saved and opened: equal values, the same scores, no code from files."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.speech.features.analysis import LogMel, Ready
from murmur.speech.models import Blstm, Conformer, Convolutions, Dnn, Lstm, Tdnn, TdnnF
from murmur.speech.tasks.acoustic_model import ARRAYS, AcousticModel, UnknownNetwork


@dataclass(frozen=True)
class OwnNet:
    """A network description outside the package."""

    widths: tuple[int, ...] = (3, 4)

    def build(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Linear(inputs, outputs)


def again(model: AcousticModel, folder: Path) -> AcousticModel:
    content = json.loads(json.dumps(model.save(folder)))
    return AcousticModel.open(content, {ARRAYS: folder / ARRAYS})


@pytest.mark.parametrize(
    "network",
    [
        Dnn(),
        Lstm(hidden=8, layers=1),
        Blstm(hidden=8, layers=2, stack=3),
        Tdnn(hidden=8, contexts=((0, 1),)),
        TdnnF(hidden=8, bottleneck=3, strides=(1, 0), front=Convolutions((2, 3), bins=4)),
        Conformer(hidden=8, layers=1, heads=2, kernel=3, reach=5, stack=3, front=Convolutions((2, 3), bins=4)),
    ],
)
@pytest.mark.parametrize("front", [LogMel(8000, 12, frame_shift_seconds=0.02), Ready(12)])
def test_everything_is_opened_as_it_was_saved(tmp_path: Path, network, front) -> None:
    rng = np.random.default_rng(0)
    pair = (rng.normal(size=12).astype(np.float32), rng.normal(size=12).astype(np.float32))
    prior = None if network.stack == 3 else torch.from_numpy(rng.normal(size=5).astype(np.float32))
    stack = 3 if network.stack == 3 else 1
    model = AcousticModel(front, 2, "utterance", network, 12, 5, stack, prior, lambda: pair, normalised="all")
    found = again(model, tmp_path)
    plain = {"log_prior": None, "training": None}
    assert vars(replace(found, **plain)) == vars(replace(model, **plain))
    assert found.training is not None
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(found.training(), pair, strict=True))
    assert found.frames_per_second == model.frames_per_second
    weights, feats_TF = model.build(), rng.normal(size=(30, 12)).astype(np.float32)
    other = found.build()
    other.load_state_dict(weights.state_dict())
    assert np.array_equal(found.scores(other, feats_TF), model.scores(weights, feats_TF))


def test_scores_of_many_utterances_are_those_of_one(tmp_path: Path) -> None:
    model = AcousticModel(Ready(12), 0, "none", Lstm(hidden=8, layers=1, stack=3), 12, 5, 3)
    network, rng = model.build(), np.random.default_rng(0)
    feats = {f"u{n}": rng.normal(size=(n, 12)).astype(np.float32) for n in (7, 1, 30)}
    found = dict(model.all_scores(network, feats))
    assert {name: len(scores) for name, scores in found.items()} == {"u7": 3, "u1": 1, "u30": 10}
    for name, scores_UC in found.items():
        np.testing.assert_allclose(scores_UC, model.scores(network, feats[name]), atol=1e-5)
        np.testing.assert_allclose(np.exp(scores_UC).sum(-1), 1.0, atol=1e-5)


def test_a_class_outside_the_package_is_named_and_never_imported(tmp_path: Path) -> None:
    found = again(AcousticModel(Ready(12), 0, "none", OwnNet(), 12, 5), tmp_path)
    assert found.network == UnknownNetwork(f"{__name__}.OwnNet", {"widths": [3, 4]})
    with pytest.raises(SettingError, match="OwnNet: its code is needed"):
        found.build()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cmvn", "room"),
        ("outputs", 6),
        ("network", {"type": "Lstm", "values": {"cells": 3}}),
        ("network", {"type": "Lstm", "values": {"cells": {"bins": 3}}}),
        ("network", {"type": "Tdnn", "values": {"front": {"cells": 3}}}),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, name: str, value: object) -> None:
    model = AcousticModel(Ready(12), 0, "none", Dnn(), 12, 5, log_prior=torch.zeros(5))
    content = {**model.save(tmp_path), name: value}
    with pytest.raises((ValueError, TypeError)):
        AcousticModel.open(content, {ARRAYS: tmp_path / ARRAYS})
