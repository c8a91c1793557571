"""The picture of `turns`: ratios over turns, and below them the losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from murmur.report.error_rate import Interval

Course = Sequence[tuple[float, float]]  # turns and losses of a run


@dataclass(frozen=True)
class Lines:
    """What is drawn.

    Attributes:
        ratios: by strategy and number of turns.
        reference: the reference's loss by number of turns.
        courses: courses of runs by system; those of the first one, one learner, are grey.
        limit: of a ratio that counts as one.
    """

    ratios: Mapping[str, Mapping[int, Interval]]
    reference: Mapping[int, float]
    courses: Mapping[str, Sequence[Course]]
    limit: float


def draw(lines: Lines, path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - it takes a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "turns", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.4, 6.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        alone, *_ = lines.courses
        colours = {alone: "0.6"} | {name: f"C{number}" for number, name in enumerate(lines.ratios)}
        for number, (name, found) in enumerate(lines.ratios.items()):
            at = [turns * 1.03 ** (number - len(lines.ratios) // 2) for turns in found]  # bars side by side
            value = [each.value for each in found.values()]
            bars = [
                [each.value - each.low for each in found.values()],
                [each.high - each.value for each in found.values()],
            ]
            finite = all(each.high < float("inf") for each in found.values())
            above.errorbar(at, value, bars if finite else None, fmt="o-", color=colours[name], label=name, capsize=2)
        above.axhline(1.0, color="0.3", lw=0.8)
        above.axhline(lines.limit, color="0.3", lw=0.8, ls=":")
        for name, courses in lines.courses.items():
            for course in courses:
                below.plot(*zip(*course, strict=True), color=colours[name], lw=0.9)
        ends = lines.reference
        below.plot(list(ends), list(ends.values()), "ks-", label="one learner's lowest loss with no more frames")
        below.plot([], [], color="0.6", lw=0.9, label="courses of one learner; of 16 the longest, in colours")
        above.set(xscale="log", xlim=(min(ends) / 4, 1.2 * max(ends)), ylabel="loss over one learner's", title="turns")
        losses = ends.values()
        below.set(ylabel="held-out loss, nats a frame", xlabel="turns of all learners")
        below.set(ylim=(0.95 * min(losses), 1.6 * max(losses)))
        below.set_xticks(list(ends), [f"{turns:,}" for turns in ends])
        below.minorticks_off()
        for axes in (above, below):
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7, loc="upper right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
