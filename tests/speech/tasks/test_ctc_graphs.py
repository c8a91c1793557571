"""Graph decoding of the recipe's units against enumeration of word sequences and alignments."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from murmur.speech import ctc
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.language_model.arpa import write_arpa
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.tasks.graph_sources import CTC_SEARCH, CtcSources, first_options
from murmur.speech.tasks.word_search import WordSearch
from tests.support.search_oracle import GrammarOracle, ctc_cost

TEXTS = {"u1": "AB A", "u2": "B AB", "u3": "A BA"}
# Two pronunciations of one word, two words with one, and one that begins another.
LEXICON = (("AB", ("x", "y")), ("AB", ("y",)), ("A", ("x",)), ("B", ("y",)), ("BA", ("y", "x")))
SCALE = 0.8


def search(root: Path, kind: ctc.Kind, **settings: object) -> WordSearch:
    phone = kind == "phone"
    texts = [" ".join(p) for _, p in LEXICON] if phone else TEXTS.values()
    decoding = replace(CTC_SEARCH, **settings)
    words = frozenset(word for text in TEXTS.values() for word in text.split())
    models = {decoding.grammar: root / decoding.grammar} if (root / decoding.grammar).is_file() else {}
    units = ctc.Units.of(texts, kind)
    sources = CtcSources(units, decoding, LEXICON if phone else (), words, models)
    return WordSearch(sources, decoding.grammar, root / "cache")


def labels_of(found: WordSearch, words: tuple[str, ...]) -> list[tuple[int, ...]]:
    """All label sequences of a word sequence."""
    units = found.sources.units
    if units.kind != "phone":
        labels = units.encode(" ".join(words))
        # Speech may end with the separator of words.
        return [labels, (*labels, *units.encode(" "))] if units.kind == "char" and words else [labels]
    prons = [[p for w, p in LEXICON if w == word] for word in words]
    return [units.encode(" ".join(sum(choice, ()))) for choice in itertools.product(*prons)]


@pytest.mark.parametrize("kind", ["char", "grapheme", "phone", "word"])
def test_the_graph_finds_the_best_of_all_word_sequences(kind: ctc.Kind, tmp_path: Path) -> None:
    model = KneserNey(2).train(list(TEXTS.values())).model
    write_arpa(model, tmp_path / "lm.arpa")
    found = search(tmp_path, kind, grammar="lm.arpa", scales=(SCALE,), insertion_penalties=(0.0,), beams=((1e4, 7000),))
    grammar, rng = GrammarOracle(model), np.random.default_rng(len(kind))
    vocabulary = sorted({word for text in TEXTS.values() for word in text.split()})
    heard = set()
    for trial in range(6):
        frames, longest = (4, 4) if kind == "word" else (4 + trial, 3)
        scores_TC = rng.normal(size=(frames, found.sources.units.columns)) * 3
        scores_TC = (scores_TC - np.log(np.exp(scores_TC).sum(-1, keepdims=True))).astype(np.float32)
        costs = {
            words: grammar(words) + min(ctc_cost(labels, SCALE * scores_TC) for labels in labels_of(found, words))
            for n in range(longest + 1)
            for words in itertools.product(vocabulary, repeat=n)
        }
        best = found.decode({"u": scores_TC}, first_options(found.sources.search)).hypotheses["u"]
        assert best.cost == pytest.approx(min(costs.values()), abs=0.05)  # minimisation rounds weights to 1 / 1024
        assert costs[best.words] == pytest.approx(min(costs.values()), abs=0.05)
        heard.add(best.words)
    assert len(heard) > 1


def test_graphs_of_other_units_or_grammars_are_other_graphs(tmp_path: Path) -> None:
    folders = {search(tmp_path, kind, grammar="loop").folder for kind in ("char", "grapheme", "phone")}
    folders.add(search(tmp_path, "phone", grammar="one word").folder)
    assert len(folders) == 4
    again = search(tmp_path, "phone", grammar="loop")
    assert again.folder in folders
    more = replace(again.sources, units=ctc.Units("phone", ("w", "x", "y")))  # the same words, other columns
    assert replace(again, sources=more).folder not in folders


def test_words_that_the_units_cannot_write_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_arpa(KneserNey(1).train(["AB XY", "B"]).model, tmp_path / "lm.arpa")
    assert search(tmp_path, "grapheme", grammar="lm.arpa").folder.is_dir()
    assert "need units that the network lacks" in caplog.text
    write_arpa(KneserNey(1).train(["XY"]).model, tmp_path / "other.arpa")
    with pytest.raises(CorpusError, match="write none of the"):
        _ = search(tmp_path, "char", grammar="other.arpa").folder
    with pytest.raises(CorpusError, match=r"there is no grammar 'gone\.arpa'"):
        _ = search(tmp_path, "char", grammar="gone.arpa").folder


def test_tuning_takes_the_setting_with_the_fewest_errors(tmp_path: Path) -> None:
    found = search(tmp_path, "phone", grammar="loop", scales=(0.01, 1.0, 3.0), insertion_penalties=(50.0, 0.0))
    units = found.sources.units
    scores = {}
    for name, text in (("u1", "B BA"), ("u2", "A B")):
        labels = labels_of(found, tuple(text.split()))[0]
        rows = [column for label in labels for column in (label, 0)]
        scores[name] = np.log(np.eye(units.columns, dtype=np.float32)[rows] + 1e-3)
    options = found.tune(found.sources.search, scores, {"u1": "B BA", "u2": "A B"})
    assert options.insertion_penalty == 0.0
    assert options.acoustic_scale > 0.01
