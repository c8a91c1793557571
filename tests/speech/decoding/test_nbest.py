"""The n best word sequences of lattices against the enumeration of all paths."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("kaldifst", reason="the speech libraries are not installed (pip install murmur[speech])")

import kaldifst

from enumerated_lattices import Text, lattices
from murmur.speech.decoding.nbest import best_word_paths


@settings(max_examples=150, deadline=None)
@given(lattices(), st.integers(1, 12))
def test_the_cheapest_different_word_sequences_are_listed(text: Text, n: int) -> None:
    costs: dict[tuple[int, ...], float] = defaultdict(lambda: float("inf"))
    for cost, words, _ in text.paths():
        said = tuple(word for _, word in words)
        costs[said] = min(costs[said], cost)
    found = best_word_paths(text, n)
    assert [path.cost for path in found] == pytest.approx(sorted(costs.values())[:n])
    assert len({path.words for path in found}) == len(found)
    for path in found:
        assert path.cost == pytest.approx(costs[path.words])


def test_labels_are_those_of_the_cheapest_path_of_the_words() -> None:
    arcs = [(0, 1, 7, 0, 0.5, 0.5), (0, 1, 8, 0, 2.0, 0.0), (1, 2, 0, 5, 0.0, 0.0), (1, 2, 0, 6, 0.25, 0.0)]
    arcs += [(2, 3, 9, 0, 0.0, 0.125)]
    first, second = best_word_paths(Text(arcs, {3: 0.0}), 5)
    assert (first.labels, first.words, first.cost) == ((7, 9), (5,), 1.125)
    assert (second.labels, second.words, second.cost) == ((7, 9), (6,), 1.375)


def test_impossible_paths_are_no_results_and_no_hypothesis_is_refused() -> None:
    text = Text([(0, 1, 1, 5, np.inf, 0.0)], {1: 0.0})
    assert best_word_paths(text, 3) == []
    assert best_word_paths(kaldifst.Lattice(), 3) == []
    with pytest.raises(ValueError, match="ask for at least 1"):
        best_word_paths(text, 0)
