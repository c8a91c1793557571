"""Confidences of words in CTC graphs, against the sum over all label paths."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("kaldi_decoder", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import build_ctc_graph
from murmur.speech.decoding.recogniser import GraphSearch, UnitSpans
from murmur.speech.language_model.grammar import loop_grammar, one_word_grammar
from murmur.speech.lexicon.lexicon import make_lang

TOKENS = ["<blk>", "a", "b"]
COLUMN = {"a": 1, "b": 2}
WIDE = DecodeOptions(acoustic_scale=1.0, beam=300.0, lattice_beam=300.0, min_active=2000, max_active=100_000)
LEXICONS = {
    "prefix": [("A", ("a",)), ("AB", ("a", "b"))],
    "homophones": [("A", ("a",)), ("EH", ("a",)), ("B", ("b",))],
    "variants": [("A", ("a",)), ("A", ("b", "a")), ("B", ("b",)), ("BE", ("b",))],
    "repeats": [("AA", ("a", "a")), ("A", ("a",))],
}


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(k for k, _ in itertools.groupby(path) if k)


def masses(entries, scores_TC: np.ndarray) -> Counter[str]:
    """Probability of each word alone, summed over all paths of labels and all of its pronunciations."""
    found = Counter[str]()
    for path in itertools.product(range(len(TOKENS)), repeat=len(scores_TC)):
        p = math.exp(scores_TC[range(len(path)), path].sum())
        for word, phones in entries:
            if collapsed(path) == tuple(COLUMN[phone] for phone in phones):
                found[word] += p
    return found


@pytest.mark.parametrize("name", LEXICONS)
@pytest.mark.parametrize("seed", range(4))
def test_the_confidence_of_one_word_is_its_share_of_all_paths(name: str, seed: int) -> None:
    entries = LEXICONS[name]
    lang = make_lang(entries)
    graph = build_ctc_graph(lang, TOKENS, one_word_grammar(lang))
    scores_TC = np.log(np.random.default_rng(seed).dirichlet(np.full(3, 0.5), 6)).astype(np.float32)
    spelled: dict[str, list[tuple[int, ...]]] = {}
    for word, phones in entries:
        spelled.setdefault(word, []).append(tuple(COLUMN[phone] for phone in phones))
    (found,), _ = GraphSearch(Decoder(graph, WIDE), UnitSpans(graph.columns, spelled, None))(scores_TC)
    mass = masses(entries, scores_TC)
    assert found.confidence == pytest.approx(mass[found.word] / mass.total(), rel=1e-3)


def test_blanks_behind_a_prefix_do_not_change_its_confidence() -> None:
    entries = LEXICONS["prefix"]
    lang = make_lang(entries)
    spelled = {word: [tuple(COLUMN[phone] for phone in phones)] for word, phones in entries}
    for grammar in (one_word_grammar(lang), loop_grammar(lang)):
        graph = build_ctc_graph(lang, TOKENS, grammar)
        search = GraphSearch(Decoder(graph, WIDE), UnitSpans(graph.columns, spelled, None))
        confidences = []
        for blanks in (1, 6, 31):
            scores_TC = np.full((2 + blanks, 3), -30.0, np.float32)
            scores_TC[0, 1] = 0.0
            scores_TC[1] = np.log([0.4, 1e-13, 0.6])
            scores_TC[2:, 0] = 0.0
            (found,), _ = search(scores_TC)
            assert found.word == "AB"
            confidences.append(found.confidence)
        assert confidences == pytest.approx([0.6] * 3, rel=1e-3)
