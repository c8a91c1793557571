"""The page and the picture of the papers' experiments, made from rows alone: the same rows give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.studies.comparison.rows import Row
from murmur.studies.papers.all import STUDIES
from murmur.studies.papers.cell import StudyCell
from murmur.studies.papers.picture import draw
from murmur.studies.papers.run import MissingRun, Runner, loss
from murmur.studies.papers.study import Finding, Groups, Study

PAGE = "papers.md"
HEAD = """# Five papers, made small

Written by `murmur papers` from rows of runs; never by hand. Real gradients on AN4 (0.6 h of training speech), a small
sigmoid network on the states of monophones, a virtual cluster with the speeds of IBM's machines. The networks, the data
and the budgets are hundreds of times smaller than the papers', so a conclusion that differs says that it does not show
at this size, not that it is wrong. The design and the rules by which a conclusion "agrees" stand in
`src/murmur/studies/papers/`. Losses are cross-entropies in nats a frame on speakers held out; intervals are 95 %, of
the ratio over seeds (paired t) or of word errors (paired bootstrap). "undecided": the interval holds both.

What is missing is made, and then this page, by

    murmur papers --corpus FOLDER_OF_AN4 --rows results/papers.jsonl --out docs

"""


def write(run: Runner, out: Path) -> Path:
    """Write papers.md and papers.svg.

    Returns:
        The page.
    """
    parts, complete, drawn = [HEAD], dict[str, Groups](), list[Row]()
    for study in STUDIES.values():
        groups = made(study, run)
        if groups is None:
            parts.append(unfinished(study, run))
            continue
        complete[study.name] = groups
        drawn += [row for rows in groups.values() for row in rows]
        parts.append(section(study, groups))
    if complete:
        parts.insert(1, summary(complete))
        parts.append(where(drawn))
        if draw(complete, out / "papers.svg"):
            parts.insert(2, "![The clock and the losses of the runs](papers.svg)\n")
    page = out / PAGE
    write_whole(page, "\n".join(parts).encode())
    return page


def made(study: Study, run: Runner) -> Groups | None:
    """The rows of a study, if they are complete."""
    try:
        return study.runs(replace(run, material=None))
    except MissingRun:
        return None


def unfinished(study: Study, run: Runner) -> str:
    """The text for a study that still lacks runs."""
    known = run.rows.read()
    present = 0

    def count(cell: StudyCell) -> Row:
        nonlocal present
        if cell.digest not in known:
            raise MissingRun(cell.told)
        present += 1
        return known[cell.digest]

    try:
        study.runs(count)
    except MissingRun as first:
        missing = f"The first that is missing: {first}."
    else:
        missing = "Test of some is not decoded yet."
    there = f"{present} run{'s' * (present != 1)} of it {'are' if present != 1 else 'is'} there."
    return f"## {study.name}: not finished\n\n{study.paper}.\n\nRuns: {study.design}. {there} {missing}\n"


def summary(complete: Mapping[str, Groups]) -> str:
    """All conclusions with their verdicts."""
    lines = [
        (name, finding.claim, finding.published or "-", finding.ours, f"**{finding.verdict}**")
        for name, groups in complete.items()
        for finding in STUDIES[name].findings(groups)
    ]
    return table(("study", "the paper's conclusion", "its number", "here", ""), lines) + "\n"


def section(study: Study, groups: Groups) -> str:
    """One paper."""
    told = "\n".join(map(reasons, study.findings(groups)))
    return f"## {study.name}\n\n{study.paper}.\n\nRuns: {study.design}.\n\n{told}\n\n{runs(groups)}\n"


def reasons(finding: Finding) -> str:
    """A conclusion, the rule, and the explanation of the outcome."""
    why = f" Why: {finding.why}." if finding.why else ""
    return f"- {finding.claim}: **{finding.verdict}**. Rule: {finding.rule}. Here: {finding.ours}.{why}"


def runs(groups: Groups) -> str:
    """Every run of a study."""
    lines = []
    for name, rows in groups.items():
        for row in rows:
            lines.append(
                (
                    name,
                    row["cell"]["seed"],
                    row["cell"]["learners"] * row["cell"]["frames"],
                    "no number" if row["heldout"].get("loss") is None else f"{loss(row):.4f}",
                    f"{row['seconds']:.0f}",
                    "-" if row["waiting_share"] is None else f"{100 * row['waiting_share']:.0f} %",
                    "-" if row["staleness"] is None else f"{row['staleness']:.2f}",
                    f"`{row['digest']}`",
                )
            )
    heads = ("runs", "seed", "minibatch of all", "held-out loss", "virtual s", "waiting", "staleness", "row")
    return table(heads, lines)


def where(rows: Sequence[Row]) -> str:
    """Time and origin of the rows."""
    once = {row["digest"]: row for row in rows}.values()
    minutes = sum(row["cpu_seconds"] for row in once) / 60
    facts = [", ".join(sorted({str(row[name]) for row in once})) for name in ("commit", "date", "hardware")]
    return f"{len(once)} runs, {minutes:.1f} processor minutes; commit {'; '.join(facts)}.\n"


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    cells = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in cells)
