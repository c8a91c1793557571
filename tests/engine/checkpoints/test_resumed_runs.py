"""A run that is cut off and goes on leaves the models and records of one that was not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair
from murmur.engine.optim.optimizer import SGD, Adam
from murmur.engine.schedule import Exponential
from murmur.engine.trainer import Trainer
from murmur.recipes.toy import ToyTask
from murmur.run.saved_model import read_into
from murmur.strategies import ADPSGD, ALL, EASGD, KAVG, ParameterAveraging, SuperLearners, SyncSGD
from murmur.worlds.virtual.world import VirtualWorld
from unscaled import Experiment

MINIBATCHES = 30


class CutOff(Exception):
    """Exception that ends a run in the middle."""


@dataclass(frozen=True)
class Counting(ToyTask):
    """Task whose running statistics depend on the minibatches counted so far; minibatch `cut` cannot be read."""

    samples: int = 8
    per_epoch: int = 10
    cut: int = -1

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 10))

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        if n == self.cut:
            raise CutOff
        return super().minibatch(n)


def experiment(strategy: Strategy, minibatches: int = MINIBATCHES) -> Experiment:
    optimizer = Adam(0.01) if Facts.of(strategy).bitwise_alone else SGD(0.05)
    return Experiment(
        Counting(), strategy, Budget(minibatches=minibatches), optimizer, Exponential(0.1), evaluate_every_epochs=0.5
    )


def run(made: Experiment, learners: int, out: Path, resume: bool = False) -> None:
    Trainer(made, VirtualWorld(learners), out, resume=resume).fit()


def cut_off(made: Experiment, learners: int, out: Path, at: int) -> None:
    with pytest.raises(CutOff):
        run(replace(made, task=Counting(cut=at)), learners, out)


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


def told(out: Path) -> list[tuple[Any, ...]]:
    found = [(r["kind"], r["learner"], r["minibatches"], r["step"], r["loss"], r["rate"]) for r in records(out)]
    return sorted(found, key=lambda r: r[:4])


def evaluations(out: Path) -> list[int]:
    return [r["minibatches"] for r in records(out) if r["kind"] == "evaluation"]


def same_models(first: Path, second: Path) -> bool:
    pairs = [(read_pair(first / name)[0], read_pair(second / name)[0]) for name in ("model", "best", "averaged")]
    return all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in pairs)


def made_by(make: Callable[..., Strategy]) -> Strategy:
    return ParameterAveraging(24, optimizer="keep") if make is ParameterAveraging else make()


STRATEGIES = [pytest.param(made_by(make), id=name) for name, make in ALL.items()]
ALONE = [p for p in STRATEGIES if Facts.of(p.values[0]).least_learners == 1]
IN_STEP = [p for p in STRATEGIES if Facts.of(p.values[0]).lock_step]


@pytest.mark.parametrize("strategy", ALONE)
@pytest.mark.parametrize("at", [7, 17])
def test_one_learner_goes_on(strategy: Strategy, at: int, tmp_path: Path) -> None:
    """In lock-step or not: weights, all buffers, every step and evaluation."""
    made = experiment(strategy)
    run(made, 1, tmp_path / "whole")
    cut_off(made, 1, tmp_path / "cut", at)
    run(made, 1, tmp_path / "cut", resume=True)
    assert same_models(tmp_path / "cut", tmp_path / "whole")
    assert told(tmp_path / "cut") == told(tmp_path / "whole")


@pytest.mark.parametrize("strategy", [*IN_STEP, pytest.param(SuperLearners(KAVG(2)), id="SuperLearners in step")])
def test_learners_in_lock_step_go_on(strategy: Strategy, tmp_path: Path) -> None:
    made = experiment(strategy)
    run(made, 4, tmp_path / "whole")
    cut_off(made, 4, tmp_path / "cut", 27)
    run(made, 4, tmp_path / "cut", resume=True)
    assert same_models(tmp_path / "cut", tmp_path / "whole")
    assert told(tmp_path / "cut") == told(tmp_path / "whole")


@pytest.mark.parametrize("strategy", [ADPSGD(), EASGD()], ids=["ADPSGD", "EASGD"])
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_a_resume_without_lock_step_keeps_evaluations(strategy: Strategy, learners: int, tmp_path: Path) -> None:
    """The claims that were open at the checkpoint are done again; they lie before its mark."""
    made = experiment(strategy, 40)
    cut_off(made, learners, tmp_path, 27)
    resumed_at = max(int(folder.name) for folder in (tmp_path / "checkpoints").glob("0*"))
    before = [mark for mark in evaluations(tmp_path) if mark <= resumed_at]
    run(made, learners, tmp_path, resume=True)
    assert evaluations(tmp_path)[: len(before)] == before
    assert before


def test_a_checkpoint_of_an_older_version_has_no_integers(tmp_path: Path) -> None:
    made = experiment(SyncSGD())
    cut_off(made, 1, tmp_path, 17)
    for part in tmp_path.glob("checkpoints/0*/*.json"):
        tensors, facts = read_pair(part.with_suffix(""))
        kept = {name: tensor for name, tensor in tensors.items() if name != "integers"}
        assert len(kept) < len(tensors)
        write_pair(part.with_suffix(""), kept, facts)
    run(made, 1, tmp_path, resume=True)
    assert evaluations(tmp_path)[-1] == MINIBATCHES


def test_a_saved_model_has_its_integers(tmp_path: Path) -> None:
    """One of an older version has none: the model keeps its own."""
    run(experiment(SyncSGD()), 1, tmp_path)
    model = Counting().model()
    norm = model[1]  # type: ignore[index]
    read_into(model, tmp_path / "model")
    assert norm.num_batches_tracked == MINIBATCHES
    read_into(model, tmp_path / "averaged")
    assert norm.num_batches_tracked == MINIBATCHES
    tensors, facts = read_pair(tmp_path / "model")
    del tensors["integers"], facts["tensors"]["integers"]
    write_pair(tmp_path / "older", tensors, facts)
    norm.num_batches_tracked.fill_(5)
    read_into(model, tmp_path / "older")
    assert norm.num_batches_tracked == 5


@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=["SyncSGD", "ADPSGD"])
def test_a_checkpoint_beyond_the_budget_is_told(strategy: Strategy, tmp_path: Path) -> None:
    run(experiment(strategy), 2, tmp_path)
    with pytest.raises(
        ValueError, match="that after 30 minibatches, beyond the budget of 20: give a budget of at least"
    ):
        run(experiment(strategy, 20), 2, tmp_path, resume=True)


@pytest.mark.parametrize("strategy", [KAVG(3), ADPSGD(), SuperLearners(KAVG(2))], ids=["KAVG", "ADPSGD", "nodes"])
def test_a_finished_run_goes_on(strategy: Strategy, tmp_path: Path) -> None:
    """With its budget it records nothing twice; with a larger one it keeps its last evaluation."""
    run(experiment(strategy), 2, tmp_path)
    whole = [record[:4] for record in told(tmp_path)]
    run(experiment(strategy), 2, tmp_path, resume=True)
    assert [record[:4] for record in told(tmp_path)] == whole
    run(experiment(strategy, 40), 2, tmp_path, resume=True)
    assert evaluations(tmp_path) == sorted({*evaluations(tmp_path)})
    assert MINIBATCHES in evaluations(tmp_path)


@pytest.mark.parametrize(
    "strategy", [SuperLearners(SyncSGD()), SuperLearners(ADPSGD())], ids=["in step", "not in step"]
)
def test_the_last_evaluation_counts_steps(strategy: Strategy, tmp_path: Path) -> None:
    run(experiment(strategy), 4, tmp_path)
    steps = [r["step"] for r in records(tmp_path) if r["kind"] == "evaluation"]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0] > 0
