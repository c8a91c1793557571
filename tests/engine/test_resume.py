"""A run that is cut off and goes on ends with the bits of one that was not."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.core.mixing import ring
from murmur.engine.budget import Budget
from murmur.engine.checkpoints import checkpoint
from murmur.engine.checkpoints.position import Position, write_start
from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD
from murmur.engine.record import steps_in
from murmur.engine.resume import join_late
from murmur.engine.run_files import JsonLines
from murmur.engine.schedule import NewBob
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ALL,
    BMUF,
    KAVG,
    AdaptiveKAVG,
    Compressed,
    DelayByOne,
    DiLoCo,
    GossipPGA,
    NoLoCo,
    ParameterAveraging,
    SlowMo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.tasks import fit, weights_of
from tests.support.unscaled import Experiment

LEARNERS, MINIBATCHES = 4, 47
SMALL = {
    "KAVG": KAVG(3),
    "BMUF": BMUF(3),
    "SlowMo": SlowMo(3),
    "DiLoCo": DiLoCo(3),
    "StreamingDiLoCo": StreamingDiLoCo(4, 2, 2),
    "GossipPGA": GossipPGA(3),
    "NoLoCo": NoLoCo(3),
    "ParameterAveraging": ParameterAveraging(24, optimizer="keep"),
}
IN_STEP = [SMALL.get(name) or make() for name, make in ALL.items() if Facts.of(make()).lock_step]
NESTED: list[Strategy] = [
    DelayByOne(ring),
    Compressed(KAVG(3), "int8"),
    Compressed(ParameterAveraging(24), "bfloat16"),
    Compressed(DelayByOne(), "int8"),
    Compressed(StreamingDiLoCo(3, 3, 1, alpha=0.0), "int8"),
    Compressed(SuperLearners(KAVG(3)), "float16"),
    SuperLearners(SyncSGD()),
    SuperLearners(KAVG(3)),
    SuperLearners(StreamingDiLoCo(5, 2, 1)),
    SuperLearners(NoLoCo(3)),
    SuperLearners(Compressed(BMUF(3), "int8")),
]
AVERAGED_MOMENTS: list[Strategy] = [
    KAVG(3, moments="averaged"),
    BMUF(3, moments="at_outer"),
    DelayByOne(moments="averaged"),
    GossipPGA(3, moments="at_outer"),
    Compressed(SlowMo(3, moments="at_outer"), "int8"),
    SuperLearners(DiLoCo(3, moments="averaged")),
]


class CutOff(Exception):
    """Exception that ends a run in the middle."""


@dataclass(frozen=True)
class Normed(ToyTask):
    """Small, with running statistics and dropout."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 10))


class Counted:
    """Runs a function until it has been called so often, then the run is cut off."""

    def __init__(self, function: Callable[..., Any], calls: int) -> None:
        self.function, self.left = function, calls

    def __call__(self, *arguments: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise CutOff
        return self.function(*arguments)


@dataclass(frozen=True)
class Until(Normed):
    """A task that can be asked for so many minibatches."""

    counted: Any = None

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        minibatch: tuple[Tensor, Tensor] = self.counted(n)
        return minibatch


TASK = Normed(samples=8, per_epoch=18)
EXPERIMENTS = [
    Experiment(TASK, strategy, Budget(minibatches=MINIBATCHES), optimizer, schedule, evaluate_every_epochs=0.5)
    for strategy, optimizer, schedule in [
        *((strategy, SGD(0.1, momentum=0.9), NewBob()) for strategy in [*IN_STEP, *NESTED]),
        *((s, NaturalGradientSGD(0.1, momentum=0.9), NewBob()) for s in (KAVG(3), SuperLearners(KAVG(3)))),
        (AdaptiveKAVG(), Adam(0.01), NewBob(improvement=0.5)),
        *((strategy, Adam(0.01), NewBob()) for strategy in AVERAGED_MOMENTS),
    ]
]


def name_of(experiment: Experiment) -> str:
    return f"{named(experiment.strategy)}-{type(experiment.optimizer).__name__}"


def cut_off(experiment: Experiment, out: Path, minibatches: int, writes: int, resume: bool) -> None:
    """Train until so many minibatches were read, or files written, in this launch."""
    counted = Counted(experiment.task.minibatch, minibatches)
    task = Until(samples=8, per_epoch=18, counted=counted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", Counted(checkpoint.write_whole, writes))
        with suppress(CutOff):
            Trainer(replace(experiment, task=task), VirtualWorld(LEARNERS), out, resume=resume).fit()


def test_evaluations_after_a_resume_count_steps_from_the_beginning(tmp_path: Path) -> None:
    whole = Experiment(TASK, KAVG(3), Budget(minibatches=48), SGD(0.1), evaluate_every_epochs=2 / 3)

    def steps(out: Path) -> list[tuple[int, int]]:
        records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
        return [(r["minibatches"], r["step"]) for r in records if r["kind"] == "evaluation"]

    Trainer(whole, VirtualWorld(LEARNERS), tmp_path / "whole").fit()
    cut_off(whole, tmp_path / "cut", 40, 1000, resume=False)
    cut_off(whole, tmp_path / "cut", 1000, 1000, resume=True)
    assert steps(tmp_path / "cut") == steps(tmp_path / "whole")
    assert [minibatches for minibatches, _ in steps(tmp_path / "cut")] == [12, 24, 36, 48]


@pytest.mark.parametrize("strategy", [KAVG(3), SuperLearners(KAVG(3)), SyncSGD()], ids=named)
@pytest.mark.parametrize("cuts", [(20,), (37,), (29, 11)])
def test_each_step_is_recorded_once_when_late_steps_share_lines(
    strategy: Strategy, cuts: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JsonLines.__init__, "__defaults__", (2,))
    experiment = Experiment(TASK, strategy, Budget(minibatches=60), SGD(0.1), evaluate_every_epochs=0.5)
    for number, minibatches in enumerate([*cuts, 1000]):
        cut_off(experiment, tmp_path, minibatches, 1000, resume=number > 0)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    steps: Counter[int] = Counter()
    for record in records:
        steps[record["learner"]] += steps_in(record)
    assert set(steps.values()) == {60 // LEARNERS}
    assert any(record.get("steps", 1) > 1 for record in records)


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(e, marks=[pytest.mark.slow] * (n % 3 > 0), id=name_of(e)) for n, e in enumerate(EXPERIMENTS)],
)
def test_the_bits_are_those_of_a_run_that_was_not_cut_off(experiment: Experiment) -> None:
    wanted = fit(experiment, VirtualWorld(LEARNERS))

    @settings(
        max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], database=None
    )
    @given(cuts=st.lists(st.tuples(st.integers(1, MINIBATCHES + 5), st.integers(0, 60)), min_size=1, max_size=3))
    def check(cuts: list[tuple[int, int]]) -> None:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)  # the host lives on
            for launch, (minibatches, writes) in enumerate(cuts):
                cut_off(experiment, Path(folder), minibatches, writes, resume=launch > 0)
            outcome = Trainer(experiment, VirtualWorld(LEARNERS), Path(folder), resume=True).fit()
        assert torch.equal(weights_of(outcome.model), wanted)

    check()


def test_a_late_learner_with_other_outputs_is_refused(tmp_path: Path) -> None:
    """Its weights of one class would be those of another one."""
    begun: list[Position] = []
    task = SimpleNamespace(outputs_digest=lambda: "ab")
    source = SimpleNamespace(experiment=SimpleNamespace(task=task), begin_at=begun.append)
    join_late(source, tmp_path)  # type: ignore[arg-type] # the others' folder is on another host
    assert not begun
    write_start(tmp_path, 1, "ab", Position(4, {4: 5}))
    join_late(source, tmp_path)  # type: ignore[arg-type]
    assert begun == [Position(4, {4: 5})]
    write_start(tmp_path, 1, "cd", Position())
    with pytest.raises(ValueError, match=r"stand for other classes .* copy their set to this host"):
        join_late(source, tmp_path)  # type: ignore[arg-type]


def test_a_run_tells_late_learners_what_its_outputs_stand_for(tmp_path: Path) -> None:
    Trainer(Experiment(ToyTask(per_epoch=4), KAVG(2), Budget(minibatches=4)), VirtualWorld(2), tmp_path).fit()
    assert json.loads((tmp_path / "checkpoints" / "began.json").read_text())["outputs"] == ""
