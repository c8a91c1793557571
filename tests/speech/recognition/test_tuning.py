"""Mean scores of several models: means of log posteriors less mean priors, each on its own features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.speech.features.analysis import Ready
from murmur.speech.models import Lstm, Tdnn
from murmur.speech.recognition.tuning import MeanScores
from murmur.speech.tasks.acoustic_model import AcousticModel


def model(network, seed: int, outputs: int = 5, prior: bool = True, stack: int = 1):
    torch.manual_seed(seed)
    log_prior = torch.randn(outputs).log_softmax(0) if prior else None
    acoustic = AcousticModel(Ready(4), 0, "none", network, 4, outputs, stack, log_prior)
    return acoustic, acoustic.build().eval()


def frames(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"u{n}": rng.normal(size=(n, 4)).astype(np.float32) for n in (9, 1, 20)}


def mean_of(*models) -> MeanScores:
    return MeanScores(models, (None,) * len(models))


def log_posteriors(network, feats_TF: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return network(torch.from_numpy(feats_TF)[None])[0].log_softmax(-1).numpy()


def test_hybrid_scores_are_the_mean_log_posterior_less_the_mean_prior() -> None:
    models = (model(Tdnn(8, ((0, 1),)), 0), model(Lstm(6, 1), 1), model(Tdnn(4, ((-1, 0),)), 2))
    feats = [frames(0), frames(1), frames(0)]  # normalised otherwise, for the second one
    found = dict(mean_of(*models).all_scores(feats))
    assert list(found) == ["u9", "u1", "u20"]
    for name, scores_TC in found.items():
        posteriors = [log_posteriors(net, own[name]) for (_, net), own in zip(models, feats, strict=True)]
        priors = [acoustic.log_prior.numpy() for acoustic, _ in models]
        np.testing.assert_allclose(scores_TC, np.mean(posteriors, 0) - np.mean(priors, 0), atol=1e-5)
        assert scores_TC.dtype == np.float32


def test_networks_without_priors_are_averaged_by_name() -> None:
    models = tuple(model(Lstm(6, 1, stack=3), seed, prior=False, stack=3) for seed in (0, 1))
    found = dict(mean_of(*models).all_scores([frames(0), frames(0)]))
    assert {name: len(scores) for name, scores in found.items()} == {"u9": 3, "u1": 1, "u20": 7}
    for name, scores_UC in found.items():
        expected = np.mean([log_posteriors(net, frames(0)[name]) for _, net in models], 0)
        np.testing.assert_allclose(scores_UC, expected, atol=1e-5)


def test_one_model_keeps_its_scores_to_the_bit() -> None:
    acoustic, network = model(Tdnn(8, ((0, 1),)), 0)
    for name, scores_TC in mean_of((acoustic, network)).all_scores([frames(0)]):
        assert np.array_equal(scores_TC, acoustic.scores(network, frames(0)[name]))


def test_scores_of_other_shapes_are_refused() -> None:
    models = (model(Tdnn(8, ((0, 1),)), 0), model(Tdnn(8, ((0, 1),)), 1))
    longer = {name: np.concatenate([x, x]) for name, x in frames(0).items()}
    with pytest.raises(SettingError, match=r"u9 has scores of shapes \(9, 5\) and \(18, 5\)"):
        list(mean_of(*models).all_scores([frames(0), longer]))
    with pytest.raises(SettingError, match=r"--with: \w+ has features for one model and none for another"):
        list(mean_of(*models).all_scores([frames(0), {}]))


def test_features_are_those_of_each_model(tmp_path: Path) -> None:
    class Told(AcousticModel):
        def features(self, corpus, cache, estimate=None):
            return {"u": (corpus, cache, self.cmvn, estimate)}

    models = tuple((Told(Ready(4), 0, cmvn, Tdnn(), 4, 5), torch.nn.Identity()) for cmvn in ("none", "speaker"))
    found = mean_of(*models).features("corpus", tmp_path)
    assert found == [{"u": ("corpus", tmp_path, "none", None)}, {"u": ("corpus", tmp_path, "speaker", None)}]
    found = MeanScores(models, (None, dict)).features("corpus", tmp_path)  # each model's own estimate of transforms
    assert found == [{"u": ("corpus", tmp_path, "none", None)}, {"u": ("corpus", tmp_path, "speaker", dict)}]
