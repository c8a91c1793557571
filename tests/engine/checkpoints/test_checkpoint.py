from __future__ import annotations

import errno
import json
import math
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from murmur.core.flat import Layout
from murmur.core.whole_files import name_beside, write_whole
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import (
    BestCheckpoints,
    Checkpoints,
    DamagedCheckpoint,
    pack_optimizer,
    read_pair,
    unpack_optimizer,
    write_pair,
)
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.strategies import KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.unscaled import Experiment


def test_round_trip(tmp_path: Path) -> None:
    tensors = {"weights": torch.randn(5), "steps": torch.tensor(3)}
    write_pair(tmp_path / "a", tensors, {"epoch": 1.5})
    back, facts = read_pair(tmp_path / "a")
    assert all(torch.equal(back[k], tensors[k]) for k in tensors)
    assert facts["epoch"] == 1.5
    assert not list(tmp_path.glob(".*"))  # nothing half-written left


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "json"])
def test_damage_is_named(damage: str, tmp_path: Path) -> None:
    write_pair(tmp_path / "a", {"w": torch.randn(50)}, {})
    file = tmp_path / ("a.json" if damage == "json" else "a.safetensors")
    raw = bytearray(file.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)
    elif damage in ("cut", "json"):
        file.write_bytes(raw[: len(raw) // 2])
    else:
        file.unlink()
    with pytest.raises(DamagedCheckpoint, match=str(tmp_path / "a")):
        read_pair(tmp_path / "a")


def test_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest(0) == (None, [])
    for done in (100, 200):
        for learner in range(2):
            checkpoints.save(done, learner, {"w": torch.tensor([done + learner])}, {"learners": [0, 1], "world": 2})
    checkpoints.save(300, 0, {"w": torch.zeros(1)}, {"learners": [0, 1], "world": 2})  # learner 1 died before it wrote
    for learner, wanted in ((0, 200), (1, 201), (2, 200), (3, 201)):  # newcomers take an old one's part
        found, passed_over = checkpoints.newest(learner)
        assert found is not None
        assert found.tensors["w"].item() == wanted
        assert passed_over == [f"{tmp_path}/0000000300/learner-1.json: the part of learner 1 is not there"]


def test_old_ones_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for done in range(5):
        checkpoints.save(done, 0, {"w": torch.zeros(1)}, {"learners": [0], "world": 1})
    checkpoints.prune()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0000000003", "0000000004"]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_optimizer_state(kind: type[torch.optim.Optimizer]) -> None:
    options = {"lr": 0.1} if kind is torch.optim.Adam else {"lr": 0.1, "momentum": 0.9}
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), **options)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    step()
    tensors, plain = pack_optimizer(optimizer)
    tensors = {k: v.clone() for k, v in tensors.items()}
    weights = [p.detach().clone() for p in model.parameters()]
    step()
    wanted = [p.detach().clone() for p in model.parameters()]
    for p, w in zip(model.parameters(), weights, strict=True):
        p.data.copy_(w)
    optimizer = kind(model.parameters(), **options)
    unpack_optimizer(optimizer, tensors, json.loads(json.dumps(plain)))
    step()
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), wanted, strict=True))


def whole_checkpoints(folder: Path) -> Checkpoints:
    """Three checkpoints of three learners; the tensors of each say which."""
    checkpoints = Checkpoints(folder)
    for done in (10, 20, 30):
        for learner in range(3):
            facts = {"learners": [0, 1, 2], "world": 3, "loss": 1 / done, "optimizer": {}}
            checkpoints.save(done, learner, {"w": torch.full((3,), float(done + learner))}, facts)
    return checkpoints


def found_by_all(checkpoints: Checkpoints) -> int:
    """The newest checkpoint that all learners can read: each goes back as far as another one had to."""
    before = math.inf
    while True:
        parts = [checkpoints.newest(learner, before)[0] for learner in range(3)]
        marks = [-1 if part is None else part.facts["minibatches"] for part in parts]
        if min(marks) == max(marks):
            for learner, part in enumerate(parts):
                assert part is None or part.tensors["w"].tolist() == [marks[0] + learner] * 3
                assert part is None or part.facts["loss"] == 1 / marks[0]
            return int(marks[0])
        before = min(marks) + 1


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=st.data())
def test_whatever_happens_to_one_file_the_newest_whole_one_is_found(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        checkpoints = whole_checkpoints(Path(folder))
        files = sorted(Path(folder).rglob("learner-*"))
        victim = data.draw(st.sampled_from(files))
        raw = bytearray(victim.read_bytes())
        how = data.draw(st.sampled_from(["flip", "cut", "gone", "longer"]))
        if how == "flip":
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut":
            del raw[data.draw(st.integers(0, len(raw) - 1)) :]
        elif how == "longer":
            raw += b"\0"
        victim.write_bytes(raw)
        if how == "gone":
            victim.unlink()
        damaged = victim.parent.name == "0000000030"
        found = found_by_all(checkpoints)
        # A flipped bit of white space between facts changes nothing.
        assert found == (20 if damaged else 30) or (found == 30 and how == "flip" and victim.suffix == ".json")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(calls=st.integers(0, 25))
def test_a_process_that_dies_while_it_writes_leaves_the_one_before(calls: int) -> None:
    """Cut off before the n-th file reaches the disk, gets its name, or goes."""

    class Died(BaseException):
        pass

    left = [calls]

    def dies(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return function(*arguments, **named)

        return called

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        checkpoints = whole_checkpoints(Path(folder))
        patch.setattr(os, "fsync", dies(lambda _: None))
        patch.setattr(Path, "replace", dies(Path.replace))
        patch.setattr(shutil, "rmtree", dies(shutil.rmtree))
        with suppress(Died):
            for learner in range(3):
                facts = {"learners": [0, 1, 2], "world": 3, "loss": 1 / 40, "optimizer": {}}
                checkpoints.save(40, learner, {"w": torch.full((3,), 40.0 + learner)}, facts)
            checkpoints.prune()
        last = Path(folder) / "0000000040" / "learner-2.json"
        assert found_by_all(checkpoints) == (40 if last.exists() else 30)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = whole_checkpoints(tmp_path)

    def full(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"learner-0.safetensors \(\d+ bytes\) cannot be written: the disk is full: make room"
    ):
        checkpoints.save(40, 0, {"w": torch.zeros(3)}, {"learners": [0], "world": 1})
    assert found_by_all(checkpoints) == 30
    assert not [file for file in tmp_path.rglob(".*") if file.is_file()]  # it takes no room for nothing


def test_only_whole_ones_count_when_old_ones_go(tmp_path: Path) -> None:
    """A slow learner may never write its part of some checkpoints: two whole ones stay all the same."""
    checkpoints = whole_checkpoints(tmp_path)
    for done in (40, 50, 60):
        checkpoints.save(done, 0, {"w": torch.zeros(1)}, {"learners": [0, 1, 2], "world": 3})
    checkpoints.prune()
    assert checkpoints.marks() == [60, 50, 40, 30, 20]


def test_names_of_files_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a new name its folder is synced, and after a new folder the one that it stands in."""
    synced: list[str] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write_whole(tmp_path / "a" / "b" / "file", b"x")
    assert synced[:2] == [str(tmp_path / "a"), str(tmp_path)]
    assert synced[-1] == str(tmp_path / "a" / "b")
    assert synced[-2] == str(name_beside(tmp_path / "a" / "b" / "file"))


def test_no_bit_of_the_facts_can_change_unseen(tmp_path: Path) -> None:
    facts = {"loss": 0.12345, "minibatches": 1200, "heldout": [1.5, 2.25], "optimizer": {"0.step": 7}}
    write_pair(tmp_path / "a", {"w": torch.zeros(1)}, facts)
    whole, raw = read_pair(tmp_path / "a")[1], (tmp_path / "a.json").read_bytes()
    for byte in range(len(raw)):
        for bit in (0, 1, 4):
            changed = bytearray(raw)
            changed[byte] ^= 1 << bit
            (tmp_path / "a.json").write_bytes(changed)
            with suppress(DamagedCheckpoint):
                read = read_pair(tmp_path / "a")[1]
                assert {name: read.get(name) for name in facts} == {name: whole[name] for name in facts}


def test_only_exact_names_count(tmp_path: Path) -> None:
    """Copies that a user has made stay, and nothing is read from them."""
    checkpoints = whole_checkpoints(tmp_path)
    copies = [tmp_path / name for name in ("0000000030.bak", "30", "00000000040", "50 (copy)")]
    for copy in copies:
        shutil.copytree(tmp_path / "0000000030", copy)
    (tmp_path / "0000000060").write_text("")  # no folder
    for name in ("learner-0 (copy).json", "learner-01.json", "learner-.json", "learner-x.json"):
        shutil.copy(tmp_path / "0000000030" / "learner-0.json", tmp_path / "0000000030" / name)
    assert checkpoints.marks() == [30, 20, 10]
    assert checkpoints.newest(1)[1] == []
    assert found_by_all(checkpoints) == 30
    checkpoints.prune()
    assert checkpoints.marks() == [30, 20]
    checkpoints.clear()
    assert all(copy.is_dir() for copy in copies)


def test_a_name_as_long_as_the_system_allows_is_written(tmp_path):
    path = tmp_path / ("x" * 255)
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


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
