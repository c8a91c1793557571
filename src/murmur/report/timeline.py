"""Timelines of runs: swim-lanes of a stretch of `trace.json`, in the memory of that stretch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any

from murmur.core.counted import counted
from murmur.core.trace import COMPUTE, Span
from murmur.report.read import ReportError, events_of
from murmur.report.records import is_number
from murmur.report.swim_lanes import KINDS, MOST_LANES, Lanes, swim_lanes

MOST_SPANS = 1500  # of a picture
GRADIENTS = 30  # of the busiest learner in a picture whose length is not given


@dataclass(frozen=True)
class Stretch:
    """A part of a trace.

    Attributes:
        last: End of the whole trace, in seconds.
        cut: True if `end` is earlier than asked for, as the picture would have too many spans.
    """

    spans: tuple[Span, ...]
    start: float
    end: float
    last: float
    cut: bool


def run_timeline(trace: Path, name: str, start: float | None = None, seconds: float | None = None) -> tuple[str, str]:
    """Return the swim-lanes of a stretch of a trace as an SVG element, and a sentence that says which stretch it is.

    Args:
        name: Heading of the lanes.
        start: Seconds at which the stretch begins; None: at the first span.
        seconds: Its length; None: up to GRADIENTS gradients of the busiest learner.

    Raises:
        ReportError: The stretch holds no spans.
    """
    found = read_stretch(trace, start, seconds)
    lanes = Lanes(name, found.spans)
    told = "From {:g} to {:g} s of {:g} s.".format(*(round(s, 3) for s in (found.start, found.end, found.last)))
    if found.cut:
        told += f" Cut there: no more than {MOST_SPANS} spans are drawn."
    if len(lanes.learners) > MOST_LANES:
        told += f" {MOST_LANES} of {counted(len(lanes.learners), 'learner')}."
    return swim_lanes(f"Timeline of {name}", [lanes], found.start, found.end, told), told


def read_stretch(trace: Path, start: float | None = None, seconds: float | None = None) -> Stretch:
    """Read a stretch of a trace; arguments and errors as for `run_timeline`."""
    last = 0.0

    def asked() -> Iterator[Span]:
        nonlocal last
        for span in filter(None, map(_span, events_of(trace))):
            last = max(last, span.end_seconds)
            if start is None or span.end_seconds > start:
                yield span

    spans = nsmallest(MOST_SPANS + 1, asked(), key=lambda span: span.start_seconds)
    if not spans:
        where = "" if start is None else f" from {start:g} s on: it ends at {last:.6g} s"
        raise ReportError(f"{trace} holds no spans{where}")
    begin = spans[0].start_seconds if start is None else start
    end = min(begin + seconds, last) if seconds is not None else _usual_end(spans)
    if cut := len(spans) > MOST_SPANS and end > spans[-1].start_seconds > begin:
        end = spans[-1].start_seconds
    shown = tuple(span for span in spans[:MOST_SPANS] if span.start_seconds < end)
    if not shown:
        raise ReportError(f"{trace} holds no spans from {begin:g} to {end:g} s")
    return Stretch(shown, begin, end, last, cut)


def _usual_end(spans: list[Span]) -> float:
    gradients = [span for span in spans if span.kind == COMPUTE]
    busiest = Counter(span.learner for span in gradients).most_common(1)
    ends = [span.end_seconds for span in gradients if span.learner == busiest[0][0]]
    return ends[GRADIENTS - 1] if len(ends) >= GRADIENTS else max(span.end_seconds for span in spans)


def _span(event: Mapping[str, Any]) -> Span | None:
    """The span of an event; None for another kind of event, and for a damaged one."""
    kind, numbers = str(event.get("cat")), (event.get("pid"), event.get("ts"), event.get("dur"))
    if kind not in KINDS or not all(map(is_number, numbers)) or event["dur"] <= 0:
        return None
    start = event["ts"] / 1e6
    return Span(int(event["pid"]), kind, start, start + event["dur"] / 1e6)
