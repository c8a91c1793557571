"""Summary of records.jsonl, made while reading: a run of any length takes the memory of a short one."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from murmur.core.counted import counted
from murmur.core.plain_files import UNREADABLE
from murmur.core.whole_files import FinishedLines

KINDS = ("compute", "data", "waiting", "communicating")
MOST_POINTS = 2000  # on the learning rate's curve
MOST_BINS = 160  # of a curve of sums
RISE = 0.5  # above the lowest held-out loss, relative to it: training counts as diverged
MOST_STEPS = 2**53  # in a record
LARGEST = 1e100  # time or count of a record; sums of such numbers and shares of these sums are finite
NARROWEST = 2.0**-10  # bin, in seconds or samples


@dataclass(frozen=True)
class EvaluationRow:
    """Held-out figures of the consensus, with the run's samples and seconds of training at that time.

    `epoch` is None in a loop of unknown length. `consensus_distance` is the root of the mean square distance of the
    learners from the consensus, if known.
    """

    samples: float
    seconds: float
    epoch: float | None
    figures: Mapping[str, float]
    consensus_distance: float | None = None

    @property
    def logprob(self) -> float | None:
        """Held-out log-probability: as recorded, or the negative loss."""
        if "logprob" in self.figures:
            return self.figures["logprob"]
        return -self.figures["loss"] if "loss" in self.figures else None


class Bins:
    """Sums of `size` values along an axis from 0, in at most MOST_BINS bins of equal width.

    A value beyond the last bin doubles the width of all bins: neighbours are added, so that no sum loses anything.
    """

    def __init__(self, size: int) -> None:
        self.width = NARROWEST
        self.size = size
        self._sums: dict[int, list[float]] = {}

    def add(self, at: float, values: Sequence[float]) -> None:
        """Add values to the bin around `at`, which is finite and not negative."""
        self.reach(at)
        here = self._sums.setdefault(int(at / self.width), [0.0] * self.size)
        for index, value in enumerate(values):
            here[index] += value

    def reach(self, at: float) -> None:
        """Widen the bins until `at` has one."""
        while at >= MOST_BINS * self.width:
            self.width *= 2
            merged: dict[int, list[float]] = {}
            for index, values in self._sums.items():
                into = merged.setdefault(index // 2, [0.0] * self.size)
                for place, value in enumerate(values):
                    into[place] += value
            self._sums = merged

    def items(self) -> list[tuple[float, list[float]]]:
        """(beginning of the bin, its sums), in order; empty bins are left out."""
        return [(index * self.width, values) for index, values in sorted(self._sums.items())]


@dataclass
class Records:
    """Summary of records.jsonl, made while reading.

    Attributes:
        evaluations: evaluations in order; the later of two at the same place.
        rates: (samples, learning rate), thinned out.
        slow: learners that were slow for a while, in the order in which this ended or was last reported.
        losses: training loss of all steps along samples: bins of (sum of losses, sum of seconds, steps).
        last_seconds, last_samples: training time and samples at the last record.
        skipped, replaced: {learner: count in its last record}.
    """

    evaluations: list[EvaluationRow] = field(default_factory=list)
    seconds_of: dict[int, dict[str, float]] = field(default_factory=dict)
    steps_of: Counter[int] = field(default_factory=Counter)
    rates: list[tuple[float, float]] = field(default_factory=list)
    staleness: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    slow: list[Slow] = field(default_factory=list)
    losses: Bins = field(default_factory=lambda: Bins(3))
    first: tuple[float, float] | None = None
    first_loss: float | None = None
    latest: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    last_seconds: float = 0.0
    last_samples: float = 0.0
    not_finite: int = 0
    skipped: dict[int, int] = field(default_factory=dict)
    replaced: dict[int, int] = field(default_factory=dict)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one record.

        Raises:
            AttributeError, KeyError, TypeError, ValueError, OverflowError: it is not a record.
        """
        seconds = _finite(row["seconds"])
        if row["kind"] == "straggler":
            take_in(self.slow, row)
        elif row["kind"] == "evaluation":
            self._evaluation(row, seconds)
        else:
            self._step(row, seconds)
        self.last_seconds = max(self.last_seconds, seconds)
        self.last_samples = max(self.last_samples, _finite(row.get("samples") or 0.0))

    def _evaluation(self, row: Mapping[str, Any], seconds: float) -> None:
        figures = {name: float(x) for name, x in row["figures"].items() if is_number(x)}
        distance = row.get("consensus_distance")
        found = EvaluationRow(
            _finite(row["samples"]),
            seconds,
            None if row["epoch"] is None else float(row["epoch"]),
            figures,
            float(distance) if isinstance(distance, int | float) and is_number(distance) else None,
        )
        if self.evaluations and self.evaluations[-1].samples == found.samples:
            self.evaluations.pop()
        self.evaluations.append(found)

    def _step(self, row: Mapping[str, Any], seconds: float) -> None:
        learner, samples = int(_finite(row["learner"])), _finite(row.get("samples") or 0.0)
        parts = [_finite(max(0.0, float(row.get(f"{kind}_seconds") or 0.0))) for kind in KINDS]
        counts = row.get("staleness_counts") or {row.get("staleness") or 0: 1}
        stale = {int(_finite(after)): int(_finite(number)) for after, number in counts.items()}
        steps = sum(stale.values())
        if not 0 < steps < MOST_STEPS:
            raise ValueError(f"a record of {steps} steps")
        spent = self.seconds_of.setdefault(learner, dict.fromkeys(KINDS, 0.0))
        for kind, part in zip(KINDS, parts, strict=True):
            spent[kind] += part
        self.steps_of[learner] += steps
        self.staleness[learner].update(stale)
        if self.first is None or seconds < self.first[1]:
            self.first = (samples, seconds)
        self.latest[learner] = row
        if is_number(row.get("loss")):
            self.first_loss = float(row["loss"]) if self.first_loss is None else self.first_loss
            self.losses.add(samples, (steps * float(row["loss"]), steps * seconds, float(steps)))
        else:
            self.not_finite += 1
        self.skipped[learner] = int(row.get("skipped") or 0)
        self.replaced[learner] = int(row.get("replaced") or 0)
        if learner == 0 and is_number(row.get("rate")):
            self.rates.append((samples, float(row["rate"])))
            if len(self.rates) > 2 * MOST_POINTS:
                self.rates = self.rates[::2]

    @property
    def diverged(self) -> bool:
        """True if the held-out loss ended far above its lowest, and the training loss above its first.

        Also true if the last held-out loss is not a finite number.
        """
        heldout = [evaluation.figures.get("loss", math.nan) for evaluation in self.evaluations]
        if not heldout or not any("loss" in evaluation.figures for evaluation in self.evaluations[:-1]):
            return False
        lowest = min(loss for loss in heldout if math.isfinite(loss))
        if not math.isfinite(heldout[-1]):
            return True
        points = self.losses.items()
        last = points[-1][1][0] / points[-1][1][2] if points else -math.inf
        return self.first_loss is not None and last > self.first_loss and heldout[-1] - lowest > RISE * abs(lowest)

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second from the first step, without start-up, to the last record; None without time between."""
        if self.first is None or self.last_seconds <= self.first[1] or self.last_samples <= self.first[0]:
            return None
        return (self.last_samples - self.first[0]) / (self.last_seconds - self.first[1])

    @property
    def training_losses(self) -> list[tuple[float, float, float]]:
        """(samples at the end of a bin, mean seconds, mean loss) of the steps of each bin."""
        return [
            (min(start + self.losses.width, self.last_samples), seconds / steps, loss / steps)
            for start, (loss, seconds, steps) in self.losses.items()
        ]

    @property
    def staleness_counts(self) -> dict[int, int]:
        """{steps: gradients of all learners}, in the order of steps."""
        counted: Counter[int] = Counter()
        for counts in self.staleness.values():
            counted.update(counts)
        return dict(sorted(counted.items()))

    @property
    def waiting_share(self) -> float | None:
        """Share of the learners' recorded time in which they did not compute; None if nothing was recorded."""
        total = sum(sum(spent.values()) for spent in self.seconds_of.values())
        computing = sum(spent["compute"] for spent in self.seconds_of.values())
        return 1 - computing / total if total > 0 else None


def is_number(value: object) -> bool:
    """True if the value is a finite number and not a bool."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max  # an integer may be larger than all floats


def _finite(value: Any) -> float:
    number = float(value)
    if not 0 <= number < LARGEST:
        raise ValueError(f"{value!r} is not a number from 0 on, or is beyond {LARGEST:g}")
    return number


WORDS = {"compute": "computing", "data": "waiting for its data", "network": "sending"}
COLUMNS = ("run", "learner", "host", "slow at", "times the median", "from second", "to second", "from sample")


@dataclass(frozen=True)
class Slow:
    """A stretch of a run in which one learner was slow.

    Attributes:
        factor: ratio to the median of the others, at most; None if it cannot be determined.
        since_seconds, since_samples: training time and samples of the run when it began.
        until_seconds: training time when it ended; None if it lasted to the end.
    """

    learner: int
    host: str
    cause: str
    factor: float | None
    since_seconds: float
    since_samples: float
    until_seconds: float | None = None

    def row(self, run: str) -> tuple[str, ...]:
        return (
            run,
            str(self.learner),
            self.host or "-",
            WORDS.get(self.cause, self.cause),
            "-" if self.factor is None else f"{self.factor:.1f}",
            f"{self.since_seconds:.0f}",
            "the end" if self.until_seconds is None else f"{self.until_seconds:.0f}",
            f"{self.since_samples:,.0f}",
        )


def take_in(known: list[Slow], row: Mapping[str, Any]) -> None:
    """Add a record of kind "straggler", which begins a stretch or ends the learner's latest one."""
    factor = row.get("factor")
    found = Slow(
        learner=int(row["learner"]),
        host=str(row.get("host") or ""),
        cause=str(row["cause"]),
        factor=None if factor is None else float(factor),
        since_seconds=float(row["since_seconds"]),
        since_samples=float(row["since_samples"]),
        until_seconds=float(row["seconds"]) if row["over"] else None,
    )
    began = replace(found, factor=None, until_seconds=None)
    known[:] = [slow for slow in known if replace(slow, factor=None) != began]
    known.append(found)


def read_lines(path: Path, take: Callable[[Any], None], problems: list[str]) -> None:
    """Pass the content of each finished line to `take`. Lines that it cannot take are left out and noted.

    An unfinished last line is left out and noted too: the run that writes it may be under way or have been killed.
    """
    lines, damaged = FinishedLines(path), list[int]()
    for number, line in enumerate(lines, start=1):
        try:
            take(json.loads(line))
        except UNREADABLE:
            damaged.append(number)
    if damaged:
        problems.append(f"{path}: {counted(len(damaged), 'damaged line')} left out, the first is line {damaged[0]}")
    if lines.rest:
        problems.append(
            f"{path}: the last line is unfinished and left out (it is being written, or its run was killed)"
        )
