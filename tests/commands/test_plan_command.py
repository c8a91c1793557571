"""`murmur plan` names all missing options at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

ALL = {"--model-bytes": "1e6", "--corpus-hours": "1", "--frames-per-minibatch": "100", "--step-seconds": "0.1"}


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_everything_that_is_missing_is_asked_for_at_once() -> None:
    code, said = run()
    assert code == 1
    assert len(said.splitlines()) == 1
    assert all(option in said for option in ALL)
    assert "murmur plan EXPERIMENT --measure" in said


@pytest.mark.parametrize("left", ALL)
def test_only_what_is_missing_is_asked_for(left: str) -> None:
    code, said = run(*(word for option, value in ALL.items() if option != left for word in (option, value)))
    assert code == 1
    assert [option for option in ALL if option in said] == [left]


def test_a_plan_of_all_numbers(tmp_path: Path) -> None:
    words = [word for option, value in ALL.items() for word in (option, value)]
    assert run(*words, "--strategy", "SyncSGD", "--learners", "2")[0] == 0
    by_flops = [*words[:-2], "--flops-per-frame", "1e9", "--strategy", "SyncSGD", "--learners", "2"]
    assert run(*by_flops)[0] == 0
    code, said = run(*words, "--plot", str(tmp_path))
    assert code == 1
    assert "is a folder: give the name of a file" in said
