"""The page of the papers' experiments, from rows alone, complete or not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from murmur.cli import app
from murmur.comparison.rows import Row, Rows
from murmur_papers.studies import sixteen
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.networks import SETUPS
from murmur_papers.studies.page import STUDIES, anchor, claims, papers, write
from murmur_papers.studies.plan import judged, missing, whole
from murmur_papers.studies.run import Finder, loss, on_newest_builds
from murmur_papers.studies.study import SEEDS

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
    left = [claim for _, claim, _ in claims() if claim.quoted and (claim.needs or claim.judge is None)]
    first = page.partition("\n## ")[0]
    for command in ("murmur papers schedules", "murmur train cui2021 --strategy DelayByOne", sixteen.COMMAND):
        assert f"| not run yet: `{command}" in first
    assert first.count("not run yet: ") == len(left) + len(sixteen.SYSTEMS)
    assert len(first.splitlines()) <= 40
    assert "| BLSTM | " in page


def test_a_claim_is_judged_as_soon_as_its_own_rows_are_there(tmp_path: Path) -> None:
    plan = whole(list(STUDIES.values()), EVERYTHING)
    own = {each.cell.digest for each in plan if "stragglers 2" in each.serves}
    rows = {digest: row for digest, row in EVERYTHING.items() if digest in own}
    page = write(rows, tmp_path).read_text()
    assert "a randomised ring keeps learners closer together than a fixed one: **" in page
    assert re.search(r"cope well with slow learners\": not run yet", page)
    last = next(reversed(rows))
    fewer = {digest: row for digest, row in rows.items() if digest != last}
    assert "than a fixed one: not run yet" in write(fewer, tmp_path).read_text()


def test_the_page_is_made_of_rows_alone(tmp_path: Path) -> None:
    page = write(EVERYTHING, tmp_path / "a").read_text()
    assert page == write(EVERYTHING, tmp_path / "b").read_text()
    (picture,) = (tmp_path / "a").glob("*.svg")
    assert picture.read_bytes() == (tmp_path / "b" / picture.name).read_bytes()
    assert f"]({picture.name})" in page
    assert page.partition("\n## ")[0].count("not run yet") == 1 + len(
        sixteen.SYSTEMS
    )  # 128 learners, and real processes
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert heads == [*papers(), "One learner", "How it is made"]
    for study, claim, name in claims():
        if claim.judge is None:
            continue
        outcome = judged(study, claim, Finder(EVERYTHING))
        assert outcome is not None
        assert f"**{outcome.told}**.\n    - Rule: {claim.rule}." in page
        cited = claim.cited or study.cited
        line = f"| [{cited}](#{anchor(study.cited)}) | {claim.told} | {outcome.ours} | **{outcome.told}** |"
        assert (line in page) == claim.quoted, name
    for row in STUDIES["rings"].groups["fixed ring"](Finder(EVERYTHING)):
        assert len(re.findall(rf"\| {loss(row):.4f} \| .*\| cpu \| `{row['digest']}`", page)) == 1


def test_links_of_the_first_table_lead_to_the_sections_of_the_page(tmp_path: Path) -> None:
    page = write(EVERYTHING, tmp_path).read_text()
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) == {anchor(head) for head in heads if head != "One learner"}
    assert anchor("Su and Chen 2015") == "su-and-chen-2015"
    assert anchor("Cui et al. 2021") == "cui-et-al-2021"


def test_claims_are_quotations_of_all_five_abstracts() -> None:
    """Every paper has claims; each quotation is whole, and a claim without one stays out of the first table."""
    quoted = {}
    for study, claim, _ in claims():
        if claim.quoted:
            assert claim.told.count('"') == 2
            quoted.setdefault(claim.cited or study.cited, []).append(claim)
    assert {paper: len(each) for paper, each in quoted.items()} == dict(zip(papers(), (4, 5, 3, 4, 2), strict=True))


def test_a_pair_of_a_gpu_and_a_processor_is_refused(tmp_path: Path) -> None:
    """One learner of the sigmoid network on a GPU decides nothing about 16 learners on a processor."""
    gpu = {"device": "cuda", "hardware": "a machine, a card"}
    rows = complete(
        lambda cell: row_of(cell) | (gpu if cell.network == "dnn" and cell.learners == 1 and cell.seed > 0 else {})
    )
    page = write(rows, tmp_path).read_text()
    line = next(line for line in page.splitlines() if "9.3 times" in line)
    assert "loss 1.000 (one seed) [different devices at seeds 1, 2]" in line
    assert "loss undecided: one seed; words undecided: one seed; speed" in line
    assert "different devices" not in write(complete(row_of), tmp_path).read_text().partition("How it is made")[0]


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


def test_a_verdict_that_is_not_good_shows_its_cause(tmp_path: Path) -> None:
    worse = complete(changed(lambda cell: 1.1 if cell.learners > 1 and cell.budget < 10_000_000 else 1.0))
    page = write(worse, tmp_path).read_text()
    assert "Cause: an iteration of 600,000 frames" in page  # from a record, without runs
    assert re.search(
        rf"with 4 GPUs achieves.*\*\*loss worse; words.*\*\*{CAUSE} Cause .*twice the turns 1\.000 \(", page
    )
    twice = {digest: row for digest, row in worse.items() if row["cell"]["budget"] < 10_000_000}
    page = write(twice, tmp_path).read_text()
    assert re.search(rf"with 4 GPUs achieves{CAUSE} The cause .* is not run yet", page)


def test_a_run_that_ended_early_has_no_speed_on_the_page(tmp_path: Path) -> None:
    def go(cell: StudyCell) -> Row:
        short = cell.strategy.startswith("KAVG(16,")
        return row_of(cell, seconds=1e9, **({"ended": "nan at minibatch 3", "errors": None} if short else {}))

    page = write(complete(go), tmp_path).read_text()
    assert re.search(r"9\.3 times.*\*\*loss worse; words undecided: not decoded; speed not reached\*\*", page)
    assert "- Here: 16 learners: no speed at K = 16, loss diverged, WER not compared." in page


def test_speed_ups_of_the_page_are_at_most_the_learners_on_their_own_machines(tmp_path: Path) -> None:
    def go(cell: StudyCell) -> Row:
        alone = MACHINES[cell.machines].alone(cell.piece_frames) if cell.machines else 1.0
        return row_of(cell, 1 + cell.seed / 10, seconds=cell.turns * alone * 1.25)

    page = write(complete(go), tmp_path).read_text()
    found = {float(x) for x in re.findall(r"\| ([\d.]+)x \| 10 % \|", page)}
    assert found == {round(n * 0.8, 1) for n in (4, 8, 16, 20, 32, 64)}


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
    runs = [each.cell for each in plan if each.cell.network == "dnn" and each.cell.learners == 32 and each.cell.decoded]
    assert {run.seed for run in runs} == set(SEEDS)  # with K = 16
    assert told in page
    assert all(f"`{run.digest}` ({run.told})" in page for run in runs)
    assert re.search(r"Runs that diverged: `[0-9a-f]{16}`", page)
    fixed = next(line for line in page.splitlines() if line.startswith("| fixed ring | 0 | 164 |"))
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
