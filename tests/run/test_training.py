"""Checks of `train` before a run begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair
from murmur.engine.experiment import Experiment
from murmur.run.request import RunRequest
from murmur.run.training import train
from murmur.strategies import KAVG
from murmur.tasks.toy import ToyTask


@dataclass(frozen=True)
class Named(ToyTask):
    """Task with outputs that stand for certain classes."""

    hidden: int = 8
    classes: str = "ab"

    def outputs_digest(self) -> str:
        return self.classes


def go(out: Path, learners: int = 1, resume: bool = False, classes: str = "ab") -> int:
    request = RunRequest(source="toy", learners=learners, out=out, resume=resume, threads=1)
    return train(request, Experiment(Named(classes=classes), KAVG(K=2), Budget(minibatches=8)))


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("learners", [1, 2])
def test_a_refused_resume_with_other_outputs_changes_nothing(learners: int, tmp_path: Path) -> None:
    assert go(tmp_path) == 0
    before = everything(tmp_path)
    with pytest.raises(ValueError, match="stand for other classes"):
        go(tmp_path, learners, resume=True, classes="ba")
    assert everything(tmp_path) == before


def test_a_refused_resume_of_a_folder_without_a_lock_leaves_none(tmp_path: Path) -> None:
    """A copied run has no lock file."""
    assert go(tmp_path) == 0
    (tmp_path / ".lock").unlink()
    before = everything(tmp_path)
    with pytest.raises(ValueError, match="stand for other classes"):
        go(tmp_path, resume=True, classes="ba")
    assert everything(tmp_path) == before


def test_a_damaged_number_of_pieces_changes_nothing(tmp_path: Path) -> None:
    assert go(tmp_path) == 0
    (tmp_path / "checkpoints" / "began.json").write_text("{")
    for part in tmp_path.glob("checkpoints/0*/*.json"):  # the number stands in the file alone
        tensors, facts = read_pair(part.with_suffix(""))
        del facts["cut"]
        write_pair(part.with_suffix(""), tensors, facts)
    before = everything(tmp_path)
    with pytest.raises(ValueError, match=r"began\.json is damaged"):
        go(tmp_path, resume=True)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("learners", [1, 2])
def test_a_resumed_run_that_is_finished_says_so_and_changes_nothing(
    learners: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert go(tmp_path) == 0
    before = everything(tmp_path)
    with caplog.at_level("INFO", "murmur.run.training"):
        assert go(tmp_path, learners, resume=True) == 0
    assert "is finished, with its model and score: nothing is computed again" in caplog.text
    assert everything(tmp_path) == before


def test_what_a_finished_launch_has_not_written_is_made(tmp_path: Path) -> None:
    """Its last process may have been killed before the test, or before the model."""
    assert go(tmp_path) == 0
    before = everything(tmp_path)
    for lost in (["score.json", "ended.json"], ["score.json", "ended.json", "model.json"]):
        for name in lost:
            (tmp_path / name).unlink()
        assert go(tmp_path, resume=True) == 0
        after = everything(tmp_path)
        assert after[tmp_path / "model.safetensors"] == before[tmp_path / "model.safetensors"]
        assert {tmp_path / name for name in lost} <= after.keys()
        assert after[tmp_path / "records.jsonl"].count(b"evaluation") == before[tmp_path / "records.jsonl"].count(
            b"evaluation"
        )
