"""128 learners on 16 nodes, all equal and with one ten times slower: the speed that seven strategies retain.

Timing only: the strategies' own protocols on the virtual cluster, with empty weights that count as 165 MB on the
wire, a gradient of 0.07 s with 10 % jitter. Samples per second are counted while all learners still find minibatches,
and over the whole run; the end of the run, in which fast learners wait for the slow one's last gradient, is shown
separately. Bars: lock-step falls to the straggler's pace, other strategies retain the speed of the other learners.

    python benchmarks/straggler_128.py --picture docs/straggler_128.png
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from measure import bar, close
from murmur.core.learner import Strategy
from murmur.core.mixing import randomized_ring, ring
from murmur.simulation.planner.timing import Timing, time_strategy
from murmur.strategies import ADPSGD, BMUF, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.worlds.virtual.cluster import LognormalSeconds
from murmur.worlds.virtual.presets import preset

KIND = "bar"
LEARNERS, SLOW, FACTOR = 128, 0, 10.0
SECONDS, JITTER, MODEL_BYTES, KIND = 0.07, 0.1, 165e6, "v100-ethernet"
STRATEGIES: Mapping[str, Strategy] = {
    "SyncSGD": SyncSGD(),
    "KAVG(8)": KAVG(8),
    "BMUF(8)": BMUF(8),
    "DelayByOne": DelayByOne(),
    "ADPSGD ring": ADPSGD(ring),
    "ADPSGD randomized ring": ADPSGD(randomized_ring),
    "SuperLearners(ADPSGD, 8)": SuperLearners(ADPSGD(), 8),
}
LOCK_STEP = ("SyncSGD", "KAVG(8)", "BMUF(8)", "DelayByOne")
ALONE = ("ADPSGD ring", "ADPSGD randomized ring")
EQUAL, SLOWED = "all equal", "one 10 times slower"
FACTORS: Mapping[str, Mapping[int, float]] = {EQUAL: {}, SLOWED: {SLOW: FACTOR}}
COLOURS = {EQUAL: "#0072b2", SLOWED: "#d55e00"}


@dataclass(frozen=True)
class Outcome:
    """One strategy, equal or with the straggler."""

    timing: Timing
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Minibatches per virtual second of the whole run, including its end."""
        return self.timing.minibatches / self.timing.seconds

    @property
    def steady(self) -> float:
        """Minibatches per virtual second while every learner still finds some."""
        timing = self.timing
        return sum(taken / at for taken, at in zip(timing.gradients, timing.last_seconds, strict=True))

    @property
    def idle(self) -> float:
        """Share of the run in which learners did not compute, on average."""
        return 1 - fmean(self.timing.compute_seconds) / self.timing.seconds


def run(strategy: Strategy, factors: Mapping[int, float], gradients: int) -> Outcome:
    """One cell of the study, with this mean number of gradients per learner."""
    cluster = preset(KIND).cluster(LEARNERS, LognormalSeconds(SECONDS, JITTER, factors=factors), MODEL_BYTES)
    began = time.process_time()
    timing = time_strategy(strategy, cluster, LEARNERS * gradients)
    return Outcome(timing, time.process_time() - began)


def table(cells: Mapping[str, Mapping[str, Outcome]]) -> Table:
    """One line per strategy."""
    shown = Table(title=f"{LEARNERS} learners, {KIND}, {MODEL_BYTES / 1e6:g} MB, {SECONDS} s a gradient; virtual time")
    shown.add_column("strategy", no_wrap=True)
    for name in ("minibatches/s", "one slow", "kept, %", "whole run, %", "idle, %", "one slow", "end, s", "one slow"):
        shown.add_column(name, justify="right")
    for name, found in cells.items():
        equal, slow = found[EQUAL], found[SLOWED]
        shown.add_row(
            name,
            *(f"{equal.steady:.0f}", f"{slow.steady:.0f}", f"{100 * slow.steady / equal.steady:.1f}"),
            f"{100 * slow.rate / equal.rate:.1f}",
            *(f"{100 * equal.idle:.1f}", f"{100 * slow.idle:.1f}"),
            *(f"{equal.timing.tail_seconds:.2f}", f"{slow.timing.tail_seconds:.2f}"),
        )
    return shown


def draw(cells: Mapping[str, Mapping[str, Outcome]], path: Path) -> None:
    """Three panels side by side: speed, idle share, end of the run."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    panels: list[tuple[str, str, Callable[[Outcome], float]]] = [
        ("Speed while all find work", "minibatches a second", lambda cell: cell.steady),
        ("Idle share of the run", "%", lambda cell: 100 * cell.idle),
        ("End of the run", "seconds from the first idle learner", lambda cell: cell.timing.tail_seconds),
    ]
    names = list(cells)
    axes = figure.subplots(1, len(panels), sharey=True)
    for place, (axis, (title, unit, value)) in enumerate(zip(axes, panels, strict=True)):
        for shift, case in ((-0.2, EQUAL), (0.2, SLOWED)):
            lengths = [value(cells[name][case]) for name in names]
            axis.barh([row + shift for row in range(len(names))], lengths, 0.38, color=COLOURS[case], label=case)
        if place == 0:
            for row, name in enumerate(names):
                slow, equal = cells[name][SLOWED].steady, cells[name][EQUAL].steady
                axis.text(slow, row + 0.2, f" {100 * slow / equal:.0f} %", va="center", fontsize=8)
            axis.set_xlim(right=1.15 * max(cells[name][EQUAL].steady for name in names))
        axis.set(title=title, xlabel=unit, yticks=range(len(names)), yticklabels=names)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", color="#e4e4e4", linewidth=0.6)
        axis.set_axisbelow(True)
    axes[0].invert_yaxis()
    figure.suptitle(f"{LEARNERS} learners on 16 nodes, simulated: all equal, and one {FACTOR:g} times slower")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def figures_of(cell: Outcome) -> dict[str, Any]:
    """A cell in JSON's terms."""
    timing = cell.timing
    return {
        "minibatches_per_second": cell.steady,
        "whole_run_minibatches_per_second": cell.rate,
        "idle": cell.idle,
        "end_seconds": timing.tail_seconds,
        "seconds": timing.seconds,
        "most_staleness": max(max(ages, default=0) for ages in timing.staleness),
        "gigabytes_sent": sum(timing.sent_bytes) / 1e9,
        "cpu_seconds": cell.cpu_seconds,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gradients", type=int, default=400, help="a learner, on average")
    options.add_argument("--picture", type=Path, help="write the figure to this file")
    given = options.parse_args()
    torch.set_num_threads(1)
    cells: dict[str, dict[str, Outcome]] = {}
    for name, strategy in STRATEGIES.items():
        cells[name] = {case: run(strategy, factors, given.gradients) for case, factors in FACTORS.items()}
        print(name, json.dumps({case: figures_of(cell) for case, cell in cells[name].items()}), flush=True)
    Console(width=140).print(table(cells))
    if given.picture is not None:
        draw(cells, given.picture)
    kept = {name: found[SLOWED].steady / found[EQUAL].steady for name, found in cells.items()}
    seconds = sum(cell.cpu_seconds for found in cells.values() for cell in found.values())
    figures = {name: {case: figures_of(cell) for case, cell in found.items()} for name, found in cells.items()}
    bars = [
        bar("lock-step: the most that is kept", max(kept[name] for name in LOCK_STEP), 0.25),
        bar("ADPSGD: the least that is kept", min(kept[name] for name in ALONE), 0.98, at_most=False),
        bar("SuperLearners(ADPSGD, 8): kept", kept["SuperLearners(ADPSGD, 8)"], 0.92, at_most=False),
        bar("CPU seconds of the study", seconds, 300.0),
    ]
    close("straggler_128", figures, bars)


if __name__ == "__main__":
    main()
