"""Spans of a learner's time, in virtual or wall seconds, the same in every world.

A trace keeps running totals for each kind (for the records) and passes its spans to a sink as Chrome trace events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from murmur.core.torch_private import profiled

COMPUTE = "compute"  # forward, backward, step
DATA = "data"  # waiting for a minibatch
WAITING = "waiting"  # for other learners
COMMUNICATING = "communicating"  # while bytes move and nothing else can be done
EVALUATION = "evaluation"  # kept off the time axis
OMITTED = "omitted"  # in the trace of a long run: spans that are not written one by one
LOOP = "loop"  # name of the spans in which a user loop computes


@dataclass(frozen=True)
class Span:
    """One stretch of a learner's time, in seconds since the start of the run."""

    learner: int
    kind: str
    start_seconds: float
    end_seconds: float
    what: str = ""
    activity: str = "training"

    def chrome(self) -> dict[str, Any]:
        """Return the span as a complete Chrome trace event ("X"), in microseconds, with one process per learner."""
        return {
            "ph": "X",
            "name": self.what or self.kind,
            "cat": self.kind,
            "pid": self.learner,
            "tid": self.activity,
            "ts": round(self.start_seconds * 1e6, 3),
            "dur": round((self.end_seconds - self.start_seconds) * 1e6, 3),
        }


@dataclass(frozen=True)
class Transfer:
    """One vector on its way between two learners, in seconds since the start of the run."""

    source: int
    to: int
    sent_seconds: float
    arrived_seconds: float


class Trace:
    """The spans of one learner. `now` gives the world's seconds; `sink` receives every span as it ends."""

    def __init__(self, learner: int, now: Callable[[], float], sink: Callable[[Span], None] | None = None) -> None:
        self.learner, self.now, self.sink = learner, now, sink
        self._totals: dict[str, float] = defaultdict(float)
        self._lock = Lock()

    def add(self, kind: str, start_seconds: float, end_seconds: float, what: str = "") -> None:
        """Record that the learner spent [start, end] on `kind`."""
        with self._lock:
            self._totals[kind] += end_seconds - start_seconds
        sink = self.sink  # another thread may take it away
        if sink is not None and end_seconds > start_seconds:
            sink(Span(self.learner, kind, start_seconds, end_seconds, what))

    @contextmanager
    def span(self, kind: str, what: str = "") -> Iterator[None]:
        """Record the time that passes inside the block; do not use it around an await of another learner's work.

        It is a span of `torch.profiler` too.
        """
        start = self.now()
        try:
            with profiled(f"murmur {kind}: {what or kind}"):
                yield
        finally:
            self.add(kind, start, self.now(), what)

    def totals(self) -> dict[str, float]:
        """Return the seconds spent so far, by kind."""
        with self._lock:
            return dict(self._totals)
