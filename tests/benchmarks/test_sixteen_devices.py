"""Sixteen devices, with four learners of generated frames: paces, hosts, rows, predictions, and bars."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forked_hosts import Failed, apart
from murmur.comparison.rows import Rows
from namespaces import refusal
from sixteen_bars import bars_of, best, speed_up, words_bars, wrong_pairs
from sixteen_devices import Study, perform
from sixteen_predicted import Told, predicted
from sixteen_runs import Material
from sixteen_study import (
    DELAYED,
    FULL,
    RANDOMISED,
    SYNCHRONOUS,
    Cell,
    Scale,
    cells,
    generated_task,
    nodes,
    pieces,
    ratio_of_papers,
)
from stretched import FORWARD, Stopwatch, Stretched, first_bucket

SMALL = Scale(learners=4, node=2, pace=0.25, turns=4, alone=8, locked=2, hidden=8)


def gradient(task: Stretched, learner: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = task.model()
    loss = task.loss(model, task.piece(0, learner, 4))
    (loss.total / loss.samples).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_a_stretched_gradient_has_the_same_bits_and_takes_its_seconds() -> None:
    inner = generated_task(SMALL, 0)
    fast, slow = Stretched(inner, 0.0), Stretched(inner, 0.1, slowness=3.0)
    expected, found = gradient(fast, 1), gradient(slow, 1)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert slow.watch.gradients == 1
    assert slow.watch.seconds >= 0.3 > slow.watch.processor_seconds


def test_parts_of_a_gradient_appear_in_proportion_to_their_elements() -> None:
    watch = Stopwatch(bucket=1)
    began = time.monotonic()
    watch.begin()
    watch.arrive(1, 4, True, 0.4)
    assert time.monotonic() - began >= 0.4 * (FORWARD + (1 - FORWARD) / 4)
    watch.arrive(3, 4, False, 0.4)
    assert watch.seconds >= 0.4
    assert 0 < watch.behind <= watch.seconds - 0.4 * (FORWARD + (1 - FORWARD) / 4)


def test_the_first_bucket_holds_the_last_tensors_of_a_mebibyte() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (10, 1 << 18, 1 << 17, 1 << 10)]
    assert first_bucket(parameters) == {1, 2, 3}
    assert first_bucket(parameters[:1]) == {0}


def test_the_plan_has_every_bar_and_begins_with_the_measurements() -> None:
    every = cells(FULL)
    assert every[0].kind == "measured"
    assert len({cell.digest(FULL, False, "") for cell in every}) == len(every)
    assert {cell.seed for cell in every if cell.strategy == RANDOMISED and cell.slow == 1} == {0, 1, 2}
    assert pieces(every[1], FULL) == 24_747
    assert Cell("devices", "ASGD()").where(FULL) == list(range(17))
    assert Cell("devices", nodes(FULL)).where(FULL) == [rank // 4 for rank in range(16)]


def test_predictions_agree_where_the_seconds_are_known() -> None:
    """Gradients of 1.2 s, exchanges beside them: 16 learners take a sixteenth of the time, with one slow learner less.

    In step with a learner ten times slower, a turn takes twelve seconds.
    """
    told, turns = Told.nominal(FULL), 100
    total = turns * 16
    equal = predicted(Cell("devices", DELAYED), FULL, told, total)
    assert equal == pytest.approx({"simulate": 120, "plan": 120}, rel=0.01)
    slow = predicted(Cell("devices", RANDOMISED, slow=10.0), FULL, told, total)
    assert slow == pytest.approx({name: 120 * 16 / 15.1 for name in slow}, rel=0.05)
    step = predicted(Cell("devices", SYNCHRONOUS, slow=10.0), FULL, told, 160)
    assert step == pytest.approx({"simulate": 10 * 12.2, "plan": 10 * 12.2}, rel=0.01)


def row(strategy: str, seconds: float, simulate: float, loss: float = 1.0, slow: float = 1.0) -> dict[str, object]:
    cell = {"kind": "devices", "strategy": strategy, "seed": 0, "slow": slow, "turns": None}
    predicted_seconds = {"simulate": simulate, "plan": simulate}
    return {
        "name": strategy,
        "cell": cell,
        "seconds": seconds,
        "minibatches": 160,
        "alone": 1.2,
        "predicted": predicted_seconds,
        "heldout": {"loss": loss},
        "errors": None,
    }


def test_bars_follow_from_rows() -> None:
    rows = [row(RANDOMISED, 12.8, 12.0, 1.2), row(DELAYED, 15.0, 14.0, 1.1), row(RANDOMISED, 16.0, 15.2, slow=10.0)]
    assert best(rows, (RANDOMISED, DELAYED)) == DELAYED
    assert speed_up(rows[0]) == pytest.approx(15)
    found = {bar["what"]: bar["value"] for bar in bars_of(rows, FULL)}
    assert found["speed-up, equal learners"] == pytest.approx(12.8)
    assert found["speed-up, one slow learner"] == pytest.approx(12.0)
    assert found["difference from the predicted time"] == pytest.approx(1 / 15)
    assert wrong_pairs(rows) == []
    assert len(wrong_pairs([rows[0], row(DELAYED, 15.0, 11.0)])) == 2


@pytest.mark.parametrize(("low", "high", "distance"), [(-1.0, 1.5, 0.0), (0.25, 1.0, 0.25), (-2.0, -0.5, 0.5)])
def test_an_interval_without_0_misses_its_bar(low: float, high: float, distance: float) -> None:
    contains, narrow = words_bars({"apart": [0.0, low, high]})
    assert contains["value"] == distance
    assert contains["holds"] == (distance == 0)
    assert narrow["value"] == (high - low) / 2


def test_rows_with_late_gradients_are_made_again_on_request(tmp_path: Path) -> None:
    study = Study(SMALL, Material(SMALL, None), Rows(tmp_path / "rows.jsonl"), tmp_path)
    cell = Cell("devices")
    assert study.due(cell)
    study.rows.append({"digest": study.digest(cell), "late": 3, "gradients": [50, 50], "errors": {}})
    assert not study.due(cell)
    assert replace(study, again=True).due(cell)
    study.rows.append({"digest": study.digest(cell), "late": 2, "gradients": [50, 50], "errors": {}})
    assert not replace(study, again=True).due(cell)


def test_a_row_without_words_is_due_only_where_words_are_wanted(tmp_path: Path) -> None:
    study = Study(SMALL, Material(SMALL, None), Rows(tmp_path / "rows.jsonl"), tmp_path)
    whole, timed = Cell("devices"), Cell("devices", turns=2)
    for cell in (whole, timed):
        study.rows.append({"digest": study.digest(cell), "late": 0, "gradients": [1]})
    assert study.due(whole)
    assert not study.due(timed)


def test_other_cells_run_after_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, made = Study(SMALL, Material(SMALL, None), Rows(tmp_path / "rows.jsonl"), tmp_path), list[str]()

    def make(self: Study, cell: Cell) -> dict[str, object]:
        made.append(cell.name)
        if cell.kind != "words":
            raise Failed("lost")
        return {}

    monkeypatch.setattr(Study, "make", make)
    assert perform(study, [Cell("devices"), Cell("words")], 60) == [Cell("devices").name]
    assert made == [Cell("devices").name, Cell("words").name]
    assert perform(study, [Cell("devices")], -1) == []
    with pytest.raises(Failed, match="lost"):
        perform(study, [cells(SMALL)[0]], 60)


def test_a_failure_apart_is_told_with_its_log(tmp_path: Path) -> None:
    assert apart(tmp_path, "fine", lambda: {"value": 3}) == {"value": 3}
    with pytest.raises(Failed, match="division or modulo by zero"):
        apart(tmp_path, "broken", lambda: 1 // 0)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_learners_on_hosts_leave_rows_that_the_next_call_keeps(tmp_path: Path) -> None:
    reason = refusal()
    if reason is not None:
        pytest.skip(reason)
    study = Study(SMALL, Material(SMALL, None), Rows(tmp_path / "rows.jsonl"), tmp_path)
    chosen = [
        cells(SMALL)[0],
        Cell("words"),
        Cell("devices", RANDOMISED),
        Cell("devices", SYNCHRONOUS, slow=4.0, turns=2),
    ]
    assert perform(study, chosen, 60) == []
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    kinds = ["measured", "words", "words", "predicted", "devices", "devices", "predicted", "devices"]
    assert [each["cell"]["kind"] for each in rows] == kinds
    run, slow = rows[5], rows[7]
    assert run["predicted"] == rows[3]["predicted"]
    assert run["errors"] == {}
    assert "errors" not in rows[4]
    assert run["minibatches"] == sum(run["gradients"]) == 16
    assert run["seconds"] >= 4 * SMALL.pace
    assert slow["gradients"] == [2, 2, 2, 2]
    spent = slow["spent"][3]
    assert spent["compute"] + spent.get("data", 0.0) >= 0.9 * 2 * 4 * SMALL.pace  # reading data is part of the pace
    assert run["beside"]["seconds"] >= SMALL.pace
    assert run["heldout"]["loss"] > 0
    assert rows[0]["between"]["mean"] >= 0.7 * ratio_of_papers() * SMALL.pace
    assert perform(study, chosen, 60) == []
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(rows)
