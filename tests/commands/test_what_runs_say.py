"""Messages of resumed and of diverging runs, and about files that cannot be written."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.core.whole_files import write_whole
from murmur.engine.checkpoints.checkpoint import Checkpoints
from murmur.engine.counters import Counters
from murmur.engine.record import Record
from murmur.engine.run_files import JsonLines


def trained(out: Path, *words: str) -> None:
    budget = ["--set", "evaluate_every_epochs=0.25", "--threads", "1", "--out", str(out)]
    done = CliRunner().invoke(app, ["train", "toy", *budget, *words])
    assert done.exit_code == 0, done.output


def test_resume_lists_what_differs_and_counts_what_was_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trained(tmp_path, "--set", "budget.minibatches=100", "--strategy", "KAVG(K=4)")
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    newest = checkpoints.marks()[0]
    assert newest == 100
    shutil.rmtree(tmp_path / "checkpoints" / f"{newest:010d}")  # as if it had been killed before
    kept = checkpoints.marks()[0]
    assert 0 < kept < 100
    caplog.clear()
    words = ["--set", "budget.minibatches=120", "--set", "optimizer.lr=0.05", "--strategy", "SyncSGD()"]
    trained(tmp_path, *words, "--resume")
    assert f"{kept} of 120 minibatches behind" in caplog.text
    assert f"; {100 - kept} are done again" in caplog.text
    told = next(r.getMessage() for r in caplog.records if "other settings" in r.getMessage())
    assert "budget.minibatches was 100 and is 120 now; " in told
    assert "optimizer.lr was 0.1 and is 0.05 now; " in told
    assert "strategy was KAVG(K=4" in told
    assert "and is SyncSGD(" in told


def test_a_loss_that_rises_is_called_diverging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path / "bad", "--set", "budget.epochs=1", "--set", "optimizer.lr=20", "--set", "max_gradient_norm=1")
    assert "training has diverged. Lower the learning rate" in caplog.text
    assert "at the first minibatch" in caplog.text
    caplog.clear()
    trained(tmp_path / "good", "--set", "budget.epochs=2")
    assert "diverged" not in caplog.text


def test_what_counts_as_diverging() -> None:
    def counted(*losses: float) -> Counters:
        counters = Counters(most_in_a_row=3)
        for loss in losses:
            counters.good(loss)
        return counters

    better, worse = counted(2.0, *[1.0] * 30), counted(2.0, *[4.0] * 30)
    assert not better.diverges(heldout=1.0, lowest=1.0)
    assert not better.diverges(heldout=3.0, lowest=1.0)  # worse held-out loss, better training loss: overfitting
    assert better.diverges(heldout=float("nan"), lowest=1.0)
    assert worse.diverges(heldout=4.0, lowest=4.0)  # the first evaluation
    assert worse.diverges(heldout=4.0, lowest=1.0)
    assert not worse.diverges(heldout=1.1, lowest=1.0)


def test_a_full_disk_names_file_bytes_and_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    record = Record("step", 0, 1, 1, 1.0, 1.0, 1.0, 1.0)
    monkeypatch.setattr("murmur.engine.run_files.open_plain", os.open)  # a device is refused in the place of records
    (tmp_path / "records.jsonl").symlink_to(full)
    with pytest.raises(OSError, match=r"/records.jsonl \(\d+ bytes\) cannot be written: the disk is full: make room"):
        JsonLines(tmp_path / "records.jsonl")(record)


def test_a_read_only_folder_is_not_called_a_full_disk() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become a user who may not write here")
    os.seteuid(65534)
    try:
        with pytest.raises(OSError, match=r"facts.json \(3 bytes\) cannot be written: you may not write") as found:
            write_whole(Path("/usr/lib/facts.json"), b"all")
    finally:
        os.seteuid(0)
    assert found.value.errno == errno.EACCES
    assert "room" not in str(found.value)
