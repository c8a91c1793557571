"""`murmur prepare CORPUS`: data sets from folders in the original layout, and from archives on a loopback server."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app
from tests.support import corpus_layouts

pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.speech.corpus.kaldi_dir import read_data_dir, read_table
from murmur.speech.corpus.published import catalogue, dataset_writer, fetch
from murmur.speech.corpus.published.catalogue import CORPORA
from murmur.speech.corpus.recordings import read_channels
from murmur.speech.features.analysis import read_audio
from murmur.speech.tasks import corpora as sets
from murmur.speech.tasks.published_set import chosen_parts

MINI = ("train-clean-5", "dev-clean-2")


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["prepare", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def texts(out: Path, split: str) -> dict[str, str]:
    return read_data_dir(out / "data" / split).texts


def test_the_list_names_size_licence_and_parts() -> None:
    code, said = run("--list")
    assert code == 0
    for name, corpus in CORPORA.items():
        assert f"\n{name}: " in f"\n{said}"
        assert corpus.licence in said
        assert all(part.name in said for part in corpus.parts)
    assert "982.1 h, 60.6 GB" in said
    assert "part train-other-500: 496.7 h, 30.0 GB, only when named by --part" in said


@pytest.mark.parametrize("inner", ["", "LibriSpeech"])
def test_mini_librispeech(tmp_path: Path, inner: str) -> None:
    root = corpus_layouts.librispeech(tmp_path / "from", MINI, utterances=3, speakers=9)
    code, said = run("mini-librispeech", "--from", root / inner, "--out", tmp_path / "set")
    assert code == 0, said
    assert f"{tmp_path}/set/data/train: 27 utterances, 9 speakers, 0.01 h, 0 skipped" in said
    assert texts(tmp_path / "set", "test")["201-2001-0001"] == "IT IS A GIRL"
    train, dev, test = sets.splits(tmp_path / "set")  # the files that recipes read
    assert [len(part) for part in (train, dev, test)] == [24, 3, 27]
    facts = json.loads((tmp_path / "set/manifest.json").read_text())
    assert (facts["corpus"], facts["licence"], facts["finished"]) == ("mini-librispeech", "CC BY 4.0", True)
    assert facts["splits"]["train"]["hours"] == pytest.approx(27 * 1.2 / 3600)
    for split in ("train", "test"):
        folder = tmp_path / "set/data" / split
        speakers, members = read_table(folder / "utt2spk"), read_table(folder / "spk2utt")
        assert {u: s for s, us in members.items() for u in us.split()} == speakers
        assert set(read_table(folder / "utt2dur").values()) == {"1.200"}
    assert f"next: murmur train ctc --set task.corpus={tmp_path / 'set'} --set task.units=char" in said


@pytest.mark.processes
def test_training_runs_on_a_prepared_set(tmp_path: Path) -> None:
    root = corpus_layouts.librispeech(tmp_path / "from", MINI, utterances=3, speakers=9)
    assert run("mini-librispeech", "--from", root, "--out", tmp_path / "set")[0] == 0
    settings = {"corpus": tmp_path / "set", "units": "char", "cache": tmp_path / "cache"}
    settings["network"] = "Lstm(hidden=8,layers=1)"
    words = [f"--set=task.{name}={value}" for name, value in settings.items()]
    more = ["--set", "budget.minibatches=2", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["train", "ctc", *words, *more])
    assert done.exit_code == 0, done.output
    assert "%WER" in done.output


def test_parts_of_librispeech_become_splits_and_the_absent_are_named(tmp_path: Path) -> None:
    there = ("train-clean-100", "train-clean-360", "dev-clean", "test-clean", "test-other")
    root = corpus_layouts.librispeech(tmp_path / "from", there)
    code, said = run("librispeech", "--from", root, "--out", tmp_path / "set")
    assert code == 0, said
    assert {p.name for p in (tmp_path / "set/data").iterdir()} == {"train", "dev", "test", "test_other"}
    assert len(texts(tmp_path / "set", "train")) == 12  # both parts
    assert "missing parts, left out: dev-other, train-other-500" in said
    # A second time with less: removed splits are gone, and other files stay.
    (tmp_path / "set/lm").mkdir()
    code, said = run("librispeech", "--from", root, "--out", tmp_path / "set", "--part", "test-clean")
    assert code == 0, said
    assert {p.name for p in (tmp_path / "set/data").iterdir()} == {"test"}
    assert (tmp_path / "set/lm").is_dir()
    assert "training needs data/train too" in said
    code, said = run(
        "librispeech", "--from", root, "--part", "dev-other", "--part", "dev-clean", "--out", tmp_path / "x"
    )
    assert code == 1
    assert f"{root} lacks dev-other" in said
    assert not (tmp_path / "x").exists()


def test_yesno_has_kaldis_split_and_its_recipe_reads_it(tmp_path: Path) -> None:
    code, said = run("yesno", "--from", corpus_layouts.yesno(tmp_path / "from"), "--out", tmp_path / "set")
    assert code == 0, said
    assert {name[:8] for name in texts(tmp_path / "set", "train")} == {"global-0"}
    assert {text.split()[0] for text in texts(tmp_path / "set", "test").values()} == {"YES"}
    found = sets.LOADERS["yesno"](tmp_path / "set")
    assert [len(part) for part in (found.train, found.dev, found.test)] == [27, 3, 30]
    assert f"next: murmur train yesno --set task.corpus={tmp_path / 'set'}" in said
    code, said = run("yesno", "--from", corpus_layouts.yesno(tmp_path / "fewer", 59), "--out", tmp_path / "y")
    assert code == 1
    assert "waves_yesno holds 59 of the 60 recordings" in said


def test_an4_from_sphere_files(tmp_path: Path) -> None:
    root = corpus_layouts.an4(tmp_path / "from")
    code, said = run("an4", "--from", root, "--out", tmp_path / "set")
    assert code == 0, said
    assert texts(tmp_path / "set", "train") == {
        f"f{s}-an{n}-f{s}-b": words for s in "abcdefghi" for n, words in enumerate(("GO", "ENTER SIX"))
    }
    assert "next: murmur train ctc" in said  # the recipe needs a language model, which this copy lacks
    (root / "an4/etc/an4.ug.lm").write_text("\\data\\\n")
    assert "next: murmur train an4 " in run("an4", "--from", root, "--out", tmp_path / "set")[1]
    assert sets.LOADERS["an4"](tmp_path / "set").lexicon.read_text().startswith("ENTER EH")
    (root / "an4/etc/an4_test.transcription").write_text("GO an0-fz-b\n")
    code, said = run("an4", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "an4_test.transcription:1: expected WORDS (RECORDING), found 'GO an0-fz-b'" in said


def test_digits_and_mandarin(tmp_path: Path) -> None:
    code, said = run("fsdd", "--from", corpus_layouts.fsdd(tmp_path / "f"), "--out", tmp_path / "fsdd")
    assert code == 0, said
    for name, sizes in (("fsdd_unseen", (15, 15, 15)), ("fsdd_official", (9, 18, 18))):
        found = sets.LOADERS[name](tmp_path / "fsdd")
        assert (len(found.train), len(found.dev), len(found.test)) == sizes
    assert texts(tmp_path / "fsdd", "test")["theo-2-03"] == "TWO"
    code, said = run("aishell", "--from", corpus_layouts.aishell(tmp_path / "a"), "--out", tmp_path / "aishell")
    assert code == 0, said
    assert texts(tmp_path / "aishell", "dev") == {f"BAC009S0724W000{n}": "而对楼市TV成交" for n in range(2)}


def test_recordings_of_ones_own(tmp_path: Path) -> None:
    root = tmp_path / "recordings"
    for n in range(12):
        for take in ("a", "b c"):
            corpus_layouts.noise(root / f"speaker {n:02}" / f"{take}.flac", 0.5)
            (root / f"speaker {n:02}" / f"{take}.txt").write_text("Grüße,\nBob!\n")
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 0, said
    assert texts(tmp_path / "set", "test") == {"speaker_11-a": "GRÜSSE BOB", "speaker_11-b_c": "GRÜSSE BOB"}
    assert set(texts(tmp_path / "set", "dev")) == {"speaker_07-a", "speaker_07-b_c"}  # every eighth of the others
    assert [len(part) for part in sets.splits(tmp_path / "set")] == [20, 2, 2]
    # Folders named after splits are used as they are.
    for split, first in (("train", 0), ("dev", 10), ("test", 11)):
        (root / split).mkdir()
        for n in range(first, {"train": 10, "dev": 11, "test": 12}[split]):
            (root / f"speaker {n:02}").rename(root / split / f"speaker {n:02}")
    assert run("own", "--from", root, "--out", tmp_path / "set")[0] == 0
    assert [len(part) for part in sets.splits(tmp_path / "set")] == [20, 2, 2]
    (root / "test/speaker 11/a.txt").unlink()
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "test: 1 of 2 utterances cannot be used" in said
    assert "a.txt is missing beside it" in said
    (root / "test/speaker 11/a.txt").write_bytes("Grüße".encode("latin-1"))
    assert "a.txt): it is not UTF-8 (byte 2) in line 1" in run("own", "--from", root, "--out", tmp_path / "set")[1]
    (root / "test/speaker 11/a.flac").rename(root / "test/speaker 11/z.flac")
    (root / "test/speaker 11/a.txt").write_text("a")
    assert "a.txt): there is no recording beside it" in run("own", "--from", root, "--out", tmp_path / "set")[1]


def test_lost_recordings_count_for_the_split_of_their_speaker(tmp_path: Path) -> None:
    root = tmp_path / "recordings"
    for n in range(4):
        for take in "ab":
            corpus_layouts.noise(root / f"speaker {n:02}" / f"{take}.flac", 0.5)
            (root / f"speaker {n:02}" / f"{take}.txt").write_text("Bob")
    (root / "speaker 03/a.txt").unlink()
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "test: 1 of 2 utterances cannot be used" in said


def test_recordings_in_deeper_folders_are_named(tmp_path: Path) -> None:
    root = tmp_path / "recordings"
    for n in range(4):
        corpus_layouts.noise(root / f"speaker {n:02}" / "a.flac", 0.5)
        (root / f"speaker {n:02}" / "a.txt").write_text("Bob")
    corpus_layouts.noise(root / "speaker 01/monday/b.flac", 0.5)
    (root / "speaker 01/monday/b.txt").write_text("Bob")
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "speaker_01-monday-b" in said
    assert "below that of its speaker" in said


def test_recordings_beside_the_speakers_are_named(tmp_path: Path) -> None:
    root = own_recordings(tmp_path / "recordings", 4)
    corpus_layouts.noise(root / "loose.wav", 0.5)
    (root / "loose.txt").write_text("yes")
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "train: 1 of 7 utterances cannot be used" in said
    assert f"loose ({root}/loose.wav): it is in no folder of a speaker: move it down" in said


def test_splits_may_hold_recordings_of_the_same_name(tmp_path: Path) -> None:
    root = tmp_path / "recordings"
    for split, seconds in (("train", 0.5), ("test", 1.0)):
        corpus_layouts.noise(root / split / "anna/1.flac", seconds)
        (root / split / "anna/1.txt").write_text("yes")
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 0, said
    lengths = {split: read_table(tmp_path / f"set/data/{split}/utt2dur") for split in ("train", "test")}
    assert lengths == {"train": {"anna-1": "0.500"}, "test": {"anna-1": "1.000"}}
    (root / "train/anna/1.flac").write_bytes(b"no sound")
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert f"train: 1 of 1 utterance cannot be used, more than 1 % (mend or remove them):\n  anna-1 ({root}" in said


@pytest.mark.parametrize("name", ["at 3.45\u202fPM", "two\u00a0words", "a\tb", "Zoe\u0308"])
def test_identifiers_have_no_white_space_and_are_nfc(name: str, tmp_path: Path) -> None:
    root = tmp_path / "recordings"
    for folder in ("anna", f"{name} speaker"):
        for take in ("1", name):
            corpus_layouts.noise(root / "test" / folder / f"{take}.flac", 0.5)
            (root / "test" / folder / f"{take}.txt").write_text("yes")
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 0, said
    read = read_data_dir(tmp_path / "set/data/test")
    assert len(read) == 4
    assert not read.problems
    assert set(read.texts.values()) == {"YES"}
    assert len(set(read.speakers.values())) == 2


def test_equal_names_of_other_bytes_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "recordings"
    for take in ("Zoe\u0308", "Zo\u00eb"):
        corpus_layouts.noise(root / "train/anna" / f"{take}.flac", 0.5)
        (root / "train/anna" / f"{take}.txt").write_text("yes")
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 1
    assert "Zoe\u0308.flac and " in said
    assert "Zo\u00eb.flac would both be utterance 'anna-Zo\u00eb'" in said


def test_the_next_commands_make_what_the_recipe_needs(tmp_path: Path) -> None:
    for n in range(9):
        corpus_layouts.noise(tmp_path / f"recordings/speaker{n}/a.flac", 0.5)
        (tmp_path / f"recordings/speaker{n}/a.txt").write_text("go on")
    out = tmp_path / "my set"
    told = []
    for made in ("lexicon.txt", "lm.arpa.gz", ""):
        code, said = run("own", "--from", tmp_path / "recordings", "--out", out)
        assert code == 0, said
        told.append([shlex.split(line[6:]) for line in said.splitlines() if line.startswith("next: ")])
        (out / (made or "other")).write_text("")
    lexicon = ["murmur", "lexicon", f"{out}/data/train", "--guess", "espeak", "--out", str(out)]
    model = ["murmur", "lm", "train", f"{out}/data/train", "--out", f"{out}/lm.arpa.gz"]
    train = ["murmur", "train", "own", "--set", f"task.corpus={out}"]
    assert told == [[lexicon, model, train], [model, train], [train]]


def own_recordings(root: Path, speakers: int, takes: int = 2) -> Path:
    """SPEAKER/NAME.wav of noise with a transcript of one word beside each."""
    for n in range(speakers):
        for take in range(takes):
            corpus_layouts.noise(root / f"s{n:02}" / f"{take}.wav", 0.5)
            (root / f"s{n:02}" / f"{take}.txt").write_text("yes")
    return root


def test_own_recordings_are_checked_as_training_does(tmp_path: Path) -> None:
    root = own_recordings(tmp_path / "rec", 12, takes=50)
    noise = np.random.default_rng(0).normal(0, 0.1, 48000)
    rate = soundfile.info(root / "s00/0.wav").samplerate
    soundfile.write(root / "s00/0.wav", noise, rate)
    (root / "s00/0.txt").write_bytes(b"\xff\xfe")
    soundfile.write(root / "s01/0.wav", np.stack([noise, noise], 1), rate)
    soundfile.write(root / "s02/0.wav", noise[:10], rate)
    (root / "s03/0.wav").write_bytes((root / "s03/0.wav").read_bytes()[:3000])
    soundfile.write(root / "s04/0.flac", noise, rate)
    (root / "s04/0.flac").write_bytes((root / "s04/0.flac").read_bytes()[:-3000])
    (root / "s04/0.wav").unlink()
    code, said = run("own", "--from", root, "--out", tmp_path / "my set")
    assert code == 0, said
    assert "s00/0.txt): it is UTF-16, not UTF-8" in said
    assert "s01/0.wav has 2 channels and none is chosen: extract the one that holds the speech" in said
    assert "s02/0.wav): its 0.001 s are shorter than one analysis window of 0.025 s" in said
    assert "data/train: 5 of 500 utterances are left out: s00-0 (" in said
    assert "; and 2 more\n" in said
    skipped = json.loads((tmp_path / "my set/manifest.json").read_text())["splits"]["train"]["skipped"]
    assert "s03/0.wav is shorter than its header says" in skipped[3]["what"]
    assert "s04/0.flac cannot be read" in skipped[4]["what"]
    assert len(skipped) == 5
    assert "data/test holds 50 words: a single error is 2.0 % of them" in said
    assert f"all recordings have {rate} Hz and one channel" in said
    assert "licence: that of your recordings" in said
    assert f": murmur train ctc --set 'task.corpus={tmp_path}/my set' --set task.units=char" in said


@pytest.mark.parametrize("native", [44100, 8000])
def test_recordings_at_other_rates_are_resampled_as_transcribe_does(native: int, tmp_path: Path) -> None:
    root, out = own_recordings(tmp_path / "rec", 10), tmp_path / "set"
    rate = soundfile.info(root / "s01/0.wav").samplerate
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(native // 2) / native)
    soundfile.write(root / "s00/0.wav", tone, native)  # the first one: the rate of most recordings counts
    code, said = run("own", "--from", root, "--out", out)
    assert code == 0, said
    assert f"1 recording at other rates: training uses copies of {rate} Hz in {out}/audio\n" in said
    assert f"all other recordings have {rate} Hz and one channel" in said
    audio = {u.id: u.audio for u in read_data_dir(out / "data/train").utterances}["s00-0"]
    assert audio is not None
    copy = read_audio(audio, rate)
    (wanted,) = read_channels(root / "s00/0.wav", rate, "average")
    assert np.abs(copy - wanted.samples).max() < 2**-23
    assert read_table(out / "data/train/utt2dur")["s00-0"] == "0.500"
    made = audio.path.stat().st_mtime_ns
    assert run("own", "--from", root, "--out", out)[0] == 0
    assert audio.path.stat().st_mtime_ns == made
    soundfile.write(root / "s00/0.wav", tone[:2000], native)
    assert run("own", "--from", root, "--out", out)[0] == 0
    assert soundfile.info(audio.path).frames == len(copy), "a copy of the earlier recording was replaced"
    assert len(list(audio.path.parent.glob("*.flac"))) == 2


def test_the_whole_rule_of_speakers_is_told(tmp_path: Path) -> None:
    code, said = run("own", "--from", own_recordings(tmp_path / "rec", 1), "--out", tmp_path / "set")
    assert code == 1
    assert "has 1 speaker. Without folders of splits the last tenth of the speakers, at least one, is test" in said
    assert "every 8th is dev, so 9 are needed" in said
    for split in ("train", "dev", "test"):
        own_recordings(tmp_path / "splits" / split, 1)
    code, said = run("own", "--from", tmp_path / "splits", "--out", tmp_path / "set")
    assert code == 0, said
    assert "next: murmur lexicon" in said


def test_skipped_files_are_all_named_and_nothing_is_left_of_a_split_without_others(tmp_path: Path) -> None:
    root, out = own_recordings(tmp_path / "rec", 12), tmp_path / "set"
    bad = [root / f"s{n:02}/0.wav" for n in range(5)]
    for path in bad:
        path.write_bytes(b"no sound")
    code, said = run("own", "--from", root, "--out", out)
    assert code == 1
    assert "train: 5 of 20 utterances cannot be used, more than 1 % (mend or remove them):" in said
    assert said.endswith("\n--skip leaves them out\n")
    code, said = run("own", "--from", root, "--out", out, "--skip")
    assert code == 0, said
    assert all(f"data/train without s{n:02}-0 ({path}): {path} cannot be read" in said for n, path in enumerate(bad))
    assert "data/train: 5 of 20 utterances are left out: s00-0 (" in said
    assert len(texts(out, "train")) == 15
    for path in (root / "s11").glob("*.wav"):
        path.write_bytes(b"no sound")
    code, said = run("own", "--from", root, "--out", out, "--skip")
    assert code == 1
    assert "test: 2 of 2 utterances cannot be used (mend or remove them):" in said
    assert "--skip" not in said


def test_too_few_speakers_for_training_are_told(tmp_path: Path) -> None:
    code, said = run("own", "--from", own_recordings(tmp_path / "rec", 5), "--out", tmp_path / "set")
    assert code == 0, said
    assert "every 8th speaker of data/train, which has 4: add speakers, or make folders train, dev and test" in said
    assert "next:" not in said
    with pytest.raises(ValueError, match="only 4 training speakers"):
        sets.splits(tmp_path / "set")


def test_speakers_of_test_who_are_trained_on_are_told(tmp_path: Path) -> None:
    root = tmp_path / "rec"
    own_recordings(root / "train", 9)
    own_recordings(root / "test", 2)
    corpus_layouts.noise(root / "test/anna/0.wav", 0.5)
    (root / "test/anna/0.txt").write_text("yes")
    code, said = run("own", "--from", root, "--out", tmp_path / "set")
    assert code == 0, said
    assert "2 of 3 speakers of data/test are in data/train too (s00, s01): expect more errors with other" in said
    code, said = run("own", "--from", own_recordings(tmp_path / "all", 12), "--out", tmp_path / "apart")
    assert code == 0, said
    assert "in data/train too" not in said


def test_missing_and_damaged_recordings_are_named(tmp_path: Path) -> None:
    root = corpus_layouts.librispeech(tmp_path / "from", MINI, utterances=60)
    gone = root / "LibriSpeech/train-clean-5/100/2000/100-2000-0007.flac"
    gone.unlink()
    code, said = run("mini-librispeech", "--from", root, "--out", tmp_path / "set")
    assert code == 0, said
    why = f"100-2000-0007 ({gone.parent}/100-2000.trans.txt): its recording {gone} is missing"
    assert f"data/train: 1 of 120 utterances is left out: {why}\n" in said
    for n in range(20, 30):
        (gone.parent / f"100-2000-00{n}.flac").unlink()
    code, said = run("mini-librispeech", "--from", root, "--out", tmp_path / "set2")
    assert code == 1
    assert "train: 11 of 120 utterances cannot be used, more than 1 %" in said
    assert not (tmp_path / "set2").exists()
    (gone.parent / "100-2000-0031.flac").write_bytes(b"fLaC")
    code, said = run("mini-librispeech", "--from", root, "--out", tmp_path / "set2")
    assert code == 1
    assert "cannot be read by lhotse's recipe" in said
    assert "100-2000-0031.flac" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["mini-librispeech"], "--from FOLDER takes an unpacked copy, --download FOLDER fetches one"),
        (["mini-librispech", "--from", "X"], "there is no corpus 'mini-librispech'; did you mean 'mini-librispeech'?"),
        (["yesno", "--from", "X", "--download", "X"], "(not both)"),
        (["yesno", "--from", "X", "--mirror", "http://localhost"], "--mirror is for --download"),
        (["yesno", "--from", "X", "--part", "half"], "yesno has no part 'half'; its parts: waves_yesno"),
        (["yesno", "--from", "X", "--kind", "mfcc"], "options of features and --set are not for corpora"),
        (["yesno", "--from", "nowhere"], "nowhere is not a folder"),
        (["yesno", "--from", "X"], "holds recordings such as 0_1_0_1_0_1_0_1; there is nothing"),
        (["own", "--from", "X"], "holds SPEAKER/NAME.txt beside recordings"),
        (["own", "--download", "X"], "own is not published anywhere: --from FOLDER"),
        (["librispeech", "--from", "X"], "holds train-clean-100 or dev-clean"),
    ],
)
def test_mistakes(words: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    code, said = run(*(str(tmp_path / "x") if word == "X" else word for word in words), "--out", tmp_path / "out")
    assert code == 1, said
    assert says in said
    assert not (tmp_path / "out").exists()


def test_data_of_others_is_not_written_over(tmp_path: Path) -> None:
    root = corpus_layouts.yesno(tmp_path / "from")
    (tmp_path / "mine/data/train").mkdir(parents=True)
    code, said = run("yesno", "--from", root, "--out", tmp_path / "mine")
    assert code == 1
    assert "holds data without manifest.json, so it came from elsewhere" in said
    assert run("yesno", "--from", root, "--out", tmp_path / "set")[0] == 0
    code, said = run("fsdd", "--from", corpus_layouts.fsdd(tmp_path / "f"), "--out", tmp_path / "set")
    assert code == 1
    assert "holds the corpus 'yesno'" in said
    # An interrupted set is recognised, and names in a manifest cannot leave the folder.
    (tmp_path / "set/manifest.json").write_text(
        json.dumps({"corpus": "yesno", "finished": False, "splits": {"../../mine/data/train": {}, "train": {}}})
    )
    assert run("yesno", "--from", root, "--out", tmp_path / "set")[0] == 0
    assert (tmp_path / "mine/data/train").is_dir()


def test_folders_without_utterances_are_named(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / "mine" / part / "anna").mkdir(parents=True)
    code, said = run("own", "--from", tmp_path / "mine", "--out", tmp_path / "set")
    assert code == 1
    assert "train: there are no utterances" in said
    assert "more than 1 %" not in said


# ---- downloads


@dataclass
class Server:
    """Server of archives by path, on loopback; an answer has at most `cut` bytes."""

    files: dict[str, bytes]
    address: str = ""
    cut: int | None = None
    asked: tuple[str, ...] = ()


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server({})

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked = (*state.asked, f"{self.path} {self.headers.get('Range')}")
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start : None if state.cut is None else start + state.cut])

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    state.address = f"http://127.0.0.1:{http.server_address[1]}"
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield state
    http.shutdown()
    http.server_close()


@pytest.fixture
def archives(tmp_path: Path, server: Server) -> Server:
    root = corpus_layouts.librispeech(tmp_path / "original", MINI)
    for part in MINI:
        server.files[f"/{part}.tar.gz"] = corpus_layouts.archive(
            tmp_path / f"{part}.tar.gz", root, f"LibriSpeech/{part}"
        )
    return server


def test_download_then_nothing_more_to_fetch(tmp_path: Path, archives: Server) -> None:
    words = ("mini-librispeech", "--download", tmp_path / "d", "--mirror", archives.address, "--out", tmp_path / "set")
    code, said = run(*words)
    assert code == 0, said
    assert len(texts(tmp_path / "set", "train")) == 6
    assert len(archives.asked) == 2
    for archive in (tmp_path / "d").glob("*.tar.gz"):
        archive.unlink()  # the archives are deleted for their space; their contents are still there
    assert run(*words)[0] == 0
    assert len(archives.asked) == 2


def test_a_download_that_was_cut_off_goes_on(tmp_path: Path, archives: Server) -> None:
    words = ("mini-librispeech", "--download", tmp_path / "d", "--mirror", archives.address, "--out", tmp_path / "set")
    archives.cut = max(map(len, archives.files.values())) // 2 + 1  # two answers bring any of them
    code, said = run(*words)
    assert code == 1
    assert "train-clean-5.tar.gz ends after 0." in said
    assert "run the same command again to continue" in said
    assert not (tmp_path / "set").exists()
    code, said = run(*words)  # the second half; then the other archive is interrupted
    assert archives.asked[1] == f"/train-clean-5.tar.gz bytes={archives.cut}-"
    assert code == 1
    assert run(*words)[0] == 0
    assert len(texts(tmp_path / "set", "train")) == 6


def test_a_download_takes_the_usual_parts_and_a_folder_all() -> None:
    corpus = CORPORA["librispeech"]
    usual = [part.name for part in chosen_parts("librispeech", (), download=True)]
    assert usual == ["train-clean-100", "dev-clean", "test-clean"]
    assert chosen_parts("librispeech", (), download=False) == corpus.parts


def test_only_the_part_that_is_asked_for(tmp_path: Path, archives: Server) -> None:
    code, said = run(
        *("mini-librispeech", "--download", tmp_path / "d", "--mirror", archives.address, "--out", tmp_path / "set"),
        *("--part", "dev-clean-2"),
    )
    assert code == 0, said
    assert archives.asked == ("/dev-clean-2.tar.gz bytes=0-",)


def test_nobody_there_and_nothing_there(tmp_path: Path, server: Server) -> None:
    code, said = run("yesno", "--download", tmp_path / "d", "--mirror", server.address, "--out", tmp_path / "set")
    assert code == 1
    assert f"{server.address}/waves_yesno.tar.gz cannot be fetched (HTTP Error 404" in said
    assert "unpack it in a folder for --from" in said


def test_an_archive_of_another_digest_is_refused_and_removed(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = corpus_layouts.archive(tmp_path / "a.tar.gz", corpus_layouts.yesno(tmp_path / "original"), "waves_yesno")
    server.files["/waves_yesno.tar.gz"] = content
    words = ("yesno", "--download", tmp_path / "d", "--mirror", server.address, "--out", tmp_path / "set")
    code, said = run(*words)
    assert code == 1
    assert "is not the published archive (its SHA-256 is not c3f49e0c" in said
    assert not (tmp_path / "d/waves_yesno.tar.gz").exists()
    known = replace(CORPORA["yesno"].parts[0], sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(catalogue.CORPORA, "yesno", replace(CORPORA["yesno"], parts=(known,)))
    assert run(*words)[0] == 0
    assert len(texts(tmp_path / "set", "train")) == 30


def test_what_is_no_archive_at_all(tmp_path: Path, server: Server) -> None:
    server.files["/train-clean-5.tar.gz"] = b"<html>moved</html>" * 9
    code, said = run(
        "mini-librispeech", "--download", tmp_path / "d", "--mirror", server.address, "--out", tmp_path / "s"
    )
    assert code == 1
    assert "is not the published archive (it is no whole gzip file)" in said


def test_archives_of_archives(tmp_path: Path, server: Server) -> None:
    root = corpus_layouts.aishell(tmp_path / "original")
    wav = root / "data_aishell/wav"
    for split, speaker in (("train", "S0002"), ("dev", "S0724"), ("test", "S0764")):
        corpus_layouts.archive(wav / f"{speaker}.tar.gz", wav, f"{split}/{speaker}")
    names = ["data_aishell/transcript", *(f"data_aishell/wav/{p.name}" for p in wav.glob("*.tar.gz"))]
    server.files["/data_aishell.tgz"] = corpus_layouts.archive(tmp_path / "a.tgz", root, *names)
    code, said = run("aishell", "--download", tmp_path / "d", "--mirror", server.address, "--out", tmp_path / "set")
    assert code == 0, said
    assert len(texts(tmp_path / "set", "train")) == 2


@pytest.mark.parametrize("name", ["../outside.txt", "/tmp/../{}/outside.txt", "a/../../outside.txt"])
def test_an_archive_writes_nothing_outside(name: str, tmp_path: Path) -> None:
    corpus_layouts.hostile(tmp_path / "bad.tar.gz", **{name.format(tmp_path): b"x"})
    (tmp_path / "in").mkdir()
    with pytest.raises(ValueError, match="leads out of"):
        fetch.unpack(tmp_path / "bad.tar.gz", tmp_path / "in")
    assert not list(tmp_path.rglob("outside.txt"))


def test_links_of_an_archive_are_not_made_nor_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus_layouts.hostile(tmp_path / "bad.tar.gz", way=str(tmp_path), **{"way/outside.txt": b"x", "plain.txt": b"y"})
    (tmp_path / "in").mkdir()
    fetch.unpack(tmp_path / "bad.tar.gz", tmp_path / "in")
    assert not (tmp_path / "outside.txt").exists()
    assert (tmp_path / "in/plain.txt").read_bytes() == b"y"
    assert (tmp_path / "in/way/outside.txt").read_bytes() == b"x"
    assert "way is not a regular file and was left out" in caplog.text


class Killed(BaseException):
    pass


def killing(patch: pytest.MonkeyPatch, owner: object, name: str, calls: int) -> None:
    """Kill the command at a call of a function after this many; a killed command removes no temporary folders."""
    left, real, remove = iter(range(calls)), getattr(owner, name), shutil.rmtree

    def counted(*words: object) -> object:
        if next(left, None) is None:
            raise Killed
        return real(*words)

    patch.setattr(owner, name, counted)
    patch.setattr(shutil, "rmtree", lambda path, **how: path.name.startswith(".") or remove(path, **how))


def speakers(out: Path) -> dict[str, set[str]]:
    folders = (folder for folder in (out / "data").iterdir() if not folder.name.startswith("."))
    return {folder.name: set(read_table(folder / "utt2spk").values()) for folder in folders}


@pytest.mark.parametrize(
    ("owner", "name", "calls", "whole"),
    [(dataset_writer, "_write_audio", 1, True), *((Path, "rename", calls, False) for calls in (0, 1, 3))],
)
def test_a_set_whose_preparation_was_cut_off_is_whole_or_refused(
    owner: object, name: str, calls: int, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one more speaker another one becomes test, and the former one moves to train."""
    own, out = own_recordings(tmp_path / "rec", 9), tmp_path / "set"
    assert run("own", "--from", own, "--out", out)[0] == 0
    before = speakers(out)
    own_recordings(own, 10)
    with monkeypatch.context() as patch:
        killing(patch, owner, name, calls)
        with pytest.raises(Killed):
            run("own", "--from", own, "--out", out)
    if whole:
        sets.check_parts(out)
        assert speakers(out) == before
    else:
        for read in (sets.check_parts, sets.splits):
            with pytest.raises(sets.CorpusError, match=r"set was not finished.*: run murmur prepare own with --out"):
                read(out)
    assert run("own", "--from", own, "--out", out)[0] == 0
    sets.check_parts(out)
    assert not list(out.glob(".*")) + list(out.glob("data/.*"))
    now = speakers(out)
    assert now["test"] != before["test"] < now["train"]
    assert not now["test"] & now["train"]


def test_a_manifest_from_elsewhere_says_nothing(tmp_path: Path) -> None:
    out = tmp_path / "set"
    assert run("own", "--from", own_recordings(tmp_path / "rec", 9), "--out", out)[0] == 0
    for content in ("[]", "{", '{"finished": 0}', '{"finished": true}'):
        (out / "manifest.json").write_text(content)
        sets.check_parts(out)


def test_recordings_beside_the_splits_are_told(tmp_path: Path) -> None:
    for split, speakers in (("train", 8), ("test", 1), ("valid", 1), ("other", 2)):
        own_recordings(tmp_path / "rec" / split, speakers)
    code, said = run("own", "--from", tmp_path / "rec", "--out", tmp_path / "set")
    assert code == 0, said
    assert f"{tmp_path}/set/data/dev: 2 utterances, 1 speaker, " in said
    named = "other/s00/0.wav, other/s00/1.wav, other/s01/0.wav and 1 more"
    assert f"4 recordings are left out: {named}: outside of the folders train, valid, test\n" in said
    assert len(json.loads((tmp_path / "set/manifest.json").read_text())["outside"]) == 4
