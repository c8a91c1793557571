"""Resumed runs of which nothing is left to train, and launches killed around a checkpoint, its record and the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from murmur.core.learner import Strategy
from murmur.engine import evaluation_points
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import Checkpoints, read_pair
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.run_files import JsonLines
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, KAVG, DelayByOne, Downpour, OwnShares, SuperLearners, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.unscaled import Experiment

POINTS = [10, 20, 30, 36]
STRATEGIES: list[Strategy] = [
    *(SyncSGD(), KAVG(4), DelayByOne(), ADPSGD(), Downpour(2, 3), OwnShares()),
    *(SuperLearners(KAVG(4), 2), SuperLearners(DelayByOne(), 2), SuperLearners(ADPSGD(), 2)),
]


class Killed(BaseException):
    """End of a launch in the middle of a call, as by SIGKILL: no code of the run handles it."""


def experiment(strategy: Strategy, minibatches: int = 36) -> Experiment:
    task = ToyTask(samples=4, hidden=8, per_epoch=20)
    return Experiment(task, strategy, Budget(minibatches=minibatches), SGD(0.05), evaluate_every_epochs=0.5)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def evaluations(out: Path) -> list[int]:
    found = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return [record["minibatches"] for record in found if record["kind"] == "evaluation"]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_a_finished_run_is_not_computed_again(
    strategy: Strategy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = experiment(strategy)
    before = Trainer(made, VirtualWorld(5), tmp_path).fit()
    files = contents(tmp_path)
    with caplog.at_level("INFO", "murmur.engine.trainer"):
        outcome = Trainer(made, VirtualWorld(5), tmp_path, resume=True).fit()
    assert "is finished: all 36 minibatches are done" in caplog.text
    changed = {name for name, data in contents(tmp_path).items() if files.get(name) != data}
    assert not changed
    assert outcome.found
    assert outcome.leads
    assert outcome.figures == pytest.approx(before.figures, rel=1e-12)
    assert all(
        map(bool, [(a == b).all() for a, b in zip(outcome.model.parameters(), before.model.parameters(), strict=True)])
    )


@pytest.mark.parametrize("strategy", [SuperLearners(KAVG(4), 2), SuperLearners(ADPSGD(), 2)], ids=named)
def test_threads_leave_a_finished_run_alone_and_go_on_with_a_larger_budget(strategy: Strategy, tmp_path: Path) -> None:
    Trainer(experiment(strategy), ThreadWorld(4), tmp_path).fit()
    model = (tmp_path / "model.safetensors").read_bytes()
    assert Trainer(experiment(strategy), ThreadWorld(4), tmp_path, resume=True).fit().found
    assert (tmp_path / "model.safetensors").read_bytes() == model
    assert not Trainer(experiment(strategy, 60), ThreadWorld(4), tmp_path, resume=True).fit().found
    assert read_pair(tmp_path / "model")[1]["minibatches"] == 60
    assert (tmp_path / "model.safetensors").read_bytes() != model


@contextmanager
def killed(what: str, number: int, after: bool) -> Iterator[None]:
    """Kill the launch before or after the `number`-th call that writes `what`; "half" writes a part of the line."""
    calls = 0
    saves, lines, models = Checkpoints.save, JsonLines.__call__, evaluation_points.write_pair

    def cut(write: Any, *given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            raise Killed
        write(*given)
        if calls == number:
            raise Killed

    def save(self: Checkpoints, *given: Any) -> None:
        cut(saves, self, *given) if what == "checkpoint" else saves(self, *given)

    def append(self: JsonLines, record: Record) -> None:
        if record.kind != "evaluation" or what not in ("record", "half"):
            lines(self, record)
        elif what == "half" and calls + 1 == number:
            cut(lambda line: self.append(line[: len(line) // 2].encode()), record.line())
        else:
            cut(lines, self, record)

    def write(stem: Path, *given: Any) -> None:
        cut(models, stem, *given) if what == "model" and stem.name == "model" else models(stem, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        patch.setattr(JsonLines, "__call__", append)
        patch.setattr(evaluation_points, "write_pair", write)
        with pytest.raises(Killed):
            yield


def kills(parts: int) -> list[tuple[str, int, bool]]:
    """Return the moments around the writes of the second and the last of four evaluation points."""
    saves = [(point - 1) * parts + part for point in (2, 4) for part in range(1, parts + 1)]
    found = [("checkpoint", n, after) for n in saves for after in (False, True)]
    found += [("record", n, after) for n in (2, 4) for after in (False, True)]
    return [*found, *(("half", n, True) for n in (2, 4)), ("model", 1, False), ("model", 1, True)]


@pytest.mark.parametrize(
    ("strategy", "learners"), [(SyncSGD(), 1), (ADPSGD(), 1), (ADPSGD(), 2), (SuperLearners(KAVG(2), 2), 2)]
)
def test_every_evaluation_point_is_recorded_once_wherever_the_run_was_killed(
    strategy: Strategy, learners: int, tmp_path: Path
) -> None:
    whole = Trainer(experiment(strategy), VirtualWorld(learners), tmp_path / "whole").fit()
    points = evaluations(tmp_path / "whole")
    assert len(points) == len(POINTS)
    for what, number, after in kills(learners):
        out = tmp_path / f"{what}-{number}-{after}"
        with killed(what, number, after):
            Trainer(experiment(strategy), VirtualWorld(learners), out).fit()
        Trainer(experiment(strategy), VirtualWorld(learners), out, resume=True).fit()
        assert evaluations(out) == points, (what, number, after)
        assert read_pair(out / "model")[1]["minibatches"] == whole.minibatches
