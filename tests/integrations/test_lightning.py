"""Strategies of murmur inside the Trainer of Lightning, the real package, on two and three learners."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.framework_programs import PYTHON, ROOT, Learners, forked, found, needs, said, variables

pytestmark = [needs("lightning"), pytest.mark.processes, pytest.mark.timeout(600)]
PROGRAM = "tests.integrations.lightning_program"
KAVG = {"strategy": "KAVG", "values": {"K": 4}}
STEPS = 6  # of an epoch


@pytest.fixture(scope="module")
def learners() -> Iterator[Learners]:
    with forked(PROGRAM) as process:
        yield process


@pytest.fixture(scope="module")
def kavg(learners: Learners, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two learners have found in two epochs."""
    out = tmp_path_factory.mktemp("kavg")
    assert learners.run(out, **KAVG, saving={"save_top_k": -1}, save_at=3) == [0, 0], said(out, 0)
    return found(out)


def largest(a: list[list[float]], b: list[list[float]], kind: int = 0) -> float:
    """Largest difference of the weights, or of the buffers (1)."""
    return float((torch.tensor(a[kind]) - torch.tensor(b[kind])).abs().max())


def test_learners_end_equal(kavg: list[dict[str, Any]]) -> None:
    assert kavg[0]["weights"] == kavg[1]["weights"]
    assert [at["steps"] for at in kavg] == [2 * STEPS, 2 * STEPS]


def test_all_begin_with_the_weights_of_learner_0(kavg: list[dict[str, Any]]) -> None:
    assert kavg[0]["begun"] == kavg[1]["begun"]


def test_learners_have_distinct_data_that_cover_each_epoch(kavg: list[dict[str, Any]]) -> None:
    first, second = (at["seen"] for at in kavg)
    assert [sorted(a + b) for a, b in zip(first, second, strict=True)] == [list(range(48))] * 2


def test_validation_runs_on_the_consensus(kavg: list[dict[str, Any]]) -> None:
    for one, other in zip(kavg[0]["validated"], kavg[1]["validated"], strict=True):
        assert one["weights"] == other["weights"]
        for kind in (0, 1):
            own = [torch.tensor(at["own"][kind]) for at in (one, other)]
            assert torch.allclose(torch.tensor(one["weights"][kind]), (own[0] + own[1]) / 2, atol=1e-6)
    middle = [at["validated"][0] for at in kavg]
    assert middle[0]["step"] == STEPS
    assert largest(middle[0]["own"], middle[1]["own"]) > 1e-3  # in the middle of a round of four steps


def test_metrics_are_means_over_the_learners(kavg: list[dict[str, Any]]) -> None:
    own = [at["losses"]["own loss"] for at in kavg]
    assert own[0] != own[1]
    assert [at["losses"]["loss"] for at in kavg] == pytest.approx([sum(own) / 2] * 2)


def test_checkpoints_hold_the_validated_model(kavg: list[dict[str, Any]]) -> None:
    saved, validated = kavg[0]["checkpoints"], kavg[0]["validated"]
    assert saved["last"] == validated[-1]["weights"]
    assert saved["best"] in [at["weights"] for at in validated]
    assert saved["after"] == kavg[0]["weights"]


def test_a_checkpoint_in_the_middle_of_a_round_holds_the_consensus(kavg: list[dict[str, Any]]) -> None:
    assert largest(*(at["saved at"] for at in kavg)) > 1e-3
    for kind in (0, 1):
        own = [torch.tensor(at["saved at"][kind]) for at in kavg]
        assert torch.allclose(torch.tensor(kavg[0]["checkpoints"]["middle"][kind]), (own[0] + own[1]) / 2, atol=1e-6)


def test_one_learner_writes(kavg: list[dict[str, Any]]) -> None:
    assert [at["writes"] > 0 for at in kavg] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"clip": 0.1},
        {"accumulate": 2},
        {"manual": True, "clip": 0.1},
        {"scale": 256.0, "clip": 0.1},
        {"precision": "bf16-mixed"},
    ],
    ids=["plain", "clipped", "accumulated", "manual", "scaled", "bfloat16"],
)
def test_sync_sgd_has_the_weights_of_ddp(learners: Learners, tmp_path: Path, more: dict[str, Any]) -> None:
    for strategy in ("ddp", "SyncSGD"):
        assert learners.run(tmp_path / strategy, strategy=strategy, **more) == [0, 0], said(tmp_path / strategy, 0)
    theirs, ours = found(tmp_path / "ddp"), found(tmp_path / "SyncSGD")
    assert largest(theirs[0]["weights"], ours[0]["weights"]) < 1e-6
    assert ours[0]["weights"] == ours[1]["weights"]


@pytest.mark.slow
def test_an_overflow_on_one_learner_has_no_weight(learners: Learners, tmp_path: Path) -> None:
    assert learners.run(tmp_path, strategy="SyncSGD", scale=256.0, overflow_at=3) == [0, 0], said(tmp_path, 0)
    both = found(tmp_path)
    assert [at["own"][0] for at in both[0]["validated"]] == [at["own"][0] for at in both[1]["validated"]]
    assert both[0]["losses"]["loss"] < 100


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ADPSGD", "BMUF", "SlowMo", "Downpour", "DiLoCo"])
def test_other_strategies(learners: Learners, tmp_path: Path, strategy: str) -> None:
    values = {"K": 4} if strategy in ("BMUF", "DiLoCo") else {}
    assert learners.run(tmp_path, strategy=strategy, values=values) == [0, 0], said(tmp_path, 0)
    both = found(tmp_path)
    assert both[0]["weights"] == both[1]["weights"]
    assert [at["weights"] for at in both[0]["validated"]] == [at["weights"] for at in both[1]["validated"]]
    assert both[0]["checkpoints"]["best"] in [at["weights"] for at in both[0]["validated"]]


@pytest.mark.slow
def test_programs_of_pytorch_lightning(learners: Learners, tmp_path: Path) -> None:
    assert learners.run(tmp_path, **KAVG, package="pytorch_lightning") == [0, 0], said(tmp_path, 0)
    assert found(tmp_path)[0]["weights"] == found(tmp_path)[1]["weights"]


def folders(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.glob("*.learners/*"))


@pytest.mark.slow
def test_resume_is_exact(learners: Learners, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    saving = {"save_top_k": -1}
    assert learners.run(whole, **KAVG, epochs=3, saving=saving) == [0, 0], said(whole, 0)
    assert learners.run(part, **KAVG, epochs=1, saving=saving) == [0, 0], said(part, 0)
    assert folders(part) == ["best.ckpt.learners/6-steps-2-learners", "last.ckpt.learners/6-steps-2-learners"]
    assert learners.run(part, **KAVG, epochs=3, saving=saving, resume="last") == [0, 0], said(part, 0)
    assert [at["weights"] for at in found(part)] == [at["weights"] for at in found(whole)]
    assert [at["seen"] for at in found(part)] == [at["seen"][1:] for at in found(whole)]
    assert folders(part)[-1:] == ["last.ckpt.learners/18-steps-2-learners"]


@pytest.mark.slow
def test_states_are_deleted_with_their_checkpoint(learners: Learners, tmp_path: Path) -> None:
    saving = {"filename": "{epoch}", "monitor": None, "save_last": False}
    assert learners.run(tmp_path, **KAVG, saving=saving) == [0, 0], said(tmp_path, 0)
    assert sorted(path.name for path in tmp_path.glob("epoch*")) == ["epoch=1.ckpt", "epoch=1.ckpt.learners"]


@pytest.mark.slow
def test_resume_with_other_learners(learners: Learners, tmp_path: Path) -> None:
    assert learners.run(tmp_path, **KAVG, epochs=1) == [0, 0], said(tmp_path, 0)
    assert learners.run(tmp_path, 3, **KAVG, epochs=2, resume="last") == [0, 0, 0], said(tmp_path, 0)
    three = found(tmp_path, 3)
    assert [at["weights"] == three[0]["weights"] for at in three] == [True] * 3
    assert sorted(row for at in three for row in at["seen"][0]) == list(range(48))
    assert "there are 3 now" in said(tmp_path, 2)


@pytest.mark.slow
def test_resume_without_the_states_of_all_learners(learners: Learners, tmp_path: Path) -> None:
    assert learners.run(tmp_path, **KAVG, epochs=1) == [0, 0], said(tmp_path, 0)
    saved = found(tmp_path)[0]["checkpoints"]["last"]
    (tmp_path / "last.ckpt.learners" / "6-steps-2-learners" / "learner-1-of-2.pt").unlink()
    assert learners.run(tmp_path, **KAVG, epochs=1, resume="last") == [0, 0], said(tmp_path, 0)
    assert found(tmp_path)[0]["weights"] == saved  # max_epochs is reached
    assert learners.run(tmp_path, **KAVG, epochs=2, resume="last") == [0, 0], said(tmp_path, 0)
    assert "has not the states of all learners" in said(tmp_path, 0)


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_learner_ends_all(learners: Learners, tmp_path: Path, failing: int) -> None:
    assert learners.run(tmp_path, **KAVG, raise_at=5, learner=failing, on_exception=True) == [1, 1]
    assert "ArithmeticError: asked for" in said(tmp_path, failing)
    assert (tmp_path / "on_exception.ckpt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**KAVG, "optimizers": 2, "manual": True}, "configure_optimizers returned 2 optimizers, and a strategy joins"),
        ({"strategy": "ASGD"}, "ASGD has learners that serve others"),
        ({"strategy": "SuperLearners"}, "SuperLearners has learners that follow a leader"),
        ({**KAVG, "devices": 3}, "the product (3 * 1) does not match the world size (2)"),
    ],
    ids=["optimizers", "servers", "followers", "devices"],
)
def test_refusals(learners: Learners, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert learners.run(tmp_path, **settings) == [1, 1]
    assert message in said(tmp_path, 0)


@pytest.mark.slow
@pytest.mark.interpreter
def test_a_killed_learner_is_started_again(learners: Learners, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert learners.run(whole, **KAVG, epochs=3) == [0, 0], said(whole, 0)
    settings = {"out": str(out), **KAVG, "epochs": 3, "kill_at": 8, "resume": "last"}
    command = [PYTHON, "-m", "murmur", "launch", "--learners", "2", "--restarts", "1", "--threads", "1"]
    program = [ROOT / "tests" / "integrations" / "lightning_program.py", json.dumps(settings)]
    run = subprocess.run(
        [*command, *program], check=False, timeout=500, capture_output=True, text=True, env=variables()
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert (out / "killed").exists()
    assert [len(at["seen"]) for at in found(out)] == [2, 2]  # epochs after the checkpoint
    assert [at["weights"] for at in found(out)] == [at["weights"] for at in found(whole)]
