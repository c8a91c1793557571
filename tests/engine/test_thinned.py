"""Thinning of records and traces: fewer lines late in a run, the same sums."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.trace import COMPUTE, EVALUATION, OMITTED, WAITING, Span
from murmur.engine.budget import Budget
from murmur.engine.record import Record, forget_records, steps_in
from murmur.engine.resume import steps_after
from murmur.engine.run_files import ChromeTrace, JsonLines, begin_trace, finish_trace
from murmur.engine.thinned import WINDOW, ThinnedSpans, stride
from murmur.engine.trainer import Trainer
from murmur.recipes.toy import experiment
from murmur.report.read import read_run
from murmur.report.records import Records
from murmur.report.timeline import run_timeline
from murmur.worlds.virtual.cluster import Cluster, RecordedSeconds
from murmur.worlds.virtual.world import VirtualWorld

PARTS = ("compute_seconds", "data_seconds", "waiting_seconds", "communicating_seconds")


def step(
    number: int, loss: float = 1.0, staleness: int = 0, seconds: Sequence[float] = (1.0, 0.5, 0.25, 0.125)
) -> Record:
    parts = dict(zip(PARTS, seconds, strict=True))
    at = {"minibatches": number, "samples": 8.0 * number, "epoch": 0.1 * number, "seconds": 2.0 * number}
    return Record("step", 0, number, **at, loss=loss, rate=0.1, staleness=staleness, **parts)


def written(path: Path, records: Sequence[Record], whole: int) -> list[dict[str, Any]]:
    lines = JsonLines(path, whole)
    for record in records:
        lines(record)
    lines.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_stand_for_more_steps_with_each_doubling(tmp_path: Path) -> None:
    found = written(tmp_path / "records.jsonl", [step(n) for n in range(1, 41)], whole=8)
    assert [row["step"] for row in found] == [*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40]
    assert [row.get("steps", 1) for row in found] == [*[1] * 8, 2, 2, 2, 2, 4, 4, 4, 4, 8]
    assert [stride(n, 8) for n in (0, 7, 8, 15, 16, 31, 32)] == [1, 1, 2, 2, 4, 4, 8]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60), st.integers(1, 9))
def test_sums_are_those_of_all_steps(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int]], whole: int
) -> None:
    records = [step(n, 0.5 * x, stale, (x, 2.0, x / 2, 0.25)) for n, (x, stale) in enumerate(drawn, 1)]
    rows = written(tmp_path_factory.mktemp("thin") / "records.jsonl", records, whole)
    assert sum(map(steps_in, rows)) == len(records)
    for part in PARTS:
        assert sum(row[part] for row in rows) == sum(asdict(record)[part] for record in records)
    assert sum(row["loss"] * steps_in(row) for row in rows) == pytest.approx(sum(r.loss for r in records))
    thin, every = Records(), Records()
    for row in rows:
        thin.add(row)
    for record in records:
        every.add(json.loads(record.line()))
    assert (thin.steps_of, thin.seconds_of, thin.staleness) == (every.steps_of, every.seconds_of, every.staleness)
    assert (thin.last_seconds, thin.last_samples) == (every.last_seconds, every.last_samples)


def test_evaluations_keep_their_place_and_bad_losses_their_line(tmp_path: Path) -> None:
    records = [step(n) for n in range(1, 16)]
    records.insert(12, Record("evaluation", 0, 12, 12, 96.0, 1.2, 24.0, 0.7))
    records[5] = step(6, math.nan)
    records[10] = step(11, math.inf)
    rows = written(tmp_path / "records.jsonl", records, whole=2)
    assert [(row["kind"], row["step"], row.get("steps", 1)) for row in rows] == [
        *(("step", 1, 1), ("step", 2, 1), ("step", 4, 2), ("step", 5, 1), ("step", 6, 1), ("step", 8, 2)),
        *(("step", 10, 2), ("step", 11, 1), ("step", 12, 1), ("evaluation", 12, 1), ("step", 15, 3)),
    ]


def test_lost_steps_are_counted_in_lines_of_several(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    written(path, [step(n) for n in range(1, 33)], whole=4)
    assert steps_after(path, 17) == 16  # the lines of 24 and 32
    assert steps_after(path, 18) == 8  # that of 24 begins at 17, and stays
    forget_records(path, {}, 18)
    assert steps_after(path, 0) == 24


@pytest.mark.parametrize("counts", [{}, {"0": 0}, {"0": -1}, {"x": 1}, {"0": 1e300}, {"0": float("nan")}, [1], 3])
def test_damaged_counts_are_refused(counts: object) -> None:
    row = {**json.loads(step(3).line()), "staleness_counts": counts}
    if counts == {}:  # as without the field
        Records().add(row)
        return
    with pytest.raises((AttributeError, TypeError, ValueError, OverflowError)):
        Records().add(row)


def spans(count: int, seed: int) -> list[Span]:
    draw, at, found = random.Random(seed), 0.0, []
    for n in range(count):
        end = at + draw.randrange(1, 9) / 8
        kind = EVALUATION if n % 97 == 5 else draw.choice((COMPUTE, WAITING))
        found.append(Span(1, kind, at, end))
        at = end
    return found


def by_kind(events: Sequence[Mapping[str, Any]]) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for event in events:
        if event["name"] == OMITTED:
            seconds.update({k.removesuffix("_seconds"): v for k, v in event["args"].items() if k != "spans"})
        else:
            seconds[event["cat"]] += event["dur"] / 1e6
    return seconds


@pytest.mark.parametrize("count", [WINDOW, 2 * WINDOW + 1, 20 * WINDOW + 3])
def test_spans_that_are_left_out_are_summed(count: int) -> None:
    thinned, every = ThinnedSpans(2 * WINDOW), spans(count, seed=count)
    events = [event for span in every for event in thinned.add(span)] + list(thinned.rest())
    assert not list(thinned.rest())
    assert by_kind(events) == by_kind([span.chrome() for span in every])
    left = [event for event in events if event["name"] == OMITTED]
    assert len(events) - len(left) + sum(event["args"]["spans"] for event in left) == count
    assert sum(event["cat"] == EVALUATION for event in events) == sum(span.kind == EVALUATION for span in every)
    assert bool(left) == (count > 3 * WINDOW)
    assert len(events) < 8 * WINDOW


def test_a_thinned_trace_is_a_trace(tmp_path: Path) -> None:
    path, every = tmp_path / "trace.json", spans(3000, seed=0)
    begin_trace(path)
    trace = ChromeTrace(path, whole=WINDOW)
    for span in every:
        trace(span)
    trace.flush()
    trace.close()
    finish_trace(path)
    events = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    assert by_kind(events) == by_kind([span.chrome() for span in every])
    ((times),) = RecordedSeconds.read(path).seconds
    assert set(times) <= {span.end_seconds - span.start_seconds for span in every if span.kind == COMPUTE}
    gap = next(event for event in events if event["name"] == OMITTED)
    drawn, _ = run_timeline(path, "long", start=gap["ts"] / 1e6, seconds=gap["dur"] / 1e6)
    assert 'class="omitted"' in drawn
    assert "not recorded" in drawn


def test_a_long_run_has_short_files_and_the_same_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(out: Path) -> Records:
        made = replace(experiment(), budget=Budget(minibatches=400))
        Trainer(made, VirtualWorld(Cluster(learners=2)), out).fit()
        return read_run(out).records

    whole = run(tmp_path / "whole")
    monkeypatch.setattr(JsonLines.__init__, "__defaults__", (8,))
    monkeypatch.setattr(ChromeTrace.__init__, "__defaults__", (256, WINDOW))
    thin = run(tmp_path / "thin")
    assert (thin.steps_of, thin.staleness, thin.last_samples) == (whole.steps_of, whole.staleness, whole.last_samples)
    for learner, seconds in whole.seconds_of.items():
        assert thin.seconds_of[learner] == pytest.approx(seconds)
    sizes = [(tmp_path / name / "records.jsonl").stat().st_size for name in ("thin", "whole")]
    assert sizes[0] < 0.4 * sizes[1]
    assert len(thin.evaluations) == len(whole.evaluations)
