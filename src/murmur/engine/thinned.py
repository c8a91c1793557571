"""Thinning of long runs: beyond a size, lines of records.jsonl stand for several steps, and spans are left out.

Of a count `whole` of steps, each has a line. Of the next `whole` steps, two share a line, then four of twice as many,
and so on: a line of step n stands for `2**k` steps, where k is the length in bits of (n - 1) // whole. A run of N steps
has `whole * (1 + log2(N / whole) / 2)` lines a learner. Spans of a trace are left out by windows in the same way. The
sums stay exact, as a line holds the sums of its steps, and a window that is left out those of its spans.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from murmur.core.trace import EVALUATION, OMITTED, Span
from murmur.engine.record import Record

WHOLE_STEPS = 10_000  # of a learner; 3.6 MB of records
WHOLE_SPANS = 32_768  # of a learner; 3.5 to 7 MB of trace
WINDOW = 256  # spans that are kept or left out together
SUMMED = ("compute_seconds", "data_seconds", "waiting_seconds", "communicating_seconds")


def stride(number: int, whole: int) -> int:
    """Return of how many steps or windows one is kept, at a number that counts from 0."""
    return 1 << (number // whole).bit_length()


@dataclass(frozen=True)
class StepsRecord(Record):
    """Several steps of one learner, up to that of its other fields.

    Attributes:
        loss: Mean of the losses of the steps.
        compute_seconds, data_seconds, waiting_seconds, communicating_seconds: Sums over the steps.
        steps: Number of steps.
        first_minibatches: Progress of the whole run at the first of them.
        staleness_counts: Number of steps of each staleness; `staleness` is the largest.
    """

    steps: int = 1
    first_minibatches: int = 0
    staleness_counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, first: Record, second: Record) -> StepsRecord:
        """Return the record of the steps of both, the second of which is later."""
        counts = Counter(counts_of(first))
        counts.update(counts_of(second))
        before, after = steps_of(first), steps_of(second)
        told = {each.name: getattr(second, each.name) for each in fields(Record)}
        told |= {name: getattr(first, name) + getattr(second, name) for name in SUMMED}
        told["loss"] = (before * first.loss + after * second.loss) / (before + after)
        told["staleness"] = max(counts)
        began = first.first_minibatches if isinstance(first, StepsRecord) else first.minibatches
        return cls(**told, steps=before + after, first_minibatches=began, staleness_counts=dict(sorted(counts.items())))


def steps_of(record: Record) -> int:
    return record.steps if isinstance(record, StepsRecord) else 1


def counts_of(record: Record) -> Mapping[int, int]:
    return record.staleness_counts if isinstance(record, StepsRecord) else {record.staleness: 1}


class ThinnedRecords:
    """Records of one learner in the order in which they are written, with late steps put together."""

    def __init__(self, whole: int = WHOLE_STEPS) -> None:
        self._whole = whole
        self._waiting: Record | None = None

    def add(self, record: Record) -> Iterator[Record]:
        """Yield the records that are complete with this one."""
        if record.kind != "step" or not math.isfinite(record.loss):
            yield from self.rest()
            yield record
            return
        waiting, self._waiting = self._waiting, None
        together = record if waiting is None else StepsRecord.of(waiting, record)
        if record.step % stride(max(0, record.step - 1), self._whole):
            self._waiting = together
        else:
            yield together

    def rest(self) -> Iterator[Record]:
        """Yield the steps that still wait for others."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            yield waiting


class ThinnedSpans:
    """Events of one learner's trace, with windows left out late in the run; spans of evaluations are all kept."""

    def __init__(self, whole: int = WHOLE_SPANS) -> None:
        self._whole, self._number, self._left, self._learner = whole, 0, 0, 0
        self._begin, self._end, self._seconds = math.inf, 0.0, defaultdict[str, float](float)

    def add(self, span: Span) -> Iterator[dict[str, Any]]:
        """Yield the events that are written with this span."""
        number, self._number = self._number, self._number + 1
        window = number // WINDOW
        kept = window % stride(window, max(1, self._whole // WINDOW)) == 0
        if kept and number % WINDOW == 0:
            yield from self.rest()
        if kept or span.kind == EVALUATION:
            yield span.chrome()
            return
        self._left, self._learner = self._left + 1, span.learner
        self._begin, self._end = min(self._begin, span.start_seconds), max(self._end, span.end_seconds)
        self._seconds[span.kind] += span.end_seconds - span.start_seconds

    def rest(self) -> Iterator[dict[str, Any]]:
        """Yield one event for the spans that were left out since the last call: their number, and seconds by kind."""
        if not self._left:
            return
        event = Span(self._learner, OMITTED, self._begin, self._end, OMITTED, OMITTED).chrome()
        seconds = {f"{kind}_seconds": value for kind, value in sorted(self._seconds.items())}
        yield {**event, "args": {"spans": self._left, **seconds}}
        self._left, self._begin, self._end = 0, math.inf, 0.0
        self._seconds.clear()
