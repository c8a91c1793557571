"""Recorder of a learner: makes one record a step, with the seconds of each kind of work since the one before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from murmur.core.group import Group
from murmur.core.source import Progress
from murmur.core.trace import COMMUNICATING, COMPUTE, DATA, EVALUATION, WAITING
from murmur.core.world import Seat
from murmur.engine.counters import Counters
from murmur.engine.record import Observer, Record
from murmur.engine.run_files import ChromeTrace, JsonLines

TRACED, TRACED_SECONDS = "spans written", 5.0  # a barrier, and how long learners are waited for there


async def wait_for_spans(group: Group, seat: Seat) -> None:
    """Wait until all live learners have written their spans (`Recorder.end_trace`), but at most a few seconds."""
    end = seat.now + TRACED_SECONDS
    while not group.membership.arrive(TRACED) and seat.now < end:
        await seat.sleep(0.05)


class Recorder:
    """Makes the records of a learner, and hands them to observers; `drawn` counts its gradients in this launch."""

    def __init__(self, seat: Seat, counters: Counters, observers: Sequence[Observer] = ()) -> None:
        self.seat, self.counters, self.observers = seat, counters, tuple(observers)
        self.clock = TrainingClock(seat)
        self.drawn = 0
        self._by_others = 0.0  # seconds of gradients that were heard of since the previous record
        self._files = ExitStack()
        self._lines: JsonLines | None = None

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
        self._lines = JsonLines(records)
        self._files.callback(self._lines.close)
        self.add(self._lines)
        if trace is not None:
            self.seat.trace.sink = spans = ChromeTrace(trace)
            self._files.callback(spans.close)

    def flush(self) -> None:
        """Write all steps until now, since a run that resumes from this moment keeps their lines."""
        if self._lines is not None:
            self._lines.flush()

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
