"""`murmur transcribe --jobs`: the same words in the same order, and no file that ends a batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.core.errors import SettingError
from murmur.speech.commands.transcribe import SOME_FAILED
from murmur.speech.corpus.recordings import Channels, Recording
from murmur.speech.decoding.transcript import Transcript
from murmur.speech.recognition.transcription import Inputs, Unit, is_of, made
from tests.support.tone_runs import train_ctc
from tests.support.tones import RATE, make_tones, tones

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
WORDS = (["ANNA", "BOB"], ["NOB"], ["BOB", "NOB", "ANNA"], ["ANNA"], ["NOB", "NOB"])


def transcribed(*words: object, stdin: bytes = b"") -> tuple[int, str, list[str]]:
    """Status, standard output, and the messages on standard error."""
    done = CliRunner().invoke(app, ["transcribe", *(str(word) for word in words)], env={"COLUMNS": "200"}, input=stdin)
    return done.exit_code, done.stdout, [line for line in done.stderr.splitlines() if line.startswith("murmur: ")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_ctc(make_tones(tmp_path_factory.mktemp("jobs") / "set", {"train": 48, "dev": 8, "test": 8}))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Recordings at other rates and with two channels; the third and the last are none."""
    made = []
    for place, words in enumerate(WORDS):
        made.append(tmp_path / f"said{place}.wav")
        samples = tones(words, 90 + place)
        soundfile.write(made[-1], np.stack([samples, samples], 1) if place % 2 else samples, RATE)
    made.insert(2, tmp_path / "none.wav")
    made[2].write_bytes(b"RIFF no sound")
    made.append(tmp_path / "cut.flac")
    soundfile.write(made[-1], tones(["ANNA"], 7), RATE)
    made[-1].write_bytes(made[-1].read_bytes()[:200])
    return made


@pytest.mark.parametrize("form", ["json", "text"])
def test_words_and_messages_do_not_depend_on_the_number_of_processes(model: Path, files: list[Path], form: str) -> None:
    alone = transcribed(model, *files, "--format", form)
    together = transcribed(model, *files, "--format", form, "--jobs", 3)
    assert together == alone
    status, out, said = alone
    assert status == SOME_FAILED
    assert len(out.splitlines()) == len(WORDS)
    for name in ("none.wav", "cut.flac"):
        assert sum(name in message for message in said) == 1
    assert said[-1] == f"murmur: 2 of {len(files)} could not be read"


def test_a_stream_is_read_by_one_of_several_processes(model: Path, files: list[Path]) -> None:
    stream = files[0].read_bytes()
    alone = transcribed(model, "-", files[1], "--format", "json", stdin=stream)
    assert transcribed(model, "-", files[1], "--format", "json", "--jobs", 2, stdin=stream) == alone
    assert alone[0] == 0


def test_a_change_of_many_recordings_is_told_three_times_and_counted(model: Path, tmp_path: Path) -> None:
    samples = tones(["ANNA"], 3)
    files = [tmp_path / f"talk{place}.wav" for place in range(6)]
    for file in files:
        soundfile.write(file, np.stack([samples, samples], 1), RATE)
    _, _, said = transcribed(model, *files)
    assert [message for message in said if message.endswith("2 channels averaged")] == [
        *(f"murmur: {file}: 2 channels averaged" for file in files[:3]),
        f"murmur: 3 more like this: {files[-1]}: 2 channels averaged",
    ]


class KilledBySaid1:
    rate_hz = RATE

    def __call__(self, recordings: Sequence[tuple[Recording, str]]) -> list[Transcript]:
        if recordings[0][1].endswith("said1.wav"):
            os.kill(os.getpid(), signal.SIGKILL)
        return [Transcript(source, recording.seconds, ()) for recording, source in recordings]


def test_a_file_whose_process_dies_is_named_and_the_others_are_done(files: list[Path]) -> None:
    inputs = Inputs([str(file) for file in files], jobs=2)
    results = [found for _, found in made(inputs, KilledBySaid1, bytes)]  # type: ignore[arg-type]
    failed = {name: why for found in results for name, why in found.failed.items()}
    assert {Path(name).name for name in failed} == {"said1.wav", "none.wav", "cut.flac"}
    died = failed[str(files[1])]
    assert died.startswith(f"{files[1]}: a process died with it")
    assert [Path(each.source).name for found in results for each in found.transcripts] == [
        "said0.wav",
        "said2.wav",
        "said3.wav",
        "said4.wav",
    ]


def units_of(files: list[str], speakers: dict[str, str] | None, channels: Channels) -> list[Unit]:
    return Inputs(files, speakers, channels=channels).units


def test_files_are_grouped_by_speaker_before_any_is_read() -> None:
    assert units_of(["b.wav", "a.wav"], None, "average") == [Unit(("b.wav",)), Unit(("a.wav",))]
    assert units_of(["b.wav", "a.wav"], {}, "average") == [Unit(("b.wav", "a.wav"), speaker="")]
    speakers = {"a": "anna", "b": "bob", "c": "anna"}
    assert [(unit.files, unit.speaker) for unit in units_of(["c.wav", "b.wav", "a.wav"], speakers, "average")] == [
        (("c.wav", "a.wav"), "anna"),
        (("b.wav",), "bob"),
    ]
    sides = {"call-A": "anna", "call-B": "bob", "other": "anna"}
    assert [(unit.files, unit.speaker) for unit in units_of(["call.sph", "other.wav"], sides, "each")] == [
        (("call.sph", "other.wav"), "anna"),
        (("call.sph",), "bob"),
    ]
    for channels in ("average", "each"):
        with pytest.raises(SettingError, match="no line for 'lost'"):
            units_of(["lost.wav"], speakers, channels)


def test_names_of_channels() -> None:
    assert is_of("call-A", ["call"])
    assert is_of("call", ["call"])
    assert not is_of("call", ["call"], itself=False)
    assert is_of("c.l-12", ["other", "c.l"])
    assert not is_of("cal-12", ["c.l"])
    assert not is_of("call-A-B", ["call"])
