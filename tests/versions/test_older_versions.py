"""Runs and exports of older versions, kept for ever in folders of their versions, are read by this one.

Each folder holds `toy`, a run of two learners by `KAVG`, and `ctc`, a recogniser of tones, with its `export`. Of
`ctc` the checkpoints, the trace and five of six steps of the records have been removed. `said.wav` says ANNA BOB NOB in
tones; the corpus of `ctc` is that of `tests.support.tones.make_tones`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from murmur.cli import app
from murmur.engine.checkpoints.checkpoint import read_pair

HERE = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "toy").is_dir())
NEWEST = 24  # minibatches at the newest checkpoint of `toy`, its budget; the one before it is of 16
SPOKEN = "ANNA BOB NOB"


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what one version has written."""
    return Path(shutil.copytree(HERE / str(request.param), tmp_path / str(request.param)))


def murmur(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def resumed(run: Path, *more: str) -> tuple[int, str]:
    """Continue a run by `murmur train --resume`, whose learners are processes; return the status and what they say."""
    asked = json.loads((run / "request.json").read_text())
    words = ["train", asked["source"], "--learners", str(asked["learners"]), "--strategy", asked["strategy"]]
    settings = [word for setting in (*asked["settings"], *more) for word in ("--set", setting)]
    command = [sys.executable, "-m", "murmur", *words, *settings, "--threads", "1", "--out", str(run), "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def needs(module: str, extra: str) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed (pip install 'murmur-asr[{extra}]')")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_first_version_is_kept() -> None:
    assert "0.1.0" in VERSIONS


def test_report(kept: Path) -> None:
    needs("matplotlib", "viz")
    status, told = murmur("report", kept / "toy", kept / "ctc", "--out", kept / "report.html")
    assert status == 0, told
    page = (kept / "report.html").read_text()
    assert "KAVG(K=4" in page
    assert f"murmur {kept.name}" in page


def test_watch_and_timeline(kept: Path) -> None:
    status, told = murmur("watch", kept / "toy", "--once")
    assert status == 0, told
    assert "finished" in told
    assert "100.0 %" in told
    status, told = murmur("timeline", kept / "toy", "--out", kept / "timeline.svg")
    assert status == 0, told
    assert "learner 1" in (kept / "timeline.svg").read_text()


@pytest.mark.processes
def test_resume_ends_with_the_weights_of_the_older_version(kept: Path) -> None:
    run = kept / "toy"
    weights = read_pair(run / "model")[0]["weights"]
    status, told = resumed(run)
    assert status == 0, told
    assert "is finished" in told
    shutil.rmtree(run / f"checkpoints/{NEWEST:010d}")
    for path in (*run.glob(f"checkpoints/marks/{NEWEST:010d}.*"), *run.glob("model.*"), run / "ended.json"):
        path.unlink()
    status, told = resumed(run)
    assert status == 0, told
    torch.testing.assert_close(read_pair(run / "model")[0]["weights"], weights, atol=1e-4, rtol=1e-4)


@pytest.mark.processes
def test_a_resume_with_another_model_is_refused_and_changes_nothing(kept: Path) -> None:
    before = contents(kept)
    status, told = resumed(kept / "toy", "task.hidden=9")
    assert status == 1
    assert "it is of another experiment" in told
    assert {path: content for path, content in contents(kept).items() if path.name != ".lock"} == before


def test_recognition_with_a_run(kept: Path) -> None:
    needs("kaldi_hmm_gmm", "speech")
    status, told = murmur("transcribe", kept / "ctc", HERE / "said.wav", "--grammar", "loop")
    assert status == 0, told
    assert SPOKEN in told


def test_recognition_with_an_export(kept: Path) -> None:
    needs("kaldi_hmm_gmm", "speech")
    needs("onnxruntime", "deploy")
    status, told = murmur("transcribe", kept / "export", HERE / "said.wav")
    assert status == 0, told
    assert SPOKEN in told


def test_an_export_of_an_older_run(kept: Path) -> None:
    needs("kaldi_hmm_gmm", "speech")
    needs("onnxruntime", "deploy")
    status, told = murmur("export", kept / "ctc", "--to", "onnx", "--out", kept / "new")
    assert status == 0, told
    rates = {json.loads((kept / name / "metadata.json").read_text())["sample_rate"] for name in ("export", "new")}
    assert rates == {"8000"}
