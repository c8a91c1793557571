"""Tables, pictures and statements of the studies, from their rows alone; put between the marks of docs/studies.md."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from measure import bar, close
from murmur.speech.decoding.bootstrap import Interval
from murmur.studies.comparison.intervals import T_95, difference, paired

PAGE = Path(__file__).parents[1] / "docs" / "studies.md"
INTERACTIONS = (("optimizer", "learners"), ("pre-training", "learners"), ("schedule", "learners"))
Row = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """Rows of all studies, and functions that judge them; see `studies`.

    Attributes:
        tuning: rows at one learner, seed 0.
        alone: (optimizer, pre-trained) to rows over seeds, one learner.
        factors, levels: rows of the fractional factorial, and low and high level of every factor.
        frequency: frames of a learner between averages, to rows over seeds.
        schedules: schedule to rows over seeds, 4 learners.
        apart: frames of a learner between averages, to rows over seeds with a part of the data for each learner.
        bisections: strategy to runs in order.
        score: function that returns the loss of a row.
        diverged: function that returns True for a diverged row.
    """

    tuning: Sequence[Row]
    alone: Mapping[tuple[str, bool], list[Row]]
    factors: Sequence[Row]
    levels: Mapping[str, tuple[Any, Any]]
    frequency: Mapping[int, list[Row]]
    schedules: Mapping[str, list[Row]]
    apart: Mapping[int, list[Row]]
    bisections: Mapping[str, list[Row]]
    score: Callable[[Row], float]
    diverged: Callable[[Row], bool]

    def rows(self) -> list[Row]:
        """Every run once."""
        several = (self.alone, self.frequency, self.schedules, self.apart, self.bisections)
        groups = [self.tuning, self.factors, *(rows for groups in several for rows in groups.values())]
        return list({row["digest"]: row for group in groups for row in group}.values())


def words(first: Sequence[Row], second: Sequence[Row]) -> tuple[float, Interval]:
    """Word error rate of `second` in percent, and its difference to that of `first`."""
    found = difference(*({row["cell"]["seed"]: row["errors"] for row in rows} for rows in (first, second)))
    return found.second.percent, found.difference


def ratio(value: Interval) -> str:
    """A ratio for a table."""
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    cells = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in cells)


def start(pretrained: bool) -> str:
    """Origin of the initial weights."""
    return "machines" if pretrained else "random"


def tuning(study: Study) -> str:
    """Table of the trials at seed 0."""
    lines = []
    for row in study.tuning:
        cell = row["cell"]
        stack = "random" if cell["stack"] is None else f"machines at {cell['stack']:g}"
        lines.append((cell["optimizer"], stack, f"{cell['rate']:.3g}", f"{study.score(row):.4f}"))
    return table(("optimizer", "start", "rate", "held-out loss"), lines)


def alone(study: Study) -> tuple[str, dict[str, Interval]]:
    """One learner: natural gradient and pre-training, and their ratios over seeds."""
    plain, lines, found = study.alone["SGD", False], [], {}
    for (optimizer, pretrained), rows in study.alone.items():
        losses = [study.score(row) for row in rows]
        wer, _ = words(rows, rows)
        each = ", ".join(f"{loss:.4f}" for loss in losses)
        rate = f"{rows[0]['cell']['rate']:.3g}"
        lines.append((optimizer, start(pretrained), rate, f"{statistics.mean(losses):.4f}", each, f"{wer:.2f}"))
    effects = []
    pairs = {
        "pre-training, SGD": (plain, study.alone["SGD", True]),
        "pre-training, natural gradient": (
            study.alone["natural gradient", False],
            study.alone["natural gradient", True],
        ),
        "natural gradient, random weights": (plain, study.alone["natural gradient", False]),
        "natural gradient, machines": (study.alone["SGD", True], study.alone["natural gradient", True]),
    }
    for name, (without, rows) in pairs.items():
        found[name] = paired(map(study.score, without), map(study.score, rows))
        _, errors = words(without, rows)
        effects.append((name, ratio(found[name]), f"{errors.value:+.2f} ({errors.low:+.2f} to {errors.high:+.2f})"))
    first = table(("optimizer", "start", "rate", "held-out loss", "seeds 0, 1, 2", "WER %"), lines)
    second = table(("effect of", "held-out loss, ratio (95 %)", "WER, points (95 %)"), effects)
    return f"{first}\n\n{second}", found


def level(row: Row, name: str) -> Any:
    """A row's level of a factor."""
    cell = row["cell"]
    if name == "pre-training":
        return cell["stack"] is not None
    return cell["frames" if name == "minibatch" else name]


def effects(study: Study) -> dict[str, Interval]:
    """exp(high - low) of ln(loss) by factor and interaction: least squares on signs, t intervals of the residuals."""
    signs = {
        name: np.array([1.0 if level(row, name) == high else -1.0 for row in study.factors])
        for name, (_, high) in study.levels.items()
    }
    columns = {**signs, **{f"{a} x {b}": signs[a] * signs[b] for a, b in INTERACTIONS}}
    X = np.column_stack([np.ones(len(study.factors)), *columns.values()])
    y = np.log([study.score(row) for row in study.factors])
    b, *_ = np.linalg.lstsq(X, y, rcond=None)
    free = len(y) - X.shape[1]
    deviation = math.sqrt(float(((y - X @ b) ** 2).sum()) / free / len(y))  # the columns are orthogonal
    reach = 2 * T_95[free - 1] * deviation
    return {
        name: Interval(*(math.exp(2 * value + by) for by in (0.0, -reach, reach)), 0.95)
        for name, value in zip(columns, b[1:], strict=True)
    }


def factors(study: Study) -> tuple[str, dict[str, Interval]]:
    """The runs, then the effects."""
    names = list(study.levels)
    lines = []
    for row in study.factors:
        levels = [start(level(row, n)) if n == "pre-training" else level(row, n) for n in names]
        wer = f"{words([row], [row])[0]:.1f}" if "errors" in row else "-"
        lines.append((*levels, row["cell"]["seed"], f"{study.score(row):.4f}", wer))
    found = effects(study)
    shown = []
    for name, value in found.items():
        ends = [start(v) if name == "pre-training" else str(v) for v in study.levels.get(name, ())]
        shown.append((name, " to ".join(ends), ratio(value)))
    heads = [*(name.replace("pre-training", "start") for name in names), "seed", "held-out loss", "WER %"]
    return f"{table(heads, lines)}\n\n{table(('factor', 'from, to', 'held-out loss, ratio (95 %)'), shown)}", found


def frequency(study: Study) -> tuple[str, str]:
    """Table, and the line that states the best range."""
    rows = study.frequency
    means = {n: statistics.mean(map(study.score, r)) for n, r in rows.items()}
    top = min(means, key=lambda n: means[n])
    fewest = min(rows, key=lambda n: words(rows[n], rows[n])[0])
    lines, ranges = [], ([top], [fewest])
    for n, cell in rows.items():
        against = paired(map(study.score, rows[top]), map(study.score, cell))
        wer, _ = words(cell, cell)
        errors = words(rows[fewest], cell)[1]
        if n != top and against.low <= 1 <= against.high:
            ranges[0].append(n)
        if n != fewest and errors.low <= 0 <= errors.high:
            ranges[1].append(n)
        each = ", ".join(f"{-study.score(row):.4f}" for row in cell)
        loss = "best" if n == top else ratio(against)
        spread = "fewest" if n == fewest else f"{errors.value:+.2f} ({errors.low:+.2f} to {errors.high:+.2f})"
        lines.append((n, f"{-means[n]:.4f}", each, loss, f"{wer:.2f}", spread))
    heads = ("frames", "log-probability a frame", "seeds 0, 1, 2", "loss / best (95 %)", "WER %", "WER - fewest (95 %)")
    whats = ("log-probability", "word errors")
    told = "; ".join(f"by {what}, {_range(r, list(rows))}" for what, r in zip(whats, ranges, strict=True))
    return table(heads, lines), f"Best range: {told}."


def _range(chosen: Sequence[int], tried: Sequence[int]) -> str:
    if len(chosen) == len(tried):
        return "the data show none: no frequency differs from the best one beyond its interval"
    if len(chosen) == 1:
        return f"{chosen[0]} frames a learner between averages, better than all others beyond their intervals"
    return f"{min(chosen)} to {max(chosen)} frames a learner between averages"


def against(study: Study, pairs: Iterable[tuple[str, Sequence[Row], Sequence[Row]]]) -> tuple[str, dict[str, Interval]]:
    """Table of rows compared with others: (name, the others, the rows); and the ratios of the losses."""
    lines, found = [], {}
    for name, others, rows in pairs:
        losses = [study.score(row) for row in rows]
        each = ", ".join(f"{loss:.4f}" for loss in losses)
        wer, errors = words(others, rows)
        if rows is others:
            lines.append((name, f"{statistics.mean(losses):.4f}", each, "-", f"{wer:.2f}", "-"))
            continue
        found[name] = paired(map(study.score, others), map(study.score, rows))
        spread = f"{errors.value:+.2f} ({errors.low:+.2f} to {errors.high:+.2f})"
        lines.append((name, f"{statistics.mean(losses):.4f}", each, ratio(found[name]), f"{wer:.2f}", spread))
    heads = ("", "held-out loss", "seeds 0, 1, 2", "ratio (95 %)", "WER %", "difference (95 %)")
    return table(heads, lines), found


def schedules(study: Study) -> tuple[str, dict[str, Interval]]:
    """Table of the schedules, and their ratios to Kaldi's."""
    return against(study, [(name, study.schedules["kaldi"], rows) for name, rows in study.schedules.items()])


def apart(study: Study) -> tuple[str, dict[str, Interval]]:
    """Table of learners with data of their own, and their ratios to learners that draw from all of it."""
    pairs = []
    for frames, rows in study.apart.items():
        whole = study.frequency[frames]
        pairs += [(f"{frames} frames, all data", whole, whole), (f"{frames} frames, own part", whole, rows)]
    return against(study, pairs)


def largest(study: Study) -> tuple[str, float | None]:
    """Table of the bisections, and the ratio of the largest batches that did not diverge; None if one has none."""
    lines, found = [], {}
    for name, rows in study.bisections.items():
        for row in rows:
            cell = row["cell"]
            batch = cell["learners"] * cell["frames"]
            loss = "no number" if row["loss"] is None else f"{row['loss']:.4f}"
            end = "diverged" if study.diverged(row) else "trained"
            lines.append((name, batch, cell["budget"] // batch, loss, end))
            if not study.diverged(row):
                found[name] = max(batch, found.get(name, 0))
    ratio_of = found["ADPSGD"] / found["SyncSGD"] if len(found) == len(study.bisections) else None
    heads = ("strategy", "frames an update", "updates", "held-out loss", "")
    told = ", ".join(f"{name} {found.get(name, 'none')}" for name in study.bisections)
    return f"{table(heads, lines)}\n\nLargest that did not diverge: {told}.", ratio_of


def fill(page: str, name: str, content: str) -> str:
    """The page with `content` between the marks of `name`.

    Raises:
        ValueError: the page has no such marks.
    """
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not marks.search(page):
        raise ValueError(f"{PAGE} has no marks <!-- {name} --> ... <!-- end -->: put them where the table belongs")
    return marks.sub(lambda found: f"{found[1]}\n{content}\n\n{found[2]}", page)


def where(rows: Sequence[Row]) -> str:
    """Time and origin of the rows."""
    commits, dates = (sorted({row[name] for row in rows}) for name in ("commit", "date"))
    seconds = sum(row["cpu_seconds"] for row in rows)
    return f"{len(rows)} runs, {seconds / 60:.0f} processor minutes; commit {', '.join(commits)}; {', '.join(dates)}."


def write(study: Study) -> None:
    """Write page, pictures and record."""
    from studies_pictures import draw  # noqa: PLC0415 - matplotlib is an extra

    one, at_one = alone(study)
    many, found = factors(study)
    often, best_range = frequency(study)
    shapes, by_schedule = schedules(study)
    parted, by_parts = apart(study)
    large, batches = largest(study)
    page = PAGE.read_text()
    parts = {"tuning": tuning(study), "alone": one, "factors": many, "frequency": often, "largest": large}
    parts |= {"schedules": shapes, "apart": parted}
    for name, content in {**parts, "range": best_range, "where": where(study.rows())}.items():
        page = fill(page, name, content)
    PAGE.write_text(page)
    draw(study, found, PAGE.parent)
    intervals = {name: [v.value, v.low, v.high] for name, v in {**at_one, **found, **by_schedule, **by_parts}.items()}
    figures = {"runs": len(study.rows()), "ratios": intervals, "best range": best_range, "batch ratio": batches}
    bars = [
        bar(f"{name}: held-out loss, ratio at one learner, mean of seeds", value.value, 1.0)
        for name, value in at_one.items()
    ]
    if batches is not None:
        bars.append(bar("largest batch that does not diverge, ADPSGD / SyncSGD", batches, 1.0, at_most=False))
    print(json.dumps(intervals))
    print(best_range)
    close("studies", figures, bars)
