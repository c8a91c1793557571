"""Strategies in loops of accelerate, on two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.framework_programs import check_example, learners, needs

pytestmark = [needs("accelerate"), pytest.mark.processes, pytest.mark.timeout(240)]
PROGRAM = "accelerate_program.py"
Results = dict[str, list[dict[str, Any]]]
KAVG = {"strategy": ["KAVG", 5]}


def of_file(path: Path) -> torch.Tensor:
    found = load_file(path)
    return torch.cat([found[name].flatten() for name in ("0.weight", "0.bias", "2.weight", "2.bias")])


def weight(result: dict[str, Any], name: str = "weight") -> torch.Tensor:
    return torch.tensor(result[name])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("accelerate")


@pytest.fixture(scope="module")
def ran(folder: Path) -> Results:
    scaled = {"strategy": ["SyncSGD"], "scaler": 1024.0}
    runs: dict[str, dict[str, Any]] = {
        "ddp": {},
        "sync": {"strategy": ["SyncSGD"]},
        "kavg": {**KAVG, "save": True},
        "resumed": {**KAVG, "resume": True, "checkpoints": str(folder / "kavg" / "checkpoints"), "epochs": 3},
        "whole": {**KAVG, "epochs": 3},
        "adpsgd": {"strategy": ["ADPSGD"], "save": True},
        "bf16": {"strategy": ["SyncSGD"], "accumulate": 2, "precision": "bf16"},
        "bf16 ddp": {"accumulate": 2, "precision": "bf16"},
        "scaled": scaled,
        "clipped": {**scaled, "clip": 0.1},
        "clipped ddp": {"clip": 0.1},
        "overflow": {**scaled, "overflow_at": 2},
    }
    found = learners(PROGRAM, {folder / name: given for name, given in runs.items()})
    return dict(zip(runs, found, strict=True))


def test_learners_end_equal_and_leave_the_optimizer_as_it_was(ran: Results) -> None:
    for name, (first, second) in ran.items():
        assert first["weight"] == second["weight"], name
        assert first["after"] != first["weight"], name
    first, second = ran["sync"]
    assert first["after"] == second["after"]  # of a step of accelerate's own DDP


@pytest.mark.parametrize(
    ("ours", "theirs"), [("sync", "ddp"), ("bf16", "bf16 ddp"), ("scaled", "ddp"), ("clipped", "clipped ddp")]
)
def test_sync_sgd_is_ddp(ran: Results, ours: str, theirs: str) -> None:
    torch.testing.assert_close(weight(ran[ours][0]), weight(ran[theirs][0]), rtol=1e-6, atol=1e-6)
    assert [r["rate"] for r in ran[ours]] == [r["rate"] for r in ran[theirs]]
    assert [r["calls"] for r in ran[ours]] == [r["calls"] for r in ran[theirs]]  # of the hooks of its optimizer


def test_data_are_distinct_and_cover_each_epoch(ran: Results) -> None:
    first, second = (result["seen"] for result in ran["kavg"])
    for epoch in (slice(0, 24), slice(24, 48)):
        assert sorted(first[epoch] + second[epoch]) == list(range(48))


def test_metrics_are_reduced_over_learners(ran: Results) -> None:
    assert all(r["gathered"] == [0.0, 1.0] and r["reduced"] == 0.5 for r in ran["kavg"])


def test_what_is_saved_is_the_consensus(ran: Results, folder: Path) -> None:
    first, second = ran["kavg"]
    for step in map(str, (4, 8, 12)):
        at = folder / "kavg" / "checkpoints" / step
        own = [torch.load(at / f"learner-{rank}-of-2.pt", weights_only=True)["weights"] for rank in range(2)]
        assert [x.tolist() for x in own] == [first["saved"][step], second["saved"][step]]
        mean = (own[0] + own[1]) / 2
        torch.testing.assert_close(of_file(at / "model.safetensors"), mean, rtol=1e-6, atol=1e-6)
    assert first["saved"]["4"] != second["saved"]["4"]
    for name in ("kavg", "adpsgd"):
        assert torch.equal(of_file(folder / name / "final" / "model.safetensors"), weight(ran[name][0]))


def test_consensus_in_the_middle_and_of_save_model(ran: Results, folder: Path) -> None:
    for result in ran["kavg"]:
        first, second, mean = (torch.tensor(row) for row in result["mean"])
        torch.testing.assert_close(mean, (first + second) / 2, rtol=1e-6, atol=1e-6)
        assert not torch.equal(first, second)
    torch.testing.assert_close(of_file(folder / "kavg" / "during" / "model.safetensors"), mean, rtol=1e-6, atol=1e-6)


def test_a_resumed_run_is_the_uninterrupted_one(ran: Results) -> None:
    assert ran["kavg"][0]["states"] == 2
    assert weight(ran["resumed"][0]).equal(weight(ran["whole"][0]))
    assert ran["resumed"][0]["seen"] == ran["whole"][0]["seen"][48:]
    assert ran["resumed"][0]["rate"] == ran["whole"][0]["rate"]


def test_a_learner_whose_gradients_overflow_takes_part(ran: Results) -> None:
    assert not weight(ran["overflow"][0]).equal(weight(ran["scaled"][0]))
    assert torch.isfinite(weight(ran["overflow"][0])).all()
    assert [r["calls"] for r in ran["overflow"]] == [12, 12]
    assert not any(any(r["skipped"]) for r in ran["overflow"])
    assert ran["overflow"][0]["rate"] == ran["overflow"][1]["rate"]


@pytest.mark.slow
def test_under_torchrun_it_is_the_same(ran: Results, tmp_path: Path) -> None:
    found = learners(PROGRAM, {tmp_path: KAVG}, launcher="torchrun")
    assert found[0][0]["weight"] == ran["kavg"][0]["weight"]


@pytest.mark.slow
def test_one_learner_resumes_what_two_have_saved(ran: Results, folder: Path, tmp_path: Path) -> None:
    given = {**KAVG, "resume": True, "checkpoints": str(folder / "kavg" / "checkpoints"), "epochs": 2}
    ((alone,),) = learners(PROGRAM, {tmp_path: given}, count=1)
    assert alone["size"] == 1
    assert len(alone["seen"]) == 48  # 12 steps of two are one of its own epochs
    assert torch.isfinite(weight(alone)).all()


@pytest.mark.slow
def test_a_killed_learner_and_a_restart(ran: Results, tmp_path: Path) -> None:
    given = {**KAVG, "save": True, "resume": True, "kill_at": 7}
    ((first, second),) = learners(PROGRAM, {tmp_path: given}, options=["--restarts", "1"])
    assert (tmp_path / "killed").exists()
    assert first["weight"] == second["weight"] == ran["kavg"][0]["weight"]
    assert len(second["seen"]) == 32  # of the steps after the checkpoint


@pytest.mark.slow
def test_the_example_resumes(tmp_path: Path) -> None:
    for _ in range(2):
        check_example("accelerate_local.py", tmp_path)
    assert (tmp_path / "8" / "learner-1-of-2.pt").exists()
