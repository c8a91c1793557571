"""Functions of the recogniser that run a network leave the modes of its modules as they were."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from murmur.speech.hmm.frame_classifier import frame_figures, log_likelihoods
from murmur.speech.language_model.word_lstm import WordLstm, token_log_probs
from murmur.speech.tasks.acoustic_model import posteriors

FEATS = {"u": np.ones((5, 3), np.float32), "v": np.ones((4, 3), np.float32)}


class Network(nn.Module):
    """Network with dropout, and normalisation that its user keeps in evaluation mode; fails on a negative input."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.drop, self.norm = nn.Linear(3, 2), nn.Dropout(0.5), nn.BatchNorm1d(2).eval()

    def forward(self, x_NTF: Tensor, lengths_N: Tensor | None = None) -> Tensor:
        if float(x_NTF.min()) < 0:
            raise RuntimeError("out of memory")
        return self.norm(self.drop(self.outer(x_NTF)).transpose(1, 2)).transpose(1, 2)


def posteriors_of(network: nn.Module, feats: np.ndarray) -> object:
    return next(posteriors(network, {"u": feats, "v": feats}, 1))[1].tolist()


def likelihoods_of(network: nn.Module, feats: np.ndarray) -> object:
    return log_likelihoods(network, feats, torch.zeros(2)).tolist()


def figures_of(network: nn.Module, feats: np.ndarray) -> object:
    return frame_figures(network, {"u": feats}, {"u": np.zeros(len(feats), np.int32)})


@pytest.mark.parametrize("function", [posteriors_of, likelihoods_of, figures_of])
def test_modes_stay_and_results_are_without_dropout(function: Callable[[nn.Module, np.ndarray], object]) -> None:
    network = Network()
    before = [module.training for module in network.modules()]
    assert before == [True, True, True, False]
    assert function(network, FEATS["u"]) == function(network, FEATS["u"])
    assert [module.training for module in network.modules()] == before
    with pytest.raises(RuntimeError, match="out of memory"):
        function(network, -FEATS["u"])
    assert [module.training for module in network.modules()] == before


def test_modes_of_a_language_model_stay() -> None:
    model = WordLstm(4, 6, 2, dropout=0.5).build(8)
    next(iter(model.children())).eval()
    before = [module.training for module in model.modules()]
    sentence = [np.array([3, 4, 5])]
    assert token_log_probs(model, sentence)[0].tolist() == token_log_probs(model, sentence)[0].tolist()
    assert [module.training for module in model.modules()] == before
