"""The page of the papers' experiments, from rows alone, complete or not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.comparison.rows import Row, Rows
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.networks import SETUPS
from murmur_papers.studies.page import STUDIES, claims, points_of, write
from murmur_papers.studies.plan import missing, whole
from murmur_papers.studies.run import Finder, loss, on_newest_builds

from .made_up import changed, invented, row_of


def complete(go: object) -> dict[str, Row]:
    known = dict[str, Row]()
    while cells := missing(list(STUDIES.values()), known, list(SETUPS)):
        known |= {cell.digest: go(cell) for cell in cells}  # type: ignore[operator]
    return known


EVERYTHING = complete(invented)
CAUSE = r".*\n    - Rule: .*\n    - Here: .*\n    -"  # the lines between a claim and its cause


def test_without_rows_every_claim_is_still_to_run(tmp_path: Path) -> None:
    page = write({}, tmp_path).read_text()
    with_runs = [name for _, claim, name in claims() if claim.needs]
    assert len(re.findall(r"not run yet \|", page.partition("## One learner")[0])) == len(with_runs)
    assert "| BLSTM | " in page
    assert not list(tmp_path.glob("*.svg"))


def test_a_claim_is_judged_as_soon_as_its_own_rows_are_there(tmp_path: Path) -> None:
    plan = whole(list(STUDIES.values()), EVERYTHING)
    own = {each.cell.digest for each in plan if "stragglers 2" in each.serves}
    rows = {digest: row for digest, row in EVERYTHING.items() if digest in own}
    page = write(rows, tmp_path).read_text()
    assert "a randomised ring keeps learners closer together than a fixed one: **" in page
    assert re.search(r"rings tolerate .*: not run yet", page)
    last = next(reversed(rows))
    fewer = {digest: row for digest, row in rows.items() if digest != last}
    assert "than a fixed one: not run yet" in write(fewer, tmp_path).read_text()


def test_the_page_is_made_of_rows_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    page = write(EVERYTHING, tmp_path / "a").read_text()
    assert page == write(EVERYTHING, tmp_path / "b").read_text()
    pictures = sorted(path.name for path in (tmp_path / "a").glob("*.svg"))
    assert pictures == sorted(
        f"papers_{study.name}.svg" for study in STUDIES.values() if study.pictured or study.picture
    )
    for name in pictures:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert f"({name})" in page
    assert "not run yet" not in page
    for study, claim, _ in claims():
        outcome = claim.judge({name: study.groups[name](Finder(EVERYTHING)) for name in claim.needs})
        assert f"- {claim.told}: **{outcome.verdict}**.\n    - Rule: {claim.rule}.\n    - Here: " in page
        assert f"| [{study.cited}](#{study.name}) | {claim.told} |" in page
        assert f"\n## {study.name}\n" in page
    for row in STUDIES["rings"].groups["fixed ring"](Finder(EVERYTHING)):
        assert re.search(rf"\| {loss(row):.4f} \| .*`{row['digest']}`", page)


def test_rows_on_an_earlier_build_have_no_part_in_the_page(tmp_path: Path) -> None:
    """Neither as trials nor in tables: they would choose rates, or stand beside losses on other targets."""
    new = {digest: {**row, "build": "new", "date": "2026-11-26"} for digest, row in EVERYTHING.items()}
    page = write(new, tmp_path / "new").read_text()
    old = StudyCell(**next(iter(EVERYTHING.values()))["cell"])
    old = replace(old, rate=0.123, seed=9)
    mixed = {**new, old.digest: {**row_of(old, 1e-3), "build": "old", "date": "2026-11-25"}}
    assert write(mixed, tmp_path / "mixed").read_text() == page
    half = {
        digest: {**row, "build": "old", "date": "2026-11-25"} if row["cell"]["network"] == "dnn" and n % 2 else row
        for n, (digest, row) in enumerate(new.items())
    }
    assert {row["build"] for row in on_newest_builds(half).values()} == {"new"}
    page = write(half, tmp_path / "half").read_text()
    for digest, row in half.items():
        assert (f"`{digest}`" in page) <= (row["build"] == "new")


def test_a_verdict_that_does_not_agree_shows_its_cause(tmp_path: Path) -> None:
    worse = complete(changed(lambda cell: 1.1 if cell.learners > 1 and cell.budget < 10_000_000 else 1.0))
    page = write(worse, tmp_path).read_text()
    assert "Cause: an iteration of 600,000 frames" in page  # from a record, without runs
    assert re.search(rf"4 learners with K-step.*\*\*differs\*\*{CAUSE} Cause .*with twice the turns 1\.000 \(", page)
    twice = {digest: row for digest, row in worse.items() if row["cell"]["budget"] < 10_000_000}
    page = write(twice, tmp_path).read_text()
    assert re.search(rf"4 learners with K-step{CAUSE} The cause .* is not run yet", page)


def test_a_run_of_a_cause_that_ended_early_is_told(tmp_path: Path) -> None:
    def go(cell: StudyCell) -> Row:
        short = cell.strategy.startswith("KAVG(16,")
        return row_of(cell, seconds=1e9, ended="nan at minibatch 3" if short else None)

    page = write(complete(go), tmp_path).read_text()
    assert re.search(
        rf"speed-up at 16 and 32: \*\*differs{CAUSE} The cause .* has no figures: dnn, KAVG\(16,.* ended early", page
    )


def test_speed_ups_of_the_page_are_at_most_the_learners_on_their_own_machines(tmp_path: Path) -> None:
    def go(cell: StudyCell) -> Row:
        alone = MACHINES[cell.machines].alone(cell.piece_frames) if cell.machines else 1.0
        return row_of(cell, 1 + cell.seed / 10, seconds=cell.turns * alone * 1.25)

    page = write(complete(go), tmp_path).read_text()
    found = {float(x) for x in re.findall(r"\| ([\d.]+)x \| 10 % \|", page)}
    assert found == {round(n * 0.8, 1) for n in (4, 8, 16, 20, 32, 64)}


def test_points_of_a_picture_are_of_the_seeds_that_all_systems_have_decoded() -> None:
    def go(cell: StudyCell) -> Row:
        row = row_of(cell, seconds=3600.0)
        if cell.decoded:
            row["errors"] = {f"u{i}": [1 + cell.seed, 10] for i in range(9)}
        return row

    points = points_of(STUDIES["rings"], Finder(complete(go)))
    names = list(STUDIES["rings"].pictured)
    assert [point.name for point in points] == names
    assert {point.rate.value for point in points} == {10.0}  # seed 0 of one learner too, whose mean rate is 20
    assert {point.hours for point in points[1:]} == {1.0}
    alone = [
        point.rate.value for point in points_of(replace(STUDIES["rings"], pictured=names[:1]), Finder(complete(go)))
    ]
    assert alone == [20.0]


def test_limits_of_one_learner_and_bad_runs_are_told(tmp_path: Path) -> None:
    def go(cell: StudyCell) -> Row:
        row = invented(cell)
        if cell.decoded:
            wrong = 7 if cell.network == "dnn" and cell.learners == 32 else 1
            row["errors"] = {f"u{i}": [wrong, 10] for i in range(9)}
        return row_of(cell, ended="nan") if "ADPSGD(ring)" in cell.strategy else row

    rows = complete(go)
    page = write(rows, tmp_path).read_text()
    assert re.search(r"\| LSTM with CTC \|.*\| 10\.0 % .*\| 14 % \| met \|", page)
    told = "The largest word error rate of a decoded run of the plan is 70.0 %; above 60 %: "
    plan = whole(list(STUDIES.values()), rows)
    (run,) = (
        each.cell for each in plan if each.cell.network == "dnn" and each.cell.learners == 32 and each.cell.decoded
    )
    assert f"{told}`{run.digest}` ({run.told}). Runs that diverged" in page
    assert re.search(r"Runs that diverged: `[0-9a-f]{16}`", page)
    fixed = next(line for line in page.splitlines() if line.startswith("| fixed ring | 0 |"))
    assert "| diverged |" in fixed


def test_the_command_writes_the_page_of_the_rows_that_are_there(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.jsonl")
    for row in list(EVERYTHING.values())[:40]:
        rows.append(row)
    done = CliRunner().invoke(app, ["papers", "--rows", str(rows.path), "--out", str(tmp_path)])
    assert done.exit_code == 1, done.output  # claims are left
    page = (tmp_path / "papers.md").read_text()
    assert page == write(rows.read(), tmp_path / "again").read_text()


def test_a_page_of_no_rows_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "papers.md").write_text("a page")
    done = CliRunner().invoke(app, ["papers", "--rows", str(tmp_path / "nowhere"), "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert f"murmur: there are no rows in {tmp_path / 'nowhere'}" in done.stderr
    assert (tmp_path / "papers.md").read_text() == "a page"
