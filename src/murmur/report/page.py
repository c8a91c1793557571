"""One self-contained page about one or several runs: who won, how it went, what was run.

The page needs no network and no script.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from murmur.report.figures import Drawing, drawings, heldout, logprob
from murmur.report.read import ReportError, Run, read_run
from murmur.report.slow import COLUMNS as SLOW_COLUMNS

try:
    import jinja2
    import matplotlib as mpl
except ImportError:  # the extra is optional; write_report says so when it is asked for
    mpl = jinja2 = None  # type: ignore[assignment]

TEMPLATE = Path(__file__).parent / "template.html"
COLUMNS = (
    "run",
    "WER %",
    "95 % interval",
    "held-out log-prob.",
    "accuracy",
    "training s",
    "learners",
    "strategy",
)
NOTHING = "-"


@dataclass(frozen=True)
class About:
    """What the page says of one run: the lines of its score, and facts by name."""

    name: str
    lines: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write one page about the runs in these folders.

    Folders of runs that were cut off, or that lack some of their files, are reported as far as they go; the page names
    what is missing.

    Args:
        runs: run folders, as `murmur train --out` makes them.
        out: the HTML file to write.

    Returns:
        `out`.

    Raises:
        ReportError: no folder was given, one of them is no run's folder, or the extra `viz` is not installed.
    """
    check_installed()
    if not runs:
        raise ReportError("a report needs at least one run folder")
    read = [read_run(folder, name) for folder, name in zip(runs, names_of(runs), strict=True)]
    write_text(Path(out), page(read, drawings(read)))
    return Path(out)


def write_curve(runs: Sequence[Path], out: Path) -> Path:
    """Write the held-out curves of the runs against seconds of training as an SVG picture of its own.

    Returns:
        `out`.

    Raises:
        ReportError: as for `write_report`, or no run has been evaluated yet.
    """
    check_installed()
    drawing = heldout([read_run(folder, name) for folder, name in zip(runs, names_of(runs), strict=True)], "seconds")
    if drawing is None:
        raise ReportError(f"no evaluation yet in any of {', '.join(map(str, runs))}: let them train on")
    write_text(Path(out), f'<?xml version="1.0" encoding="utf-8"?>\n{drawing.svg}\n')
    return Path(out)


def check_installed() -> None:
    """Raises ReportError where matplotlib or jinja2 is missing."""
    if jinja2 is None or mpl is None:
        raise ReportError("a report needs matplotlib and jinja2: pip install 'murmur[viz]'")


def page(runs: Sequence[Run], figures: Sequence[Drawing]) -> str:
    """The page's HTML."""
    ranked = ranking(runs)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        headline=headline(ranked),
        notes=notes(ranked),
        problems=[problem for run in runs for problem in run.problems],
        columns=COLUMNS,
        rows=[row(run) for run in ranked],
        winner=len(runs) > 1 and ranked[0].headline is not None,
        drawings=figures,
        slow_columns=SLOW_COLUMNS,
        slow=[slow.row(run.name) for run in ranked for slow in run.records.slow],
        runs=[about(run) for run in runs],
    )


def names_of(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, with as many parents as it takes to tell them apart."""
    absolute = [Path(folder).absolute() for folder in folders]
    for depth in range(1, max((len(path.parts) for path in absolute), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in absolute]
        if len(set(names)) == len(names):
            return names
    raise ReportError(f"the same run folder was given twice: {', '.join(map(str, folders))}")


def ranking(runs: Sequence[Run]) -> list[Run]:
    """Runs with an error rate first, the lowest at the top; the others follow, the best held-out figures first."""

    def key(run: Run) -> tuple[float, float]:
        found = last_logprob(run)
        return run.headline.percent if run.headline else math.inf, math.inf if found is None else -found

    return sorted(runs, key=key)


def last_logprob(run: Run) -> float | None:
    """Held-out log-probability at the last evaluation."""
    return logprob(run.records.evaluations[-1]) if run.records.evaluations else None


def headline(ranked: Sequence[Run]) -> str:
    """The page's first line."""
    best = ranked[0]
    rate = best.headline
    if rate is None:
        found = last_logprob(best)
        least = "nothing held-out yet" if found is None else f"held-out log-probability {found:.4f}"
        return f"{f'Best: {best.name},' if len(ranked) > 1 else f'{best.name}:'} {least}; no word error rate"
    spread = "" if rate.low is None or rate.high is None else f" (95 % interval {rate.low:.2f} to {rate.high:.2f} %)"
    who = f"Winner: {best.name}," if len(ranked) > 1 else f"{best.name}:"
    return f"{who} word error rate {rate.percent:.2f} %{spread}"


def notes(ranked: Sequence[Run]) -> list[str]:
    """What has to be said beside the first line so that it does not mislead."""
    rates = [(run, run.headline) for run in ranked if run.headline is not None]
    said = []
    if rates:
        system, _, part = rates[0][1].name.removesuffix("wer").strip().rpartition(" ")
        said.append(f"Measured on {part or 'test'}{system and ', by the '}{system}.")
    close = [run.name for run, rate in rates[1:] if rate.overlaps(rates[0][1])]
    if close:
        said.append(
            f"The interval overlaps with that of {', '.join(close)}: on this test set the order is not certain."
        )
    simulated = [run for run in ranked if run.simulated]
    if simulated:
        which = "" if len(simulated) == len(ranked) else f" ({', '.join(run.name for run in simulated)})"
        kinds = ", ".join(dict.fromkeys(f"{run.learners} learners, {run.simulated.get('kind')}" for run in simulated))
        said.append(
            f"Simulated{which}: gradients are real, seconds and bytes are those of a modelled cluster: {kinds}."
        )
    unfinished = [run.name for run in ranked if not run.score and run.simulated.get("tested", True)]
    if unfinished:
        said.append(f"Not finished, so without an error rate: {', '.join(unfinished)}.")
    return said


def row(run: Run) -> tuple[str, ...]:
    """The run's line of the table."""
    rate, found = run.headline, last_logprob(run)
    accuracy = run.heldout.get("frame accuracy", run.heldout.get("accuracy"))
    return (
        run.name,
        NOTHING if rate is None else f"{rate.percent:.2f}",
        NOTHING if rate is None or rate.low is None or rate.high is None else f"{rate.low:.2f} to {rate.high:.2f}",
        NOTHING if found is None else f"{found:.4f}",
        NOTHING if accuracy is None else f"{100 * accuracy:.1f} %",
        NOTHING if not run.records.last_seconds else training_time(run),
        str(run.learners),
        strategy_of(run.facts),
    )


def training_time(run: Run) -> str:
    """Seconds of training; virtual hours of a simulated run."""
    seconds = run.records.last_seconds
    return f"{seconds / 3600:.4g} virtual h" if run.simulated else f"{seconds:.1f}"


def strategy_of(facts: Mapping[str, Any]) -> str:
    """The strategy as one would write it, such as KAVG(K=4)."""
    experiment = facts.get("experiment")
    described = experiment.get("strategy") if isinstance(experiment, Mapping) else None
    return NOTHING if described is None else _written(described)


def _written(value: Any) -> str:
    if not isinstance(value, Mapping) or "type" not in value:
        return str(value).rpartition(".")[2] if str(value).startswith("murmur.") else str(value)
    fields = ", ".join(f"{name}={_written(x)}" for name, x in value.items() if name != "type")
    return f"{str(value['type']).rpartition('.')[2]}({fields})"


def about(run: Run) -> About:
    """Command, versions, seeds and times of a run."""
    facts = run.facts
    experiment = facts.get("experiment") if isinstance(facts.get("experiment"), Mapping) else {}
    assert isinstance(experiment, Mapping)
    versions = facts.get("versions") if isinstance(facts.get("versions"), Mapping) else {}
    assert isinstance(versions, Mapping)
    told = {
        "folder": run.folder,
        "command": " ".join(_words(facts.get("command"))),
        "settings": ", ".join(_words(facts.get("settings"))),
        "started": facts.get("started"),
        "seed": experiment.get("seed"),
        "strategy": strategy_of(facts),
        "learners": _learners(run),
        "simulated": _cluster(run),
        "commit": facts.get("commit"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Python": facts.get("python"),
        "experiment digest": facts.get("digest"),
        "time": ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in run.phases.items()),
    }
    lines = run.score.get("lines")
    shown = tuple(map(str, lines)) if isinstance(lines, list) else ()
    return About(run.name, shown, tuple((name, str(value)) for name, value in told.items() if value not in (None, "")))


def _words(value: Any) -> list[str]:
    """The words of a list; none of anything else."""
    return [str(word) for word in value] if isinstance(value, list) else []


def write_text(path: Path, text: str) -> None:
    """Write a file so that after a crash the old one or the new one is there in full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _cluster(run: Run) -> str:
    """The virtual cluster of a simulated run: what differs from one learner a node, and what went wrong."""
    cluster, compute = run.simulated.get("cluster"), run.simulated.get("compute")
    if not isinstance(cluster, Mapping):
        return ""
    parts = [f"cluster {run.simulated.get('kind')}, {cluster.get('learners_per_node')} learners a node"]
    parts += [f"compute times {_written(compute)}"] if compute else []
    faults = cluster.get("faults")
    parts += [_written(fault) for fault in faults] if isinstance(faults, Sequence) else []
    return "; ".join(parts)


def _learners(run: Run) -> str:
    return f"{run.learners} learner{'' if run.learners == 1 else 's'}"
