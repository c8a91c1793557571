"""Output of a run while it trains: one JSON line per record, a Chrome trace, one line of progress.

A learner's recorder makes one record a step, with the seconds of each kind of work since the one before.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from murmur.core.plain_files import UNREADABLE
from murmur.core.recent_rate import RecentRate
from murmur.core.whole_files import FinishedLines, write_whole


@dataclass(frozen=True)
class Record:
    """One step of one learner, or (kind "evaluation") held-out figures of the consensus.

    Members of a super-learner record the steps that their leader takes for them too.

    Attributes:
        kind: "step" or "evaluation".
        learner: Learner that wrote the record.
        step: Number of steps of this learner.
        minibatches, samples, epoch: Progress of the whole run.
        seconds: Training time so far, virtual or wall, without evaluation.
        loss: Mean loss per sample of the learner's minibatch, or of the held-out data.
        rate: Learning rate of the step.
        skipped: Number of minibatches that the learner has skipped so far: loss or gradient not finite.
        replaced: Number of times that weights of other learners replaced its own, which were not finite.
        staleness: Changes of the weights between the start of the gradient and its step.
        compute_seconds, data_seconds, waiting_seconds, communicating_seconds: Times since its previous record; a
            server's compute_seconds are those of the learners whose gradients it has applied.
        consensus_distance: sqrt(mean_j ||w_j - mean w||^2), if it is known.
        figures: All other figures of an evaluation.
    """

    kind: str
    learner: int
    step: int
    minibatches: int
    samples: float
    epoch: float
    seconds: float
    loss: float
    rate: float = math.nan
    skipped: int = 0
    replaced: int = 0
    staleness: int = 0
    compute_seconds: float = 0.0
    data_seconds: float = 0.0
    waiting_seconds: float = 0.0
    communicating_seconds: float = 0.0
    consensus_distance: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    def line(self) -> str:
        return json.dumps(_finite(asdict(self)), separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class StragglerRecord(Record):
    """Kind "straggler": a learner has become slow, or (`over`) keeps up again.

    Attributes:
        host: Host of the learner; empty for this host.
        cause: Slow part of a step: "compute", "data" or "network".
        factor: Largest ratio so far to the median of the others.
        since_seconds, since_samples: Progress of the run when the slowness began.
    """

    host: str = ""
    cause: str = "compute"
    factor: float = 1.0
    since_seconds: float = 0.0
    since_samples: float = 0.0
    over: bool = False


Observer = Callable[[Record], None]


def read_line(line: bytes) -> dict[str, Any] | None:
    """Return the record of a finished line; None for a damaged one."""
    try:
        found = json.loads(line)
    except UNREADABLE:
        return None
    whole = isinstance(found, dict) and isinstance(found.get("kind"), str)
    return found if whole and isinstance(found.get("minibatches"), int) else None


def steps_in(found: Mapping[str, Any]) -> int:
    """Return the number of steps of a record that was read: several in a line of a long run, 0 of another kind."""
    steps = found.get("steps", 1)
    return max(1, steps) if found["kind"] == "step" and isinstance(steps, int) else 0


def began(found: Mapping[str, Any]) -> int:
    """Return the minibatches of the whole run at the first step of a record that was read."""
    first = found.get("first_minibatches")
    return first if isinstance(first, int) else found["minibatches"]


def forget_records(path: Path, ends: Mapping[str, int], end: int) -> None:
    """Delete damaged lines, an unfinished one, and records from a number of minibatches on (of a kind: `ends`)."""
    if not path.exists():
        return
    kept = []
    for line in FinishedLines(path):
        record = read_line(line)
        if record is not None and began(record) < ends.get(record["kind"], end):
            kept.append(line + b"\n")
    write_whole(path, b"".join(kept))


class ProgressLine:
    """Progress line on the terminal: step, epoch, loss, speed, shares of the time, and time left."""

    def __init__(self, total: int, learners: int, stream: TextIO | None = None, every_seconds: float = 10.0) -> None:
        self._total, self._learners, self._out = total, learners, stream or sys.stderr
        self._live = self._out.isatty()
        self._every = 0.5 if self._live else every_seconds
        self._last = time.monotonic() - self._every
        self._before: Record | None = None
        self._rate = RecentRate()  # of minibatches

    def __call__(self, record: Record) -> None:
        if record.kind == "straggler":
            return  # the learner that found it writes that line at once
        if record.kind == "evaluation":
            figures = "  ".join(f"{name} {value:.4g}" for name, value in record.figures.items())
            self._write(f"epoch {record.epoch:6.2f}  held-out  {figures}", final=True)
            return
        self._rate.add(record.seconds, record.minibatches)
        done = record.minibatches + self._learners >= self._total
        if time.monotonic() - self._last < self._every and not done:
            return
        self._last = time.monotonic()
        self._write(self._line(record), final=done or not self._live)
        self._before = record

    def _line(self, r: Record) -> str:
        before, ended = self._before, min(r.minibatches + self._learners, self._total)
        parts = [f"minibatch {ended:7d}/{self._total}", f"epoch {r.epoch:6.2f}", f"loss {r.loss:8.4f}"]
        if before is not None and r.seconds > before.seconds:
            parts.append(f"{(r.samples - before.samples) / (r.seconds - before.seconds):9.0f} samples/s")
        busy = r.compute_seconds
        idle = r.waiting_seconds + r.communicating_seconds + r.data_seconds
        parts.append(f"step {busy + idle:6.3f} s (compute {busy:.3f}, waiting {idle:.3f})")
        parts.append(f"staleness {r.staleness}")
        left = 0.0 if ended == self._total else self._rate.seconds_left(self._total)
        return "  ".join(parts if left is None else [*parts, f"{duration(left)} left"])

    def _write(self, text: str, final: bool) -> None:
        self._out.write(("\r\033[K" if self._live else "") + text + ("\n" if final or not self._live else ""))
        self._out.flush()


def duration(seconds: float) -> str:
    """Return seconds as text, such as 4 s, 1 min 03 s, 2 h 05 min."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    return value
