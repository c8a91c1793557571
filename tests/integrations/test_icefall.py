"""Strategies in a program of icefall's shape, beside PyTorch's DDP, on two processes."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

PROGRAM = Path(__file__).with_name("icefall_program.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "icefall_shape.py"
KAVG = {"strategy": "KAVG(4)"}
RUNS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "DDP"},
    "sync": {"strategy": "SyncSGD()"},
    "kavg": KAVG,
    "failed": {**KAVG, "fails_at": 13},
    "resumed": {**KAVG, "resumes": "failed"},
    "adpsgd": {"strategy": "ADPSGD()"},
}
SAVED = 10  # the newest checkpoint of "failed", in the middle of its second epoch
Said = dict[str, Any]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def start(folder: Path, runs: dict[str, dict[str, Any]], *words: str) -> str:
    """Train, and return the messages of the launch."""
    command = [sys.executable, "-m", "murmur", "launch", "--threads", "1", *words, str(PROGRAM), str(folder)]
    done = subprocess.run([*command, json.dumps(runs)], check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def said(folder: Path, learners: int = 2) -> list[Said]:
    return [json.loads((folder / f"ended-{rank}.json").read_text()) for rank in range(learners)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("icefall")
    start(found, RUNS, "--learners", "2")
    return found


def in_checkpoint(path: Path) -> Tensor:
    return torch.cat([x.flatten() for x in torch.load(path, weights_only=True)["model"].values()])


def states(folder: Path) -> list[Tensor]:
    return [torch.load(file, weights_only=True)["weights"] for file in sorted(folder.glob("learner-*-of-2.pt"))]


def trained(run: Said) -> list[list[int]]:
    """Batches of training, as numbers of cuts."""
    return [batch for batch in run["seen"] if batch[0] < 10000]


def epochs() -> list[int]:
    """Cuts of all epochs of one learner; lhotse leaves a few out."""
    program = runpy.run_path(str(EXAMPLE))
    sampler, found = program["loader"](program["drawn_cuts"](120, 0), True, 0, 1).sampler, []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        found += [int(cut.id) for batch in sampler for cut in batch]
    return sorted(found)


def read(runs: Sequence[Said]) -> list[int]:
    return sorted(n for run in runs for batch in trained(run) for n in batch)


@pytest.mark.parametrize("name", ["sync", "kavg", "resumed", "adpsgd"])
def test_learners_end_equal(folder: Path, name: str) -> None:
    first, second = said(folder / name)
    assert first["weights"] == second["weights"]
    assert first["loss"] == second["loss"]


def test_sync_sgd_is_ddp(folder: Path) -> None:
    (ours, _), (theirs, _) = said(folder / "sync"), said(folder / "ddp")
    torch.testing.assert_close(torch.tensor(ours["weights"]), torch.tensor(theirs["weights"]), rtol=0, atol=1e-6)
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6)


@pytest.mark.parametrize("name", ["kavg", "adpsgd"])
def test_all_learners_validate_the_same_consensus(folder: Path, name: str) -> None:
    first, second = said(folder / name)
    assert len(first["validated"]) == len(second["validated"])
    assert first["validated"][0] == second["validated"][0]
    assert first["validated"][-1] == second["validated"][-1]


def test_the_checkpoint_of_an_epoch_is_what_was_validated_and_the_final_model(folder: Path) -> None:
    run, saved = said(folder / "kavg")[0], in_checkpoint(folder / "kavg" / "epoch-3.pt")
    torch.testing.assert_close(saved, torch.tensor(run["validated"][-1]), rtol=0, atol=1e-6)
    torch.testing.assert_close(saved, torch.tensor(run["weights"]), rtol=0, atol=1e-6)


def test_a_checkpoint_in_a_round_is_the_consensus(folder: Path) -> None:
    own = states(folder / "failed" / f"learners-{SAVED}")
    assert len(own) == 2
    assert not torch.equal(*own)
    saved = in_checkpoint(folder / "failed" / f"checkpoint-{SAVED}.pt")
    torch.testing.assert_close(saved, torch.stack(own).mean(0), rtol=0, atol=1e-6)


def test_old_states_are_removed(folder: Path) -> None:
    assert len(list((folder / "kavg").glob("learners-*"))) == 3


def test_data_are_distinct_and_cover_each_epoch(folder: Path) -> None:
    runs = said(folder / "kavg")
    assert len(trained(runs[0])) == len(trained(runs[1]))
    assert read(runs) == epochs()
    assert len(epochs()) > 3 * 110


def test_a_run_resumes_in_the_middle_of_an_epoch_to_the_bit(folder: Path) -> None:
    for resumed, whole in zip(said(folder / "resumed"), said(folder / "kavg"), strict=True):
        assert resumed["weights"] == whole["weights"]
        assert trained(resumed) == trained(whole)[SAVED:]


@pytest.mark.slow
def test_one_learner_resumes_a_run_of_two(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "failed", tmp_path / "failed")
    start(tmp_path, {"alone": {**KAVG, "resumes": "failed"}}, "--learners", "1")
    (alone,) = said(tmp_path / "alone", learners=1)
    before = [n for run in said(folder / "kavg") for batch in trained(run)[:SAVED] for n in batch]
    assert sorted(before + read([alone])) == epochs()


@pytest.mark.slow
def test_a_killed_learner_and_a_restart(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    start(tmp_path, {"killed": {**KAVG, "dies_at": 13}}, "--learners", "2", "--restarts", "1")
    for restarted, whole in zip(said(tmp_path / "killed"), said(folder / "kavg"), strict=True):
        assert restarted["weights"] == whole["weights"]
        assert trained(restarted) == trained(whole)[SAVED:]


@pytest.mark.slow
def test_processes_of_torch_multiprocessing(tmp_path: Path) -> None:
    words = ["--exp-dir", str(tmp_path), "--world-size", "2", "--num-epochs", "1", "--master-port", "29731"]
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), *words], check=False, timeout=280, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "epoch 1 of 2 learners" in run.stdout
    assert len(states(max(tmp_path.glob("learners-*")))) == 2
