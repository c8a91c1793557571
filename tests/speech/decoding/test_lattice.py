"""Posteriors of words and the n best sequences of lattices against the enumeration of all their paths."""

from __future__ import annotations

import math
from collections import defaultdict

import kaldifst
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.decoding.lattice import best_word_paths
from tests.support.enumerated_lattices import Text, lattices

pytest.importorskip("kaldifst", reason="the speech libraries are not installed (pip install murmur-asr[speech])")


from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import build_hclg
from murmur.speech.decoding.lattice import Lattice, arcs_of, topological
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.language_model.grammar import loop_grammar
from murmur.speech.lexicon.lexicon import make_lang


@settings(max_examples=150, deadline=None)
@given(lattices())
def test_posteriors_are_sums_over_paths(text):
    every = text.paths()
    if not every:
        with pytest.raises(ValueError, match="no path"):
            Lattice.of(text)
        return
    weights = [math.exp(-cost) for cost, _, _ in every]
    found = Lattice.of(text)
    assert found.cost == pytest.approx(-math.log(sum(weights)))
    best = min(every, key=lambda path: path[0])[1]
    frames, labels = [f for f, _ in best], [w for _, w in best]
    got = found.confidences(labels, frames)
    for number, label in enumerate(labels):
        here = frames[number]
        low = max(((f + here) / 2 for f in frames if f < here), default=-math.inf)
        high = min(((f + here) / 2 for f in frames if f > here), default=math.inf)
        counted = [sum(w == label and low <= f < high for f, w in words) for _, words, _ in every]
        expected = sum(w * n for w, n in zip(weights, counted, strict=True)) / sum(weights)
        assert got[number] == pytest.approx(min(expected, 1.0), abs=1e-9)
        assert got[number] >= max(weights) / sum(weights) - 1e-9  # the best path says it


def test_a_word_halfway_between_two_belongs_to_the_later_one():
    ways = [(0, 1, 1, 5, 0.0, 0.0), (1, 2, 1, 0, 0.0, 0.0), (1, 2, 2, 5, 1.0, 0.0), (2, 3, 1, 5, 0.0, 0.0)]
    found = Lattice.of(Text(ways, {3: 0.0})).confidences([5, 5], [0, 2])
    assert found == [1.0, 1.0]
    other = [(0, 1, 1, 5, 0.0, 0.0), (0, 1, 2, 0, 0.0, 0.0), (1, 2, 1, 0, 0.0, 0.0), (1, 2, 2, 5, 0.0, 0.0)]
    found = Lattice.of(Text([*other, (2, 3, 1, 6, 0.0, 0.0)], {3: 0.0})).confidences([5, 6], [0, 2])
    assert found == pytest.approx([0.5, 1.0])


def test_a_cycle_is_refused():
    with pytest.raises(ValueError, match="has a cycle"):
        Lattice.of(Text([(0, 1, 1, 0, 0.0, 0.0), (1, 1, 0, 0, 1.0, 0.0)], {1: 0.0}))


@pytest.fixture(scope="module")
def decoder():
    lang = make_lang([("TO", ("t", "u")), ("TUNA", ("t", "u", "n", "a")), ("AT", ("a", "t"))])
    graph = build_hclg(lang, make_transitions(lang, monophone_tree(lang)), loop_grammar(lang))
    return Decoder(graph, DecodeOptions(acoustic_scale=1.0, beam=30.0, lattice_beam=12.0))


@pytest.mark.parametrize("seed", range(4))
def test_lattices_of_the_decoder(decoder, seed):
    scores_TC = np.random.default_rng(seed).normal(size=(40, decoder.graph.num_columns)).astype(np.float32)
    lattice, complete = decoder.lattice(scores_TC)
    found, emitted = decoder.best_of(lattice, complete)
    assert found.words == decoder.decode(scores_TC).words
    summed = Lattice.of(lattice)
    labels = [decoder.graph.words.index(word) for word in found.words]
    confidences = summed.confidences(labels, emitted)
    assert all(0 < c <= 1 for c in confidences)
    # The best path's own share is a lower bound for each of its words.
    assert min(confidences) >= math.exp(summed.cost - found.cost) - 1e-6
    for frame in (0, 17, 39):  # every path reads every frame once
        reads = summed.posteriors[(summed.frames == frame) & (_reading(lattice))]
        assert reads.sum() == pytest.approx(1.0, abs=1e-6)
    louder = decoder.lattice(scores_TC * 50)
    sure, at = decoder.best_of(*louder)
    assert min(Lattice.of(louder[0]).confidences([decoder.graph.words.index(w) for w in sure.words], at)) > 0.9


def _reading(lattice):
    """True for each arc that reads a frame, in the order of `Lattice`."""
    table, _ = arcs_of(lattice)
    return np.array([a[2] != 0 for s in topological(table, lattice.start) for a in table.get(s, [])])


def test_no_frames_no_lattice(decoder):
    assert decoder.lattice(np.zeros((0, decoder.graph.num_columns), np.float32)) == (None, False)
    assert isinstance(decoder.graph.fst, kaldifst.StdVectorFst)


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
