"""Search graphs that preparation builds beside its other work."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.decoding import graph_store
from murmur.speech.decoding.graph import DecodingGraph, Tell, build_hclg, untold
from murmur.speech.decoding.graph_store import load_graph, save_graph
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.language_model.grammar import loop_grammar
from murmur.speech.lexicon.lexicon import make_lang
from murmur.speech.tasks.word_search import WordSearch, graphs_beside

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@dataclass(frozen=True, eq=False)
class Sources:
    """Sources of graphs of a few words; they fail with the word X."""

    words_of: str

    @cached_property
    def lang(self) -> Any:
        return make_lang([(word, tuple(word.lower())) for word in self.words_of.split()])

    def words(self, _grammar: object) -> tuple[Any, Any]:
        return self.lang, loop_grammar(self.lang)

    def key(self, _lang: object, _grammar: object) -> str:
        return hashlib.sha256(self.words_of.encode()).hexdigest()

    def build(self, lang: Any, grammar: Any, tell: Tell = untold) -> DecodingGraph:
        if "X" in self.words_of:
            raise ValueError("no such graph")
        return build_hclg(lang, make_transitions(lang, monophone_tree(lang)), grammar, tell=tell)


def search(words: str, cache: Path) -> WordSearch:
    return WordSearch(Sources(words), "loop", cache)  # type: ignore[arg-type]


@pytest.mark.parametrize("large", [False, True])
def test_missing_graphs_are_built_once_with_a_bar_and_the_same_bits(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if large:
        monkeypatch.setattr(graph_store, "LARGE_STATES", 0)
    searches = [
        search("AB BA", tmp_path / "cache"),
        search("AB", tmp_path / "cache"),
        search("AB BA", tmp_path / "cache"),
    ]
    before = set(multiprocessing.active_children())
    with graphs_beside(searches):
        assert bool(set(multiprocessing.active_children()) - before) == large
    assert set(multiprocessing.active_children()) == before
    assert capfd.readouterr().err.count("search graph") >= 2
    assert sorted(path.name for path in (tmp_path / "cache").glob("graph-*") if path.is_dir()) == sorted(
        {each.place.name for each in searches}
    )
    for each in searches:
        sources = each.sources
        save_graph(sources.build(*sources.words("loop")), tmp_path / "here", each.key)
        for file in (tmp_path / "here").iterdir():
            assert (each.place / file.name).read_bytes() == file.read_bytes()
    with graphs_beside(searches):
        assert set(multiprocessing.active_children()) == before
    assert "search graph" not in capfd.readouterr().err
    assert searches[0].folder == searches[0].place


def test_an_error_of_the_construction_and_of_the_work_beside_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_store, "LARGE_STATES", 0)
    with pytest.raises(ValueError, match="no such graph"), graphs_beside([search("AB X", tmp_path)]):
        pass

    def work() -> None:
        with graphs_beside([search("AB BA", tmp_path)]):
            raise KeyError

    before = set(multiprocessing.active_children())
    with pytest.raises(KeyError):
        work()
    assert set(multiprocessing.active_children()) == before
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize("large", [False, True])
def test_a_cache_that_cannot_be_written_stays_without_them(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_store, "LARGE_STATES", 0 if large else 10**6)
    cache = tmp_path / "cache"
    make = Path.mkdir

    def refuse(path: Path, *options: Any, **more: Any) -> None:
        if path == cache or cache in path.parents:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        make(path, *options, **more)

    monkeypatch.setattr(Path, "mkdir", refuse)
    one = search("AB BA", cache)
    with graphs_beside([one]):
        pass
    assert not cache.exists()
    assert load_graph(one.folder).facts.states > 0  # a temporary folder
