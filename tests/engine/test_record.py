"""The recorded split of a learner's seconds does not depend on how often the run is evaluated."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import ProgressLine, Record, duration
from murmur.engine.run_files import JsonLines
from murmur.engine.trainer import Trainer
from murmur.strategies import KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.unscaled import Experiment


def record(n: int, loss: float = 1.5, kind: str = "step") -> Record:
    figures = {"wer": 3.5} if kind == "evaluation" else {}
    return Record(kind, 0, n, 2 * n, 64.0 * n, n / 10, n * 0.5, loss, 0.1, 1, compute_seconds=0.4, figures=figures)


def test_lines_are_json_whatever_the_numbers() -> None:
    parsed = json.loads(record(3, math.nan).line(), parse_constant=lambda c: pytest_fail(c))
    assert parsed["loss"] is None
    assert json.loads(record(3, math.inf).line())["loss"] is None
    assert json.loads(record(3).line())["samples"] == 192.0


def pytest_fail(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_learners_share_a_file_without_mixing_lines(tmp_path: Path) -> None:
    def write() -> None:
        observer = JsonLines(tmp_path / "records.jsonl")
        for n in range(200):
            observer(record(n))

    threads = [Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["step"] for line in lines) == sorted(list(range(200)) * 4)


def test_the_progress_line_has_units() -> None:
    out = io.StringIO()
    line = ProgressLine(total=20, learners=2, stream=out, every_seconds=0.0)
    for n in range(10):
        line(record(n))
    line(record(10, kind="evaluation"))
    last, heldout = out.getvalue().splitlines()[-2:]
    assert "minibatch      20/20" in last
    assert "128 samples/s" in last
    assert "compute 0.400" in last
    assert heldout == "epoch   1.00  held-out  wer 3.5"


def resumed(n: int) -> Record:
    """Minibatch n of a run whose first 1,000 minibatches took 10 s each; the present start takes 1 s for each."""
    return Record("step", 0, n, n, 64.0 * n, n / 100, 10_000.0 + (n - 1000), 1.5, 0.1, 1, compute_seconds=1.0)


def test_the_time_left_after_a_resume_is_that_of_this_start() -> None:
    out = io.StringIO()
    line = ProgressLine(total=1600, learners=1, stream=out, every_seconds=0.0)
    for n in range(1000, 1010):
        line(resumed(n))
    first, *later = out.getvalue().splitlines()
    assert "left" not in first
    assert "samples/s" not in first
    assert later[-1].endswith(f"{duration(1600 - 1009)} left")


def test_the_time_left_follows_a_change_of_speed() -> None:
    out = io.StringIO()
    line = ProgressLine(total=10_000, learners=1, stream=out, every_seconds=0.0)
    for n in range(1, 500):
        line(Record("step", 0, n, n, 64.0 * n, n / 100, 10.0 * n, 1.5, 0.1, 1))
    for n in range(500, 1000):
        line(Record("step", 0, n, n, 64.0 * n, n / 100, 4990.0 + (n - 499), 1.5, 0.1, 1))
    assert out.getvalue().splitlines()[-1].endswith(f"{duration(10_000 - 999)} left")


TOY = ToyTask(samples=8, hidden=16, per_epoch=48)


def seconds_of(experiment: Experiment) -> dict[int, tuple[float, float, float]]:
    """(compute, waiting, communicating) seconds of each learner's records."""
    records: list[Record] = []
    cluster = Cluster(2, ConstantSeconds(0.1, {1: 3.0}), message_bytes=5e6)
    Trainer(experiment, VirtualWorld(cluster), observers=lambda _: (records.append,)).fit()
    steps = [r for r in records if r.kind == "step"]
    return {
        i: (
            sum(r.compute_seconds for r in steps if r.learner == i),
            sum(r.waiting_seconds for r in steps if r.learner == i),
            sum(r.communicating_seconds for r in steps if r.learner == i),
        )
        for i in range(2)
    }


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4)], ids=named)
def test_marks_take_no_seconds_away_from_the_records(strategy: Strategy) -> None:
    once = Experiment(TOY, strategy, Budget(epochs=1), SGD(0.1), evaluate_every_epochs=1.0)
    often = seconds_of(replace(once, evaluate_every_epochs=1 / 6))
    for learner, seconds in seconds_of(once).items():
        assert often[learner] == pytest.approx(seconds, rel=1e-9)
        assert learner == 1 or seconds[1] > 1.0
