from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from murmur.core.group import WorldMismatch
from murmur.core.learner import Strategy
from murmur.core.whole_files import name_beside
from murmur.core.world import Seat
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair
from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD
from murmur.engine.record import Record
from murmur.engine.schedule import Exponential
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, BMUF, KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import thinned
from tests.support.named import named
from tests.support.tasks import Groups, OddToy, Quadratic, fit, weights_of
from tests.support.unscaled import Experiment

TOY = ToyTask(samples=8, hidden=16, dropout=0.2, per_epoch=40)


def records_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_files(tmp_path: Path) -> None:
    experiment = Experiment(TOY, KAVG(4), Budget(epochs=2), SGD(0.1))
    outcome = Trainer(experiment, VirtualWorld(Cluster(2, ConstantSeconds(0.1, {1: 2.0}))), tmp_path).fit()
    records = records_of(tmp_path)
    steps = [r for r in records if r["kind"] == "step"]
    assert len(steps) == 80
    assert [r["learner"] for r in records if r["kind"] == "evaluation"] == [0, 0]
    seconds = [r["seconds"] for r in steps if r["learner"] == 1]
    assert seconds == sorted(seconds)
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert {e["pid"] for e in trace} == {0, 1}
    assert {"compute", "waiting"} <= {e.get("cat") for e in trace}
    saved, facts = read_pair(tmp_path / "model")
    assert torch.equal(saved["weights"], weights_of(outcome.model))
    assert facts["figures"]["loss"] == outcome.figures["loss"]
    best = read_pair(tmp_path / "best")[1]["figures"]["loss"]
    losses = [r["loss"] for r in records if r["kind"] == "evaluation"]
    assert best == min(losses)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("strategy", "task", "optimizer"),
    thinned(
        [SyncSGD(), KAVG(4), pytest.param(BMUF(4), id="BMUF", marks=pytest.mark.slow)],
        [pytest.param(TOY, id="toy"), pytest.param(OddToy(samples=4, hidden=16, per_epoch=40), id="odd")],
        [Groups(), Adam(0.01)],
    ),
)
def test_resumed_runs_end_with_the_same_bits(
    strategy: Strategy, task: ToyTask, optimizer: Groups, tmp_path: Path
) -> None:
    whole = Experiment(task, strategy, Budget(minibatches=95), optimizer, evaluate_every_epochs=0.5)
    wanted = fit(whole, VirtualWorld(3))
    breaks = replace(whole, task=Breaks(task, 61))
    with pytest.raises(ArithmeticError, match="planted"):
        Trainer(breaks, VirtualWorld(3), tmp_path).fit()
    resumed = Trainer(whole, VirtualWorld(3), tmp_path, resume=True).fit()
    assert torch.equal(weights_of(resumed.model), wanted)
    steps = [(r["learner"], r["minibatches"]) for r in records_of(tmp_path) if r["kind"] == "step"]
    # In the last round of lock-step SGD a learner without a minibatch still takes the common step.
    assert len(steps) == len(set(steps)) == (96 if strategy == SyncSGD() else 95)


class Breaks:
    """A task whose minibatch `at` cannot be read."""

    def __init__(self, task: ToyTask, at: int) -> None:
        self.task, self.at = task, at
        self.per_epoch, self.samples_per_epoch = task.per_epoch, task.samples_per_epoch
        self.prepare, self.model, self.loss = task.prepare, task.model, task.loss
        self.evaluate, self.test = task.evaluate, task.test

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        if n == self.at:
            raise ArithmeticError("planted")
        return self.task.minibatch(n)


def test_resuming_with_more_learners_covers_the_rest(tmp_path: Path) -> None:
    task = Quadratic()
    experiment = Experiment(task, KAVG(4), Budget(minibatches=100), SGD(0.1), evaluate_every_epochs=0.04)
    with pytest.raises(ArithmeticError):
        Trainer(replace(experiment, task=Breaks(task, 70)), VirtualWorld(2), tmp_path).fit()  # type: ignore[arg-type]
    Trainer(experiment, VirtualWorld(3), tmp_path, resume=True).fit()
    steps = [r for r in records_of(tmp_path) if r["kind"] == "step"]
    assert len(steps) == 100
    assert max(float(str(r["learner"])) for r in steps) == 2


def test_a_new_run_forgets_the_old_one(tmp_path: Path) -> None:
    long = Experiment(TOY, KAVG(4), Budget(minibatches=80), evaluate_every_epochs=0.5)
    Trainer(long, VirtualWorld(2), tmp_path).fit()
    with pytest.raises(ArithmeticError):  # a new run that dies before its first checkpoint
        Trainer(replace(long, task=Breaks(TOY, 5)), VirtualWorld(2), tmp_path).fit()
    Trainer(long, VirtualWorld(2), tmp_path, resume=True).fit()
    assert len([r for r in records_of(tmp_path) if r["kind"] == "step"]) == 80


def test_records_stay_whole_when_they_cannot_be_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(TOY, KAVG(4), Budget(minibatches=80), evaluate_every_epochs=0.5)
    with pytest.raises(ArithmeticError):
        Trainer(replace(experiment, task=Breaks(TOY, 50)), VirtualWorld(2), tmp_path).fit()
    before = (tmp_path / "records.jsonl").read_bytes()

    def full(_: int) -> None:
        if name_beside(tmp_path / "records.jsonl").exists():
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("murmur.core.whole_files.os.fsync", full)
    with pytest.raises(OSError, match=r"records\.jsonl"):
        Trainer(experiment, VirtualWorld(2), tmp_path, resume=True).fit()
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    Trainer(Experiment(TOY, SyncSGD(), Budget(minibatches=5)), VirtualWorld(1), tmp_path).fit()
    other = Experiment(replace(TOY, hidden=17), SyncSGD(), Budget(minibatches=9))
    with pytest.raises(ValueError, match="it is of another experiment"):
        Trainer(other, VirtualWorld(1), tmp_path, resume=True).fit()


def test_different_experiments_do_not_start() -> None:
    class Mixed(Trainer):
        async def _train(self, seat: Seat) -> object:  # type: ignore[override]
            k = 8 if seat.group.rank == 2 else 4
            return await replace(self, experiment=replace(self.experiment, strategy=KAVG(k)))._train_as(seat)

        async def _train_as(self, seat: Seat) -> object:
            return await Trainer(self.experiment, self.world)._train(seat)

    for world in (VirtualWorld(3), ThreadWorld(3, timeout_seconds=10)):
        with pytest.raises(WorldMismatch, match="same file, settings and version"):
            Mixed(Experiment(TOY, KAVG(4)), world).fit()


def test_learners_whose_outputs_have_another_meaning_do_not_start() -> None:
    @dataclass(frozen=True)
    class Worded(ToyTask):
        def outputs_digest(self) -> str:
            return words[threading.get_ident()]

    class Seated(Trainer):
        async def _train(self, seat: Seat) -> object:  # type: ignore[override]
            words[threading.get_ident()] = "cd" if seat.group.rank == odd else "ab"
            return await super()._train(seat)

    words: dict[int, str] = {}
    for odd in (1, None):
        trainer = Seated(Experiment(Worded(), KAVG(4), Budget(minibatches=6)), ThreadWorld(2, timeout_seconds=10))
        with nullcontext() if odd is None else pytest.raises(WorldMismatch, match="do not stand for the same classes"):
            trainer.fit()


def test_schedules_count_all_learners() -> None:
    rates: dict[int, list[float]] = {}

    def observers(seat: Seat) -> tuple[object, ...]:
        def see(record: Record) -> None:
            if record.kind == "step":
                rates.setdefault(record.learner, []).append(record.rate)

        return (see,)

    for learners in (1, 2, 4):
        rates.clear()
        experiment = Experiment(Quadratic(), SyncSGD(), Budget(minibatches=40), SGD(1.0), Exponential(0.1))
        Trainer(experiment, VirtualWorld(learners), observers=observers).fit()  # type: ignore[arg-type]
        for own in rates.values():
            assert own == pytest.approx([0.1 ** (n / 40) for n in range(0, 40, learners)])


def test_evaluation_is_off_the_time_axis(tmp_path: Path) -> None:
    cluster = Cluster(2, ConstantSeconds(0.1))
    times = []
    for every in (0.1, 10.0):
        experiment = Experiment(TOY, SyncSGD(), Budget(epochs=1), evaluate_every_epochs=every)
        Trainer(experiment, VirtualWorld(cluster), tmp_path / str(every)).fit()
        times.append(records_of(tmp_path / str(every))[-1]["seconds"])
    assert times[0] == pytest.approx(times[1])


@dataclass(frozen=True)
class Explodes(ToyTask):
    """A task the losses of whose minibatches in `bad` are no numbers; normalised, so that buffers see them too."""

    bad: frozenset[int] = frozenset(range(1000))

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10))

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        x, y = super().minibatch(n)
        return (x * math.inf if n in self.bad else x), y


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), NaturalGradientSGD(0.1)], ids=named)
def test_losses_that_are_no_numbers_stop_training_with_advice(optimizer: SGD | NaturalGradientSGD) -> None:
    with pytest.raises(
        FloatingPointError, match=r"minibatch 9: the loss is nan, as it was of the 9 .* rate, warm it up"
    ):
        fit(Experiment(Explodes(samples=4), SyncSGD(), optimizer=optimizer), VirtualWorld(1))


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4), ADPSGD()], ids=named)
@pytest.mark.parametrize("world", [VirtualWorld(2), ThreadWorld(2, timeout_seconds=20)], ids=["virtual", "threads"])
def test_minibatches_without_a_finite_loss_are_skipped_and_counted(
    strategy: Strategy, world: VirtualWorld, tmp_path: Path
) -> None:
    task = Explodes(samples=8, bad=frozenset({4, 5, 11, 12, 13, 30}))  # 4 and 5 are everybody's in lock-step
    outcome = Trainer(Experiment(task, strategy, Budget(minibatches=60)), world, tmp_path).fit()
    assert math.isfinite(outcome.figures["loss"])
    assert all(bool(t.isfinite().all()) for t in outcome.model.state_dict().values())
    steps = [r for r in records_of(tmp_path) if r["kind"] == "step"]
    assert sum(max(int(str(r["skipped"])) for r in steps if r["learner"] == who) for who in (0, 1)) == 6
    assert len(steps) == 60


def test_a_skipped_minibatch_weighs_nothing_in_the_mean() -> None:
    """Beside a learner that has skipped, the others' gradient is the whole one."""
    task = Explodes(samples=8, bad=frozenset({1}))
    pair = fit(Experiment(task, SyncSGD(), Budget(minibatches=2)), VirtualWorld(2))
    alone = fit(Experiment(task, SyncSGD(), Budget(minibatches=1)), VirtualWorld(1))
    assert torch.equal(pair, alone)


def test_batchnorm_statistics_are_averaged() -> None:
    class Normed(ToyTask):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10))

        def evaluate(self, model: nn.Module) -> Mapping[str, float]:
            assert isinstance(model, nn.Sequential)
            assert not model.training
            return {"loss": float(torch.as_tensor(model[0].running_mean).sum())}

    experiment = Experiment(Normed(samples=8), KAVG(4), Budget(minibatches=40))
    own: dict[int, Tensor] = {}

    class Watch(Trainer):
        async def _end(self, me, source, points):  # type: ignore[no-untyped-def]
            own[me.group.rank] = source.buffers.gather()
            return await super()._end(me, source, points)

    outcome = Watch(experiment, VirtualWorld(2)).fit()
    assert not torch.equal(own[0], own[1])
    assert isinstance(outcome.model, nn.Sequential)
    mean = (own[0] + own[1])[:64] / 2
    assert torch.allclose(torch.as_tensor(outcome.model[0].running_mean), mean, atol=1e-7)
    assert outcome.figures["loss"] == pytest.approx(float(mean.sum()), abs=1e-5)
