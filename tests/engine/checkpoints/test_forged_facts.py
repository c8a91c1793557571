"""Facts of a checkpoint that no run writes, with the right digests: one line, or passed over; never a traceback."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair
from murmur.engine.checkpoints.position import MOST_BEYOND, Claims, Position, go_on
from murmur.engine.record import read_line

DEEP = "[" * 100_000
HUGE = "9" * 5000
NUMBERS = ["1e400", "-1e400", "NaN", "Infinity", "-1", "0", "true", "1.5", '"2"', "null", "1" + "0" * 400, HUGE, DEEP]
SMALL = ["--set", "task.hidden=4", "--set", "task.per_epoch=8", "--threads", "1"]


def resumed(out: Path) -> tuple[int, list[str]]:
    words = ["train", "toy", *SMALL, "--set", "budget.minibatches=16", "--out", str(out), "--resume"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done.exit_code, done.output.strip().splitlines()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("forged") / "run"
    words = ["train", "toy", *SMALL, "--set", "budget.minibatches=8", "--out", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    return out


def forge(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change facts of the only checkpoint, whose digests are then right again."""
    for part in (out / "checkpoints").glob("0*/*.json"):
        tensors, facts = read_pair(part.with_suffix(""))
        change(facts)
        write_pair(part.with_suffix(""), tensors, facts)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:8])
def test_numbers_of_pieces_that_are_none(number: str, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "checkpoints" / "began.json").write_text(f'{{"cut": {number}}}')
    assert resumed(out)[0] == 0  # the checkpoint has the number too
    shutil.rmtree(out)
    shutil.copytree(finished, out)
    (out / "checkpoints" / "began.json").write_text(f'{{"cut": {number}}}')
    forge(out, lambda facts: facts.pop("cut"))
    code, said = resumed(out)
    assert (code, len(said)) == (1, 1), said
    assert "began.json is damaged (" in said[0]
    assert len(said[0]) < 400


@pytest.mark.parametrize("number", [*range(-1, 10), True, 8.0, 1e400, 10**400, "8", None, [8]])
def test_forged_numbers_of_minibatches_are_passed_over(number: object, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    forge(out, lambda facts: facts.__setitem__("minibatches", number))
    code, said = resumed(out)
    assert code == 0
    records = [read_line(line) for line in (out / "records.jsonl").read_text().splitlines()]
    steps = [record for record in records if record is not None and record["kind"] == "step"]
    assert len(steps) == 16, said  # of the whole budget: the run goes on, or begins anew
    assert number == 8 or len(said) > 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("seconds", value) for value in ("x", None, [1])],
        *[("best", value) for value in ("x", [1])],
        *[("heldout", value) for value in (1, None)],
        *[("counters", value) for value in (1, None, [], {})],
        *[("claims", value) for value in (1, None, {}, {"unfinished": 1}, [[]])],
        *[("world", value) for value in ("x", 0, -1)],
        *[("learners", value) for value in ("x", 0, [0, 1e400])],
        *[("data", value) for value in (1, [1], {"digest": "x"})],
        *[("optimizer", value) for value in (1, None, {"optimizer.x.y": 1}, {"optimizer": 1})],
        *[("settings", value) for value in (1, [1])],
        ("cut", [1]),
    ],
    ids=str,
)
def test_facts_of_another_kind_end_with_one_line_or_do_no_harm(
    name: str, value: object, finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    forge(out, lambda facts: facts.__setitem__(name, value))
    code, said = resumed(out)
    said += [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    if code:
        assert len(said) == 1, said
        assert str(out / "checkpoints") in said[0]


@pytest.mark.parametrize(
    "claims",
    [
        {"unfinished": [-1], "done": [], "moved": []},
        {"unfinished": [], "done": [1.5], "moved": []},
        {"unfinished": [], "done": [True], "moved": []},
        {"unfinished": [], "done": [], "moved": [[1, "2"]]},
        {"unfinished": [], "done": [], "moved": [[1, 1e400]]},
    ],
)
def test_claims_are_positions(claims: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no position of a minibatch"):
        Claims.read(claims)


def test_claims_far_beyond_the_mark_take_no_memory() -> None:
    with pytest.raises(ValueError, match="beyond the evaluation point"):
        go_on(8, [Claims(done=[MOST_BEYOND + 9])])
    with pytest.raises(ValueError, match="is no position"):
        Position.read({"done": -1, "moved": []})
    assert Position.read(json.loads(json.dumps(Position(4, {4: 7}).described()))) == Position(4, {4: 7})


def test_a_record_that_is_no_file_does_not_hang_a_watcher(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "records.jsonl").unlink()
    os.mkfifo(out / "records.jsonl")
    done = CliRunner().invoke(app, ["watch", "--once", str(out)])
    assert done.exit_code == 1
    assert done.output.strip() == f"murmur: {out / 'records.jsonl'} is a FIFO, not a file: move it away"
