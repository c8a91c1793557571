"""Models estimated out of core are those estimated in memory, byte for byte."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.core.stop_signals import Stopped
from murmur.speech.language_model import columns, ngram_counts
from murmur.speech.language_model.arpa import write_arpa
from murmur.speech.language_model.columns import (
    Columns,
    Scratch,
    SortedLookup,
    grouped,
    sorted_by_key,
    sum_equal,
    summed,
)
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.ngram_counts import Packing

SENTENCES = st.lists(st.lists(st.sampled_from("abcde"), max_size=7).map(" ".join), min_size=1, max_size=10)
MEMORY = st.sampled_from([1, 1500, 3000, 20_000])  # 1 to 39 rows a block, and a run for each block or a few


def zipf_sentences(count: int) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(f"w{i}" for i in random.zipf(1.5, random.integers(1, 12)) if i < 50) for _ in range(count)]


@settings(deadline=None, max_examples=40)
@given(SENTENCES, st.integers(1, 4), MEMORY, st.booleans(), st.data())
def test_the_file_is_the_one_made_in_memory(
    sentences: list[str], order: int, memory: int, long_keys: bool, data: st.DataObject
) -> None:
    cutoffs = (0, *sorted(data.draw(st.lists(st.integers(0, 2), min_size=order - 1, max_size=order - 1))))
    vocabulary = data.draw(st.one_of(st.none(), st.sets(st.sampled_from("abcdefg"), min_size=1)))
    most = data.draw(st.one_of(st.none(), st.integers(1, 6)))
    how = KneserNey(order, cutoffs)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        inside, outside = Path(folder, "inside"), Path(folder, "outside")
        write_arpa(how.train(sentences, vocabulary, most).model, inside)
        if long_keys:
            patch.setattr(ngram_counts, "_KEY_BITS", 8)  # so that n-grams of three or four words are longer
        patch.setattr(columns, "_FAN_IN", 3)
        facts = how.write(sentences, outside, vocabulary, most, Scratch(memory, Path(folder)))
        assert outside.read_bytes() == inside.read_bytes()
        assert sorted(Path(folder).iterdir()) == [inside, outside]
    trained = how.train(sentences, vocabulary, most)
    for name, value in vars(facts).items():
        assert value == getattr(trained, name), name


def test_small_memory_makes_many_runs_that_are_merged_in_several_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = list[int]()
    merge = columns._merged
    monkeypatch.setattr(columns, "_merged", lambda runs, scratch: merged.append(len(runs)) or merge(runs, scratch))
    monkeypatch.setattr(columns, "_FAN_IN", 8)
    sentences, how = zipf_sentences(400), KneserNey(3, (0, 0, 1))
    write_arpa(how.train(sentences).model, tmp_path / "inside")
    assert merged == []
    how.write(sentences, tmp_path / "outside", scratch=Scratch(5000, tmp_path))
    assert merged.count(8) > 2
    assert (tmp_path / "outside").read_bytes() == (tmp_path / "inside").read_bytes()


def test_tables_are_in_files_and_files_have_no_names(tmp_path: Path) -> None:
    seen = dict[str, list[str]]()

    def look(what: str, done: int, total: int | None) -> None:
        seen.setdefault(what, []).extend(path.name for path in tmp_path.iterdir())

    scratch = Scratch(20_000, tmp_path, look)
    table = Columns(scratch).extend([(np.arange(1000),)])
    assert table._kept == []
    KneserNey(2).write(zipf_sentences(50), tmp_path / "lm.arpa", scratch=scratch)
    assert list(seen) == ["tokens read", "tokens sorted", "1-grams", "2-grams"]
    assert seen["tokens sorted"] == []
    assert all(name.startswith(".unfinished-") for name in seen["2-grams"])


@pytest.mark.parametrize("when", ["tokens read", "tokens sorted", "1-grams", "2-grams"])
def test_a_stop_leaves_nothing(tmp_path: Path, when: str) -> None:
    def stop(what: str, done: int, total: int | None) -> None:
        if what == when:
            raise Stopped(signal.SIGTERM)

    scratch = Scratch(20_000, tmp_path, stop)
    with pytest.raises(Stopped):
        KneserNey(2).write(zipf_sentences(50), tmp_path / "lm.arpa", scratch=scratch)
    assert list(tmp_path.iterdir()) == []
    file = scratch.file()
    assert file is not None
    file.close()


@pytest.mark.parametrize("full", [1, 2, 3])
def test_a_full_disk_is_told_with_the_disk_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: int
) -> None:
    """The first table is that of the tokens; until it is whole, the number of words is unknown."""
    made, temporary = [], tempfile.TemporaryFile

    def file(**how: object) -> object:
        made.append(how)
        return open("/dev/full", "r+b", buffering=0) if len(made) >= full else temporary(**how)  # type: ignore[call-overload]

    monkeypatch.setattr(tempfile, "TemporaryFile", file)
    needed = "" if full == 1 else " of up to 1 MB"
    with pytest.raises(OSError, match=f"No space left on device: 'temporary files{needed} in {tmp_path}'"):
        KneserNey(2).write(zipf_sentences(50), tmp_path / "lm.arpa", scratch=Scratch(20_000, tmp_path))
    assert list(tmp_path.iterdir()) == []


ROWS = st.lists(st.integers(0, 30), max_size=80)


@given(ROWS, st.sampled_from([None, 1, 600, 2000]))
@settings(deadline=None)
def test_sorted_tables(values: list[int], memory: int | None) -> None:
    keys = np.array(values, dtype=np.uint64)
    blocks = [(keys[n : n + 7], np.ones(len(keys[n : n + 7]), dtype=np.int64)) for n in range(0, len(keys), 7)]
    with Scratch(memory) as scratch:
        table = sorted_by_key(blocks, scratch, sum_equal)
        found = [(int(k), int(n)) for ks, ns in table.blocks() for k, n in zip(ks, ns, strict=True)]
        assert found == [(k, values.count(k)) for k in sorted(set(values))]
        whole = list(sorted_by_key(blocks, scratch).blocks())
        assert [k for ks, _ in whole for k in ks.tolist()] == sorted(values)
        assert all(len(ks) == scratch.rows for ks, _ in whole[:-1])
        again = [(int(k), int(n)) for ks, ns in summed(iter(whole)) for k, n in zip(ks, ns, strict=True)]
        assert again == found
        groups = [set((ks // 4).tolist()) for ks, _ in grouped(iter(whole), lambda ks: ks // 4)]
        assert sum(map(len, groups)) == len(set().union(*groups)) == len({k // 4 for k in values})
        value_of = SortedLookup(table.blocks(), -1)
        asked = np.arange(31, dtype=np.uint64).repeat(2)
        wanted = [values.count(k) or -1 for k in asked.tolist()]
        assert [v for n in range(0, 62, 5) for v in value_of(asked[n : n + 5]).tolist()] == wanted


@pytest.mark.parametrize("bits", [3, 16, 17, 26])
def test_keys_sort_like_their_words(bits: int) -> None:
    random = np.random.default_rng(bits)
    for n in (1, 2, 3, 4):
        words = random.integers(0, 3, (n, 200)) * ((2**bits - 1) // 2)
        keys = Packing(bits).pack(list(words))
        assert keys.dtype == (np.complex128 if n * bits > 64 else np.uint64)
        np.testing.assert_array_equal(np.stack(Packing(bits).unpack(keys, n)), words)
        by_key = np.argsort(keys, kind="stable")
        np.testing.assert_array_equal(by_key, np.lexsort(words[::-1]))
        if n > 1:
            np.testing.assert_array_equal(Packing(bits).prefix(keys, n), Packing(bits).pack(list(words[:-1])))
