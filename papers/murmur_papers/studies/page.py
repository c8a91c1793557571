"""The page of the papers' experiments, made from rows alone: the same rows give the same bytes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from murmur.comparison.rows import Row
from murmur.core.whole_files import write_whole
from murmur.report.error_rate import Interval
from murmur_papers.studies import asgd, base, frequency, hierarchy, largest, rings, schedules, stragglers, turns
from murmur_papers.studies.base import LEARNERS, limit_of
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.networks import SETUPS
from murmur_papers.studies.plan import outcomes, whole
from murmur_papers.studies.run import Finder, MissingRun, diverged, loss, on_newest_builds
from murmur_papers.studies.study import Claim, Outcome, Study, found
from murmur_papers.studies.verdicts import EndedRunError, cell_of, percent, seconds, speed_up, waiting, wer

EVERY = (base, frequency, schedules, asgd, rings, stragglers, turns, largest, hierarchy)  # in the order of the page
STUDIES: Mapping[str, Study] = {part.STUDY.name: part.STUDY for part in EVERY}
PAGE = "papers.md"
WORST_WER = 60.0
NOT_YET = "not run yet"
Results = Mapping[str, Outcome | None]  # of the claims, by name
HEAD = """# Experiments of five papers

Conclusions of five papers on training with many learners, beside our figures. Gradients and speech are real, the
machines are virtual, and the networks are small versions of the papers'. Ratios are those of held-out losses: below 1
the loss is lower. In parentheses are 95 % intervals. Written by `murmur papers` from rows of runs; never by hand.
"""
HOW = (Path(__file__).parent / "method.md").read_text(encoding="utf-8")
PICTURED = """A picture shows the seeds whose test is decoded for all its systems. The bars are 95 % intervals of each
system alone. The interval of a difference between two systems is narrower, because both are tested on the same
utterances.
"""
PLURAL = {"agrees": "agree", "differs": "differ", "undecided": "undecided"}


def write(rows: Mapping[str, Row], out: Path) -> Path:
    """Write papers.md and the pictures, of the rows on the newest build of each network's data; return the page."""
    rows = on_newest_builds(rows)
    find, every = Finder(rows), list(STUDIES.values())
    results = outcomes(every, find)
    present = [rows[each.cell.digest] for each in whole(every, rows, results) if each.known]
    parts = [HEAD, summary(results), *pictures(find, out), one_learner(find), worst(present), HOW]
    parts += [section(study, find, results) for study in every]
    if present:
        parts.append(where(present))
    page = out / PAGE
    write_whole(page, "\n".join(parts).encode())
    return page


def claims() -> list[tuple[Study, Claim, str]]:
    return [(s, claim, f"{s.name} {number}") for s in STUDIES.values() for number, claim in enumerate(s.claims, 1)]


def summary(results: Results, page: str = "") -> str:
    lines, verdicts = [], []
    for study, claim, name in claims():
        outcome, cited = results[name], f"[{study.cited}]({page}#{study.name})"
        if outcome is None:
            lines.append((cited, claim.told, claim.published, NOT_YET, ""))
            continue
        verdicts.append(outcome.verdict)
        lines.append((cited, claim.told, claim.published, outcome.ours, f"**{outcome.verdict}**"))
    counts = {verdict: verdicts.count(verdict) for verdict in PLURAL if verdict in verdicts}
    told = ", ".join(f"{count} {v if count == 1 else PLURAL[v]}" for v, count in counts.items())
    counted = f"Judged so far: {len(verdicts)} of {len(lines)} claims{': ' + told if told else ''}."
    return f"{counted}\n\n{table(('paper', 'claim', 'their number', 'ours', 'verdict'), lines)}\n"


def pictures(find: Finder, out: Path) -> list[str]:
    """Draw the pictures of the studies of which something is decoded; return the lines that show them."""
    own = [line for study in STUDIES.values() if study.picture is not None and (line := study.picture(find, out))]
    lines = []
    for study in STUDIES.values():
        points = points_of(study, find)
        if len(points) > 1:
            draw(study.name, points, out / f"papers_{study.name}.svg")
            lines.append(f"![{study.name}: word error rate over hours of the virtual cluster](papers_{study.name}.svg)")
    return [*lines, PICTURED, *own] if lines else own


def points_of(study: Study, find: Finder) -> list[Point]:
    """Virtual hours and word error rates of the groups of which something is decoded, over the seeds of all of them."""
    decoded = dict[str, dict[int, Row]]()
    for name in study.pictured:
        try:
            rows = study.groups[name](find)
        except MissingRun:
            continue
        if by_seed := {row["cell"]["seed"]: row for row in rows if row["errors"]}:
            decoded[name] = by_seed
    common = set.intersection(*map(set, decoded.values())) if decoded else set()
    points = []
    for name, by_seed in decoded.items():
        rows = [by_seed[seed] for seed in sorted(common)]
        if (rate := wer(rows)) is not None:
            points.append(Point(name, statistics.mean(seconds(row, study.machines) for row in rows) / 3600, rate))
    return points


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
    heads = ("one learner", "network and speech", "word error rate", "limit", "")
    return f"## One learner\n\n{table(heads, lines)}\n"


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


def section(study: Study, find: Finder, results: Results) -> str:
    told = []
    for number, claim in enumerate(study.claims, 1):
        outcome = results[f"{study.name} {number}"]
        told.append(reasons(claim, outcome) + cause(study, claim, outcome, find))
    clock = f" Machines: {MACHINES[study.machines].told}." if study.machines else ""
    lines = list(runs(study, find))
    heads = ("runs", "seed", "minibatch", "rate", "turns", "held-out loss", "WER %", "speed-up", "waiting", "row")
    shown = [table(heads, lines)] if lines else []
    listed = "\n".join(told)
    parts = [
        f"## {study.name}",
        f"{study.paper}.",
        f"Runs: {study.design}.{clock}",
        *([listed] if told else []),
        *shown,
    ]
    return "\n\n".join(parts) + "\n"


def reasons(claim: Claim, outcome: Outcome | None) -> str:
    rule = f"\n    - Rule: {claim.rule}."
    if outcome is None:
        return f"- {claim.told}: {NOT_YET}.{rule}"
    why = f" {outcome.why[0].upper()}{outcome.why[1:]}." if outcome.why else ""
    return f"- {claim.told}: **{outcome.verdict}**.{rule}\n    - Here: {outcome.ours}.{why}"


def cause(study: Study, claim: Claim, outcome: Outcome | None, find: Finder) -> str:
    """Figures of the runs of the cause, unless the verdict agrees."""
    if outcome is None or outcome.verdict == "agrees" or claim.cause is None:
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


def runs(study: Study, find: Finder) -> Iterable[Sequence[object]]:
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


@dataclass(frozen=True)
class Point:
    """A system in a picture: hours of the virtual cluster, word error rate in percent."""

    name: str
    hours: float
    rate: Interval


def draw(name: str, points: Sequence[Point], path: Path) -> None:
    """Draw the systems of a study."""
    import matplotlib as mpl  # noqa: PLC0415 - it takes a second
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import LogLocator  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.4, 3.4), layout="constrained")
        axes = figure.subplots()
        for number, point in enumerate(points):
            marker = "s" if number == 0 else "^" if point.name.startswith("beyond") else "o"
            value = point.rate.value
            bars = [[value - point.rate.low], [point.rate.high - value]]
            axes.errorbar(
                [point.hours], [value], bars, fmt=marker, color=f"C{number % 10}", label=point.name, capsize=2
            )
        axes.set(xscale="log", title=name, ylabel="word error rate, %", xlabel="hours of the virtual cluster")
        axes.xaxis.set_minor_locator(LogLocator(subs=(2.0, 3.0, 5.0)))  # more would overlap
        for formatted in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            formatted(lambda hours, _: f"{hours:g}")  # 0.6 in place of 6 x 10^-1
        axes.tick_params(axis="x", which="minor", labelsize=7)
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
