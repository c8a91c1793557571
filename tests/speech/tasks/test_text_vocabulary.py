"""Vocabulary and language models of a text, in place of those of a set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.ngram import NgramModel, perplexity
from murmur.speech.lexicon.lexicon import read_lexicon
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.config import Decoding, HmmStages
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.tasks.pronouncing import TextVocabulary
from tests.support.plateaus import make_set

TEXT = ["ANNA BANANA", "BANANA BOB ANNA", "BOB BANANA 7", "ANNA NAB", "BOB ANNA BOB NAB", "ANNA BANANA"]


@pytest.fixture
def vocabulary(tmp_path: Path) -> TextVocabulary:
    folder = tmp_path / "lm_text"
    folder.mkdir()
    (folder / "prose.txt").write_text("".join(f"{line}\n" for line in TEXT))
    return TextVocabulary(folder, guess="graphemes")


@pytest.fixture
def lexicon(tmp_path: Path) -> Path:
    path = tmp_path / "lexicon.txt"
    path.write_text("ANNA a n a\nANNA a n\nBOB b o b\nNOB n o b\n")
    return path


def same(one: NgramModel, other: NgramModel) -> bool:
    return perplexity(one, TEXT) == perplexity(other, TEXT) and set(one.words) == set(other.words)


def test_all_words_of_the_text_are_pronounced_and_its_models_are_estimated(
    vocabulary: TextVocabulary, lexicon: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found, models = vocabulary.made(lexicon, tmp_path / "cache", "make")
    entries = read_lexicon(found)
    assert entries == [
        *[("ANNA", ("a", "n", "a")), ("ANNA", ("a", "n")), ("BANANA", tuple("banana"))],
        *[("BOB", ("b", "o", "b")), ("NAB", tuple("nab")), ("NOB", ("n", "o", "b"))],
    ]
    assert "1 word without a pronunciation" in caplog.text  # 7
    assert set(models) == set(vocabulary.names) == {"bg", "tg"}
    assert same(read_arpa(models["bg"]), KneserNey(2, (0, 0)).train(TEXT).model)
    assert same(read_arpa(models["tg"]), KneserNey(3, (0, 0, 1)).train(TEXT).model)
    assert not same(read_arpa(models["tg"]), read_arpa(models["bg"]))


def test_it_is_made_once_and_again_for_another_text_or_setting(
    vocabulary: TextVocabulary, lexicon: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(SettingError, match="which the run's training prepared"):
        vocabulary.made(lexicon, cache, "refuse")
    first = vocabulary.made(lexicon, cache, "make")
    times = {path: path.stat().st_mtime_ns for path in cache.rglob("*.*") if path.is_file()}
    assert vocabulary.made(lexicon, cache, "refuse") == first
    assert times == {path: path.stat().st_mtime_ns for path in cache.rglob("*.*") if path.is_file()}
    rare = replace(vocabulary, min_count=3).made(lexicon, cache, "make")
    assert "NAB" not in dict(read_lexicon(rare[0]))
    assert "NAB" not in read_arpa(rare[1]["tg"]).words
    assert rare[1] != first[1] != replace(vocabulary, cutoffs=(0, 1, 1)).made(lexicon, cache, "make")[1]


def test_a_hybrid_task_decodes_with_them(vocabulary: TextVocabulary, tmp_path: Path) -> None:
    root = make_set(tmp_path / "set", {"train": 24, "dev": 4, "test": 4})
    lines = [line.split() for line in (root / "lexicon.txt").read_text().splitlines()]
    (root / "lexicon.txt").write_text("".join(f"{w} {' '.join(phones).lower()}\n" for w, *phones in lines))
    task = HybridTask(
        corpus=root,
        hmm=HmmStages(triphone=None),
        decoding=Decoding(gmm=Search("bg"), network=Search("tg"), scored="none"),
        cache=tmp_path / "cache",
    )
    with pytest.raises(SettingError, match="this set has no grammar 'bg'"):
        task.check()
    task = replace(task, vocabulary=vocabulary)
    task.check()
    spoken, models = task.sayable
    assert {"BANANA", "NAB", "NOB"} <= {word for word, _ in read_lexicon(spoken)}
    assert {"bg", "tg"} <= set(models)
    assert task.hmms.lexicon == root / "lexicon.txt"  # training is that of the set
    with pytest.raises(SettingError, match=r"with the grammar 'loop', .* set decoding\.network\.grammar to bg or tg"):
        replace(task, decoding=Decoding(gmm=Search("bg"))).check()
    replace(task, decoding=Decoding(network=Search("tg"))).check()
    task.check_words()
    assert task.unprepared()  # nothing was trained


def test_errors_come_before_any_work(vocabulary: TextVocabulary, lexicon: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no file"):
        replace(vocabulary, text=tmp_path / "missing").check()
    with pytest.raises(SettingError, match=r"no word of .* occurs 9 times"):
        replace(vocabulary, min_count=9).made(lexicon, tmp_path / "cache", "make")
    with pytest.raises(ValueError, match="min_count = 0"):
        TextVocabulary(min_count=0)
    with pytest.raises(ValueError, match="cut-offs"):
        TextVocabulary(cutoffs=(1, 0, 0))
    assert TextVocabulary().names == ()
    TextVocabulary().check()
    with pytest.raises(SettingError, match=r"task\.vocabulary\.min_count has no effect without task\.vocabulary\.text"):
        TextVocabulary(min_count=2).check()
