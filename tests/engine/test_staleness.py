"""Staleness as it is recorded: in lock-step it is none, also for a learner that has no minibatch in a turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.simulation import several_strategies


def test_a_turn_without_a_minibatch_is_not_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_strategies, "draw_accounts", lambda *_: None)
    words = ["simulate", "toy", "--strategy", "SyncSGD()", "--learners", "3", "--step-seconds", "0.1"]
    settings = ("budget.minibatches=10", "task.hidden=8", "task.per_epoch=10")  # the fourth turn has one minibatch
    done = CliRunner().invoke(app, [*words, *(w for s in settings for w in ("--set", s)), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    records = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    stale = [(r["learner"], r["minibatches"], r["staleness"]) for r in records if r["kind"] == "step"]
    assert len(stale) == 12
    assert {staleness for *_, staleness in stale} == {0}
