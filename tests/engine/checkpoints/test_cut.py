"""The number of pieces of each minibatch: known as long as one part of a checkpoint or the start can be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair
from murmur.engine.checkpoints.position import Position, cut_of, write_start
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Auto
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld

DAMAGE = [None, '{"cu', "[]", '{"cut": 0}', '{"cut": "many"}', ""]


def experiment(minibatches: int, strategy: Strategy | None = None) -> Experiment:
    task = ToyTask(samples=4, hidden=4, per_epoch=10)
    return Experiment(task, strategy or SyncSGD(), Budget(minibatches=minibatches), SGD(0.1), scaling=Auto("stays"))


def run(minibatches: int, learners: int, out: Path, strategy: Strategy | None = None, resume: bool = True) -> None:
    Trainer(experiment(minibatches, strategy), VirtualWorld(learners), out, resume=resume).fit()


def damage(out: Path, left: str | None) -> None:
    file = out / "checkpoints" / "began.json"
    file.unlink()
    if left is not None:
        file.write_text(left)


def change_facts(out: Path, change: dict[str, int | None], parts: Sequence[str] = ("learner-0", "learner-1")) -> None:
    for part in (out / "checkpoints").glob("0*/*.json"):
        tensors, facts = read_pair(part.with_suffix(""))
        if part.stem in parts:
            facts = {name: value for name, value in (facts | change).items() if name not in change or value is not None}
        write_pair(part.with_suffix(""), tensors, facts)


@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=["SyncSGD", "ADPSGD"])
@pytest.mark.parametrize("left", DAMAGE)
def test_a_run_without_its_file_keeps_the_number_of_its_checkpoint(
    left: str | None, strategy: Strategy, tmp_path: Path
) -> None:
    run(10, 2, tmp_path, strategy, resume=False)
    damage(tmp_path, left)
    run(20, 1, tmp_path, strategy)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [r["minibatches"] for r in records if r["kind"] == "evaluation"] == [20, 40]  # halves
    assert json.loads((tmp_path / "checkpoints" / "began.json").read_text())["cut"] == 2


def test_parts_that_disagree_are_refused(tmp_path: Path) -> None:
    run(10, 2, tmp_path, KAVG(2), resume=False)
    change_facts(tmp_path, {"cut": 4}, ("learner-1",))
    with pytest.raises(ValueError, match="cut in 4, but this run cuts them in 2"):
        run(20, 2, tmp_path, KAVG(2))


def test_a_run_that_has_not_begun_has_none(tmp_path: Path) -> None:
    assert cut_of(tmp_path) is None
    write_start(tmp_path, 3, "", Position())
    assert cut_of(tmp_path) == 3


def test_the_newest_part_that_can_be_read_names_it(tmp_path: Path) -> None:
    run(10, 2, tmp_path, resume=False)
    damage(tmp_path, None)
    for part in (tmp_path / "checkpoints" / "0000000020").glob("learner-0.json"):
        part.write_text("{")
    assert cut_of(tmp_path) == 2
