"""The demo ends with the same figures after any number of kills, and leaves no process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

if any(find_spec(name) is None for name in ("lhotse", "kaldi_hmm_gmm", "jinja2", "espeakng_loader")):
    pytest.skip("the demo needs the extras speech, synth and viz", allow_module_level=True)

from murmur.core.errors import SettingError
from murmur.run.training import write_run
from murmur.speech.corpus.synth import Synthesizer
from murmur.speech.recipes.demo import Demo, finished, is_same, read_phases, run_demo

pytestmark = pytest.mark.processes

TINY = [
    "task.digits.train=40",
    "task.digits.dev=6",
    "task.digits.test=8",
    "task.hmm.monophone.gaussians=80",
    "task.hmm.monophone.grow_passes=3",
    "task.hmm.monophone.passes=4",
    "task.hmm.monophone.align_passes=(2,3)",
    "task.network.hidden=24",
    "task.chunks.size=4",
    "task.decoding.network.scales=(0.3,)",
    "budget.epochs=3",
    "evaluate_every_epochs=0.25",
]
PROGRAM = """
import logging, sys
from pathlib import Path
from murmur.speech.recipes.demo import Demo
logging.basicConfig(level=logging.INFO)
sys.exit(Demo(Path(sys.argv[1]), settings=tuple(sys.argv[2:])).run())
"""


def start(out: Path, settings: list[str] = TINY) -> subprocess.Popen[bytes]:
    """The demo in a separate process group, with its output in a file beside `out`."""
    log = out.with_suffix(".log").open("ab")
    command = [sys.executable, "-c", PROGRAM, str(out), *settings]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def members(group: int) -> list[int]:
    """Running processes of a group, without zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def gone(group: int, seconds: float) -> list[int]:
    """Members left after at most this many seconds."""
    deadline = time.monotonic() + seconds
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return members(group)


def results(out: Path) -> list[object]:
    """Scores and weights of both runs."""
    runs = [out / name for name in ("one-learner", "two-learners")]
    scores = [json.loads((run / "score.json").read_text())["test"] for run in runs]
    # The speed of decoding is the only figure that may differ.
    kept = [{k: v for k, v in score.items() if "real-time" not in k} for score in scores]
    return [*kept, *((run / "model.safetensors").read_bytes() for run in runs)]


def text_of(out: Path) -> str:
    return out.with_suffix(".log").read_text()


def test_a_finished_run_is_one_with_a_score_of_the_same_experiment(tmp_path: Path) -> None:
    request = Demo(tmp_path, settings=tuple(TINY)).request(1)
    assert not finished(request)
    write_run(request, request.experiment())
    assert not finished(request)
    (request.out / "score.json").write_text("{}")
    assert finished(request)
    other = Demo(tmp_path, settings=(*TINY, "seed=5")).request(1)
    assert other.out == request.out
    assert not finished(other)
    (request.out / "score.json").write_text("{")
    assert not finished(request)


def test_a_run_of_another_experiment_is_neither_taken_over_nor_lost(tmp_path: Path, monkeypatch) -> None:
    request = Demo(tmp_path, settings=tuple(TINY)).request(1)
    request.out.mkdir()
    (request.out / "run.json").write_text('{"digest": "0123456789abcdef"}')
    (request.out / "records.jsonl").write_text("{}")
    monkeypatch.setattr("murmur.speech.recipes.demo.Demo.prepare", lambda self: pytest.fail("it is refused first"))
    with pytest.raises(SettingError, match=r"holds a run already.*--force"):
        Demo(tmp_path, settings=tuple(TINY)).run()
    assert (request.out / "records.jsonl").read_text() == "{}"
    monkeypatch.setattr("murmur.speech.recipes.demo.Demo.prepare", lambda self: None)
    monkeypatch.setattr("murmur.speech.recipes.demo.Launch.run", lambda self: 1)
    assert Demo(tmp_path, settings=tuple(TINY), force=True).run() == 1
    assert not (request.out / "records.jsonl").exists()
    assert is_same(request.out, request.experiment().digest())
    (request.out / "run.json").write_text('{"half')
    assert not is_same(request.out, request.experiment().digest())


def test_a_phase_that_was_found_done_keeps_its_time(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    with demo.phase("corpus", "made"):
        time.sleep(0.2)
    with demo.phase("corpus", "found"):
        pass
    assert read_phases(tmp_path / "phases.json")["corpus"] >= 0.2


def test_a_machine_that_cannot_speak_is_told_what_to_install(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("murmur.speech.corpus.synth.espeakng_loader", None)
    monkeypatch.setattr("murmur.speech.recipes.demo.Demo.prepare", lambda self: Synthesizer())
    assert run_demo(tmp_path) == 1
    assert "murmur-asr[synth]" in capsys.readouterr().out


PHASES = ("corpus", "features", "alignment", "training")


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_killing_the_parent_alone_leaves_nothing(phase: str, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    settings = [word.replace("train=40", "train=700") if phase != "training" else word for word in TINY]
    process = start(out, settings)
    deadline = time.monotonic() + 110
    while phase not in text_of(out) and time.monotonic() < deadline:
        time.sleep(0.02)
    while len(members(process.pid)) < 2 and time.monotonic() < deadline:  # until it has started others
        time.sleep(0.02)
    assert process.poll() is None, text_of(out)
    process.kill()
    process.wait()
    try:
        assert gone(process.pid, 5.0) == []
    finally:
        if members(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_at_random_times_change_nothing(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    assert start(whole).wait() == 0, text_of(whole)
    seconds = time.monotonic() - began
    random_times = random.Random(1)
    for _ in range(5):
        process = start(killed)
        time.sleep(random_times.uniform(0.1, 0.7) * seconds)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert gone(process.pid, 5.0) == []
    assert start(killed).wait() == 0, text_of(killed)
    assert results(killed) == results(whole)
    assert (killed / "report.html").is_file()
    again = start(killed)
    assert again.wait() == 0
    assert text_of(killed).count("finished before") >= 2
