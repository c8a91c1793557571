"""Words of graphs with times, against the spelling of their frames, wherever the graph emits them."""

from __future__ import annotations

import itertools
import json

import kaldifst
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.speech.ctc import collapsed
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import DecodingGraph, build_ctc_graph, build_hclg
from murmur.speech.decoding.recogniser import GraphSearch, PhoneSpans, UnitSpans, spans_of
from murmur.speech.decoding.word_moving import move_words
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.language_model.grammar import loop_grammar
from murmur.speech.lexicon.lexicon import make_lang

TOKENS = ("<blk>", "a", "b", "c", "_")
# Homophones, words that begin other words, two ways to say a word.
SPELLINGS = {"A": ["a"], "A2": ["a"], "AB": ["ab"], "ABB": ["abb"], "B": ["b", "bb"], "CAB": ["cab"], "CABC": ["cabc"]}


def search_of(graph, separator, wide=1000.0):
    ways = {word: [[TOKENS.index(u) for u in way] for way in all_] for word, all_ in SPELLINGS.items()}
    spans = UnitSpans(graph.columns, ways, None if separator is None else TOKENS.index(separator))
    options = DecodeOptions(acoustic_scale=1.0, beam=wide, lattice_beam=1.0)
    return GraphSearch(Decoder(graph, options), spans_of(json.loads(json.dumps(spans.to_json()))))


@pytest.fixture(scope="module", params=[None, "_"])
def searches(request):
    """The search of a graph, and of the same graph with its words moved."""
    entries = [(word, tuple(way)) for word, ways in SPELLINGS.items() for way in ways]
    lang = make_lang(entries)
    graph = build_ctc_graph(lang, TOKENS, loop_grammar(lang), request.param)
    moved = move_words(kaldifst.StdVectorFst(graph.fst))
    assert moved.unread > 0
    other = DecodingGraph(moved.fst, graph.words, graph.columns, graph.num_columns, graph.facts)
    return search_of(graph, request.param), search_of(other, request.param)


@given(seed=st.integers(0, 10_000), frames=st.integers(1, 40))
def test_a_word_has_the_frames_that_spell_it_wherever_the_graph_says_it(searches, seed, frames):
    rng = np.random.default_rng(seed)
    scores_UC = np.log(rng.dirichlet(np.full(len(TOKENS), 0.3), frames) + 1e-9).astype(np.float32)
    found, told = [], []
    for search in searches:
        heard, complete = search(scores_UC)
        path = search.decoder.decode(scores_UC)
        assert complete == path.complete
        if not complete:
            assert all(0 <= word.first < word.end <= frames for word in heard)
            return
        columns_U = search.decoder.graph.columns[path.labels - 1]
        for word in heard:
            inside = "".join(TOKENS[column] for column, _, _ in collapsed(columns_U[word.first : word.end]))
            assert inside in SPELLINGS[word.word]
            assert columns_U[word.first] != 0
            assert columns_U[word.end - 1] != 0
        assert all(a.end <= b.first for a, b in itertools.pairwise(heard))
        found.append([(word.first, word.end) for word in heard])
        told.append([word.word for word in heard])
    if told[0] == told[1]:  # either of two homophones may be the result
        assert found[0] == found[1]


# AB could also be A and B, and A has a variant that begins with all of AB.
LEXICON = [("A", ("a",)), ("A", ("a", "b", "b")), ("B", ("b",)), ("AB", ("a", "b"))]


@pytest.fixture(scope="module")
def parts():
    lang = make_lang(LEXICON)
    transitions = make_transitions(lang, monophone_tree(lang))
    return lang, transitions, build_hclg(lang, transitions, loop_grammar(lang))


@pytest.mark.parametrize("seed", range(8))
def test_words_cover_their_pronunciations_and_only_pauses_are_left_over(parts, seed):
    lang, transitions, graph = parts
    decoder = Decoder(graph, DecodeOptions(acoustic_scale=1.0, beam=1000.0))
    scores_TP = np.random.default_rng(seed).normal(size=(70, graph.num_columns)).astype(np.float32) * 5
    found = decoder.decode(scores_TP)
    spans = PhoneSpans.of(lang, transitions).of_words(found.words, found.labels)
    phone_at = transitions.phone_of[found.labels]
    spoken = np.zeros(70, dtype=bool)
    starts = set(transitions.arcs.starts(found.labels).tolist())
    for word, (first, end) in zip(found.words, spans, strict=True):
        inside = slice(first, end)
        assert not spoken[inside].any()
        spoken[inside] = True
        assert {first, end} <= starts | {70}
        heard = [int(phone_at[t]) for t in sorted(starts) if first <= t < end]
        assert (word, tuple(heard)) in {(p.word, p.phones) for p in lang.prons}
    assert set(phone_at[~spoken].tolist()) <= {1}
    assert all(a < b for (a, _), (b, _) in itertools.pairwise(spans))


def test_the_last_word_reaches_to_the_last_phone(parts):
    lang, transitions, graph = parts
    roots = monophone_tree(lang).roots
    scores_TP = np.full((36, graph.num_columns), -20, np.float32)
    for t, (phone, state) in enumerate(itertools.product((2, 3, 3), range(3))):
        scores_TP[4 * t : 4 * t + 4, roots[phone, state]] = 0
    found = Decoder(graph, DecodeOptions(acoustic_scale=1.0)).decode(scores_TP)
    spans = PhoneSpans.of(lang, transitions)
    assert spans.of_words(["A"], found.labels) == [(0, 36)]
    assert spans.of_words(["A", "B", "B"], found.labels) == [(0, 12), (12, 24), (24, 36)]


def test_words_that_do_not_spell_the_path_are_refused(parts):
    lang, transitions, graph = parts
    found = Decoder(graph, DecodeOptions(acoustic_scale=1.0)).decode(np.zeros((30, graph.num_columns), np.float32))
    with pytest.raises(ValueError, match="do not spell its phones"):
        PhoneSpans.of(lang, transitions).of_words((*found.words, "B", "B", "B"), found.labels)
