"""Shared parts of the benchmarks: interleaved repeats, medians, and the closing line of JSON."""

from __future__ import annotations

import json
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from murmur.execution.workers import cores_here
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.process.launcher import Launch


def interleave(sides: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run the sides in turn, `repeats` times, in alternating order; print and return every value."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        order = list(sides) if repeat % 2 == 0 else list(sides)[::-1]
        for name in order:
            values[name].append(sides[name]())
        print(f"repeat {repeat}: " + "  ".join(f"{name} {values[name][-1]:.6g}" for name in sides), flush=True)
    return values


def median_ratio(values: Mapping[str, list[float]], ours: str, theirs: str) -> float:
    """Median over repeats of ours / theirs, each pair from the same repeat."""
    return statistics.median(a / b for a, b in zip(values[ours], values[theirs], strict=True))


def bar(what: str, value: float, limit: float, at_most: bool = True) -> dict[str, Any]:
    """One bar: the value, the limit, and whether it holds."""
    return {"what": what, "value": value, "bar": limit, "holds": value <= limit if at_most else value >= limit}


def as_two_learners(learner: Callable[[Place], None]) -> None:
    """Run this script as two learners on this host, each of which calls `learner`; only the first prints."""
    place = place_of()
    if place is None:
        raise SystemExit(Launch(lambda place, resume: [sys.executable, *sys.argv], learners=2).run())
    if place.rank > 0:
        sys.stdout = open("/dev/null", "w")  # noqa: SIM115 - the first one prints
    learner(place)


def arguments_of(argv: Sequence[str]) -> list[str]:
    """The arguments of this script in general form: paths of this machine become FOLDER."""
    return [re.sub(r"(^|=)/[^ ]*", r"\1FOLDER", word) for word in argv[1:]]


def close(name: str, figures: Mapping[str, Any], bars: list[dict[str, Any]], command: str | None = None) -> None:
    """Print the platform, write the record for RESULTS.md, and print the result as the last line.

    The record holds the script and its arguments; `bench.py` gives them again. `command`: the command of figures that
    no script measures.
    """
    root = Path(__file__).parents[1]
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    hardware = f"{platform.machine()}, {cores_here()} cores, torch {torch.__version__}"
    print(f"{hardware}, commit {commit}")
    for b in bars:
        print(f"{'holds ' if b['holds'] else 'MISSED'}  {b['what']}: {b['value']:.4g} (bar {b['bar']:g})")
    result = {"benchmark": name, "figures": dict(figures), "bars": bars}
    script, arguments = f"benchmarks/{Path(sys.argv[0]).name}", arguments_of(sys.argv)
    facts = {
        "command": command or shlex.join(["python", script, *arguments]),
        "arguments": arguments,
        "commit": commit,
        "hardware": hardware,
    }
    record = {**result, **facts, "date": datetime.now(UTC).date().isoformat()}
    kept = root / "results" / "bench" / f"{name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(result))
