"""Strategies in the Trainer of transformers, on two processes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.framework_programs import check_example, learners, needs

pytestmark = [needs("transformers"), pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]
PROGRAM = "trainer_program.py"
Results = dict[str, list[dict[str, Any]]]
STEPS = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4, "logging_steps": 4}
KAVG = {"strategy": ["KAVG", 5], "arguments": STEPS}


def of_file(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["layer.weight"].flatten()


def weight(result: dict[str, Any]) -> torch.Tensor:
    return torch.tensor(result["weight"])


def evaluations(result: dict[str, Any]) -> dict[int, dict[str, float]]:
    return {row["step"]: row for row in result["history"] if "eval_loss" in row}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def ran(folder: Path) -> Results:
    bf16 = {"bf16": True, "gradient_accumulation_steps": 2}
    best = {**STEPS, "load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    runs: dict[str, dict[str, Any]] = {
        "ddp": {},
        "sync": {"strategy": ["SyncSGD"]},
        "tokens ddp": {"tokens": True},
        "tokens": {"tokens": True, "strategy": ["SyncSGD"]},
        "bf16 ddp": {"arguments": bf16},
        "bf16": {"arguments": bf16, "strategy": ["SyncSGD"]},
        "kavg": KAVG,
        "stopped": {**KAVG, "stop_at": 8},
        "resumed": {**KAVG, "resume": True, "checkpoints": str(folder / "stopped" / "checkpoints")},
        "clipped kavg": {"strategy": ["KAVG", 2], "arguments": {"max_grad_norm": 0.5}},
        "clipped": {"strategy": ["SyncSGD"], "arguments": {"max_grad_norm": 0.05}},
        "clipped ddp": {"arguments": {"max_grad_norm": 0.05}},
        "adpsgd": {"strategy": ["ADPSGD"], "arguments": STEPS},
        "best": {"strategy": ["KAVG", 5], "arguments": best},
    }
    found = learners(PROGRAM, {folder / name: given for name, given in runs.items()})
    return dict(zip(runs, found, strict=True))


def test_learners_end_equal_with_bare_models(ran: Results) -> None:
    for name, results in ran.items():
        assert results[0]["weight"] == results[1]["weight"], name
        wrapped = "DistributedDataParallel" if name.endswith("ddp") else "Net"
        assert [r["wrapped"] for r in results] == [wrapped, wrapped], name


@pytest.mark.parametrize("name", ["sync", "tokens", "bf16", "clipped"])
def test_sync_sgd_is_ddp(ran: Results, name: str) -> None:
    theirs = ran["ddp" if name == "sync" else f"{name} ddp"][0]
    torch.testing.assert_close(weight(ran[name][0]), weight(theirs), rtol=1e-6, atol=1e-6)
    assert ran[name][0]["types"] == theirs["types"]
    assert ran[name][0]["rate"] == theirs["rate"]


def test_data_are_distinct_and_cover_each_epoch(ran: Results) -> None:
    first, second = (result["seen"] for result in ran["kavg"])
    for epoch in (slice(0, 24), slice(24, 48)):
        assert sorted(first[epoch] + second[epoch]) == list(range(48))


def test_one_learner_logs_and_writes(ran: Results, folder: Path) -> None:
    assert [bool(result["logs"]) for result in ran["kavg"]] == [True, False]
    assert {path.name for path in (folder / "kavg" / "checkpoints" / "checkpoint-8").iterdir()} == {
        *("model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "trainer_state.json"),
        *("rng_state_0.pth", "rng_state_1.pth", "learner-0-of-2.pt", "learner-1-of-2.pt"),
    }


def test_checkpoints_hold_the_consensus(ran: Results, folder: Path) -> None:
    first, second = ran["kavg"]
    for step in ("4", "8"):
        own, other = torch.tensor(first["saved"][step]), torch.tensor(second["saved"][step])
        assert not torch.equal(own, other)
        saved = of_file(folder / "kavg" / "checkpoints" / f"checkpoint-{step}")
        torch.testing.assert_close(saved, (own + other) / 2, rtol=1e-6, atol=1e-6)
    for name in ("kavg", "adpsgd"):
        assert torch.equal(of_file(folder / name / "final"), weight(ran[name][0]))


def test_evaluation_is_that_of_the_consensus_over_all_rows(ran: Results, folder: Path) -> None:
    """The metric is the mean error of ten rows, of which each learner has computed a part."""
    x = [torch.randn(6, generator=draw) for draw in [torch.Generator().manual_seed(1)] for _ in range(10)]
    labels = torch.stack([row.sum() + 0.1 * n / 48 for n, row in enumerate(x)])
    for step in (4, 8):
        saved = load_file(folder / "kavg" / "checkpoints" / f"checkpoint-{step}" / "model.safetensors")
        bias = (torch.stack(x) @ saved["layer.weight"].flatten() + saved["layer.bias"] - labels).mean()
        for result in ran["kavg"]:
            assert evaluations(result)[step]["eval_bias"] == pytest.approx(float(bias), abs=1e-5)


def test_the_best_model_is_loaded_at_the_end(ran: Results, folder: Path) -> None:
    scores = {step: row["eval_loss"] for step, row in evaluations(ran["best"][0]).items()}
    best = max(scores, key=lambda step: scores[step])
    assert best != 12
    saved = of_file(folder / "best" / "checkpoints" / f"checkpoint-{best}")
    assert all(torch.equal(saved, weight(result)) for result in ran["best"])


def test_a_resumed_run_is_the_uninterrupted_one(ran: Results) -> None:
    assert ran["stopped"][0]["steps"] == 8
    for resumed, whole in zip(ran["resumed"], ran["kavg"], strict=True):
        assert resumed["weight"] == whole["weight"]
        assert resumed["seen"] == whole["seen"][32:]


def test_under_torchrun_it_is_the_same(ran: Results, tmp_path: Path) -> None:
    found = learners(PROGRAM, {tmp_path: KAVG}, launcher="torchrun")
    assert found[0][0]["weight"] == ran["kavg"][0]["weight"]


def test_one_learner_goes_on_where_two_have_stopped(ran: Results, folder: Path, tmp_path: Path) -> None:
    """Eight steps of two are 16 of its own 24, in the second of two epochs."""
    checkpoint = Path("checkpoints", "checkpoint-8")
    shutil.copytree(folder / "stopped" / checkpoint, tmp_path / checkpoint)
    given = {**KAVG, "resume": True, "stop_at": 18}
    ((alone,),) = learners(PROGRAM, {tmp_path: given}, count=1)
    assert alone["size"] == 1
    assert alone["steps"] == 18
    assert len(alone["seen"]) == 8
    assert alone["rate"] == pytest.approx(0.02 * (24 - 18) / 24)
    assert set(alone["seen"]).isdisjoint(ran["kavg"][0]["seen"][24:32] + ran["kavg"][1]["seen"][24:32])


def test_a_killed_learner_and_a_restart(ran: Results, tmp_path: Path) -> None:
    given = {**KAVG, "resume": True, "kill_at": 7}
    ((first, second),) = learners(PROGRAM, {tmp_path: given}, options=["--restarts", "1"])
    assert (tmp_path / "killed").exists()
    assert first["weight"] == second["weight"] == ran["kavg"][0]["weight"]
    assert len(second["seen"]) == 32  # of the steps after the checkpoint


def test_the_example_resumes(tmp_path: Path) -> None:
    for _ in range(2):
        check_example("transformers_attach.py", tmp_path)
    assert (tmp_path / "checkpoint-128" / "learner-1-of-2.pt").exists()
