"""The table of a plan: its figures against the simulator, its texts, and published figures beside it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.engine.experiment import Published
from murmur.recipes import toy
from murmur.simulation.account import of_timing
from murmur.simulation.plan import measure_machine
from murmur.simulation.planner.setting import Work, step_seconds
from murmur.simulation.planner.table import (
    Prediction,
    agrees,
    compared,
    draw_scaling,
    ranked,
    readable,
    row_of,
    scaled,
    shown,
)
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies import ADPSGD, KAVG, SuperLearners, SyncSGD
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.presets import PRESETS, preset
from tests.support.named import named

WORK = Work(corpus_hours=100, frames_per_minibatch=3600, model_bytes=1e6)
CLUSTER = Cluster(4, ConstantSeconds(0.36), Link(0.0, 1e9), message_bytes=1e6)


def test_hours_speed_up_and_cost_by_hand() -> None:
    """10,000 minibatches of 0.36 s are an hour alone; a ring of four adds 2 * 3/4 of a millisecond to every four."""
    row = row_of(SyncSGD(), CLUSTER, WORK, price=2.0)
    assert row_of(SyncSGD(), replace(CLUSTER, learners=1), WORK).hours == pytest.approx(1.0)
    assert row.hours == pytest.approx((0.36 + 1.5e-3) / 4 * 10_000 / 3600)
    assert row.speed_up == pytest.approx(4 * 0.36 / 0.3615)
    assert row.efficiency == pytest.approx(row.speed_up / 4)
    assert row.cost == pytest.approx(row.hours * 4 * 2.0)
    assert math.isnan(row_of(SyncSGD(), CLUSTER, WORK).cost)
    assert any("0.0015" in line for line in row.form.lines)


def test_ranking_puts_the_fewest_hours_first() -> None:
    uneven = replace(CLUSTER, compute=ConstantSeconds(0.36, {1: 10.0}))
    rows = ranked([SyncSGD(), ADPSGD(), KAVG(8)], uneven, WORK)
    assert [row.strategy for row in rows] == ["ADPSGD(mixing=ring)", "KAVG(K=8)", "SyncSGD()"]
    assert rows[0].speed_up == pytest.approx(3.1)


@pytest.mark.parametrize("factors", [{}, {0: 10.0}, {0: 10.0, 1: 10.0}, {3: 0.5}], ids=str)
@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD(), KAVG(8)], ids=named)
def test_no_speed_up_exceeds_that_of_the_gradients(factors: dict[int, float], strategy: Any) -> None:
    """One learner is the fastest, whatever the others are. Planner and simulator count alike."""
    cluster = replace(CLUSTER, compute=LognormalSeconds(0.36, 0.1, factors=factors))
    rates = [1 / factors.get(i, 1.0) for i in range(4)]
    row = row_of(strategy, cluster, WORK)
    assert row.speed_up <= 1.02 * sum(rates) / max(rates)
    experiment = replace(toy.experiment(), strategy=strategy)
    account = of_timing(time_strategy(strategy, cluster, 4 * 400), experiment, cluster, 0.0)
    assert account.speed_up == pytest.approx(row.speed_up, rel=0.06)


@pytest.mark.parametrize("learners", [1, 2, 256])
def test_equal_learners_are_as_fast_as_one_of_them(learners: int) -> None:
    """The fastest of many equal learners is fast by chance, as its times are a sample."""
    cluster = replace(CLUSTER, learners=learners, compute=LognormalSeconds(0.36, 0.3))
    assert row_of(ADPSGD(), cluster, WORK).speed_up == pytest.approx(learners, rel=0.01)


def test_scaling_skips_what_cannot_be_split_into_nodes(tmp_path: Path) -> None:
    rows = scaled(SuperLearners(ADPSGD(), 4), lambda n: replace(CLUSTER, learners=n), lambda _: WORK, [1, 2, 4, 8])
    assert [row.learners for row in rows] == [4, 8]
    assert shown(SuperLearners(ADPSGD(), 4)) == "SuperLearners(outer=ADPSGD(mixing=ring), node_size=4)"
    pytest.importorskip("matplotlib", reason="drawing needs matplotlib (pip install murmur-asr[viz])")
    draw_scaling({"nodes": rows}, tmp_path / "scaling.svg", "title")
    assert "<svg" in (tmp_path / "scaling.svg").read_text()


def test_flops_to_seconds() -> None:
    assert step_seconds(6e6, 1000, 15e12, 0.4) == pytest.approx(1e-3)
    with pytest.raises(ValueError, match=r"utilisation must lie in \(0, 1\], got 1.5"):
        step_seconds(6e6, 1000, 15e12, 1.5)
    with pytest.raises(ValueError, match="device_flops must be positive and finite, got 0"):
        step_seconds(6e6, 1000, 0, 0.5)
    with pytest.raises(ValueError, match=r"Work.corpus_hours must be positive and finite, got 0"):
        Work(0, 1, 1)
    with pytest.raises(ValueError, match=r"Work.optimizer_bytes must be finite and not negative, got -1"):
        Work(1, 1, 1, -1)
    with pytest.raises(ValueError, match=r"Cluster.message_bytes=5 is not Work.model_bytes=1000000"):
        row_of(SyncSGD(), replace(CLUSTER, message_bytes=5), WORK)


def test_a_timed_run_is_complete_and_repeats() -> None:
    """Every minibatch is taken once; two runs are the same to the bit; the network counts the vectors of KAVG."""
    timing = time_strategy(ADPSGD(), CLUSTER, 101)
    assert sum(timing.gradients) == 101 == sum(len(s) for s in timing.staleness)
    assert timing == time_strategy(ADPSGD(), CLUSTER, 101)
    lock_step = time_strategy(KAVG(5), CLUSTER, 100)
    rounds = 5  # the next mean has no weights and sends no vectors
    assert lock_step.sent_bytes == pytest.approx([rounds * 2 * 3 / 4 * 1e6] * 4)
    assert lock_step.exchanges == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0.4 s"), (9.96, "10 s"), (63, "1 min 03 s"), (12e3, "3 h 20 min")]
)
def test_times_of_a_plan_can_be_read(seconds: float, text: str) -> None:
    assert readable(seconds) == text


def test_presets_name_their_sources() -> None:
    for name, kind in PRESETS.items():
        assert {"link"} <= set(kind.sources), name
        assert kind.cluster(16, ConstantSeconds(0.1), 1e6).learners == 16
    with pytest.raises(ValueError, match="there is no cluster 'mainframe'; there are ethernet-1g"):
        preset("mainframe")


def test_this_machine_is_measured() -> None:
    machine = measure_machine()
    assert 0 < machine.latency_seconds < 0.1
    assert machine.link_bytes_per_second > 1e6
    assert machine.reduce_bytes_per_second > 1e7


NUMBERS = ("--step-seconds", "0.1", "--model-bytes", "1e8", "--corpus-hours", "100", "--frames-per-minibatch", "2000")


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plan", *words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_command_ranks_and_explains() -> None:
    code, said = run(*NUMBERS, "--learners", "8", "--straggler", "0=10x", "--price", "3", "--explain")
    assert code == 0, said
    assert said.index("ADPSGD") < said.index("SyncSGD")
    assert "seconds a minibatch = 1 / sum_i 1 / E t_i" in said
    assert "slowest learner" in said


def test_the_command_plans_a_measured_experiment() -> None:
    code, said = run("toy", "--measure", "--learners", "4", "--cluster", "ethernet-1g", "--strategy", "KAVG(K=4)")
    assert code == 0, said
    assert "measured:" in said
    assert "KAVG(K=4)" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--step-seconds", "0.1"), "plan needs --model-bytes (of the weights"),
        (NUMBERS[2:], "plan needs --step-seconds"),
        ((*NUMBERS, "--cluster", "mainframe"), "there is no cluster 'mainframe'"),
        ((*NUMBERS, "--straggler", "zero"), "write LEARNER=FACTORx"),
        ((*NUMBERS, "--straggler", "99=2x"), "there are learners 0..15"),
        ((*NUMBERS, "--strategy", "AdaptiveKAVG"), "AdaptiveKAVG has no closed form"),
        (("--measure",), "--measure needs an experiment"),
    ],
)
def test_mistakes_are_told(words: tuple[str, ...], message: str) -> None:
    code, said = run(*words)
    assert code == 1
    assert message in said


PAPER = Published("A and B 2020", hours={8: 2.0}, speed_ups={8: 4.0, 16: 6.0}, note="on some machines")


def test_a_factor_of_a_quarter_either_way_agrees() -> None:
    assert agrees(2.5, 2.0)
    assert agrees(1.6, 2.0)
    assert not agrees(2.51, 2.0)
    assert not agrees(1.59, 2.0)


def test_figures_are_compared_for_their_number_of_learners() -> None:
    found = compared(PAPER, [Prediction("X()", n, 1.0, 5.0) for n in (8, 16, 4)])
    assert found == [
        "X(), 8 learners: predicted 1 h, 5x; published 2 h, the prediction is 0.50 of it: differs; published 4x, the"
        " prediction is 1.25 of it: agrees",
        "X(), 16 learners: predicted 1 h, 5x; published 6x, the prediction is 0.83 of it: agrees",
        "X(), 4 learners: predicted 1 h, 5x; no published hours or speed-up for this number of learners",
        "A and B 2020: on some machines (agreement: within a factor of 1.25)",
    ]


def test_impossible_figures_are_refused() -> None:
    for wrong in ({0: 1.0}, {4: 0.0}, {4: float("nan")}):
        for field in ("hours", "speed_ups"):
            with pytest.raises(ValueError, match=f"Published.{field} needs positive finite figures"):
                Published("A", **{field: wrong})  # type: ignore[arg-type]
