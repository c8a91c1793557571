"""A run in words and numbers: its line of the table, its key figures, its experiment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from murmur.core.counted import counted
from murmur.report.read import Run
from murmur.report.verdict import last_logprob
from murmur.run.folder.contents import written
from murmur.run.folder.lock import state_of

COLUMNS = (
    "run",
    "WER %",
    "95 % interval",
    "held-out log-prob.",
    "accuracy",
    "training s",
    "learners",
    "samples",
    "samples/s",
    "not computing",
    "strategy",
)
NOTHING = "-"


def row(run: Run) -> tuple[str, ...]:
    rate, found, records = run.headline, last_logprob(run), run.records
    accuracy = run.heldout.get("frame accuracy", run.heldout.get("accuracy"))
    return (
        run.name,
        NOTHING if rate is None else f"{rate.percent:.2f}",
        NOTHING if rate is None or rate.low is None or rate.high is None else f"{rate.low:.2f} to {rate.high:.2f}",
        NOTHING if found is None else f"{found:.4f}",
        NOTHING if accuracy is None else f"{100 * accuracy:.1f} %",
        NOTHING if not records.last_seconds else training_time(run),
        str(run.learners),
        NOTHING if not records.last_samples else f"{records.last_samples:,.0f}",
        NOTHING if records.samples_per_second is None else f"{records.samples_per_second:,.0f}",
        NOTHING if records.waiting_share is None else f"{100 * records.waiting_share:.1f} %",
        strategy_of(run.facts),
    )


def tiles(run: Run) -> list[tuple[str, str]]:
    """Name and value of the key figures of a single run; missing figures are left out."""
    values = dict(zip(COLUMNS, row(run), strict=True))
    names = {
        "WER %": "word error rate in %",
        "held-out log-prob.": "held-out log-probability",
        "accuracy": "held-out accuracy",
        "training s": "of training" if run.simulated else "seconds of training",
        "learners": "learners",
        "samples": "samples",
        "samples/s": "samples a second",
        "not computing": "of the learners' time not computing",
    }
    return [(name, values[column]) for column, name in names.items() if values[column] != NOTHING]


def training_time(run: Run) -> str:
    """Seconds of training; virtual hours of a long simulated run."""
    seconds = run.records.last_seconds
    if not run.simulated:
        return f"{seconds:.1f}"
    return f"{seconds / 3600:.4g} virtual h" if seconds >= 3600 else f"{seconds:.4g} virtual s"


def strategy_of(facts: Mapping[str, Any]) -> str:
    """The strategy as it is written on a command line, such as KAVG(K=4)."""
    experiment = facts.get("experiment")
    described = experiment.get("strategy") if isinstance(experiment, Mapping) else None
    return NOTHING if described is None else written(described)


def about(run: Run) -> dict[str, Any]:
    """The page's text about one run: the lines of its score, facts by name, and its experiment as JSON."""
    facts, records = run.facts, run.records
    experiment = facts.get("experiment") if isinstance(facts.get("experiment"), Mapping) else {}
    assert isinstance(experiment, Mapping)
    versions = facts.get("versions") if isinstance(facts.get("versions"), Mapping) else {}
    assert isinstance(versions, Mapping)
    told = {
        "folder": run.folder,
        "command": shlex.join(_words(facts.get("command"))),
        "settings": ", ".join(_words(facts.get("settings"))),
        "started": facts.get("started"),
        "state": "" if (state := state_of(run.folder)).name == "unknown" else state,
        "seed": experiment.get("seed"),
        "strategy": strategy_of(facts),
        "learners": counted(run.learners, "learner"),
        "scaling": scaling.get("told") if isinstance(scaling := facts.get("scaling"), Mapping) else "",
        "simulated": _cluster(run),
        "steps of learners": _steps(records.steps_of),
        "minibatches skipped": sum(records.skipped.values()) or "",
        "losses that were not finite": records.not_finite or "",
        "weights replaced": sum(records.replaced.values()) or "",
        "commit": facts.get("commit"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Python": facts.get("python"),
        "experiment digest": facts.get("digest"),
        "time": ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in run.phases.items()),
    }
    return {
        "name": run.name,
        "lines": _words(run.score.get("lines")),
        "facts": [(name, str(value)) for name, value in told.items() if value not in (None, "")],
        "experiment": json.dumps(experiment, indent=1, ensure_ascii=False) if experiment else "",
    }


def _words(value: Any) -> list[str]:
    """The items of a list as strings; empty for any other value."""
    return [str(word) for word in value] if isinstance(value, list) else []


def _steps(steps_of: Mapping[int, int]) -> str:
    """Steps of each learner; for many learners, the fewest and the most."""
    if len(steps_of) > 16:
        return f"{min(steps_of.values())} to {max(steps_of.values())}"
    return ", ".join(f"{learner}: {steps}" for learner, steps in sorted(steps_of.items()))


def _cluster(run: Run) -> str:
    """The virtual cluster of a simulated run: differences from one learner per node, and failures."""
    cluster, compute = run.simulated.get("cluster"), run.simulated.get("compute")
    if not isinstance(cluster, Mapping):
        return ""
    parts = [f"cluster {run.simulated.get('kind')}, {cluster.get('learners_per_node')} learners a node"]
    parts += [f"compute times {written(compute)}"] if compute else []
    faults = cluster.get("faults")
    parts += [written(fault) for fault in faults] if isinstance(faults, Sequence) else []
    return "; ".join(parts)


TOLERANCE = 0.01  # strategies end within a round of the budget
COLUMN = "of most samples"
MOST_NAMED = 4


def shares(runs: Sequence[Run]) -> dict[str, float]:
    """{name of a run: its samples as a share of the most}; empty if all are equal; runs not begun are left out."""
    samples = {run.name: run.records.last_samples for run in runs if run.records.last_samples > 0}
    most = max(samples.values(), default=0.0)
    found = {name: trained / most for name, trained in samples.items()}
    return found if any(differs(share) for share in found.values()) else {}


def differs(share: float) -> bool:
    """True if a run with this share had less training than the run with the most."""
    return share < 1 - TOLERANCE


def percent(share: float) -> str:
    """A share as a percentage, rounded so that a difference is never written as 100 %."""
    return f"{min(100 * share, 99.9) if differs(share) else 100.0:.3g} %"


def legend_suffix(run: Run, runs: Sequence[Run]) -> str:
    """The text after a run's name in legends; "" if no run had more training."""
    share = shares(runs).get(run.name, 1.0)
    return f" ({percent(share)} of the samples)" if differs(share) else ""


def warnings(ranked: Sequence[Run]) -> list[str]:
    """The warning beside the verdict if runs are not at equal samples."""
    found = shares(ranked)
    if not found:
        return []
    told = [_described(run, found[run.name]) for run in ranked if run.name in found]
    more = f" and {counted(len(told) - MOST_NAMED, 'more run')}" if len(told) > MOST_NAMED else ""
    return [
        f"Not at equal samples: {', '.join(told[:MOST_NAMED])}{more}. A difference between these runs may come from"
        " the amount of training alone: compare them at the same samples."
    ]


def with_shares(
    columns: Sequence[str], rows: Sequence[Sequence[str]], runs: Sequence[Run]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table, with a column of shares after "samples" if runs are unequal."""
    found = shares(runs)
    if not found:
        return tuple(columns), [tuple(row) for row in rows]
    place = list(columns).index("samples") + 1
    told = [percent(found[run.name]) if run.name in found else "-" for run in runs]
    wider = [(*row[:place], share, *row[place:]) for row, share in zip(rows, told, strict=True)]
    return (*columns[:place], COLUMN, *columns[place:]), wider


def _described(run: Run, share: float) -> str:
    less = f" ({percent(share)} of the most)" if differs(share) else ""
    return f"{run.name} trained on {run.records.last_samples:,.0f}{less}"
