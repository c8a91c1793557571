"""Scripts with loops of their own on the virtual clock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from murmur.cli import app
from murmur.report.page import write_report
from murmur.report.read import read_run
from murmur.report.watch import Watched
from murmur.simulation import script_learner
from murmur.simulation.scenario import Scenario
from murmur.simulation.script_run import ScriptSimulation, is_script

pytestmark = pytest.mark.timeout(120)
BESIDE = """
import torch
seen = []
def net():
    return torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
    )
"""
BEGIN = """
import os, random, sys, threading
from pathlib import Path
import numpy as np
import torch
import murmur
from murmur.strategies import *
import beside

def take(me, model, steps):
    for n in range(steps):
        loss = model(torch.randn(4, 3) + random.random() + np.random.rand()).square().mean()
        loss.backward()
        me.step(loss=loss)

rank = int(os.environ["RANK"])
torch.manual_seed(rank), random.seed(rank), np.random.seed(rank)
model = beside.net()
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
"""
BLOCKS = """
beside.seen.append(rank)
os.chdir(sys.argv[1])
for number, strategy in enumerate(sys.argv[2:]):
    with murmur.join(eval(strategy), model, optimizer) as me:
        assert (me.rank, me.size) == (rank, int(os.environ["WORLD_SIZE"]))
        take(me, model, 7)
        with me.consensus() as mean:
            if rank == 0:
                me.record({"loss": 1.5 + number})
    os.environ["SEEN"] = os.environ.get("SEEN", "") + str(rank)
assert os.environ["SEEN"] == str(rank) * len(sys.argv[2:])
assert beside.seen == [rank]
assert sys.modules["__main__"].rank == rank
torch.save(model.state_dict(), f"{rank}.pt")
"""
ONE_BLOCK = """
with murmur.join(eval(sys.argv[1]), model, optimizer) as me:
    take(me, model, 20)
"""
STEP = Scenario(learners=4, step_seconds=1.0, stragglers=("0=10x",))


def script(folder: Path, body: str) -> str:
    (folder / "beside.py").write_text(BESIDE)
    (folder / "loop.py").write_text(BEGIN + body)
    return str(folder / "loop.py")


def simulate(folder: Path, body: str, scenario: Scenario, *words: str) -> int:
    return ScriptSimulation(script(folder, body), words, scenario, folder / "run").run()


def records(folder: Path, kind: str = "step") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [record for record in found if record["kind"] == kind]


def ends(folder: Path) -> dict[int, float]:
    """Return the seconds of each learner's last step."""
    return {record["learner"]: record["seconds"] for record in records(folder)}


@pytest.mark.processes
def test_lock_step_weights_are_those_of_real_processes(tmp_path: Path) -> None:
    strategies = ["SyncSGD()", "KAVG(2)", "DelayByOne()", "BMUF(K=3)"]
    words = [sys.executable, "-m", "murmur", "launch", "--learners", "2", "--threads", "1", script(tmp_path, BLOCKS)]
    for folder in ("real", "virtual"):
        (tmp_path / folder).mkdir()
    done = subprocess.run([*words, str(tmp_path / "real"), *strategies], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        simulate(tmp_path, BLOCKS, Scenario(learners=2, step_seconds=0.1), str(tmp_path / "virtual"), *strategies) == 0
    )
    for rank in (0, 1):
        real, virtual = (torch.load(tmp_path / name / f"{rank}.pt", weights_only=True) for name in ("real", "virtual"))
        assert all(torch.equal(real[name], virtual[name]) for name in real)
    assert sys.modules["__main__"].__dict__.get("rank") is None
    assert "beside" not in sys.modules


def test_it_writes_what_a_simulated_experiment_writes(tmp_path: Path) -> None:
    path, out = script(tmp_path, BLOCKS), tmp_path / "run"
    words = [path, "--learners", "2", "--step-seconds", "1", "--straggler", "0=10x", "--out", str(out)]
    words += ["--", str(tmp_path), "KAVG(4)", "ADPSGD()"]
    done = CliRunner().invoke(app, ["simulate", *words], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "KAVG(K=4, moments=local): evaluation points" in done.output
    facts = json.loads((out / "run.json").read_text())
    assert (facts["learners"], facts["source"]) == (2, path)
    assert facts["simulated"]["compute"] == {
        "type": "murmur.worlds.virtual.cluster.ConstantSeconds",
        "seconds": 1.0,
        "factors": {"0": 10.0},
    }
    found = json.loads((out / "simulated.json").read_text())
    assert found["minibatches"] == 28
    assert found["seconds"] == pytest.approx(2 * 70, rel=0.05)  # of both blocks
    assert [mark["figures"]["loss"] for mark in found["marks"]] == [1.5, 2.5]
    assert found["compute_seconds"] == pytest.approx([140, 14], abs=0.01)
    assert len(records(out)) == len(records(out / "block-2")) == 14
    spans = [span for span in json.loads((out / "trace.json").read_text()) if span["ph"] == "X"]
    assert {span["dur"] for span in spans if span["cat"] == "compute"} == {1e6, 1e7}
    watched = Watched(out, time.time)
    watched.look()
    assert watched.state == "finished"
    run = read_run(out)
    assert (run.problems, run.simulated["kind"]) == ((), "v100-ethernet")
    write_report([out], tmp_path / "page.html")
    assert "virtual seconds" in (tmp_path / "page.html").read_text()
    done = CliRunner().invoke(app, ["simulate", *words])
    assert f"{out} holds a run already" in done.output
    done = CliRunner().invoke(app, ["simulate", *words[:-4], "--force", *words[-4:]])
    assert done.exit_code == 0, done.output


def test_a_straggler_holds_up_lock_step_learners_only(tmp_path: Path) -> None:
    for strategy, expected in [
        ("ADPSGD()", {0: 200, 1: 20, 2: 20, 3: 20}),
        ("KAVG(5)", {0: 200, 1: 155, 2: 155, 3: 155}),  # three rounds of 50 s, and five steps
        ("SuperLearners(ADPSGD(), 2)", {0: 200, 1: 200, 2: 20}),
    ]:
        folder = tmp_path / strategy
        folder.mkdir()
        assert simulate(folder, ONE_BLOCK, STEP, strategy) == 0
        found = ends(folder / "run")
        assert {learner: found[learner] for learner in expected} == pytest.approx(expected, rel=0.01)


def test_the_same_script_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        assert simulate(tmp_path / name, ONE_BLOCK, STEP, "ADPSGD(mixing=murmur.randomized_ring)") == 0
    a, b = (tmp_path / name / "run" / "records.jsonl" for name in ("a", "b"))
    assert a.read_bytes() == b.read_bytes()


def test_a_step_takes_the_time_that_the_loop_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count()
    monkeypatch.setattr("murmur.user_loop.loop.time.thread_time", lambda: float(next(seconds)))
    assert simulate(tmp_path, ONE_BLOCK, Scenario(learners=2, stragglers=("1=3x",)), "ADPSGD()") == 0
    assert ends(tmp_path / "run") == pytest.approx({0: 20, 1: 60}, rel=0.01)


def test_a_killed_learner_starts_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = Scenario(learners=3, step_seconds=1.0, kills=("1@5.5s",), rejoins=("1@9.5s",), lease_seconds=2.0)
    body = "open(f'{sys.argv[2]}/{rank}', 'a').write('began ')" + ONE_BLOCK
    assert simulate(tmp_path, body, scenario, "ADPSGD()", str(tmp_path)) == 0
    assert [(tmp_path / str(rank)).read_text().split() for rank in range(3)] == [["began"], ["began"] * 2, ["began"]]
    assert 28 < ends(tmp_path / "run")[1] < 31
    (tmp_path / "other").mkdir()
    assert simulate(tmp_path / "other", ONE_BLOCK, scenario, "SyncSGD()") == 1
    assert "learner 1 was killed at t=5.500s" in capsys.readouterr().err
    assert json.loads((tmp_path / "other" / "run" / "ended.json").read_text())["state"] == "failed"


def test_times_of_a_joined_run_can_be_replayed(tmp_path: Path) -> None:
    spans = []
    for n in range(20):
        own = {"ph": "X", "cat": "compute", "pid": 0}
        spans += [{**own, "name": "loop", "ts": 2e6 * n, "dur": 1.5e6}]
        spans += [{**own, "name": "gradient", "ts": 2e6 * n + 1.5e6, "dur": 1.0}]
    (tmp_path / "trace.json").write_text(json.dumps(spans))
    assert simulate(tmp_path, ONE_BLOCK, Scenario(learners=2, trace=tmp_path), "ADPSGD()") == 0
    assert ends(tmp_path / "run")[0] == pytest.approx(30, rel=0.01)


ELSEWHERE = "import torch\nnet = torch.nn.Linear(3, 1)\n"
REFUSED = {
    "torch.distributed.init_process_group('gloo')": "the script starts the default group of torch.distributed",
    "murmur.take_place()" + ONE_BLOCK: "the script has taken its place from the environment",
    """
model = torch.nn.Linear(3, 1, bias=False, device="meta")
with murmur.join(SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.1)):
    pass
""": "weight on meta: the learners of a simulation",
    "print('nothing')": "learner 0 has ended without a block of murmur.join",
    "with murmur.join(SyncSGD(), model, optimizer): pass": "no learner has taken a step in its block",
    "sys.exit(3)": "learner 0 has ended with exit status 3",
    "if rank == 1: sys.exit()" + ONE_BLOCK: "learner 1 has ended without a block of murmur.join",
    ONE_BLOCK + "if rank == 1:" + ONE_BLOCK.replace("\n", "\n    "): "learner 1 (training): waiting since",
    """
import elsewhere
with murmur.join(SyncSGD(), elsewhere.net, torch.optim.SGD(elsewhere.net.parameters(), 0.1)) as me:
    take(me, elsewhere.net, 2)
""": "state outside the block: learners 0 and 1 have joined one parameter, weight of elsewhere.net",
    """
from dataclasses import replace
from murmur.worlds.process.environment import place_of
with murmur.join(SyncSGD(), model, optimizer, seat=replace(place_of(), size=9)) as me:
    take(me, model, 2)
""": "learner 0 of 2 joins as learner 0 of 9",
    """
with murmur.join(SyncSGD(), model, optimizer) as me:
    beside_it = threading.Thread(target=take, args=(me, model, 1))
    beside_it.start(), beside_it.join()
    take(me, model, 1)
""": "a simulated script calls murmur in its own thread",
    """
import contextvars
with murmur.join(SyncSGD(), model, optimizer) as me:
    beside_it = threading.Thread(target=contextvars.copy_context().run, args=(take, me, model, 1))
    beside_it.start(), beside_it.join()
    take(me, model, 1)
""": "murmur was called in a thread or process that the script has started",
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("body", REFUSED)
def test_what_cannot_be_simulated_is_refused_with_the_reason(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "elsewhere.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.delitem(sys.modules, "elsewhere", raising=False)
    own = torch.distributed.init_process_group
    assert simulate(tmp_path, body, Scenario(learners=2, step_seconds=1.0), "SyncSGD()") == 1
    said = capsys.readouterr().err
    assert REFUSED[body] in said
    assert not (tmp_path / "run").exists() or (tmp_path / "run" / "ended.json").exists()
    assert torch.distributed.init_process_group is own


def test_an_error_of_the_script_shows_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(tmp_path, "if rank == 1: raise ValueError('of mine')" + ONE_BLOCK, STEP, "SyncSGD()") == 1
    said = capsys.readouterr().err
    assert "raise ValueError('of mine')" in said
    assert "script_learner.py" not in said
    assert "loop.py: ValueError: of mine, in learner 1 of the simulation" in said
    assert not (tmp_path / "run").exists()


def test_a_learner_that_waits_outside_of_murmur_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script_learner, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(script_learner, "STILL_SECONDS", 0.6)
    body = "if rank == 0: threading.Event().wait(20)" + ONE_BLOCK
    assert simulate(tmp_path, body, STEP, "SyncSGD()") == 1
    line = (BEGIN + body).splitlines().index("if rank == 0: threading.Event().wait(20)") + 1
    assert f"at line {line} of {tmp_path}/loop.py without computing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--strategy", "KAVG"], "--strategy is for experiments"),
        (["--set", "a=1"], "--set is for experiments"),
        (["--timing-only"], "--timing-only is for experiments"),
        (["--weights", "last"], "--weights is for experiments"),
        (["--jobs", "2"], "--jobs is for experiments"),
    ],
)
def test_options_of_experiments_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["simulate", script(tmp_path, ONE_BLOCK), *words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "run").exists()


def test_words_of_a_script_are_refused_for_an_experiment(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["simulate", "toy", "--out", str(tmp_path / "run"), "--", "word"])
    assert done.exit_code == 1
    assert "word: an experiment takes no words of its own" in done.output


@pytest.mark.parametrize("text", ["def experiment():\n    pass", "from a import b as experiment", "experiment = make"])
def test_files_of_experiments_are_no_scripts(text: str, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(text)
    assert not is_script(str(tmp_path / "file.py"))
    (tmp_path / "file.py").write_text("def main():\n    experiment = 1\n")
    assert is_script(str(tmp_path / "file.py"))
    assert not is_script("toy")
