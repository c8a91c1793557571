from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from murmur.core.flat import Layout
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.best import BestCheckpoints
from murmur.engine.checkpoints.checkpoint import read_pair, write_pair
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.recipes.toy import ToyTask
from murmur.strategies import KAVG, SyncSGD
from murmur.worlds.virtual.world import VirtualWorld
from unscaled import Experiment

TOY = ToyTask(samples=8, hidden=16, per_epoch=40)


def mean_of(kept: BestCheckpoints) -> tuple[dict[str, torch.Tensor], list[int]]:
    mean = kept.mean()
    assert mean is not None
    return mean


def vectors(value: float) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((3,), value), "buffers": torch.full((1,), -value)}


def test_the_best_by_loss_are_kept_and_averaged(tmp_path: Path) -> None:
    kept = BestCheckpoints(tmp_path, 3)
    losses = {10: 5.0, 20: 1.0, 30: math.nan, 40: 2.0, 50: 9.0, 60: 1.5, 70: math.inf}
    for done, loss in losses.items():
        kept.add(vectors(float(done)), {"loss": loss}, done)
    assert [int(stem.name) for stem in kept.ranked()] == [20, 60, 40]
    mean, marks = mean_of(kept)
    assert marks == [20, 40, 60]
    assert mean["weights"].tolist() == [40.0] * 3
    assert mean["buffers"].tolist() == [-40.0]
    assert mean["weights"].dtype == torch.float32
    assert len(list(tmp_path.iterdir())) == 6  # the others are gone from disk


def test_a_mark_made_again_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    kept = BestCheckpoints(tmp_path, 2)
    for done, value in ((10, 1.0), (20, 2.0), (20, 4.0)):
        kept.add(vectors(value), {"loss": value}, done)
    assert mean_of(kept)[0]["weights"].tolist() == [2.5] * 3
    kept.forget_after(10)
    assert mean_of(kept)[1] == [10]


def test_nothing_kept_and_damage_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = BestCheckpoints(tmp_path, 0)
    kept.add(vectors(1.0), {"loss": 1.0}, 10)
    assert kept.mean() is None
    kept = BestCheckpoints(tmp_path, 2)
    kept.add(vectors(1.0), {"loss": 1.0}, 10)
    kept.add(vectors(2.0), {"loss": 2.0}, 20)
    file = tmp_path / "0000000010.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert mean_of(kept)[1] == [20]
    assert "left out of the averaged model" in caplog.text
    assert "0000000010" in caplog.text


@pytest.mark.parametrize(
    "left", [b'{"digest": "0123456', b"[]", b'{"figures": {}}', b""], ids=["cut", "list", "other", "empty"]
)
def test_a_mark_with_damaged_facts_is_left_out_and_named(
    left: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = BestCheckpoints(tmp_path, 2)
    for done in (10, 20, 30):
        kept.add(vectors(float(done)), {"loss": 1.0 / done}, done)
    damaged = tmp_path / "0000000020.json"
    damaged.write_bytes(left)
    assert [int(stem.name) for stem in kept.ranked()] == [30]
    kept.add(vectors(40.0), {"loss": 1.0}, 40)
    assert mean_of(kept)[1] == [30, 40]
    assert caplog.text.count("left out of the averaged model") == 1  # not at every evaluation
    assert "0000000020" in caplog.text
    kept.forget_after(10)  # one beyond the checkpoint is made again
    assert not list(tmp_path.iterdir())


def test_other_names_are_no_marks(tmp_path: Path) -> None:
    kept = BestCheckpoints(tmp_path, 2)
    kept.add(vectors(1.0), {"loss": 1.0}, 10)
    others = [tmp_path / name for name in ("0000000010 (copy).json", "10.json", "0000000010.bak.json")]
    for other in others:
        other.write_bytes((tmp_path / "0000000010.json").read_bytes())
    assert mean_of(kept)[1] == [10]
    kept.forget_after(0)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_run_with_a_damaged_mark_goes_on_and_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Experiment(TOY, KAVG(4), Budget(minibatches=40), SGD(0.05), evaluate_every_epochs=0.25)
    Trainer(made, VirtualWorld(2), tmp_path).fit()
    damaged = sorted((tmp_path / "checkpoints" / "marks").glob("*.json"))[0]
    damaged.write_bytes(damaged.read_bytes()[:20])
    caplog.clear()
    Trainer(replace(made, budget=Budget(minibatches=60)), VirtualWorld(2), tmp_path, resume=True).fit()
    assert caplog.text.count(f"left out of the averaged model: {damaged.with_suffix('')}") == 1
    assert int(damaged.stem) not in read_pair(tmp_path / "averaged")[1]["marks"]


def test_a_run_whose_marks_are_all_damaged_ends_without_a_mean(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Experiment(TOY, SyncSGD(), Budget(minibatches=20), SGD(0.05), averaged_checkpoints=1)
    Trainer(made, VirtualWorld(1), tmp_path).fit()
    (mark,) = (tmp_path / "checkpoints" / "marks").glob("*.safetensors")
    write_pair(mark.with_suffix(""), read_pair(mark.with_suffix(""))[0], {"figures": {"loss": -1.0}})
    mark.write_bytes(mark.read_bytes()[::-1])
    Trainer(replace(made, budget=Budget(minibatches=40)), VirtualWorld(1), tmp_path, resume=True).fit()
    assert read_pair(tmp_path / "model")[1]["minibatches"] == 40
    assert f"left out of the averaged model: {mark}" in caplog.text


def test_averaged_is_the_mean_of_the_marks_and_survives_a_break(tmp_path: Path) -> None:
    whole = Experiment(
        TOY, KAVG(4), Budget(minibatches=160), SGD(0.05), evaluate_every_epochs=0.5, averaged_checkpoints=3
    )
    Trainer(whole, VirtualWorld(2), tmp_path / "whole").fit()
    wanted, facts = read_pair(tmp_path / "whole" / "averaged")
    marks = [read_pair(tmp_path / "whole" / "checkpoints" / "marks" / f"{n:010d}")[0] for n in facts["marks"]]
    assert len(marks) == 3
    assert torch.allclose(wanted["weights"], torch.stack([m["weights"] for m in marks]).mean(0), atol=1e-7)
    model = TOY.model()
    Layout.trainable(model).scatter(wanted["weights"])
    with torch.no_grad():
        assert TOY.evaluate(model.eval())["loss"] == pytest.approx(facts["figures"]["loss"])
    assert facts["tensors"]["weights"][0] == ["0.weight", [16, 64]]

    with pytest.raises(ArithmeticError):
        Trainer(replace(whole, task=Breaks(samples=8, hidden=16, per_epoch=40)), VirtualWorld(2), tmp_path / "b").fit()
    Trainer(whole, VirtualWorld(2), tmp_path / "b", resume=True).fit()
    again, _ = read_pair(tmp_path / "b" / "averaged")
    assert torch.equal(again["weights"], wanted["weights"])


class Breaks(ToyTask):
    """Its minibatch 130 cannot be read."""

    def minibatch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        if n == 130:
            raise ArithmeticError("planted")
        return super().minibatch(n)


def test_a_new_run_averages_nothing_of_the_old_one(tmp_path: Path) -> None:
    long = Experiment(TOY, SyncSGD(), Budget(minibatches=80), SGD(0.05), evaluate_every_epochs=0.25)
    Trainer(long, VirtualWorld(1), tmp_path).fit()
    Trainer(replace(long, budget=Budget(minibatches=20)), VirtualWorld(1), tmp_path).fit()
    assert max(read_pair(tmp_path / "averaged")[1]["marks"]) == 20


def test_no_averaging_leaves_no_file(tmp_path: Path) -> None:
    Trainer(Experiment(TOY, SyncSGD(), Budget(minibatches=20), averaged_checkpoints=0), VirtualWorld(1), tmp_path).fit()
    assert not (tmp_path / "averaged.json").exists()
    with pytest.raises(ValueError, match="must not be negative"):
        Experiment(TOY, SyncSGD(), averaged_checkpoints=-1)
