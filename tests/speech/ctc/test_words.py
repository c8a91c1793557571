"""Words of CTC paths with times, against the greedy text and a frame-by-frame reading."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.ctc import Units, greedy, spoken_words, units_between

KINDS = {
    "char": (" ", "a", "b"),
    "word": ("BOB", "EVE"),
    "grapheme": ("\u2581a", "\u2581b", "a"),
}


@given(st.sampled_from(sorted(KINDS)), st.lists(st.integers(0, 3), max_size=25), st.integers(0, 5))
def test_words_and_times_of_best_paths(kind, columns, seed):
    units = Units(kind, KINDS[kind])
    columns = [min(c, units.columns - 1) for c in columns]
    logits = np.random.default_rng(seed).normal(size=(len(columns), units.columns)).astype(np.float32)
    logits[np.arange(len(columns)), columns] += 8
    log_probs = torch.from_numpy(logits).log_softmax(-1)
    found = spoken_words(log_probs.numpy(), units)
    best = greedy(log_probs[None], torch.tensor([len(columns)]))[0] if columns else []
    assert " ".join(word.word for word in found) == units.decode(best)
    before = 0
    for word in found:
        assert before <= word.first < word.end <= len(columns)
        before = word.end
        inside = columns[word.first : word.end]
        assert columns[word.first] != 0
        assert inside[-1] != 0  # from the first spike to the last, no blank at either edge
        if len(set(inside)) == 1:
            probs = log_probs.exp().numpy()[word.first : word.end, inside[0]]
            assert word.confidence == pytest.approx(probs.max(), rel=1e-4)
        assert 0 < word.confidence <= 1


def test_confidence_is_the_geometric_mean_over_units():
    units = Units("char", ("a", "b"))
    probs = np.array([[0.1, 0.8, 0.1], [0.3, 0.6, 0.1], [0.9, 0.05, 0.05], [0.4, 0.1, 0.5]])
    (word,) = spoken_words(np.log(probs), units)
    assert (word.word, word.first, word.end) == ("ab", 0, 4)
    assert word.confidence == pytest.approx(math.sqrt(0.8 * 0.5))


def test_words_of_a_graph_have_the_frames_of_their_units():
    labels = np.array([0, 1, 1, 0, 2, 0, 0, 1])
    assert units_between(labels, (1, 7)) == [(1, 5), (7, 8)]
    assert units_between(np.zeros(8, int), (3,)) == [(3, 4)]
    assert units_between(np.zeros(8, int), ()) == []
