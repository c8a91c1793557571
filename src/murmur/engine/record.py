"""Output of a run while it trains: one JSON line per record, a Chrome trace, one line of progress.

A learner's recorder makes one record a step, with the seconds of each kind of work since the one before.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from murmur.core.errors import not_written
from murmur.core.group import Group
from murmur.core.plain_files import UNREADABLE, open_plain, plain_file
from murmur.core.recent_rate import RecentRate
from murmur.core.source import Progress
from murmur.core.trace import COMMUNICATING, COMPUTE, DATA, EVALUATION, WAITING, Span
from murmur.core.whole_files import FinishedLines, write_whole
from murmur.core.world import Seat
from murmur.engine.counters import Counters

TRACED, TRACED_SECONDS = "spans written", 5.0  # a barrier, and how long learners are waited for there


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


def forget_records(path: Path, ends: Mapping[str, int], end: int) -> None:
    """Delete damaged lines, an unfinished one, and records from a number of minibatches on (of a kind: `ends`)."""
    if not path.exists():
        return
    kept = []
    for line in FinishedLines(path):
        record = read_line(line)
        if record is not None and record["minibatches"] < ends.get(record["kind"], end):
            kept.append(line + b"\n")
    write_whole(path, b"".join(kept))


class AppendedFile:
    """File to which a learner appends; those of one host may share it. What comes after `close` is dropped."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock = path, threading.Lock()
        self._file: int | None = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(self, data: bytes) -> None:
        """Append data, by one write unless the disk accepts less; an error names the file, the bytes and the remedy."""
        left = memoryview(data)
        with self._lock:  # an activity may write while the learner ends, and the number of a closed file is used again
            try:
                while left and self._file is not None:
                    left = left[os.write(self._file, left) :]
            except OSError as error:
                raise not_written(self._path, error, len(data)) from error

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)


class JsonLines(AppendedFile):
    """Appends records to a file: each line is one append."""

    def __call__(self, record: Record) -> None:
        self.append(record.line().encode())


class ChromeTrace(AppendedFile):
    """Appends spans to a Chrome trace (chrome://tracing, Perfetto). Its array may stay open, as the format allows."""

    def __init__(self, path: Path, every: int = 256) -> None:
        super().__init__(path)
        self._every, self._lines = every, list[str]()

    def __call__(self, span: Span) -> None:
        self._lines.append(json.dumps(span.chrome(), separators=(",", ":")) + ",\n")
        if len(self._lines) >= self._every:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self.append("".join(lines).encode())


def keep_trace(path: Path, done: int) -> None:
    """Keep the trace of an earlier launch under a name with the minibatches that were `done` at this one's start."""
    if path.is_file() and not path.is_symlink():
        path.replace(path.with_name(f"trace-until-{done}.json"))


def begin_trace(path: Path) -> None:
    """Open the array of a new trace file. One learner calls this before the others write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plain_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(b"[\n")


async def wait_for_spans(group: Group, seat: Seat) -> None:
    """Wait until all live learners have written their spans (`Recorder.end_trace`), but at most a few seconds."""
    end = seat.now + TRACED_SECONDS
    while not group.membership.arrive(TRACED) and seat.now < end:
        await seat.sleep(0.05)


def finish_trace(path: Path) -> None:
    """Close the array. One learner calls this after the others have written."""
    with plain_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        file.write(b'{"ph":"M","name":"process_name","pid":0,"args":{"name":"learner 0"}}]\n')


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


class Recorder:
    """Makes the records of a learner, and hands them to observers; `drawn` counts its gradients in this launch."""

    def __init__(self, seat: Seat, counters: Counters, observers: Sequence[Observer] = ()) -> None:
        self.seat, self.counters, self.observers = seat, counters, tuple(observers)
        self.clock = TrainingClock(seat)
        self.drawn = 0
        self._by_others = 0.0  # seconds of gradients that were heard of since the previous record
        self._files = ExitStack()

    def add(self, observer: Observer) -> None:
        self.observers = (*self.observers, observer)

    def observe(self, record: Record) -> None:
        for observer in self.observers:
            observer(record)

    def heard(self, loss: float, compute_seconds: float) -> None:
        self.counters.loss = loss
        self._by_others += compute_seconds

    def step(self, at: Progress, turn: int, staleness: int) -> None:
        spent = self.clock.since_last()
        others, self._by_others = self._by_others, 0.0
        self.observe(
            Record(
                **self.moment("step", at, turn, self.seat.group.rank),
                loss=at.loss,
                rate=at.rate,
                skipped=self.counters.skipped,
                replaced=self.counters.replaced,
                staleness=staleness,
                compute_seconds=spent.get(COMPUTE, 0.0) + others,
                data_seconds=spent.get(DATA, 0.0),
                waiting_seconds=spent.get(WAITING, 0.0),
                communicating_seconds=spent.get(COMMUNICATING, 0.0),
            )
        )

    def evaluation(
        self, at: Progress, steps: int, figures: Mapping[str, float], distance: float | None = None, learner: int = 0
    ) -> None:
        """Record held-out figures of the consensus. `steps` counts this launch."""
        told = self.moment("evaluation", at, steps, learner)
        loss = figures.get("loss", math.nan)
        self.observe(Record(**told, loss=loss, rate=at.rate, consensus_distance=distance, figures=figures))

    def moment(self, kind: str, at: Progress, steps: int, learner: int) -> dict[str, Any]:
        """Return the fields that all records have; `steps` counts this launch."""
        progress = {"minibatches": at.minibatches, "samples": at.samples, "epoch": at.epoch}
        steps += self.counters.steps
        return {"kind": kind, "learner": learner, "step": steps, "seconds": self.clock.seconds, **progress}

    def write(self, records: Path, trace: Path | None = None) -> None:
        """Append every further record, and the spans of the learner's trace, to these files."""
        lines = JsonLines(records)
        self._files.callback(lines.close)
        self.add(lines)
        if trace is not None:
            self.seat.trace.sink = spans = ChromeTrace(trace)
            self._files.callback(spans.close)

    def end_trace(self, group: Group | None = None) -> None:
        """Write the spans that are left; further ones are dropped. The members of `group` learn that it is done."""
        sink = self.seat.trace.sink
        if isinstance(sink, ChromeTrace):
            self.seat.trace.sink = None
            sink.flush()
            if group is not None:
                group.membership.arrive(TRACED)

    def close(self) -> None:
        self._files.close()


@dataclass(frozen=True)
class Moment:
    """Moment of a run, with the seconds that a learner had spent on each kind of work until then."""

    seconds: float
    totals: Mapping[str, float]


class TrainingClock:
    """Seconds of training: those of the world, minus evaluation, plus those of earlier launches."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.before = 0.0
        self._off = 0.0
        self._last: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return self.before + self._seat.now - self._off

    def begin(self) -> None:
        """Leave out the seconds until now."""
        self._off = self._seat.now

    def since_last(self) -> dict[str, float]:
        totals = self._seat.trace.totals()
        spent = {kind: seconds - self._last.get(kind, 0.0) for kind, seconds in totals.items()}
        self._last = totals
        return spent

    def moment(self) -> Moment:
        return Moment(self._seat.now, self._seat.trace.totals())

    def leave_out(self, since: Moment) -> None:
        """Count the time since a moment as evaluation, instead of what it was recorded as."""
        now = self._seat.now
        self._off += now - since.seconds
        self._seat.trace.add(EVALUATION, since.seconds, now, "evaluation")
        for kind, seconds in self._seat.trace.totals().items():
            self._last[kind] = self._last.get(kind, 0.0) + seconds - since.totals.get(kind, 0.0)
