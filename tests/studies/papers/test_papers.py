"""The papers' experiments without their runs: designs, rules, and pages from rows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from murmur.cli import app
from murmur.speech.decoding.bootstrap import Interval
from murmur.studies.comparison.rows import Row, Rows
from murmur.studies.papers import asgd, frequency, many, rings, stragglers
from murmur.studies.papers.all import STUDIES
from murmur.studies.papers.cell import StudyCell, StudyMaterial
from murmur.studies.papers.missing import DECODING_SECONDS, SECONDS_PER_FRAME, Unknown, missing, processor_hours
from murmur.studies.papers.page import write
from murmur.studies.papers.picture import draw
from murmur.studies.papers.run import MissingRun, Runner, loss
from murmur.studies.papers.study import at_most, lower, speed_up
from murmur.worlds.virtual.world import VirtualWorld

PRIOR = 4.0


def row_of(cell: StudyCell, value: float = 1.0, seconds: float = 100.0, **more: object) -> Row:
    """A row as a run would write it."""
    described = {k: getattr(cell, k) for k in ("strategy", "learners", "rate", "seed", "frames", "budget", "slow")}
    plain = {
        "digest": cell.digest,
        "cell": described,
        "heldout": {"loss": value},
        "ended": None,
        "prior": PRIOR,
        "steps": cell.budget // cell.frames,
        "seconds": seconds,
        "waiting_share": 0.1,
        "staleness": 1.0,
        "consensus_distance": 0.5,
        "sent_bytes": 1e9,
        "errors": {f"u{i}": [i % 3, 5] for i in range(9)} if cell.decoded else None,
        "cpu_seconds": 60.0,
        "commit": "abc",
        "hardware": "a machine",
        "date": "2026-11-22",
    }
    return {**plain, **more}


def invented(cell: StudyCell) -> Row:
    """A different loss for every cell."""
    return row_of(cell, 1 + int(cell.digest, 16) % 1000 / 1000)


@pytest.mark.parametrize("name", STUDIES)
def test_every_cell_of_every_study_can_be_run(name: str) -> None:
    cells: list[StudyCell] = []

    def go(cell: StudyCell) -> Row:
        cells.append(cell)
        return invented(cell)

    groups = STUDIES[name].runs(go)
    assert {row["digest"] for rows in groups.values() for row in rows} == {cell.digest for cell in cells}
    for cell in {cell.digest: cell for cell in cells}.values():
        experiment = cell.experiment(task=None, per_epoch=1700)
        assert experiment.budget.minibatches == cell.budget // cell.frames
        assert VirtualWorld(cell.cluster()).cluster.learners == cell.learners
    found = STUDIES[name].findings(groups)
    assert len({finding.claim for finding in found}) == len(found) > 0


def test_every_study_has_a_panel(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    assert draw({name: study.runs(invented) for name, study in STUDIES.items()}, tmp_path / "papers.svg")
    assert all(f">{name}<" in (tmp_path / "papers.svg").read_text() for name in STUDIES)


def test_128_learners_run_at_the_rate_of_their_best_trial_and_are_judged_by_word_errors() -> None:
    lowest = {"ADPSGD(randomized_ring)": 0.2, "DelayByOne()": 0.06, "ADPSGD(ring)": 0.6, "SyncSGD()": 0.2}

    def go(cell: StudyCell, more: int = 0) -> Row:
        row = row_of(cell, 1.0 + abs(cell.rate - lowest[cell.strategy]))
        if cell.decoded and cell.learners > 1:
            row["errors"] = {name: [errors + more, words] for name, (errors, words) in row["errors"].items()}
        return row

    for more, verdict in ((0, "agrees"), (1, "differs")):
        rows = many.runs(lambda cell, more=more: go(cell, more))  # type: ignore[misc]
        for name, strategy in many.STRATEGIES.items():
            for minibatch in (many.LARGE, many.LARGEST):
                (chosen,) = rows[f"{name}, {minibatch}"]
                assert chosen["cell"]["rate"] == lowest[strategy]
                assert chosen["cell"]["budget"] == many.BUDGET
                assert chosen["cell"]["frames"] * many.LEARNERS == minibatch
        assert many.findings(rows)[0].verdict == verdict
        assert many.findings(rows)[1].verdict == "differs"


def test_digests_look_at_everything_but_decoding() -> None:
    plain = StudyCell()
    assert replace(plain, decoded=True).digest == plain.digest
    changes = {"strategy": "KAVG(2)", "learners": 2, "rate": 1.0, "power": 1.0, "seed": 1, "frames": 64, "budget": 1}
    changes |= {"schedule": "ibm", "optimizer": "natural gradient", "stack": True, "slow": 2.0}
    assert len({replace(plain, **{k: v}).digest for k, v in changes.items()} | {plain.digest}) == len(changes) + 1


@given(st.integers(min(rings.EXPONENTS) - 1, max(rings.EXPONENTS)), st.sampled_from(sorted(rings.STRATEGIES.values())))
def test_bisection_finds_the_largest_minibatch_that_trains(limit: int, strategy: str) -> None:
    """A search over all sizes, if training ends at one size."""

    def go(cell: StudyCell) -> Row:
        batch = cell.learners * cell.frames
        return row_of(cell, 1.0 if batch <= 2**limit else 0.95 * PRIOR)

    everything = [2**n for n in rings.EXPONENTS if n <= limit]
    done = rings.bisection(strategy, go)
    assert rings.largest(done) == max(everything, default=0)
    assert len(done) <= 3


@pytest.mark.parametrize(("low", "high", "below", "limited"), [
    (0.8, 0.9, "agrees", "agrees"),
    (0.9, 1.01, "undecided", "agrees"),
    (0.9, 1.1, "undecided", "undecided"),
    (1.01, 1.03, "differs", "undecided"),
    (1.03, 1.1, "differs", "differs"),
])  # fmt: skip
def test_verdicts(low: float, high: float, below: str, limited: str) -> None:
    value = Interval((low + high) / 2, low, high, 0.95)
    assert (lower(value), at_most(value, 1.02)) == (below, limited)


def test_a_run_that_ended_counts_with_the_loss_of_the_class_frequencies() -> None:
    assert loss(row_of(StudyCell(), 2.0)) == 2.0
    assert loss(row_of(StudyCell(), 40.0)) == PRIOR
    assert loss(row_of(StudyCell(), heldout={}, ended="the loss is nan")) == PRIOR
    assert rings.diverged(row_of(StudyCell(), heldout={}, ended="the loss is nan"))


def test_speed_is_frames_a_second() -> None:
    alone, many = row_of(StudyCell(), seconds=100.0), row_of(StudyCell(budget=480_000), seconds=50.0)
    assert speed_up([alone], [many]) == pytest.approx(4.0)


def test_the_frequency_study_takes_the_best_and_what_cannot_be_told_from_it() -> None:
    values = {"128": (1.0, 1.1, 1.2), "1024": (1.01, 1.09, 1.21), "8192": (1.3, 1.43, 1.56), "30000": (2.0, 2.2, 2.4)}
    rows = {
        name: [row_of(StudyCell(seed=seed, decoded=True), value) for seed, value in enumerate(each)]
        for name, each in values.items()
    }
    assert frequency.best_range(rows) == ["128", "1024"]


def test_stragglers_are_judged_by_the_clock() -> None:
    seconds = {"synchronous": 900.0, "fixed ring": 110.0, "randomised ring": 119.0, "delay-by-one": 800.0}
    rows = {name: [row_of(StudyCell()), row_of(StudyCell(), seconds=value)] for name, value in seconds.items()}
    assert stragglers.findings(rows)[0].verdict == "agrees"
    rows["fixed ring"][1] = row_of(StudyCell(), seconds=121.0)
    assert stragglers.findings(rows)[0].verdict == "differs"


def test_rows_are_found_and_what_is_missing_is_named(tmp_path: Path) -> None:
    rows, cell = Rows(tmp_path / "rows.jsonl"), StudyCell(seed=5, decoded=True)
    run = Runner(rows)
    with pytest.raises(MissingRun, match="seed 5"):
        run(cell)
    rows.append(row_of(replace(cell, decoded=False)))
    assert run(replace(cell, decoded=False))["digest"] == cell.digest
    with pytest.raises(MissingRun):
        run(cell)  # its test was not decoded
    rows.append(row_of(cell))
    assert run(cell)["errors"]


@pytest.mark.parametrize("name", STUDIES)
def test_missing_runs_are_made_until_a_study_asks_for_no_more(name: str, tmp_path: Path) -> None:
    """Also those that depend on the results of others, each once."""
    rows, asked = Rows(tmp_path / "rows.jsonl"), list[StudyCell]()
    while cells := missing([STUDIES[name]], Runner(rows)):
        assert processor_hours(cells, rows.read()) > 0
        for cell in cells:
            rows.append(invented(cell))
        asked += cells
    digests = [cell.digest for cell in asked]
    wanted = {row["digest"] for group in STUDIES[name].runs(invented).values() for row in group}
    assert len(set(digests)) == len(digests)
    assert set(digests) == wanted


def test_hours_are_those_of_runs_with_as_many_learners() -> None:
    cells = [StudyCell(budget=7200), StudyCell(learners=4, budget=3600, decoded=True)]
    known = {"a": {**row_of(StudyCell(budget=100)), "cpu_seconds": 100.0}}
    found = processor_hours(cells, known)
    assert found == pytest.approx(2.0 + (SECONDS_PER_FRAME * 3600 + DECODING_SECONDS) / 3600)


def test_a_row_that_is_not_there_cannot_be_read() -> None:
    for look in (lambda row: row["ended"], lambda row: row.get("heldout"), loss):
        with pytest.raises(MissingRun, match="seed 3"):
            look(Unknown(StudyCell(seed=3)))  # type: ignore[no-untyped-call, operator]


def test_the_command_tells_what_is_missing(tmp_path: Path) -> None:
    words = ["papers", "stragglers", "--estimate", "--jobs", "2", "--rows", str(tmp_path / "rows.jsonl")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "ADPSGD(ring), 16 learners" in done.output
    assert re.search(r"8 runs missing: about \d\.\d processor hours, \d\.\d h with 2 at a time", done.output)
    assert list(tmp_path.iterdir()) == []


def test_the_page_is_made_of_rows_alone_and_says_what_is_missing(tmp_path: Path) -> None:
    rows, cells = Rows(tmp_path / "rows.jsonl"), list[StudyCell]()

    def keep(cell: StudyCell) -> Row:
        cells.append(cell)
        return invented(cell)

    STUDIES["asgd"].runs(keep)
    STUDIES["stragglers"].runs(keep)
    for cell in cells[:-1]:
        rows.append(invented(cell))
    assert "## stragglers: not finished" in write(Runner(rows), tmp_path / "a").read_text()
    assert "7 runs of it are there" in (tmp_path / "a" / "papers.md").read_text()
    rows.append(invented(cells[-1]))
    page = write(Runner(rows), tmp_path / "a").read_text()
    assert page == write(Runner(rows), tmp_path / "b").read_text()
    assert (tmp_path / "a" / "papers.svg").read_bytes() == (tmp_path / "b" / "papers.svg").read_bytes()
    assert "## stragglers\n" in page
    for cell in cells:
        assert re.search(rf"\| {loss(invented(cell)):.4f} \| .*`{cell.digest}`", page)
    for finding in asgd.STUDY.findings(asgd.STUDY.runs(invented)):
        assert f"{finding.claim}: **{finding.verdict}**" in page


def test_nothing_is_trained_without_speech(tmp_path: Path) -> None:
    assert StudyMaterial(tmp_path, tmp_path).network_task(3).seed == 3


def test_a_page_of_no_rows_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "papers.md").write_text("a page")
    done = CliRunner().invoke(app, ["papers", "--rows", str(tmp_path / "nowhere"), "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert f"murmur: there are no rows in {tmp_path / 'nowhere'}" in done.stderr
    assert (tmp_path / "papers.md").read_text() == "a page"
