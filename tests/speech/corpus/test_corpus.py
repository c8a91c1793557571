"""Corpora and Kaldi data directories: order, normal form, refusals, counts of losses."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import kaldi_native_io as kio
import numpy as np
import pytest
import soundfile
from hypothesis import example, given, settings
from hypothesis import strategies as st

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Problem, Utterance, check_losses, left_out
from murmur.speech.corpus.kaldi_dir import (
    read_alignments,
    read_data_dir,
    read_scp,
    write_scp,
    write_table,
)
from tests.support.speech_files import write_alignments

CORPORA = Path(__file__).resolve().parents[3] / "../shared/corpora"


def make_set(root: Path, count: int = 3, **tables: dict[str, str]) -> Path:
    folder = root / "data" / "train"
    (root / "wav").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        soundfile.write(root / f"wav/u{i}.flac", np.full(1600, 0.1), 16000)
    names = [f"u{i}" for i in range(count)]
    defaults = {
        "text": dict.fromkeys(names, "YES NO"),
        "utt2spk": {name: f"s{i % 2}" for i, name in enumerate(names)},
        "wav.scp": {name: f"wav/{name}.flac" for name in names},
    }
    for file, table in (defaults | {k.replace("wav_scp", "wav.scp"): v for k, v in tables.items()}).items():
        write_table(folder / file, table)
    return folder


def test_relative_paths_resolve_against_the_set_and_the_data_directory(tmp_path):
    folder = make_set(tmp_path)
    assert [u.audio.path.resolve() for u in read_data_dir(folder).utterances] == [
        (tmp_path / f"wav/u{i}.flac").resolve() for i in range(3)
    ]
    (folder / "wav").mkdir()
    soundfile.write(folder / "wav/u0.flac", np.zeros(160), 16000)
    assert read_data_dir(folder).utterances[0].audio.path == folder / "wav/u0.flac"


def test_absolute_paths_and_missing_utt2spk(tmp_path):
    folder = make_set(tmp_path, wav_scp={f"u{i}": str(tmp_path / f"wav/u{i}.flac") for i in range(3)})
    (folder / "utt2spk").unlink()
    corpus = read_data_dir(folder)
    assert corpus.speakers == {"u0": "u0", "u1": "u1", "u2": "u2"}
    assert corpus.utterances[0].audio.path.is_absolute()


def test_segments_cut_recordings_and_minus_one_means_the_end(tmp_path):
    folder = make_set(tmp_path, text={"a": "YES", "b": "NO"}, utt2spk={"a": "s", "b": "s"})
    write_table(folder / "segments", {"a": "u0 0.01 0.05", "b": "u0 0.05 -1"})
    assert [(u.audio.start_seconds, u.audio.end_seconds) for u in read_data_dir(folder).utterances] == [
        (0.01, 0.05),
        (0.05, None),
    ]


@pytest.mark.parametrize(
    "row", ["u0 0.5 0.1", "u0 -1 2", "nowhere 0 1", "u0 zero 1", "u0 0", "u0 nan 0.5", "u0 0 nan", "u0 0 inf"]
)
def test_bad_segments_are_refused_with_their_name(tmp_path, row):
    folder = make_set(tmp_path, text={"a": "YES"}, utt2spk={"a": "s"})
    write_table(folder / "segments", {"a": row})
    with pytest.raises(CorpusError, match="'a'"):
        read_data_dir(folder)


@pytest.mark.parametrize(
    ("table", "content", "says"),
    [
        (
            "utt2spk",
            "u0 s0 x1\nu1 s1 x2\nu2 s0 x3\n",
            "utt2spk:1: 'u0' has 3 columns, not two: write UTTERANCE SPEAKER",
        ),
        ("utt2spk", "u0 s0\nu1\nu2 s0\n", "utt2spk:2: 'u1' has 1 columns, not two"),
        ("utt2spk", "u0 s0\nu1 s\u00a01\nu2 s0\n", "utt2spk:2: .* holds U\\+00A0"),
        ("segments", "u0 u0 0 0.1\nu1 u1 0 0.1 0 late\n", "segments:2: 'u1' has 'u1 0 0.1 0 late'"),
        ("segments", "u0 u0 0 0.1 -2\n", "segments:1: 'u0' has"),
        ("segments", "u0 u0 0 0.1 A\n", "segments:1: 'u0' has"),
        ("reco2file_and_channel", "u0 u0\n", "reco2file_and_channel:1: 'u0' has 'u0'"),
        ("reco2file_and_channel", "u0 u0 A 8000\n", "reco2file_and_channel:1: 'u0' has 'u0 A 8000'"),
        ("wav.scp", "u0 wav/u0.flac\nu1\n", "wav.scp:2: 'u1' has no value"),
    ],
)
def test_missing_and_additional_columns_are_refused_with_their_line(tmp_path, table, content, says):
    folder = make_set(tmp_path)
    (folder / table).write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError, match=says):
        read_data_dir(folder)


def test_a_fifth_column_of_segments_is_the_channel(tmp_path):
    folder = make_set(tmp_path, text={"a": "YES", "b": "NO", "c": "NO"}, utt2spk=dict.fromkeys("abc", "s"))
    write_table(folder / "segments", {"a": "u0 0.01 0.05 1", "b": "u0 0.05 -1 0", "c": "u0 0 0.1 -1"})
    assert [u.audio.channel for u in read_data_dir(folder).utterances] == [1, 0, None]


def test_commands_are_refused_unless_allowed(tmp_path):
    folder = make_set(tmp_path, wav_scp={f"u{i}": "touch /tmp/never |" for i in range(3)})
    with pytest.raises(CorpusError, match="touch /tmp/never"):
        read_data_dir(folder)
    allowed = read_data_dir(folder, commands_allowed=True)
    assert allowed.utterances[0].audio.command == "touch /tmp/never"


def test_text_is_nfc_and_spaces_are_single(tmp_path):
    decomposed = unicodedata.normalize("NFD", "CAFÉ  ÜBER")
    folder = make_set(tmp_path, count=1)
    (folder / "text").write_text(f"u0 {decomposed}\n", encoding="utf-8")
    assert read_data_dir(folder).utterances[0].text == "CAFÉ ÜBER"


@given(st.lists(st.text(st.characters(categories=("L", "N")), min_size=1), min_size=1, unique=True))
def test_utterances_are_in_byte_order(names):
    corpus = Corpus(tuple(Utterance(name, "s", "YES", Audio(Path("x"))) for name in names))
    ids = [u.id.encode() for u in corpus.utterances]
    assert ids == sorted(ids)


def test_equal_identifiers_are_refused():
    twice = Utterance("u", "s", "YES", Audio(Path("x")))
    with pytest.raises(CorpusError, match="'u' appears twice"):
        Corpus((twice, twice))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a x\na y\n", ":2: 'a' appears twice"), (b"a\n", "'a' has no value"), (b"a \xff\n", "not UTF-8")],
)
def test_malformed_tables_are_refused(tmp_path, content, message):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        read_scp(tmp_path / "t")


def test_one_percent_may_be_lost_and_no_more(tmp_path):
    texts = {f"u{i}": "YES" for i in range(3)} | {f"v{i:03}": "NO" for i in range(200)}
    wavs, speakers = {name: "wav/u0.flac" for name in texts}, dict.fromkeys(texts, "s")
    corpus = read_data_dir(make_set(tmp_path, text=texts | {"u1": ""}, utt2spk=speakers, wav_scp=wavs))
    assert [(p.utterance, p.what) for p in corpus.problems] == [("u1", "its transcript is empty")]
    with pytest.raises(CorpusError, match=r"3 of 203 .*more than 1 %"):
        read_data_dir(make_set(tmp_path, text=texts | {"u1": "", "u2": "", "v000": ""}, utt2spk=speakers, wav_scp=wavs))


def test_recordings_without_a_transcript_are_named(tmp_path):
    names = [f"u{i:03}" for i in range(200)]
    wavs, speakers = dict.fromkeys(names, "wav/u0.flac"), dict.fromkeys(names, "s")
    for missing in (1, 2):
        folder = make_set(tmp_path, text=dict.fromkeys(names[missing:], "YES"), utt2spk=speakers, wav_scp=wavs)
        found = read_data_dir(folder)
        assert [(p.utterance, p.what) for p in found.problems] == [(n, "it has no transcript") for n in names[:missing]]
    with pytest.raises(CorpusError, match=r"3 of 200 .*more than 1 %(?s:.)*u000 .*no transcript"):
        read_data_dir(make_set(tmp_path, text=dict.fromkeys(names[3:], "YES"), utt2spk=speakers, wav_scp=wavs))


def test_an_utterance_without_a_speaker_is_refused(tmp_path):
    """As a speaker of its own it would change the normalisation and the splits."""
    with pytest.raises(CorpusError, match=r"utt2spk has no speaker of 'u1' \(2 missing\)"):
        read_data_dir(make_set(tmp_path, utt2spk={"u0": "s0"}))


@pytest.mark.parametrize(
    "name", [unicodedata.normalize("NFD", "josé"), unicodedata.normalize("NFC", "josé"), "My  Voice"]
)
def test_names_of_files_stay_as_they_are(tmp_path, name):
    """As macOS writes them, or with two spaces; names that a copy has composed or decomposed are found too."""
    soundfile.write(tmp_path / f"{name}.flac", np.zeros(1600), 16000)
    folder = make_set(tmp_path)
    write_scp(folder / "wav.scp", {f"u{i}": str(tmp_path / f"{name}.flac") for i in range(3)})
    assert {str(u.audio.path) for u in read_data_dir(folder).utterances} == {str(tmp_path / f"{name}.flac")}
    for form in ("NFC", "NFD"):
        entry = unicodedata.normalize(form, str(tmp_path / f"{name}.flac"))
        write_scp(folder / "wav.scp", {f"u{i}": entry for i in range(3)})
        assert all(u.audio.path.is_file() for u in read_data_dir(folder).utterances)


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_files_that_a_command_reads_are_part_of_the_digest(tmp_path, quote):
    folder = make_set(tmp_path, wav_scp={f"u{i}": f"cat {quote}{tmp_path}/wav/u{i}.flac{quote} |" for i in range(3)})
    before = read_data_dir(folder, commands_allowed=True).digest()
    assert read_data_dir(folder, commands_allowed=True).digest() == before
    soundfile.write(tmp_path / "wav/u1.flac", np.full(1700, 0.2), 16000)
    assert read_data_dir(folder, commands_allowed=True).digest() != before


@given(st.integers(0, 400), st.integers(0, 10))
@example(99, 1)
@example(98, 1)
@settings(deadline=None)
def test_check_losses_is_the_stated_fraction(kept, lost):
    problems = [Problem(f"u{i}", "f", "gone") for i in range(lost)]
    if kept and lost * 100 <= kept + lost:
        check_losses(kept, problems)
    else:
        told = f"{lost} of {kept + lost} " if kept + lost else "there are no utterances"
        with pytest.raises(CorpusError, match=told):
            check_losses(kept, problems)


def test_missing_wav_is_named(tmp_path):
    folder = make_set(tmp_path)
    (tmp_path / "wav/u1.flac").unlink()
    with pytest.raises(CorpusError, match=r"u1 .*wav/u1.flac is missing"):
        read_data_dir(folder)


def test_alignments_round_trip_and_are_plain_kaldi_archives(tmp_path):
    alignments = {"b": np.array([3, 3, 7]), "a": np.array([1]), "é": np.arange(500)}
    write_alignments(tmp_path / "ali.1.gz", alignments)
    back = read_alignments(tmp_path)
    assert list(back) == ["a", "b", "é"]
    assert all((back[name] == alignments[name]).all() for name in alignments)
    with kio.SequentialInt32VectorReader(f"ark:gunzip -c {tmp_path}/ali.1.gz |") as reader:
        assert {name: list(v) for name, v in reader} == {name: list(v) for name, v in alignments.items()}


def test_damaged_or_double_alignments_are_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"no ali"):
        read_alignments(tmp_path)
    write_alignments(tmp_path / "ali.1.gz", {"a": np.arange(1000)})
    whole = (tmp_path / "ali.1.gz").read_bytes()
    (tmp_path / "ali.2.gz").write_bytes(whole)
    with pytest.raises(CorpusError, match="two archives"):
        read_alignments(tmp_path)
    (tmp_path / "ali.2.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"ali.2.gz is damaged"):
        read_alignments(tmp_path)


@pytest.mark.skipif(not CORPORA.is_dir(), reason="the recorded corpora are not beside this checkout")
@pytest.mark.parametrize(
    ("split", "utterances", "speakers"),
    [
        ("yesno/data/train", 31, 1),
        ("fsdd/data/test_official", 300, 6),
        ("an4_mfcc/data/train", 948, 74),
        ("librispeech_mini_s/data/dev", 76, 2),
    ],
)
def test_real_data_directories(split, utterances, speakers):
    corpus = read_data_dir(CORPORA / split)
    assert (len(corpus), len(set(corpus.speakers.values())), corpus.problems) == (utterances, speakers, ())


@pytest.mark.parametrize(
    ("reasons", "of", "told"),
    [
        ([("a", "x")], None, "1 file is left out: a: x"),
        ([("a", "x")], 9, "1 of 9 files is left out: a: x"),
        ([("a", "x"), ("b", "x")], 2, "2 of 2 files are left out: a, b: x"),
        ([("a", "x"), ("b", "y")], 2, "2 of 2 files are left out: a: x; b: y"),
        ([(c, "x") for c in "abcde"], None, "5 files are left out: a, b, c and 2 more: x"),
        ([("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")], 8, "4 of 8 files are left out: a, b: x; c: y; and 1 more"),
        ([("a", "x"), ("b", "x"), ("c", "x"), ("d", "y")], 8, "4 of 8 files are left out: a, b, c: x; and 1 more"),
    ],
)
def test_left_out(reasons: list[tuple[str, str]], of: int | None, told: str) -> None:
    assert left_out("file", reasons, of) == told
