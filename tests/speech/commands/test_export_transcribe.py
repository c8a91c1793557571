"""`murmur export` and `murmur transcribe` of small runs on tones, checked by other runtimes."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.engine.experiment import differences
from murmur.speech.features.shards import sha256_of
from murmur.speech.recognition.export import digest_of
from murmur.speech.recognition.run_records import IRRELEVANT

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile
import soxr

from tests.support.plateaus import make_experiment
from tests.support.sphere_files import write_sphere
from tests.support.tone_runs import ctc_settings, train_ctc, train_hybrid
from tests.support.tones import RATE, make_tones, tones

EXAMPLE = Path(__file__).parents[3] / "examples" / "decode_export.py"
PAGE = EXAMPLE.parents[1].joinpath("docs", "export.md").read_text(encoding="utf-8")
WORDS = ["ANNA", "BOB", "NOB"]


def run(*words: object, stdin: bytes = b"") -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"}, input=stdin)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_tones(tmp_path_factory.mktemp("tones") / "set", {"train": 48, "dev": 8, "test": 8})


@pytest.fixture(scope="module")
def hybrid(corpus):
    return train_hybrid(corpus)


@pytest.fixture(scope="module")
def ctc(corpus):
    return train_ctc(corpus)


@pytest.fixture(scope="module")
def conformer(corpus):
    network = "Conformer(hidden=16, layers=1, heads=2, kernel=5, dropout=0.0, stack=3)"
    return train_ctc(corpus, "conformer", f"task.network={network}")


@pytest.fixture
def speech(tmp_path):
    path = tmp_path / "said.wav"
    soundfile.write(path, tones(WORDS, 99), RATE)
    return path


def by_sherpa(export, path):
    """Words by the program of docs/export.md in a separate process, which sherpa-onnx ends on invalid input."""
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed (pip install murmur-asr[deploy])")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    if not (export / "graph.fst").is_file():
        code = code.replace('ctc_graph="exported/graph.fst",', "").partition("words = ")[0]
        code += "print(stream.result.text.strip())"
    code = code.replace("exported/", f"{export}/").replace("talk.wav", str(path))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def by_example(monkeypatch, capsys, export, path):
    monkeypatch.setattr(sys, "argv", ["decode_export.py", str(export), str(path)])
    capsys.readouterr()
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    return capsys.readouterr().out.strip()


def transcribed(model, path, *options):
    code, out, said = run("transcribe", model, path, *options)
    assert code == 0, said
    return out.strip()


def test_hybrid_says_the_same_everywhere(hybrid, speech, tmp_path, monkeypatch, capsys):
    assert transcribed(hybrid, speech) == " ".join(WORDS)
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    out = tmp_path / "exported"
    code, told, said = run("export", hybrid, "--to", "onnx", "--out", out)
    assert code == 0, said
    assert "each utterance's own statistics (training: each speaker's)" in told
    facts = json.loads((out / "metadata.json").read_text())
    assert facts["greatest_difference"] < 1e-4
    assert (facts["opset"], facts["sample_rate"], facts["feature_dim"]) == (17, "8000", "12")
    assert by_example(monkeypatch, capsys, out, speech) == " ".join(WORDS)
    assert by_sherpa(out, speech) == " ".join(WORDS)


def test_stream_says_the_same(hybrid, speech, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    out = tmp_path / "stream"
    code, _, said = run("export", hybrid, "--out", out, "--kind", "stream")
    assert (code, out.exists()) == (1, False)
    assert "--cmvn global" in said
    assert run("export", hybrid, "--out", out, "--kind", "stream", "--cmvn", "global")[0] == 0
    whole = tmp_path / "whole"
    assert run("export", hybrid, "--out", whole, "--cmvn", "global")[0] == 0
    monkeypatch.setattr(sys, "argv", ["decode_export.py"])
    example = runpy.run_path(str(EXAMPLE))
    facts = json.loads((out / "metadata.json").read_text())
    feats = example["features"](tones(WORDS, 99), facts)
    sessions = {p: example["onnxruntime"].InferenceSession(str(p / "model.onnx")) for p in (out, whole)}
    got, wanted = example["chunks"](sessions[out], feats, facts), example["whole"](sessions[whole], feats)
    np.testing.assert_allclose(got, wanted, atol=1e-4)
    assert by_example(monkeypatch, capsys, out, speech) == " ".join(WORDS)


@pytest.mark.parametrize("model", ["ctc", "conformer"])
@pytest.mark.parametrize("grammar", ["greedy", "loop"])
def test_ctc_says_the_same_everywhere(request, speech, tmp_path, monkeypatch, capsys, model, grammar):
    ctc = request.getfixturevalue(model)
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    out = tmp_path / "exported"
    assert run("export", ctc, "--out", out, "--grammar", grammar)[0] == 0
    assert transcribed(ctc, speech, "--grammar", grammar) == " ".join(WORDS)
    assert by_example(monkeypatch, capsys, out, speech) == " ".join(WORDS)
    assert by_sherpa(out, speech) == " ".join(WORDS)
    assert (out / "graph.fst").is_file() == (grammar == "loop")


@pytest.fixture
def elsewhere(corpus, tmp_path):
    """Move an export to a place without the run's corpus, cache and folder."""
    away = corpus.parent.with_name(f"{corpus.parent.name}-away")
    moved = []

    def move(out):
        corpus.parent.rename(away)
        moved.append(out)
        return out.rename(tmp_path / "alone")

    yield move
    if moved:
        away.rename(corpus.parent)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("hybrid", ()),
        ("hybrid", ("--cmvn", "global")),
        ("hybrid", ("--cmvn", "global", "--kind", "stream")),
        ("ctc", ("--grammar", "greedy")),
        ("ctc", ("--grammar", "loop", "--penalty", "0.5", "--scale", "0.7")),
        ("conformer", ("--grammar", "loop")),
    ],
)
def test_an_export_transcribes_alone(request, speech, tmp_path, elsewhere, model, options):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    folder, out = request.getfixturevalue(model), tmp_path / "exported"
    assert run("export", folder, "--out", out, *options)[0] == 0
    same = [w for o, v in zip(options[::2], options[1::2], strict=True) if model != "hybrid" for w in (o, v)]
    wanted = json.loads(transcribed(folder, speech, "--format", "json", *same))
    found = json.loads(transcribed(elsewhere(out), speech, "--format", "json"))
    for mine, other in zip(found.pop("words"), wanted.pop("words"), strict=True):
        assert mine["word"] == other["word"]
        exact = "--cmvn" not in options
        assert mine["start_seconds"] == pytest.approx(other["start_seconds"], abs=1e-9 if exact else 0.03)
        assert mine["end_seconds"] == pytest.approx(other["end_seconds"], abs=1e-9 if exact else 0.03)
        assert mine["confidence"] == pytest.approx(other["confidence"], abs=1e-3 if exact else 0.3)
    assert found == wanted


def test_an_export_cannot_be_given_other_insides(hybrid, speech, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    out = tmp_path / "exported"
    assert run("export", hybrid, "--out", out)[0] == 0
    assert transcribed(out, speech, "--beam", 20, "--lattice-beam", 3) == " ".join(WORDS)
    code, _, said = run("transcribe", out, speech, "--scale", 0.4, "--penalty", 1, "--set", "task.jobs=1")
    assert code == 1
    assert "--set, --scale, --penalty: fixed in an export folder" in said
    code, _, said = run("transcribe", out, speech, "--guess", "graphemes", "--trust")
    assert code == 1
    assert "--guess, --trust: fixed in an export folder" in said
    for words in (("--penalty", 0), ("--experiment", ""), ("--weights", "last")):
        code, _, said = run("transcribe", out, speech, *words)
        assert (code, f"{words[0]}: fixed in an export folder" in said) == (1, True), said


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def turned(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def without(key):
    def change(path):
        content = json.loads(path.read_text())
        del content[key]
        path.write_text(json.dumps(content))

    return change


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.onnx", cut),
        ("model.onnx", turned),
        ("model.onnx", Path.unlink),
        ("times.json", turned),
        ("graph.fst", turned),
        ("graph.fst", Path.unlink),
        ("graph.json", Path.unlink),
        ("graph.json", turned),
        ("metadata.json", without("sha256")),
        ("metadata.json", without("digest")),
        ("metadata.json", turned),
        ("metadata.json", cut),
        ("metadata.json", Path.unlink),
    ],
)
def test_a_damaged_export_is_named(ctc, speech, tmp_path, name, damage):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    out = tmp_path / "exported"
    assert run("export", ctc, "--out", out, "--grammar", "loop")[0] == 0
    damage(out / name)
    code, _, said = run("transcribe", out, speech)
    assert (code, said.count("\n")) == (1, 1), said
    assert f"the export in {out} is incomplete or damaged" in said


def test_a_network_that_onnxruntime_does_not_take_is_told(ctc, speech, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    out = tmp_path / "exported"
    assert run("export", ctc, "--out", out, "--grammar", "greedy")[0] == 0
    (out / "model.onnx").write_bytes(b"of a later version")
    facts = json.loads((out / "metadata.json").read_text())
    facts["sha256"]["model.onnx"] = sha256_of(out / "model.onnx")
    (out / "metadata.json").write_text(json.dumps({**facts, "digest": digest_of(facts)}))
    code, _, said = run("transcribe", out, speech)
    assert (code, said.count("\n")) == (1, 1), said
    assert f"cannot open {out / 'model.onnx'}" in said


def test_export_is_whole_or_not_at_all(hybrid, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install murmur-asr[deploy])")
    out = tmp_path / "exported"
    assert run("export", hybrid, "--out", out)[0] == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    code, _, said = run("export", hybrid, "--out", out)
    assert code == 1
    assert f"{out} holds an export already (tones_experiment" in said.replace(str(hybrid.parent) + "/", "")
    assert "--force" in said
    monkeypatch.setattr("murmur.speech.decoding.onnx_file.TOLERANCE", -1.0)
    code, _, said = run("export", hybrid, "--out", out, "--force")
    assert code == 1
    assert "from the network's" in said
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [".exported.lock", "exported"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    code, _, said = run("export", hybrid, "--out", tmp_path / "mine")
    assert code == 1
    assert "holds files that are not an export" in said
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_features_from_elsewhere_are_refused(tmp_path):
    file = make_experiment(tmp_path)
    code, _, said = run("train", file, "--set", "budget.epochs=1", "--out", tmp_path / "run", "--threads", 1)
    assert code == 0, said
    for command in (("export", tmp_path / "run", "--out", tmp_path / "x"), ("transcribe", tmp_path / "run", file)):
        code, _, said = run(*command)
        assert code == 1
        assert "features that came with the corpus" in said


def test_times_and_confidences(hybrid, speech):
    found = json.loads(transcribed(hybrid, speech, "--format", "json"))
    assert [w["word"] for w in found["words"]] == WORDS
    samples = tones(WORDS, 99)
    loud = np.flatnonzero(np.abs(samples) > 0.1) / RATE
    assert found["words"][0]["start_seconds"] == pytest.approx(loud[0], abs=0.03)
    assert found["words"][-1]["end_seconds"] == pytest.approx(loud[-1], abs=0.03)
    assert all(0.5 < w["confidence"] <= 1 for w in found["words"])


def test_long_recordings_are_cut_in_pauses(hybrid, tmp_path):
    path = tmp_path / "long.flac"
    soundfile.write(path, np.concatenate([tones(WORDS, seed) for seed in range(3)]), RATE)
    found = json.loads(transcribed(hybrid, path, "--format", "json", "--longest", "1.2"))
    assert len(found["pieces"]) > 2
    assert [w["word"] for w in found["words"]] == WORDS * 3
    starts = [w["start_seconds"] for w in found["words"]]
    assert starts == sorted(starts)


@pytest.mark.parametrize("kind", ["sph", "wav"])
def test_a_call_of_two_channels_at_another_rate(hybrid, tmp_path, kind):
    """A system of 8 kHz hears 16 kHz, and each side of a call alone; the mean of both sides is another recording."""
    left, right = tones(["ANNA", "NOB", "BOB"], 5), tones(["NOB", "ANNA", "BOB"], 6)
    length = min(len(left), len(right))  # they end in silence
    sides = [left[:length], right[:length]]
    path = tmp_path / f"call.{kind}"
    if kind == "sph":
        write_sphere(path, *sides)
    else:
        soundfile.write(path, np.stack([soxr.resample(side, RATE, 2 * RATE) for side in sides], 1), 2 * RATE)
    code, out, said = run("transcribe", hybrid, path, "--channels", "each")
    assert code == 0, said
    assert out.splitlines() == [f"{path}, channel A: ANNA NOB BOB", f"{path}, channel B: NOB ANNA BOB"]
    assert ("channel B: resampled from 16000 to 8000 Hz" in said) == (kind == "wav")
    assert "averaged" not in said
    assert run("transcribe", hybrid, path, "--channels", "each", "--format", "ctm", "--out", tmp_path / "out")[0] == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["call-A.ctm", "call-B.ctm"]
    rows = [line.split() for line in (tmp_path / "out/call-B.ctm").read_text().splitlines()]
    assert [(row[1], row[4]) for row in rows] == [("B", "NOB"), ("B", "ANNA"), ("B", "BOB")]
    code, _, said = run("transcribe", hybrid, path)
    assert code == 0
    assert "2 channels averaged" in said


def test_others_are_done_when_one_is_broken(hybrid, speech, tmp_path):
    broken = tmp_path / "bro[ken].wav"
    broken.write_bytes(b"RIFF but no more")
    empty = tmp_path / "empty.wav"
    soundfile.write(empty, np.zeros(0), RATE)
    stereo = tmp_path / "two words;.wav"
    soundfile.write(stereo, np.stack([tones(["BOB"], 5)] * 2, 1), RATE)
    out = tmp_path / "out"
    code, _, said = run("transcribe", hybrid, broken, empty, stereo, speech, "--format", "ctm", "--out", out)
    assert code == 3
    assert "1 of 4 could not be read" in said
    assert "2 channels averaged" in said
    assert sorted(p.name for p in out.iterdir()) == ["empty.ctm", "said.ctm", "two words;.ctm"]
    assert (out / "empty.ctm").read_text() == ""
    (line,) = (out / "two words;.ctm").read_text().splitlines()
    assert line.split(" ")[4] == "BOB"
    twice = tmp_path / "more" / "said.flac"
    code, _, said = run("transcribe", hybrid, speech, twice, "--out", out)
    assert code == 1
    assert "written twice" in said
    side = tmp_path / "said-A.flac"  # channel A of said is said-A
    side.write_bytes(speech.read_bytes())
    code, _, said = run("transcribe", hybrid, speech, side, "--out", out, "--channels", "each")
    assert code != 0
    assert "'said-A' would be read or written twice" in said
    late = tmp_path / "said-late.flac"
    late.write_bytes(speech.read_bytes())
    assert run("transcribe", hybrid, speech, late, "--out", tmp_path / "late", "--channels", "each")[0] == 0


def test_streams(hybrid, speech):
    code, out, said = run("transcribe", hybrid, "-", stdin=speech.read_bytes())
    assert (code, out) == (0, " ".join(WORDS) + "\n"), said
    raw = (tones(WORDS, 99) * 32767).astype("<i2").tobytes()
    assert run("transcribe", hybrid, "-", "--rate", RATE, stdin=raw)[:2] == (0, " ".join(WORDS) + "\n")
    code, _, said = run("transcribe", hybrid, "-", stdin=raw)
    assert code == 3
    assert "give --rate" in said


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("run.json", "{", "run.json is damaged or of another kind"),
        ("run.json", "[]", "run.json holds a list, not an object"),
        ("run.json", "{}", ""),
        ("score.json", '{"test": null}', ""),
        ("score.json", "{}", ""),
    ],
)
def test_damaged_records_of_a_run_are_named(ctc, speech, tmp_path, name, text, says):
    folder = tmp_path / "run"
    shutil.copytree(ctc, folder, ignore=shutil.ignore_patterns("checkpoints"))
    (folder / name).write_text(text)
    code, out, said = run("transcribe", folder, speech)
    assert (code, said.count("\n")) == (1, 1) if says else (code, out.strip()) == (0, " ".join(WORDS))
    assert says in said


def test_an_experiment_that_has_changed_is_told(hybrid, corpus, speech, tmp_path):
    file = corpus.parent / "tones_experiment.py"
    wanted = transcribed(hybrid, speech)
    before = file.read_text()
    file.write_text(before.replace('cmvn="speaker"', 'cmvn="none"').replace("size=8", "size=4"))
    try:
        code, out, said = run("transcribe", hybrid, speech)
        assert (code, out.strip(), "has changed" in said) == (0, wanted, False), said
        _, _, asked = run("transcribe", hybrid, speech, "--set", "task.front.cmvn=speaker")
        _, _, decoded = run("decode", file, "--model", hybrid, "--data", "dev", "--out", tmp_path / "decoded")
    finally:
        file.write_text(before)
    for lines in (asked, decoded):
        assert f"{file} has changed since {hybrid} was trained: task.chunks.size was 8 and is 4 now" in lines
        assert "task.front.cmvn was 'speaker' and is 'none' now" in lines


def test_settings_that_are_invalid_alone_are_told_where_others_mend_them(hybrid, speech, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(hybrid, folder, ignore=shutil.ignore_patterns("checkpoints"))
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "settings": ["task.front.cmvn=gone"]}))
    code, out, said = run("transcribe", folder, speech, "--set", "task.front.cmvn=speaker")
    assert (code, out.strip()) == (0, " ".join(WORDS)), said
    assert "the run's settings are not valid by themselves any more" in said
    assert run("transcribe", folder, speech, "--set", "task.jobs=1")[0] == 1


def test_changes_of_descriptions():
    nan = float("nan")
    then = {"rate": nan, "sizes": [1, {"a": 1}, 3], "name": "x", "cache": "here", "only": 1}
    now = {"rate": nan, "sizes": [1, {"a": 1, "new": 2}, 4], "name": "y", "cache": "there"}
    found = list(differences(then, now, "task", IRRELEVANT))
    assert found == [("task.name", "'x'", "'y'"), ("task.sizes[2]", "3", "4")]
    assert list(differences({"sizes": [1]}, {"sizes": [1, 2]}, "task")) == [("task.sizes", "(1)", "(1, 2)")]
    assert len(list(differences({"rate": nan}, {"rate": 1.0}, "task"))) == 1


def test_a_run_is_used_from_any_folder_and_nothing_is_prepared(corpus, speech, tmp_path, monkeypatch):
    """The corpus and the cache of the run were given as relative paths."""
    monkeypatch.chdir(corpus.parent)
    code, _, said = run(
        "train", "ctc", *ctc_settings(Path("set"), Path("cache")), "--out", tmp_path / "run", "--threads", 1
    )
    assert code == 0, said
    here = transcribed(tmp_path / "run", speech)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert transcribed(tmp_path / "run", speech) == here
    code, _, said = run("transcribe", tmp_path / "run", speech, "--set", "task.cache=nothing")
    assert code == 1
    assert "features of train, dev, test, which the run's training prepared, is not in" in said
    assert "--set task.cache=FOLDER" in said
    assert list(Path.cwd().iterdir()) == []


def test_gaussian_systems_are_never_trained_to_use_a_model(hybrid, corpus, speech, tmp_path):
    source = corpus.parent / "tones_experiment.py"
    there = ["--set", f"task.cache={tmp_path / 'cache'}"]
    for words in (
        ["transcribe", hybrid, speech, *there],
        ["decode", source, "--model", hybrid, "--out", tmp_path / "decoded", *there],
        [
            "decode",
            source,
            "--model",
            hybrid,
            "--out",
            tmp_path / "decoded",
            "--set",
            "task.hmm.monophone.gaussians=90",
        ],
        ["export", hybrid, "--out", tmp_path / "exported", *there],
    ):
        code, _, said = run(*words)
        assert code == 1, said
        assert "the Gaussian system monophone-" in said
        assert "a command that uses a model prepares nothing" in said
    assert not list(tmp_path.glob("cache/monophone*"))
    assert not list((corpus.parent / "cache").glob("frames-*.unfinished"))


def test_code_that_a_run_names_is_not_run_unasked(hybrid, speech, tmp_path):
    """A folder made by another user: its run.json names a program, which is needed only without a recogniser."""
    theirs, marker = tmp_path / "run", tmp_path / "was run"
    shutil.copytree(hybrid, theirs)
    (theirs / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nfrom tones_experiment import experiment")
    facts = json.loads((theirs / "run.json").read_text())
    evil = str(theirs / "evil.py")
    (theirs / "run.json").write_text(json.dumps({**facts, "source": evil, "source_file": evil}))
    for options in ((), ("--trust",)):
        assert run("transcribe", theirs, speech, *options)[0] == 0
        assert not marker.exists()
    shutil.rmtree(theirs / "recogniser")
    for words in (["transcribe", theirs, speech], ["export", theirs, "--out", tmp_path / "exported"]):
        code, _, said = run(*words)
        assert code == 1
        assert "was not written by you on this machine" in said
        assert not marker.exists()
    with pytest.raises(ModuleNotFoundError, match="tones_experiment"):
        CliRunner().invoke(app, ["transcribe", str(theirs), str(speech), "--trust"], catch_exceptions=False)
    assert marker.exists()
