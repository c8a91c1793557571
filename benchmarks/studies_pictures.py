"""The pictures of docs/studies.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from murmur.speech.decoding.bootstrap import Interval

if TYPE_CHECKING:
    from studies_page import Study

COLOURS = ("tab:blue", "tab:orange")


def draw(study: Study, effects: Mapping[str, Interval], folder: Path) -> None:
    """Write three files."""
    matplotlib.use("agg")
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    curves(study, axes[0])
    bars(effects, axes[1])
    figure.savefig(folder / "studies-factors.png", dpi=90)
    plt.close(figure)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    frequency(study, axes[0])
    largest(study, axes[1])
    figure.savefig(folder / "studies-frequency.png", dpi=90)
    plt.close(figure)


def curves(study: Study, axes: Axes) -> None:
    """Held-out loss over frames with one learner, mean of seeds."""
    for (optimizer, pretrained), rows in study.alone.items():
        points = [[point[1] for point in row["curve"]] for row in rows]
        xs = [point[0] / 1000 for point in rows[0]["curve"]]
        colour = COLOURS[optimizer != "SGD"]
        label = f"{optimizer}, {'machines' if pretrained else 'random weights'}"
        means = [statistics.mean(values) for values in zip(*points, strict=True)]
        axes.plot(xs, means, color=colour, linestyle="--" if pretrained else "-", marker="o", ms=3, label=label)
    axes.set(xlabel="thousand frames", ylabel="held-out loss", title="one learner, mean of three seeds")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def bars(effects: Mapping[str, Interval], axes: Axes) -> None:
    """Effects of the factors with their intervals."""
    names = list(effects)
    for place, name in enumerate(names):
        value = effects[name]
        axes.plot([value.low, value.high], [place, place], color="tab:blue")
        axes.plot(value.value, place, "o", color="tab:blue")
    axes.axvline(1.0, color="grey", linestyle=":")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="held-out loss, second level / first, 95 % interval", title="effects at 4 and 16 learners")
    axes.grid(alpha=0.3, axis="x")


def frequency(study: Study, axes: Axes) -> None:
    """Log-probability a frame and word errors over frames between averages."""
    xs = list(study.frequency)
    for x, rows in study.frequency.items():
        axes.plot([x] * len(rows), [-study.score(row) for row in rows], ".", color=COLOURS[0])
    means = [-statistics.mean(map(study.score, rows)) for rows in study.frequency.values()]
    axes.plot(xs, means, color=COLOURS[0])
    axes.set(xscale="log", xlabel="frames of a learner between averages", title="4 learners, three seeds")
    axes.set_ylabel("log-probability a frame", color=COLOURS[0])
    errors = axes.twinx()
    rates = []
    for rows in study.frequency.values():
        counts = [pair for row in rows for pair in row["errors"].values()]
        rates.append(100 * sum(e for e, _ in counts) / sum(w for _, w in counts))
    errors.plot(xs, rates, color=COLOURS[1], marker="s", ms=4)
    errors.set_ylabel("WER %, all seeds", color=COLOURS[1])
    axes.grid(alpha=0.3)


def largest(study: Study, axes: Axes) -> None:
    """Final loss of every run of the bisections, relative to the loss of the class frequencies."""
    for colour, (name, rows) in zip(COLOURS, study.bisections.items(), strict=True):
        ended = sorted((r["cell"]["learners"] * r["cell"]["frames"], r["loss"], r["prior"]) for r in rows if r["loss"])
        batches, shares = [b for b, _, _ in ended], [loss / prior for _, loss, prior in ended]
        axes.plot(
            batches, shares, marker="os"[name == "ADPSGD"], ms=4 + 3 * (name == "SyncSGD"), color=colour, label=name
        )
    axes.axhline(0.9, color="grey", linestyle=":", label="counts as diverged above")
    axes.set(yscale="log", xlabel="frames an update", title="16 learners, rates linear in frames")
    axes.set_xscale("log", base=2)
    axes.set_ylabel("loss / loss of class frequencies")
    axes.set_yticks((0.25, 0.5, 1, 2, 4))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
