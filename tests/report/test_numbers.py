"""Numbers in the page equal those of the records, computed again in a second, slow way."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.folders import KINDS, charts, random_rows, tables, write_run

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")

from murmur.report.figures import mixing_of, speed_up, speed_ups
from murmur.report.page import write_report
from murmur.report.read import read_run
from murmur.report.records import MOST_BINS, Bins

SIZES = {"one": (1, 60), "three": (3, 200), "five": (5, 400)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[dict]], str]:
    folder = tmp_path_factory.mktemp("runs")
    rows = {name: random_rows(seed, *SIZES[name]) for seed, name in enumerate(SIZES)}
    runs = [write_run(folder / name, rows[name], SIZES[name][0]) for name in SIZES]
    return rows, write_report(runs, folder / "report.html").read_text()


def steps_of(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["kind"] == "step"]


def marks_of(rows: list[dict]) -> list[dict]:
    return [row for row in rows if row["kind"] == "evaluation"]


def test_the_table_tells_the_records(made: tuple[dict[str, list[dict]], str]) -> None:
    rows, page = made
    names, *lines = tables(page)["Runs side by side"]
    shown = {line[0]: dict(zip(names, line, strict=True)) for line in lines}
    assert shown.keys() == rows.keys()
    for name, records in rows.items():
        line, steps, last = shown[name], steps_of(records), marks_of(records)[-1]
        assert line["held-out log-prob."] == f"{-last['figures']['loss']:.4f}"
        assert line["accuracy"] == f"{100 * last['figures']['accuracy']:.1f} %"
        seconds = max(row["seconds"] for row in records)
        assert line["training s"] == f"{seconds:.1f}"
        assert line["samples"] == f"{max(row['samples'] for row in records):,.0f}"
        first = min(steps, key=lambda row: row["seconds"])
        speed = (max(row["samples"] for row in records) - first["samples"]) / (seconds - first["seconds"])
        assert line["samples/s"] == f"{speed:,.0f}"
        spent = {kind: sum(row[f"{kind}_seconds"] for row in steps) for kind in KINDS}
        assert line["not computing"] == f"{100 * (1 - spent['compute'] / sum(spent.values())):.1f} %"
        assert (line["WER %"], line["95 % interval"]) == ("-", "-")
    best = max(rows, key=lambda name: -marks_of(rows[name])[-1]["figures"]["loss"])
    assert lines[0][0] == best
    assert f"Best: {best}, held-out log-probability {shown[best]['held-out log-prob.']};" in page


def test_points_of_curves_are_records(made: tuple[dict[str, list[dict]], str]) -> None:
    rows, page = made
    curves = {(chart["x"], chart["y"]): chart["series"] for chart in charts(page)}
    for x, y, value in (
        ("samples", "nats per sample", lambda m: (m["samples"], -m["figures"]["loss"])),
        ("seconds of training", "nats per sample", lambda m: (m["seconds"], -m["figures"]["loss"])),
        ("samples", "%", lambda m: (m["samples"], 100 * m["figures"]["accuracy"])),
        ("samples", "root mean square", lambda m: (m["samples"], m["consensus_distance"])),
    ):
        for series in curves[x, y]:
            expected = [value(mark) for mark in marks_of(rows[series["name"]])]
            assert list(zip(series["x"], series["y"], strict=True)) == expected
    for series in curves["samples", "mean per sample"]:
        steps = [row for row in steps_of(rows[series["name"]]) if row["loss"] is not None]
        bins = defaultdict(list)
        width = next(2.0**n for n in range(-10, 60) if max(row["samples"] for row in steps) < MOST_BINS * 2.0**n)
        for row in steps:
            bins[int(row["samples"] / width)].append(row["loss"])
        assert series["y"] == pytest.approx([sum(bins[place]) / len(bins[place]) for place in sorted(bins)])


def test_figures_of_learners_are_sums_of_records(made: tuple[dict[str, list[dict]], str]) -> None:
    rows, page = made
    told = tables(page)
    names, *lines = told["Numbers of Time of each learner by activity"]
    shown = {line[0]: line[1:] for line in lines}
    assert names[1:] == [f"{kind}, s" for kind in KINDS]
    for name, records in rows.items():
        for learner in range(SIZES[name][0]):
            mine = [row for row in steps_of(records) if row["learner"] == learner]
            assert shown[f"{name}: {learner}"] == [f"{sum(row[f'{k}_seconds'] for row in mine):.4g}" for k in KINDS]
    names, *lines = told["Numbers of Staleness of gradients"]
    for column, name in enumerate(rows, start=1):
        counted = Counter(row["staleness"] for row in steps_of(rows[name]))
        assert {int(line[0]): int(line[column]) for line in lines} == {step: counted[step] for step in range(4)}
    names, *lines = told["Numbers of Speed-up"]
    speeds = {line[0]: float(line[2]) for line in lines}
    for line in lines:
        assert float(line[3]) == pytest.approx(speeds[line[0]] / speeds["one"], abs=0.006)
        assert (
            line[4] == f"{100 * float(line[3]) / int(line[1]):.0f} %"
            or abs(float(line[4].rstrip(" %")) - 100 * float(line[3]) / int(line[1])) < 1
        )


def test_what_is_drawn_is_what_is_told(made: tuple[dict[str, list[dict]], str]) -> None:
    _, page = made
    told = tables(page)
    for chart, title in zip(charts(page), re.findall(r"data-curves=\"\d+\"><h3>(.*?)</h3>", page), strict=True):
        rows = told[f"Numbers of {title}"][1:]
        for series in chart["series"]:
            mine = [(float(x), float(y)) for name, x, y in rows if name == series["name"]]
            points = list(zip(series["x"], series["y"], strict=True))
            assert {(float(f"{x:.6g}"), float(f"{y:.6g}")) for x, y in points} >= set(mine)
            assert mine[-1] == pytest.approx(points[-1], rel=1e-5)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 9)), max_size=40))
def test_bins_lose_nothing(parts: list[tuple[float, float]]) -> None:
    bins = Bins(2)
    for at, value in parts:
        bins.add(at, (value, 1.0))
    items = bins.items()
    assert len(items) <= MOST_BINS + 1
    assert sum(values[0] for _, values in items) == pytest.approx(sum(value for _, value in parts))
    for start, (_, number) in items:
        assert number == sum(start <= at < start + bins.width for at, _ in parts)


def test_speed_is_that_of_the_runs_with_the_fewest_learners(tmp_path: Path) -> None:
    def run(name: str, learners: int, per_second: float, **facts: object) -> Path:
        rows = [
            {"kind": "step", "learner": 0, "samples": per_second * s, "seconds": 100.0 + s, "loss": 1.0}
            for s in range(5)
        ]
        return write_run(tmp_path / name, rows, learners, **facts)

    real = [run("a", 2, 10.0), run("b", 2, 30.0), run("c", 8, 60.0)]
    virtual = [run("v", 1, 5.0, simulated={"kind": "x"}), run("w", 4, 15.0, simulated={"kind": "x"})]
    runs = [read_run(folder) for folder in (*real, *virtual)]
    found = {run.name: (per_second, times) for run, per_second, times in speed_ups(runs)}
    for shown, note in ((runs, True), (runs[:3], False)):
        figure = speed_up(shown)
        assert figure is not None
        assert ("virtual seconds" in figure.note) == note
    assert found == {"a": (10.0, 0.5), "b": (30.0, 1.5), "c": (60.0, 3.0), "v": (5.0, 1.0), "w": (15.0, 3.0)}


@pytest.mark.parametrize(
    ("strategy", "learners", "expected"),
    [
        ({"mixing": "murmur.core.mixing.ring"}, 4, ("ring", 4)),
        ({"outer": {"mixing": "murmur.core.mixing.pairwise"}, "node_size": 8}, 64, ("pairwise", 8)),
        ({"strategy": {"mixing": "mine.own"}, "format": "bf16"}, 3, ("own", 3)),
        ({"type": "KAVG", "K": 4}, 4, ("", 4)),
        ("a word", 2, ("", 2)),
    ],
)  # fmt: skip
def test_the_mixing_of_a_run_is_found(
    strategy: object, learners: int, expected: tuple[str, int], tmp_path: Path
) -> None:
    run = read_run(write_run(tmp_path / "run", [], learners, experiment={"strategy": strategy}))
    assert mixing_of(run) == expected
    assert json.loads((tmp_path / "run" / "run.json").read_text())["learners"] == learners
