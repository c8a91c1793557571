"""`murmur transcribe` of recordings without words, of channels that cancel, and of a batch with wrong files."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from tests.support.tone_runs import train_ctc, train_hybrid
from tests.support.tones import RATE, make_tones, tones

WORDS = ["ANNA", "BOB", "NOB"]
TEXT = " ".join(WORDS)
SILENCE = {
    "zeros": np.zeros(2 * RATE, np.float32),
    "constant": np.full(2 * RATE, 0.5, np.float32),
    "dither": np.random.default_rng(0).integers(-1, 2, 2 * RATE).astype(np.float32) / 32768,
    "below": 1e-6 * np.random.default_rng(1).normal(size=2 * RATE).astype(np.float32),
    "long": np.zeros(65 * RATE, np.float32),
}


def run(*words: object, stdin: bytes = b"") -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"}, input=stdin)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


@dataclass(frozen=True)
class Models:
    """Runs of a hybrid system and of CTC, and their exports."""

    hybrid: Path
    ctc: Path
    exports: dict[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.exports[name] if name in self.exports else getattr(self, name)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("tones")
    corpus = make_tones(root / "set", {"train": 48, "dev": 8, "test": 8})
    train_hybrid(corpus)
    train_ctc(corpus)
    exports = {}
    for name in ("hybrid", "ctc"):
        out = root / f"exported-{name}"
        code, _, said = run("export", root / name, "--out", out, *(("--grammar", "greedy") if name == "ctc" else ()))
        if "onnx" not in said or code == 0:
            assert code == 0, said
            exports[f"exported {name}"] = out
    return Models(root / "hybrid", root / "ctc", exports)


def of_model(models, name):
    if name not in models.exports and name.startswith("exported"):
        pytest.skip("onnxruntime is not installed (pip install murmur-asr[deploy])")
    return models[name]


@pytest.mark.parametrize("name", ["hybrid", "ctc", "exported hybrid", "exported ctc"])
@pytest.mark.parametrize("kind", SILENCE)
def test_digital_silence_has_no_words_in_any_format(models, tmp_path, name, kind):
    model, path = of_model(models, name), tmp_path / "quiet.wav"
    soundfile.write(path, np.stack([SILENCE[kind], -SILENCE[kind]], 1), RATE, subtype="FLOAT")
    for form, empty in (("text", "\n"), ("ctm", ""), ("srt", "")):
        code, out, said = run("transcribe", model, path, "--format", form)
        assert (code, out) == (0, empty), said
        assert "quiet.wav: " in said
        assert "s of audio are digital silence: no words" in said
    code, out, _ = run("transcribe", model, path, "--format", "json", "--channels", "each")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(f["channel"], f["words"], f["silent"]) for f in found] == [("A", [], True), ("B", [], True)]


def test_silence_beside_speech_has_no_words(models, tmp_path):
    speech = tones(WORDS, 99)
    whole = np.concatenate([np.zeros(40 * RATE), speech, np.zeros(40 * RATE)]).astype(np.float32)
    soundfile.write(tmp_path / "call.wav", np.stack([whole, 0 * whole], 1), RATE)
    _, out, _ = run("transcribe", models.hybrid, tmp_path / "call.wav", "--format", "json", "--longest", 10)
    found = json.loads(out)
    assert found["changes"] == "channel 2 of 2 left out as silent"
    assert len(found["pieces"]) > 5
    assert found["text"].split()  # the piece with speech
    assert all(w["start_seconds"] > 39 and w["end_seconds"] < 55 for w in found["words"])
    _, out, said = run("transcribe", models.hybrid, tmp_path / "call.wav", "--channels", "each")
    assert out.splitlines()[1].endswith("channel B: ")
    assert re.search("channel B: [0-9.]+ s of audio are digital silence: no words", said)


@pytest.mark.parametrize("name", ["hybrid", "exported hybrid"])
@pytest.mark.parametrize("gain", [-1.0, -0.9, -0.5])
def test_channels_that_cancel_give_the_words_of_one(models, tmp_path, name, gain):
    model, speech = of_model(models, name), tones(WORDS, 99)
    content = io.BytesIO()
    soundfile.write(content, np.stack([speech, gain * speech], 1), RATE, format="WAV")
    (tmp_path / "swapped.wav").write_bytes(content.getvalue())
    for path, stdin in ((tmp_path / "swapped.wav", b""), ("-", content.getvalue())):
        code, out, said = run("transcribe", model, path, stdin=stdin)
        assert (code, out) == (0, f"{TEXT}\n"), said
        assert "channel 1 of 2 taken alone, since channels cancel each other in the mean" in said


def test_wrong_files_are_named_and_the_others_transcribed(models, tmp_path):
    speech = tones(WORDS, 99)

    def written(kind, samples=speech, **more):
        out = io.BytesIO()
        soundfile.write(out, samples, RATE, format=kind, **more)
        return out.getvalue()

    flac = written("FLAC")
    endless = flac[:21] + bytes((flac[21] & 0xF0,)) + bytes(4) + flac[26:]
    good = {
        "endless.flac": (endless, TEXT),
        "chained.ogg": (written("OGG") + written("OGG"), f"{TEXT} {TEXT}"),
        "twice.flac": (flac + flac, f"{TEXT} {TEXT}"),
        "call.au": (written("AU", subtype="G721_32"), TEXT),
        "phone.wav": (written("WAV", subtype="GSM610"), TEXT),
    }
    bad = {
        "huge.wav": written("WAV", speech * 1e30, subtype="FLOAT"),
        "cut.flac": endless[:-700],
        "cut.au": good["call.au"][0][:-900],
        "slow.wav": written("WAV")[:24] + b"\1\0\0\0" + written("WAV")[28:],
        "empty.wav": b"",
        "words.mp3": b"ID3 is not what this is",
    }
    for name, content in {**{n: c for n, (c, _) in good.items()}, **bad}.items():
        (tmp_path / name).write_bytes(content)
    names = sorted([*good, *bad])
    for adapt in ((), ("--longest", "inf")):
        code, out, said = run("transcribe", models.hybrid, *(tmp_path / n for n in names), *adapt)
        assert code == 3
        assert f"{len(bad)} of {len(names)} could not be read" in said
        assert out.splitlines() == [f"{tmp_path / n}: {good[n][1]}" for n in names if n in good]
        for name in bad:
            assert sum(f"murmur: {tmp_path / name} " in line for line in said.splitlines()) == 1, said
    for name, (content, words) in good.items():
        assert run("transcribe", models.hybrid, "-", stdin=content)[:2] == (0, f"{words}\n"), name
