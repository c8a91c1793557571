"""Evaluation points: the evaluator and the checkpointer are fired in one order, at the points and at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from murmur.core.learner import Strategy
from murmur.core.trace import Span
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.unscaled import Experiment

POINT = ["checkpoints/marks/0000000010", "best", "checkpoints/0000000010/learner-0"]
END = ["checkpoints/marks/0000000020", "best", "averaged", "checkpoints/0000000020/learner-0", "model"]


class Losses(ToyTask):
    """A task with the held-out losses that it is given; nan without an end."""

    def __init__(self, *losses: float) -> None:
        super().__init__(samples=4, hidden=4, per_epoch=20)
        object.__setattr__(self, "losses", iter(losses))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"loss": next(self.losses, math.nan)}  # type: ignore[attr-defined]


class Unjudged(ToyTask):
    """A task without held-out figures."""

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {}


def written(monkeypatch: pytest.MonkeyPatch, out: Path, suffix: str) -> list[str]:
    """List that grows by the names of files, in the order in which they become visible."""
    found: list[str] = []
    replace = Path.replace

    def seen(self: Path, target: Path) -> Path:
        if Path(target).suffix == suffix:
            found.append(str(Path(target).with_suffix("").relative_to(out)))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", seen)
    return found


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
def test_models_are_written_before_the_checkpoint_and_the_last_consensus_after_it(
    strategy: Strategy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = written(monkeypatch, tmp_path, ".safetensors")
    # The averaged model is evaluated last.
    experiment = Experiment(Losses(0.5, 0.4, 0.3), strategy, Budget(epochs=1), SGD(0.1), evaluate_every_epochs=0.5)
    Trainer(experiment, VirtualWorld(1), tmp_path).fit()
    assert found == [*POINT, *END]


def test_a_worse_evaluation_leaves_the_best_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = written(monkeypatch, tmp_path, ".safetensors")
    experiment = Experiment(
        Losses(0.5, 0.5, 0.3), SyncSGD(), Budget(epochs=1), SGD(0.1), evaluate_every_epochs=0.5, averaged_checkpoints=1
    )
    Trainer(experiment, VirtualWorld(1), tmp_path).fit()
    assert found == [*POINT, *END[2:]]
    assert json.loads((tmp_path / "best.json").read_text())["minibatches"] == 10


@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
def test_a_task_without_held_out_figures_ends_with_one_model_and_one_evaluation(
    strategy: Strategy, learners: int, tmp_path: Path
) -> None:
    experiment = Experiment(Unjudged(samples=4, hidden=4, per_epoch=20), strategy, Budget(epochs=1), SGD(0.1))
    outcome = Trainer(experiment, VirtualWorld(learners), tmp_path).fit()
    assert outcome.leads
    assert (tmp_path / "model.safetensors").is_file()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records].count("evaluation") == 1


@pytest.mark.parametrize("strategy", [KAVG(2), ADPSGD()], ids=named)
def test_a_worlds_own_receiver_of_spans_hears_the_end_of_a_run_without_a_folder(strategy: Strategy) -> None:
    spans: list[Span] = []
    experiment = Experiment(ToyTask(samples=4, hidden=4, per_epoch=20), strategy, Budget(epochs=1), SGD(0.1))
    outcome = Trainer(experiment, VirtualWorld(2, sink=spans.append)).fit()
    assert torch.isfinite(torch.tensor(outcome.figures["loss"]))
    assert max(span.end_seconds for span in spans) > 0
