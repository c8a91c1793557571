"""A resume with other data than those of the checkpoint: told, and its best and averaged models begin anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair
from murmur.engine.optim.optimizer import SGD
from murmur.engine.resume import check_resumable
from murmur.engine.task import IdentifiesData, data_of
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, KAVG
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.unscaled import Experiment

OTHER = "it was made on other data"


@dataclass(frozen=True)
class Named(ToyTask):
    """Task on data with a name."""

    name: str = "ab"

    @property
    def data_digest(self) -> str:
        return self.name


FIRST = Named(samples=8, hidden=8, per_epoch=10)


def run(task: ToyTask, minibatches: int, out: Path, strategy: Strategy | None = None, resume: bool = True) -> None:
    made = Experiment(task, strategy or KAVG(2), Budget(minibatches=minibatches), SGD(0.05), evaluate_every_epochs=0.4)
    Trainer(made, VirtualWorld(2), out, resume=resume).fit()


def marks(out: Path) -> list[int]:
    return sorted(int(file.stem) for file in (out / "checkpoints" / "marks").glob("*.json"))


def change_facts(out: Path, **change: object) -> None:
    for part in (out / "checkpoints").glob("0*/*.json"):
        tensors, facts = read_pair(part.with_suffix(""))
        write_pair(part.with_suffix(""), tensors, facts | change)


@pytest.mark.parametrize("strategy", [KAVG(2), ADPSGD()], ids=["KAVG", "ADPSGD"])
def test_other_data_are_told_and_the_best_begin_anew(
    strategy: Strategy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(FIRST, 20, tmp_path, strategy, resume=False)
    change_facts(tmp_path, best=-5.0)  # a loss that the new data do not reach
    assert min(marks(tmp_path)) < 20
    other = replace(FIRST, name="cd", per_epoch=1200, seed=1)
    run(other, 28, tmp_path, strategy)
    told = f"{OTHER} (10 minibatches an epoch then, 1,200 now; 80 samples an epoch then, 9,600 now): evaluations before"
    assert caplog.text.count(told) == 1
    assert min(marks(tmp_path)) > 20
    assert read_pair(tmp_path / "averaged")[1]["marks"] == marks(tmp_path)
    assert read_pair(tmp_path / "best")[1]["minibatches"] > 20
    caplog.clear()
    run(other, 36, tmp_path, strategy)
    assert OTHER not in caplog.text


def test_as_many_minibatches_of_other_data_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(FIRST, 10, tmp_path, resume=False)
    run(replace(FIRST, name="cd"), 20, tmp_path)
    assert f"{OTHER} (as many minibatches and samples as now, but of other utterances" in caplog.text


def test_the_same_data_are_not_told_whatever_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(FIRST, 20, tmp_path, resume=False)
    run(replace(FIRST, samples=4, per_epoch=20), 28, tmp_path)
    assert OTHER not in caplog.text
    assert min(marks(tmp_path)) <= 20


def test_what_does_not_identify_its_data_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A task without a digest."""
    plain = ToyTask(samples=8, hidden=8, per_epoch=10)
    assert not isinstance(plain, IdentifiesData)
    assert data_of(plain) == {}
    run(plain, 10, tmp_path, resume=False)
    run(replace(plain, seed=1), 14, tmp_path)
    run(FIRST, 18, tmp_path)
    run(plain, 22, tmp_path)
    run(FIRST, 26, tmp_path)
    assert OTHER not in caplog.text
    assert marks(tmp_path)


def test_a_run_that_is_complete_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    """As with another setting of training: its steps were made on the former data."""
    run(FIRST, 20, tmp_path, resume=False)
    made = Experiment(FIRST, KAVG(2), Budget(minibatches=20), SGD(0.05), evaluate_every_epochs=0.4)
    check_resumable(tmp_path, made.scaled(2), FIRST.model())
    other = replace(made, task=replace(FIRST, name="cd", per_epoch=12))
    with pytest.raises(ValueError, match=r"are done, on other data \(10 minibatches an epoch then, 12 now; .*restore"):
        check_resumable(tmp_path, other.scaled(2), FIRST.model())
    check_resumable(tmp_path, replace(other, budget=Budget(minibatches=30)).scaled(2), FIRST.model())
