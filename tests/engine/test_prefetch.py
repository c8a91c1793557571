"""Minibatches made in the background: the same bits, a bounded number, errors in their place, seconds that are real."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from murmur.core.learner import Strategy
from murmur.engine import prefetch as prefetching
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.prefetch import Prefetch, each_tensor
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, KAVG, OwnShares, SyncSGD
from murmur.strategies.parameter_averaging import ParameterAveraging
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.tasks import fit
from tests.support.unscaled import Experiment

TOY = ToyTask(samples=8, hidden=16, dropout=0.2, per_epoch=20)


def steps_in(folder: Path) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "step"]


class Noting:
    """Makes numbers, notes which and where."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.background: set[int] = set()

    def __call__(self, n: int) -> int:
        self.made.append(n)
        if threading.current_thread() is not threading.main_thread():
            self.background.add(n)
        if n == 13:
            raise ArithmeticError("minibatch 13")
        return n * n


def settle(prefetch: Prefetch) -> None:
    """Wait until nothing is under way."""
    for future in list(prefetch._coming.values()):
        future.exception()


def test_what_is_foreseen_is_made_beside_and_only_that() -> None:
    make = Noting()
    prefetch = Prefetch(make, 2)
    assert prefetch.get(0) == 0
    prefetch.expect([1, 2, 3, 4])
    settle(prefetch)
    assert make.made == [0, 1, 2]  # bounded
    assert [prefetch.get(n) for n in (1, 2)] == [1, 4]
    prefetch.expect([5])
    settle(prefetch)
    assert prefetch.get(9) == 81  # foreseen wrongly
    prefetch.expect([6])
    settle(prefetch)
    assert prefetch.get(5) == 25  # dropped, made again
    prefetch.close()
    assert make.made == [0, 1, 2, 5, 9, 6, 5]
    assert make.background == {1, 2, 5, 6}


def test_nothing_ahead_is_made_in_the_caller() -> None:
    make = Noting()
    prefetch = Prefetch(make, 0)
    prefetch.expect([1, 2])
    assert [prefetch.get(n) for n in (1, 2)] == [1, 4]
    assert not make.background
    prefetch.close()


def test_an_error_comes_when_its_minibatch_is_asked_for() -> None:
    prefetch = Prefetch(Noting(), 2)
    prefetch.expect([13, 14])
    settle(prefetch)
    assert prefetch.get(14) == 196
    prefetch.expect([13])
    with pytest.raises(ArithmeticError, match="minibatch 13"):
        prefetch.get(13)
    prefetch.close()


def test_what_is_under_way_is_waited_for_and_what_is_not_begun_is_made_here() -> None:
    noting, may_end = Noting(), threading.Event()

    def make(n: int) -> int:
        assert n != 1 or may_end.wait(60)
        return noting(n)

    prefetch = Prefetch(make, 2)
    prefetch.expect([1, 2])
    while not prefetch._coming[1].running():
        time.sleep(0.001)
    assert prefetch.get(2) == 4  # not begun: nobody waits for minibatch 1 first
    assert noting.made == [2]
    may_end.set()
    assert prefetch.get(1) == 1
    assert noting.made == [2, 1]
    assert noting.background == {1}
    prefetch.close()


class Pair(NamedTuple):
    x: Tensor
    label: str


@dataclass(frozen=True)
class Nested:
    x: Tensor
    more: dict[str, list[Tensor]]
    pair: Pair
    count: int = field(init=False, default=3)


def test_tensors_of_any_minibatch_are_found() -> None:
    value = Nested(torch.ones(2), {"a": [torch.ones(1), torch.ones(1)]}, Pair(torch.ones(3), "l"))
    seen: list[int] = []
    doubled = each_tensor((value, 5, None), lambda t: seen.append(t.numel()) or 2 * t)[0]
    assert seen == [2, 1, 1, 3]
    assert doubled.more["a"][1].item() == doubled.pair.x[0].item() == doubled.x[0].item() == 2
    assert (doubled.pair.label, doubled.count) == ("l", 3)


class Stub:
    """A stream of copies that notes who called it and on what."""

    def __init__(self, device: str) -> None:
        self.device, self.calls = device, list[tuple[str, bool, Any]]()

    def _note(self, what: str, x: Any) -> Any:
        self.calls.append((what, threading.current_thread() is threading.main_thread(), x))
        return x

    @contextmanager
    def copying(self) -> Iterator[str]:
        yield "done"

    def copy(self, x: Tensor) -> Tensor:
        return torch.tensor(self._note("copy", x.item()))

    def await_copies(self, done: str) -> None:
        self._note("await", done)

    def use(self, x: Tensor) -> Tensor:
        return torch.tensor(self._note("use", x.item()))


def test_copies_begin_in_the_background_and_are_received_by_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetching, "CopyStream", Stub)
    monkeypatch.setattr(prefetching, "is_accelerator", lambda device: device == "elsewhere")
    prefetch = Prefetch(lambda n: torch.tensor(n * n), 1, "elsewhere")
    stream = prefetch._copies
    assert isinstance(stream, Stub)
    monkeypatch.setattr(prefetching, "keep", stream.use)
    prefetch.expect([3])
    settle(prefetch)
    assert stream.calls == [("copy", False, 9)]
    assert prefetch.get(3) == 9
    assert prefetch.get(4) == 16
    waited = ("await", True, "done")
    assert stream.calls[1:] == [waited, ("use", True, 9), ("copy", True, 16), waited, ("use", True, 16)]
    prefetch.close()


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(3), ParameterAveraging(frames_per_iteration=24)], ids=named)
@pytest.mark.parametrize("learners", [1, 3])
def test_bits_do_not_depend_on_what_is_prepared_ahead(strategy: Strategy, learners: int) -> None:
    experiment = Experiment(TOY, strategy, Budget(minibatches=25), SGD(0.1))
    weights = [fit(replace(experiment, prefetch=ahead), ThreadWorld(learners)) for ahead in (0, 1, 4)]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    assert replace(experiment, prefetch=7).digest() == experiment.digest()


class Slow(ToyTask):
    """A minibatch takes 20 ms to make, a gradient 30 ms to compute."""

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.02)
        return super().minibatch(n)

    def loss(self, model: torch.nn.Module, minibatch: tuple[Tensor, Tensor]) -> Any:
        time.sleep(0.03)
        return super().loss(model, minibatch)


def test_records_say_how_long_each_step_waited_for_data(tmp_path: Path) -> None:
    waited = {}
    for ahead in (0, 2):
        experiment = Experiment(Slow(samples=4), SyncSGD(), Budget(minibatches=12), prefetch=ahead)
        Trainer(experiment, ThreadWorld(1), tmp_path / str(ahead)).fit()
        steps = steps_in(tmp_path / str(ahead))
        waited[ahead] = [step["data_seconds"] for step in steps]
        assert all(step["compute_seconds"] >= 0.03 for step in steps)
    assert min(waited[0]) >= 0.02
    assert waited[2][0] >= 0.02  # the first cannot be foreseen
    assert sorted(waited[2][1:])[5] < min(waited[0])


def test_asynchronous_learners_draw_every_minibatch(tmp_path: Path) -> None:
    experiment = Experiment(TOY, ADPSGD(), Budget(minibatches=40), SGD(0.1))
    Trainer(experiment, ThreadWorld(3), tmp_path).fit()
    assert len(steps_in(tmp_path)) == 40


def test_what_is_begun_from_elsewhere_is_bounded_too() -> None:
    make = Noting()
    prefetch = Prefetch(make, 2)
    assert prefetch.seconds == 0
    for n in (1, 2, 3):
        prefetch.begin(n)
        settle(prefetch)
    assert list(prefetch._coming) == [2, 3]
    assert [prefetch.get(n) for n in (3, 2)] == [9, 4]
    assert make.background == {1, 2, 3}
    assert prefetch.seconds > 0
    prefetch.close()
    idle = Prefetch(make, 0)
    idle.begin(1)
    assert idle.get(1) == 1
    assert (idle.seconds, not idle._coming) == (0, True)


def test_shares_are_prepared_ahead(tmp_path: Path) -> None:
    experiment = Experiment(Slow(samples=4), OwnShares(), Budget(minibatches=12))
    Trainer(experiment, ThreadWorld(1), tmp_path).fit()
    waited = sorted(step["data_seconds"] for step in steps_in(tmp_path))
    assert waited[6] < 0.02 <= waited[-1]  # a minibatch takes 20 ms to make; the first cannot be foreseen


@pytest.mark.gpu
def test_a_gpu_gets_the_same_bits() -> None:
    rng = torch.Generator().manual_seed(0)
    made = [torch.randn(256, 512, generator=rng) for _ in range(8)]
    prefetch = Prefetch(lambda n: {"x": made[n]}, 2, "cuda:0")
    for n in range(8):
        moved = prefetch.get(n)["x"]
        prefetch.expect([n + 1, n + 2] if n < 6 else [n + 1] if n < 7 else [])
        assert moved.device.type == "cuda"
        assert torch.equal((moved * 2).cpu(), made[n] * 2)
    prefetch.close()
