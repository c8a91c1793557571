"""Options of `murmur transcribe` that do not fit its files, its model or its place."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.speech.decoding import graph_store
from tests.support.tone_runs import train_ctc
from tests.support.tones import RATE, make_tones, tones

WORDS = ["ANNA", "BOB", "NOB"]


def run(*words: object, stdin: bytes = b"") -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"}, input=stdin)
    return done.exit_code, done.stdout, done.stderr


def refused(*words: object) -> str:
    code, out, said = run("transcribe", *words)
    assert (code, out) == (1, "")
    return said


@pytest.fixture(scope="module")
def ctc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_ctc(make_tones(tmp_path_factory.mktemp("options") / "set", {"train": 48, "dev": 8, "test": 8}))


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    path = tmp_path / "said.wav"
    soundfile.write(path, tones(WORDS, 99), RATE)
    return path


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_run_that_cannot_be_written(
    ctc: Path,
    speech: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """The graph of a vocabulary of one's own is built elsewhere, and removed; a full disk still ends the command."""
    alone, scratch = graph_store.alone, tmp_path / "scratch"

    @contextmanager
    def read_only(folder: Path) -> Iterator[None]:
        if folder.is_relative_to(ctc):
            raise OSError(number, os.strerror(number), str(folder))
        with alone(folder):
            yield

    scratch.mkdir()
    monkeypatch.setattr(graph_store, "alone", read_only)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    own = tmp_path / "own.txt"
    own.write_text("ANNA\nNOB\nBOB\n")
    before = sorted(ctc.rglob("*"))
    caplog.set_level("INFO")
    code, out, said = run("transcribe", ctc, speech, "--words", own, "--scale", 1)
    if number == errno.ENOSPC:
        assert code == 1
        return
    assert (code, out.split()) == (0, WORDS), said
    assert "cannot be written" in caplog.text
    assert sorted(ctc.rglob("*")) == before
    assert list(scratch.iterdir()) == []


def test_a_rate_is_for_streams(ctc: Path, speech: Path) -> None:
    assert "--rate is for a stream of raw samples on -" in refused(ctc, speech, "--rate", RATE)


@pytest.mark.parametrize("option", ["--beam", "--lattice-beam"])
def test_a_best_path_has_no_beam(ctc: Path, speech: Path, tmp_path: Path, option: str) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    exported = tmp_path / "exported"
    assert run("export", ctc, "--out", exported)[0] == 0
    for model in (ctc, exported):
        assert "a best path has no scale, penalty, beam or states to set" in refused(model, speech, option, 3)
    assert run("transcribe", exported, speech)[1].split() == WORDS


def test_subtitles_of_several_recordings_need_a_folder(ctc: Path, speech: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.wav"
    other.write_bytes(speech.read_bytes())
    for words in ((other,), ("--channels", "each")):
        assert "give --out FOLDER" in refused(ctc, speech, *words, "--format", "srt")
        assert run("transcribe", ctc, speech, *words, "--format", "srt", "--out", tmp_path / "out")[0] == 0
    assert run("transcribe", ctc, speech, "--format", "srt")[1].startswith("1\n00:00:00")


def test_ctm_is_scored_against_an_stm(ctc: Path, speech: Path, tmp_path: Path) -> None:
    code, out, said = run("transcribe", ctc, speech, "--format", "ctm")
    assert code == 0, said
    assert [line.split()[:2] for line in out.splitlines()] == [["said", "1"]] * 3
    (tmp_path / "said.stm").write_text(f"said 1 anyone 0 10 {' '.join(WORDS)}\n")
    (tmp_path / "said.ctm").write_text(out)
    code, scored, said = run("score", tmp_path / "said.stm", tmp_path / "said.ctm")
    assert code == 0, said
    assert scored.startswith("%WER 0.00")
    stream = run("transcribe", ctc, "-", "--format", "ctm", stdin=speech.read_bytes())[1]
    assert {line.split()[0] for line in stream.splitlines()} == {"stdin"}
    twin = tmp_path / "more" / "said.flac"
    twin.parent.mkdir()
    twin.write_bytes(speech.read_bytes())
    assert "two are 'said'" in refused(ctc, speech, twin, "--format", "ctm")
    assert run("transcribe", ctc, speech, twin, "--format", "json")[0] == 0
