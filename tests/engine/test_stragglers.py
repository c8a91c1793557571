"""Detection of slow learners on figures drawn from known distributions."""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import StragglerRecord
from murmur.engine.stragglers import LASTING, Estimate, LinkEstimate, Straggler, Stragglers, Window, sentence, slowness
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, ASGD, KAVG, SuperLearners, SyncSGD
from murmur.worlds.threads import ThreadWorld
from tests.support.tasks import Quadratic
from tests.support.unscaled import Experiment

STEPS = 20  # of a window


def window(learner: int, draw: random.Random, compute: float, noise: float = 0.2, number: int = STEPS) -> Window:
    """A window of steps whose times scatter log-normally around their medians."""
    steps = [compute * math.exp(draw.gauss(0, noise)) for _ in range(number)]
    waits = [compute / 10 * math.exp(draw.gauss(0, noise)) for _ in range(number)]
    return Window(learner, Estimate.of(steps), Estimate.of(waits))


def exact(learner: int, compute: float, data: float = 0.0, link: LinkEstimate | None = None) -> Window:
    return Window(learner, Estimate(compute), Estimate(data), link or LinkEstimate())


def watch(rounds: Sequence[Sequence[Window]]) -> list[tuple[int, Straggler]]:
    """Findings in rounds of windows of all learners, each with its round."""
    stragglers = Stragglers()
    found = []
    for number, round_ in enumerate(rounds):
        for each in round_:
            straggler = stragglers.see(each, float(number), 100.0 * number)
            if straggler is not None:
                found.append((number, straggler))
    return found


@pytest.mark.parametrize("learners", [2, 3, 4, 16])
@pytest.mark.parametrize("factor", [2.0, 10.0])
def test_a_slow_learner_is_found_and_nobody_else(learners: int, factor: float) -> None:
    draw = random.Random(learners)
    slow = learners // 2
    rounds = [
        [window(i, draw, 0.05 * (factor if i == slow and 5 <= number < 20 else 1)) for i in range(learners)]
        for number in range(40)
    ]
    (came, straggler), (went, again) = watch(rounds)
    assert (straggler.learner, straggler.cause, straggler.over) == (slow, "compute", False)
    assert straggler.factor == pytest.approx(factor, rel=0.25)
    assert came == 5 + LASTING - 1
    assert (straggler.since_seconds, straggler.since_samples) == (5.0, 500.0)
    assert (again.learner, again.over, went) == (slow, True, 20 + LASTING - 1)
    assert again.since_seconds == 5.0


def test_waiting_for_data_is_told_from_computing() -> None:
    rounds = [[exact(0, 0.1, 0.001), exact(1, 0.1, 0.2), exact(2, 0.1, 0.001), exact(3, 0.1, 0.002)]] * LASTING
    [(_, straggler)] = watch(rounds)
    assert (straggler.learner, straggler.cause) == (1, "data")
    assert straggler.factor == pytest.approx(0.3 / 0.101)


def test_a_slow_link_counts_where_it_costs_something() -> None:
    usual = [exact(i, 0.1, link=LinkEstimate(1e-8 * (4 + i), 0.01)) for i in range(3)]
    assert slowness(exact(3, 0.1, link=LinkEstimate(1e-6, 0.05)), usual) == ("network", pytest.approx(20))
    assert slowness(exact(3, 0.1, link=LinkEstimate(1e-6, 0.01)), usual) is None, "20x, but little of a step"
    assert slowness(exact(3, 0.1, link=LinkEstimate(1e-7, 0.05)), usual) is None, "it may be chance"
    assert slowness(exact(3, 0.1, link=LinkEstimate(1e-6, 0.05)), usual[:1]) is None, "of one link both ends are slow"
    assert slowness(exact(3, 0.1), usual) is None


def test_one_slow_window_is_no_alarm() -> None:
    rounds = [[exact(0, 0.1 if number % 3 else 1.0), exact(1, 0.1), exact(2, 0.1)] for number in range(30)]
    assert watch(rounds) == []


def test_two_of_five_may_be_slow() -> None:
    rounds = [[exact(i, 0.3 if i in (1, 4) else 0.1) for i in range(5)]] * LASTING
    assert [straggler.learner for _, straggler in watch(rounds)] == [1, 4]


def test_who_is_gone_is_forgotten() -> None:
    stragglers = Stragglers()
    for _ in range(LASTING):
        stragglers.see(exact(0, 0.1), 0.0, 0.0)
        stragglers.see(exact(1, 10.0), 0.0, 0.0)
    stragglers.only([0, 2])
    assert [stragglers.see(exact(2, 1.0), 0.0, 0.0) for _ in range(LASTING - 1)] == [None] * (LASTING - 1)
    assert stragglers.see(exact(2, 1.0), 0.0, 0.0) == Straggler(2, "compute", 10.0, 0.0, 0.0)


times = st.floats(0.001, 10.0)


@given(st.lists(st.tuples(times, times), min_size=2, max_size=12), st.floats(0.01, 100.0))
@settings(max_examples=150, deadline=None)
def test_neither_units_nor_order_matter(figures: list[tuple[float, float]], scale: float) -> None:
    windows = [exact(i, compute, data) for i, (compute, data) in enumerate(figures)]
    scaled = [exact(i, scale * compute, scale * data) for i, (compute, data) in enumerate(figures)]
    one, other = slowness(windows[0], windows[1:]), slowness(scaled[0], scaled[:0:-1])
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one[0] == other[0]
        assert one[1] == pytest.approx(other[1])
        assert one[1] > 1


@given(st.floats(0.001, 1.0), st.integers(2, 10), st.floats(1.6, 50.0))
@settings(max_examples=50, deadline=None)
def test_a_lasting_factor_is_never_missed(usual: float, learners: int, factor: float) -> None:
    # The very first window of a run has nothing to be compared with.
    rounds = [[exact(i, usual * (factor if i == 0 else 1.0)) for i in range(learners)]] * (LASTING + 1)
    [(_, straggler)] = watch(rounds)
    assert straggler.learner == 0
    assert straggler.factor == pytest.approx(factor)


@pytest.mark.parametrize("number", [3, STEPS])
@pytest.mark.parametrize(("learners", "noise"), [(2, 0.1), (2, 0.5), (4, 0.5), (32, 0.2)])
def test_equal_learners_raise_no_alarm(learners: int, noise: float, number: int) -> None:
    """Of 4,000 windows, as many as a run of hours has, none is an alarm, however few steps they are of."""
    draw = random.Random(f"{learners} {noise}")
    rounds = [[window(i, draw, 0.05, noise, number) for i in range(learners)] for _ in range(4000 // learners)]
    assert watch(rounds) == []


@given(st.lists(times, min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_an_estimate_lies_among_its_values(values: list[float]) -> None:
    estimate = Estimate.of(values)
    assert min(values) <= estimate.seconds <= max(values)
    assert 0 <= estimate.error <= 1.9 * (max(values) - min(values))
    assert Window.from_note(3, Window(3, estimate, estimate, LinkEstimate(1.0, 2.0)).note()) == Window(
        3, estimate, estimate, LinkEstimate(1.0, 2.0)
    )


STEP_SECONDS = 0.01
LEARNERS = 4


@dataclass(frozen=True)
class SlowData(Quadratic):
    """Every fourth minibatch, which in lock-step is always the same learner's, takes long to make."""

    def minibatch(self, n: int) -> Any:
        time.sleep(8 * STEP_SECONDS if n % LEARNERS == 1 else 0.0)
        return super().minibatch(n)


def stragglers(
    folder: Path, strategy: Strategy, task: Quadratic, delay: Callable[[int], float], steps: int = 60
) -> list[dict[str, Any]]:
    """The records of stragglers of a run."""
    budget = Budget(epochs=steps * LEARNERS / task.per_epoch)
    experiment = Experiment(task, strategy, budget, SGD(0.01), evaluate_every_epochs=10.0)
    Trainer(experiment, ThreadWorld(LEARNERS, delay=delay), folder, pace_seconds=0.1).fit()
    records = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "straggler"]


def uneven(slow: int, factor: float) -> Callable[[int], float]:
    return lambda rank: STEP_SECONDS * (factor if rank == slow else 1.0)


@pytest.mark.parametrize(
    ("strategy", "slow"),
    [(ADPSGD(), 3), (KAVG(K=2), 0), (ASGD(), 2), (SuperLearners(ADPSGD(), 2), 3)],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_a_slow_learner_is_named(strategy: Strategy, slow: int, tmp_path: Path) -> None:
    found = stragglers(tmp_path, strategy, Quadratic(), uneven(slow, 5.0))
    assert [(record["learner"], record["cause"], record["over"]) for record in found] == [(slow, "compute", False)]
    assert 2.5 < found[0]["factor"] < 10
    assert 0 <= found[0]["since_samples"] < found[0]["samples"]


def test_slow_data_is_named_as_such(tmp_path: Path) -> None:
    found = stragglers(tmp_path, SyncSGD(), SlowData(), uneven(0, 1.0))
    assert {(each["learner"], each["cause"]) for each in found} == {(1, "data")}


def test_equal_learners_are_left_in_peace(tmp_path: Path) -> None:
    assert stragglers(tmp_path, ADPSGD(), Quadratic(), uneven(0, 1.0)) == []


def test_the_end_of_slowness_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()

    def for_a_while(rank: int) -> float:
        return STEP_SECONDS * (10.0 if rank == 1 and time.monotonic() - began < 1.5 else 1.0)

    with caplog.at_level(logging.WARNING):
        found = stragglers(tmp_path, ADPSGD(), Quadratic(), for_a_while, steps=350)
    assert [(record["learner"], record["over"]) for record in found] == [(1, False), (1, True)]
    lines = [message for message in caplog.messages if message.startswith("learner 1 ")]
    assert len(lines) == 2
    assert "slower than the median since " in lines[0]
    assert "keeps up again" in lines[1]


def test_the_line_says_who_what_and_since_when() -> None:
    record = StragglerRecord(
        *("straggler", 3, 10, 40, 9300.0, 0.5, 100.0, 0.0),
        host="b",
        cause="compute",
        factor=10.21,
        since_seconds=75.0,
        since_samples=5000.0,
    )
    assert sentence(record, datetime(2026, 1, 2, 12, 4, 30)) == (
        "learner 3 (host b) computes 10.2x slower than the median since 12:04:05, 4,300 samples ago"
    )
