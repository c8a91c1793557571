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

from murmur.core.errors import DamagedCheckpoint
from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair
from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD, PlainAdamW
from murmur.engine.resume import MOMENTS
from murmur.engine.schedule import Exponential
from murmur.engine.trainer import Trainer
from murmur.run.saved_model import read_into
from murmur.strategies import ADPSGD, ALL, EASGD, KAVG, ParameterAveraging, SuperLearners, SyncSGD
from murmur.strategies.block_moments import KEPT
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.unscaled import Experiment

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


def test_a_saved_model_has_its_integers(tmp_path: Path) -> None:
    run(experiment(SyncSGD()), 1, tmp_path)
    model = Counting().model()
    norm = model[1]  # type: ignore[index]
    read_into(model, tmp_path / "model")
    assert norm.num_batches_tracked == MINIBATCHES
    read_into(model, tmp_path / "averaged")
    assert norm.num_batches_tracked == MINIBATCHES
    tensors, facts = read_pair(tmp_path / "model")
    del tensors["integers"]
    write_pair(tmp_path / "without", tensors, facts)
    with pytest.raises(DamagedCheckpoint, match="integers"):
        read_into(model, tmp_path / "without")


@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=["SyncSGD", "ADPSGD"])
def test_a_checkpoint_beyond_the_budget_is_told(strategy: Strategy, tmp_path: Path) -> None:
    run(experiment(strategy), 2, tmp_path)
    with pytest.raises(
        ValueError, match="that after 30 minibatches, beyond the budget of 20: give a budget of at least"
    ):
        run(experiment(strategy, 20), 2, tmp_path, resume=True)


def amsgrad(model: nn.Module) -> torch.optim.Optimizer:
    return PlainAdamW(model.parameters(), lr=0.01, amsgrad=True)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return PlainAdamW(model.parameters(), lr=0.01)


OTHERS = {
    "SGD to Adam": (SGD(0.05), Adam(0.01)),
    "momentum to Adam": (SGD(0.05, momentum=0.9), Adam(0.01)),
    "Adam to SGD": (Adam(0.01), SGD(0.05, momentum=0.9)),
    "SGD to natural gradient": (SGD(0.05, momentum=0.9), NaturalGradientSGD(0.01)),
    "natural gradient to Adam": (NaturalGradientSGD(0.01), Adam(0.01)),
    "one of a user's own": (adam, amsgrad),
}
AGAIN = "the state of the optimizer (momentum, moments) starts again"


@pytest.mark.parametrize(
    ("which", "strategy"),
    [*((which, KAVG(3, moments="averaged")) for which in OTHERS if "natural" not in which),
     *((which, KAVG(3)) for which in OTHERS if "natural" in which), ("SGD to Adam", ADPSGD())],
)  # fmt: skip
def test_the_state_of_another_optimizer_starts_again(
    which: str, strategy: Strategy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = OTHERS[which]
    run(replace(experiment(strategy, 6), optimizer=first), 2, tmp_path)
    with caplog.at_level("WARNING"):
        run(replace(experiment(strategy, 14), optimizer=second), 2, tmp_path, resume=True)
    assert caplog.text.count(AGAIN) == 1
    assert evaluations(tmp_path)[-1] == 14
    caplog.clear()
    with caplog.at_level("WARNING"):  # the state is the new one's from here on
        run(replace(experiment(strategy, 20), optimizer=second), 2, tmp_path, resume=True)
    assert AGAIN not in caplog.text


def test_settings_of_the_same_optimizer_keep_its_state(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(replace(experiment(KAVG(3)), optimizer=Adam(0.01)), 2, tmp_path)
    with caplog.at_level("WARNING"):
        changed = replace(experiment(KAVG(3), 40), optimizer=Adam(0.02, beta1=0.8))
        run(changed, 2, tmp_path, resume=True)
    assert "optimizer.lr was 0.01 and is 0.02 now" in caplog.text
    assert AGAIN not in caplog.text
    newest = max((tmp_path / "checkpoints").glob("0*/learner-0.json"))
    assert read_pair(newest.with_suffix(""))[0]["optimizer.0.step"] == 20


def test_the_name_of_averaged_moments_is_that_of_the_strategies() -> None:
    assert MOMENTS == KEPT


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    run(experiment(SyncSGD()), 2, tmp_path)
    whole = told(tmp_path)
    damaged = ["null", "[1]", "3", '{"kind": "step"}', '{"kind": ["step"], "minibatches": 3}', "{"]
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write("\n".join(damaged) + "\n")
    run(experiment(SyncSGD(), 40), 2, tmp_path, resume=True)
    assert set(map(repr, whole)) <= set(map(repr, told(tmp_path)))


def test_a_run_with_a_straggler_goes_on(tmp_path: Path) -> None:
    run(experiment(SyncSGD()), 2, tmp_path)
    straggler = {**records(tmp_path)[0], "kind": "straggler"}
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write(json.dumps(straggler) + "\n")
    run(experiment(SyncSGD(), 40), 2, tmp_path, resume=True)
    assert straggler in records(tmp_path)


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
