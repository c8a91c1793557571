"""The page of the papers' experiments, made from rows alone: the same rows give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from murmur.comparison.rows import Row
from murmur.core.whole_files import write_whole
from murmur_papers.studies import (
    asgd,
    base,
    frequency,
    hierarchy,
    largest,
    rings,
    schedules,
    sixteen,
    stragglers,
    turns,
)
from murmur_papers.studies.base import LEARNERS, limit_of
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.networks import SETUPS
from murmur_papers.studies.plan import outcomes, whole
from murmur_papers.studies.run import Finder, MissingRun, diverged, loss, on_newest_builds
from murmur_papers.studies.study import Claim, Outcome, Study, found
from murmur_papers.studies.verdicts import GOOD, EndedRunError, cell_of, percent, place, speed_up, waiting, wer

EVERY = (base, frequency, schedules, asgd, rings, stragglers, turns, largest, hierarchy)  # in the order of the page
STUDIES: Mapping[str, Study] = {part.STUDY.name: part.STUDY for part in EVERY}
PAGE = "papers.md"
WORST_WER = 60.0
NOT_YET = "not run yet"
Results = Mapping[str, Outcome | None]  # of the claims, by name
HEAD = """# Experiments of five papers

Claims of five papers on training with many learners, beside our figures on real speech with small versions of their
networks. The first lines are real processes; in most others the machines are virtual. A loss is the held-out one over
that of one learner, where nothing else is said; in parentheses are 95 % intervals over seeds, those of word error rates
(WER) over seeds and utterances. A verdict goes by the whole interval: *better* is below 1 (WER: 0), *worse* is above
1.03, *equal within 3 %* is between; all else is *undecided* ([how it is made](#how-it-is-made)). Written by
`murmur papers` from rows of runs; never by hand.
"""
HOW = (Path(__file__).parent / "method.md").read_text(encoding="utf-8")


def write(rows: Mapping[str, Row], out: Path, devices: Path = sixteen.RECORD) -> Path:
    """Write papers.md of the rows on the newest build of each network's data, and its picture; return the page.

    Args:
        rows: rows by digest.
        out: folder of the page.
        devices: file of the rows of sixteen processes, which may be missing.
    """
    rows = on_newest_builds(rows)
    find, every = Finder(rows), list(STUDIES.values())
    results = outcomes(every, find)
    present = [rows[each.cell.digest] for each in whole(every, rows, results) if each.known]
    parts = [HEAD, summary(results, devices=devices)]
    parts += [section(paper, find, results, out) for paper in papers()]
    parts += [one_learner(find), worst(present), HOW]
    if present:
        parts.append(where(present))
    page = out / PAGE
    write_whole(page, "\n".join(parts).encode())
    return page


def claims() -> list[tuple[Study, Claim, str]]:
    return [(s, claim, f"{s.name} {number}") for s in STUDIES.values() for number, claim in enumerate(s.claims, 1)]


def papers() -> list[str]:
    """The short names of the papers, in the order of the page."""
    return list(dict.fromkeys(study.cited for study in STUDIES.values() if study.cited))


def anchor(paper: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", paper.lower())


def summary(results: Results, page: str = "", devices: Path = sixteen.RECORD) -> str:
    """A line for each claim of an abstract, first those that real processes have tried."""
    quoted = [each for each in claims() if each[1].quoted]
    quoted.sort(key=lambda each: papers().index(each[1].cited or each[0].cited))
    told = [(*each, sixteen.COMMAND, anchor(each[0])) for each in sixteen.lines(devices)]
    for study, claim, name in quoted:
        ours, verdict = ("", "") if (outcome := results[name]) is None else (outcome.ours, outcome.told)
        command = claim.command or f"murmur papers {study.name}"
        told.append((claim.cited or study.cited, claim.told, ours, verdict, command, anchor(study.cited)))
    lines = [
        (f"[{paper}]({page}#{where})", words, ours, f"**{verdict}**" if verdict else f"{NOT_YET}: `{command}`")
        for paper, words, ours, verdict, command, where in told
    ]
    counted = f"{sum(results[name] is not None for *_, name in quoted)} of {len(quoted)} claims of the abstracts"
    heads = ("paper", "claim, in the words of the abstract", "ours", "verdict")
    return f"There are rows for {counted}.\n\n{table(heads, lines)}\n"


def one_learner(find: Finder) -> str:
    lines = []
    for name, alone in LEARNERS.items():
        try:
            rate = wer(alone(find))
        except MissingRun:
            lines.append((name, SETUPS[alone.network].told, NOT_YET, f"{limit_of(name):g} %", ""))
            continue
        told = "diverged" if rate is None else f"{rate.value:.1f} % ({rate.low:.1f} to {rate.high:.1f})"
        met = rate is not None and rate.value <= limit_of(name)
        lines.append((name, SETUPS[alone.network].told, told, f"{limit_of(name):g} %", "met" if met else "missed"))
    heads = ("one learner", "network and speech", "word error rate (over utterances)", "limit", "")
    return (
        f"## One learner\n\n{base.STUDY.design.capitalize()}.\n\n{table(heads, lines)}\n\n{runs([base.STUDY], find)}\n"
    )


def worst(present: Sequence[Row]) -> str:
    """The largest word error rate of a run of the plan, and the runs that diverged."""
    rates = {row["digest"]: rate for row in present for rate in (percent(row),) if rate is not None}
    above = [row for row in present if rates.get(row["digest"], 0.0) > WORST_WER]
    lost = [row["digest"] for row in present if diverged(row)]
    if not rates:
        return "No test is decoded yet.\n"
    told = f"The largest word error rate of a decoded run of the plan is {max(rates.values()):.1f} %"
    named = (f"`{row['digest']}` ({cell_of(row).told})" for row in above)
    told += f"; above {WORST_WER:g} %: {'; '.join(named) or 'none'}."
    return f"{told} Runs that diverged: {', '.join(f'`{digest}`' for digest in lost) or 'none'}.\n"


def section(paper: str, find: Finder, results: Results, out: Path) -> str:
    """The studies of a paper: their claims and pictures, then all their runs."""
    mine = [study for study in STUDIES.values() if study.cited == paper]
    parts = [f"## {paper}", f"{mine[0].paper}."]
    for study in mine:
        clock = f" Machines: {MACHINES[study.machines].told}." if study.machines else ""
        parts.append(f"`murmur papers {study.name}`: {study.design}.{clock}")
        every = [(claim, results[name]) for owner, claim, name in claims() if owner is study]
        parts.append(
            "\n".join(reasons(claim, outcome) + cause(study, claim, outcome, find) for claim, outcome in every)
        )
        if study.picture is not None and (line := study.picture(find, out)):
            parts.append(line)
    return "\n\n".join([*parts, runs(mine, find)]).rstrip() + "\n"


def reasons(claim: Claim, outcome: Outcome | None) -> str:
    cited = f" ({claim.cited})" if claim.cited else ""
    theirs = f" Theirs: {claim.published}." if claim.published else ""
    rule = f"\n    - Rule: {claim.rule}.{theirs}"
    if outcome is None:
        return f"- {claim.told}{cited}: {NOT_YET}.{rule}"
    why = f" {outcome.why[0].upper()}{outcome.why[1:]}." if outcome.why else ""
    return f"- {claim.told}{cited}: **{outcome.told}**.{rule}\n    - Here: {outcome.ours}.{why}"


def cause(study: Study, claim: Claim, outcome: Outcome | None, find: Finder) -> str:
    """Figures of the runs of the cause, unless the verdict is good."""
    if outcome is None or outcome.verdict in GOOD or claim.cause is None:
        return ""
    try:
        told = claim.cause(found(study, find, (*claim.needs, *claim.because)))
    except MissingRun:
        return f"\n    - The cause ({_listed(claim.because)}) is {NOT_YET}."
    except EndedRunError as error:
        return f"\n    - The cause ({_listed(claim.because)}) has no figures: {error}."
    of = f" ({_listed(claim.because)})" if claim.because else ""  # else from a benchmark's record
    return f"\n    - Cause{of}: {told}."


def _listed(names: Iterable[str]) -> str:
    return "; ".join(f'"{name}"' for name in names)


def runs(studies: Sequence[Study], find: Finder) -> str:
    """The table of the runs of some studies, each run once."""
    lines = dict[object, Sequence[object]]()
    for study in studies:
        for line in _runs(study, find):
            lines.setdefault(line[-1], line)
    heads = ("runs", "seed", "minibatch", "rate", "turns", "loss", "WER %", "speed-up", "waiting", "on", "row")
    return table(heads, lines.values()) if lines else ""


def _runs(study: Study, find: Finder) -> Iterator[Sequence[object]]:
    for name, group in study.groups.items():
        try:
            rows = group(find)
        except MissingRun:
            continue
        for row in rows:
            cell, rate = row["cell"], percent(row)
            faster = f"{speed_up([row]):.1f}x" if cell["machines"] and row["ended"] is None else "-"
            yield (
                name,
                cell["seed"],
                f"{cell['learners']} x {cell['minibatch']}" if cell["grows"] else cell["minibatch"],
                f"{cell['rate'] * cell['peak']:.3g}",
                f"{row['turns']:,}",
                "diverged" if diverged(row) else f"{loss(row):.4f}",
                "-" if rate is None else f"{rate:.1f}",
                faster,
                waiting(row) if cell["machines"] else "-",
                place(row)["device"],
                f"`{row['digest']}`",
            )


def where(rows: Sequence[Row]) -> str:
    once = {row["digest"]: row for row in rows}.values()
    spent = sum(row["cpu_seconds"] for row in once) / 3600
    facts = [", ".join(sorted({str(row[name]) for row in once})) for name in ("commit", "date", "hardware")]
    return f"{len(once)} runs, {spent:.1f} processor hours; commit {'; '.join(facts)}.\n"


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    cells = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in cells)
