"""Goodput of killed learners, with four learners of generated frames: kills, launches, rows, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from goodput import ADPSGD, ALONE, STRATEGIES, Run, Study, bars_of, best, figures_of, made, page
from goodput_faults import Launch, Scale, endure, faults_of, kills_of
from murmur.comparison.rows import Rows
from murmur.core.facts import layers
from murmur.engine.trainer import Outcome
from murmur.strategies import ALL
from murmur.worlds.virtual.cluster import Kill, Rejoin

SYNCHRONOUS = "SyncSGD()"
QUIET = Scale(
    learners=4,
    speeds=(1.0,),
    weights=1e6,
    bytes_per_second=1e15,
    latency_seconds=0.0,
    kill_seconds=math.inf,
    restart_seconds=0.5,
    lease_seconds=0.3,
    checkpoint_seconds=0.1,
    turns=4,
    hidden=8,
)
KILLED = replace(QUIET, kill_seconds=3.0)


def test_every_strategy_is_in_the_study() -> None:
    found = {type(layer).__name__ for text in STRATEGIES for layer in layers(Run(text).made)}
    assert found == set(ALL)


def test_one_learner_that_is_up_is_killed_in_each_interval() -> None:
    scale = Scale(learners=3, kill_seconds=10.0, restart_seconds=9.0)
    kills = kills_of(scale, 0, 1000.0)
    assert [int(kill.at_seconds // 10) for kill in kills] == list(range(100))
    assert {kill.learner for kill in kills} == {0, 1, 2}
    assert kills != kills_of(scale, 1, 1000.0)
    pairs = pairwise(kills)
    assert all(a.learner != b.learner for a, b in pairs if b.at_seconds < a.at_seconds + 9)


def test_faults_follow_from_what_a_strategy_tolerates() -> None:
    kills = (Kill(1, 5.0), Kill(2, 15.0))
    assert faults_of(kills, 4.0, Run(SYNCHRONOUS).made, 0, 2.0) == (Kill(1, 1.0),)
    assert faults_of(kills, 6.0, Run(ADPSGD).made, 0, 2.0) == (Kill(2, 9.0), Rejoin(2, 11.0))
    together = faults_of(kills[:1], 0.0, Run(f"SuperLearners({ADPSGD}, 2)").made, 1, 2.0)
    assert together == (Kill(1, 5.0), Kill(2, 5.0), Rejoin(1, 7.0), Rejoin(2, 7.0))


def test_a_run_is_launched_again_until_it_is_done_or_its_time_is_over() -> None:
    done, calls = Outcome(0, True, nn.Linear(1, 1), {}, 9), list[tuple[float, bool]]()

    def launch(began: float, resume: bool) -> Launch:
        calls.append((began, resume))
        return Launch(10.0, 7, done if began == 24.0 else None)

    assert endure(launch, 2.0, 100.0) == Launch(34.0, 21, done, 3)
    assert calls == [(0.0, False), (12.0, True), (24.0, True)]
    assert endure(launch, 2.0, 24.0) == Launch(24.0, 14, None, 2)


@pytest.mark.parametrize("strategy", [ADPSGD, SYNCHRONOUS])
def test_goodput_is_one_without_faults_and_lower_after_kills(strategy: str) -> None:
    quiet, killed = made(Study(QUIET), Run(strategy)), made(Study(KILLED), Run(strategy))
    assert quiet["goodput"] == pytest.approx(1.0, rel=1e-3)
    assert (quiet["kills"], quiet["undone"], quiet["launches"]) == (0, 0, 1)
    assert killed["kills"] > 0
    assert killed["goodput"] < 0.99
    assert killed["minibatches"] == quiet["minibatches"] == 16
    assert killed["undone"] > 0
    assert (killed["launches"] > 1) == (strategy == SYNCHRONOUS)
    assert killed["how"].startswith("restart" if strategy == SYNCHRONOUS else "without the learner")
    assert killed["heldout"]["loss"] > 0


def test_rows_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    study, kept = Study(QUIET), tmp_path / "rows.jsonl"
    cells = study.cells(2, [ALONE, "KAVG(8"])
    assert [cell.about["seed"] for cell in cells] == [0, 0, 1, 1]
    assert len({cell.digest for cell in (*cells, *Study(KILLED).cells(2, [ALONE, "KAVG(8"]))}) == 8
    for number, cell in enumerate(cells):
        Rows(kept).append({"digest": cell.digest, **cell.about, "goodput": number})
    assert [row["goodput"] for row in study.rows(cells, kept)] == list(range(4))
    assert len(kept.read_text().splitlines()) == 4


def row(strategy: str, goodput: float | None, loss: float, errors: int) -> dict[str, Any]:
    counts: Mapping[str, Any] = {"seconds": 100.0, "kills": 2, "undone": 3, "ended": None}
    words = {"errors": [(errors, 100), (errors, 100)], "utterances": "names", "heldout": {"loss": loss}}
    return {"strategy": strategy, "seed": 0, "goodput": goodput, "how": "restart", **counts, **words}


def test_bars_are_those_of_the_fastest_strategy_with_about_the_loss_of_one_learner() -> None:
    rows = [row(ALONE, None, 1.0, 10), row("a", 0.95, 1.2, 20), row("b", 0.91, 1.04, 12), row("c", 0.4, 1.0, 10)]
    found = figures_of(rows)
    assert best(found) == "b"
    assert [(bar["value"], bar["holds"]) for bar in bars_of(found)] == [(0.91, True), (2.0, False)]
    assert best(figures_of([rows[0], rows[1]])) == "a"
    assert bars_of(figures_of(rows[1:])) == []
    lines = page(found).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [ALONE, "a", "b", "c"]
    assert "0.910 | 1.0400 | 12.00 (12.00 to 12.00) | 2.00 (2.00 to 2.00) | 100 | 2 | 3 | restart" in lines[4]
