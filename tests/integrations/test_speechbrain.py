"""Strategies in SpeechBrain, beside its own DDP, on two processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-integrations" / "bin" / "python"
PROGRAM = Path(__file__).with_name("speechbrain_program.py")
STAND_INS = Path(__file__).with_name("stand_ins")
MURMUR = ["-m", "murmur", "launch", "--threads", "1", "--learners"]
INTRA = {"strategy": "KAVG(4)", "ckpt_interval_steps": 4}  # checkpoints after steps 4, 10 and 16, of 6 an epoch
RUNS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "DDP"},
    "sync": {"strategy": "SyncSGD()"},
    "kavg": INTRA,
    "failed": {**INTRA, "fails_at": 11},
    "resumed": {**INTRA, "resumes": "failed"},
    "adpsgd": {"strategy": "ADPSGD()"},
}
Said = dict[str, Any]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="SpeechBrain is in .venv-integrations, which is not there"),
]


def start(launcher: Sequence[str], *words: object) -> subprocess.CompletedProcess[str]:
    paths = [str(path) for path in (ROOT / "src", STAND_INS, ROOT)]
    command = [str(PYTHON), *launcher, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def train(folder: Path, runs: dict[str, dict[str, Any]], launcher: Sequence[str]) -> str:
    """Train in one launch, and return its messages."""
    return start(launcher, PROGRAM, folder, json.dumps(runs)).stderr


def said(folder: Path, learners: int = 2) -> list[Said]:
    return [json.loads((folder / f"ended-{rank}.json").read_text()) for rank in range(learners)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("speechbrain")
    train(found, RUNS, [*MURMUR, "2"])
    return found


def apart(one: Said, other: Said) -> float:
    return float((torch.tensor(one["weights"]) - torch.tensor(other["weights"])).abs().max())


def in_checkpoint(checkpoint: Path) -> Tensor:
    """Weights that SpeechBrain's own files of a checkpoint hold."""
    parts = [torch.load(checkpoint / f"{name}.ckpt", weights_only=True) for name in ("bottom", "top")]
    return torch.cat([part[name].flatten() for part in parts for name in ("weight", "bias")])


def states(checkpoint: Path) -> list[Tensor]:
    """Weights of each learner beside a checkpoint."""
    files = sorted((checkpoint / "murmur.ckpt").glob("learner-*-of-2.pt"))
    return [torch.load(file, weights_only=True)["weights"] for file in files]


def numbers(run: Said, epoch: int) -> list[int]:
    return [n for row in run["seen"] if row[0] == epoch for n in row[1:]]


@pytest.mark.parametrize("name", ["sync", "kavg", "resumed", "adpsgd"])
def test_learners_end_equal(folder: Path, name: str) -> None:
    first, second = said(folder / name)
    assert first["weights"] == second["weights"]
    assert first["steps"] == 18
    assert first["losses"][-1] == second["losses"][-1]


def test_sync_sgd_is_ddp(folder: Path) -> None:
    ours, theirs = said(folder / "sync")[0], said(folder / "ddp")[0]
    assert apart(ours, theirs) < 1e-6
    assert ours["losses"][1][1] == pytest.approx(theirs["losses"][1][1], abs=1e-6)
    assert apart(said(folder / "kavg")[0], theirs) > 1e-3


@pytest.mark.parametrize("name", ["kavg", "adpsgd"])
def test_all_learners_validate_the_same_consensus(folder: Path, name: str) -> None:
    first, second = said(folder / name)
    assert first["validated"] == second["validated"]
    assert len(first["validated"]) == 3
    valid = [[loss for loss in run["losses"] if loss[0] == "VALID"] for run in (first, second)]
    assert valid[0] == valid[1]


def test_checkpoints_hold_the_consensus(folder: Path) -> None:
    found = sorted((folder / "failed" / "save").iterdir())
    assert len(found) == 2
    for checkpoint in found:
        own = states(checkpoint)
        assert len(own) == 2
        assert not torch.equal(*own)  # in the middle of a round
        torch.testing.assert_close(in_checkpoint(checkpoint), torch.stack(own).mean(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["kavg", "adpsgd"])
def test_the_last_checkpoint_is_what_was_validated(folder: Path, name: str) -> None:
    saved = in_checkpoint(max((folder / name / "save").iterdir()))
    assert saved.tolist() == said(folder / name)[0]["validated"][-1]


def test_the_last_checkpoint_is_the_final_model(folder: Path) -> None:
    saved = in_checkpoint(max((folder / "kavg" / "save").iterdir()))
    torch.testing.assert_close(saved, torch.tensor(said(folder / "kavg")[0]["weights"]), rtol=0, atol=1e-6)


def test_one_process_writes(folder: Path) -> None:
    assert {name: (folder / name / "writers").read_text() for name in ("sync", "kavg", "adpsgd")} == {
        "sync": "000",
        "kavg": "000000",
        "adpsgd": "000",
    }
    assert (folder / "sync" / "prepared").read_text() == "once"


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_data_are_distinct_and_cover_the_epoch(folder: Path, epoch: int) -> None:
    first, second = (numbers(run, epoch) for run in said(folder / "kavg"))
    assert len(first) == len(second)
    assert sorted(first + second) == list(range(48))


def test_a_run_resumes_in_the_middle_of_an_epoch_to_the_bit(folder: Path) -> None:
    for resumed, whole in zip(said(folder / "resumed"), said(folder / "kavg"), strict=True):
        assert resumed["weights"] == whole["weights"]
        assert resumed["seen"] == whole["seen"][10:]


def test_one_learner_resumes_a_run_of_two(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "failed", tmp_path / "failed")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    train(tmp_path, {"alone": {**INTRA, "resumes": "failed"}}, torchrun)
    before = [n for run in said(folder / "failed") for row in run["seen"][6:10] for n in row[1:]]
    (alone,) = said(tmp_path / "alone", learners=1)
    assert sorted(before + numbers(alone, 2)) == list(range(48))
    assert sorted(numbers(alone, 3)) == list(range(48))
    assert alone["losses"][-1][1] < 0.3


def test_a_killed_learner_and_a_restart(folder: Path, tmp_path: Path) -> None:
    messages = train(tmp_path, {"killed": {**INTRA, "dies_at": 11}}, [*MURMUR, "2", "--restarts", "1"])
    assert "SIGKILL" in messages or "signal 9" in messages or "status -9" in messages, messages
    for restarted, whole in zip(said(tmp_path / "killed"), said(folder / "kavg"), strict=True):
        assert restarted["weights"] == whole["weights"]
        assert restarted["seen"] == whole["seen"][10:]


def test_the_example(tmp_path: Path) -> None:
    done = start([*MURMUR, "2"], ROOT / "examples" / "speechbrain_brain.py", tmp_path)
    errors = re.findall(r"learner \d of 2: largest error of a weight ([\d.]+)", done.stdout)
    assert len(errors) == 2
    assert errors[0] == errors[1]
    assert float(errors[0]) < 0.05
