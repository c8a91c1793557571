"""Detects slow learners: compares the cost of a step between learners, before any of them waits for another.

A learner is a straggler when a step takes it clearly longer than the median of the others, by more than the spread of
the others and the noise of its own figures explain, in several windows in a row. Every few seconds each learner sends a
message of a few numbers to the leader, which judges them on arrival; no collective is needed.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

import torch

from murmur.core.learner import Learner, Progress
from murmur.core.trace import COMPUTE, DATA
from murmur.engine.record import Record, StragglerRecord
from murmur.engine.recorder import Recorder

Cause = Literal["compute", "data", "network"]
FACTOR, RECOVERED = 1.5, 1.25  # ratios to the median of the others at which slowness begins and ends
DEVIATIONS = 5.0
LASTING = 3  # consecutive windows
LEAST_SPREAD = 0.1  # share of the median: figures of a few learners may agree by chance
DEVIATION_OF_MAD = 1.4826  # for a normal distribution
ERROR_OF_MEDIAN = 1.2533  # factor of deviation / sqrt(number)
LINK_FACTOR, LINK_SHARE = 3.0, 0.2  # a slow link also takes this share of a step
log = logging.getLogger(__name__)
PACE = "pace"
EVERY_SECONDS = 5.0
FEWEST_STEPS = 3  # in a window
WORDS = {
    "compute": "computes {factor:.1f}x slower than the median",
    "data": "waits for its data, its steps take {factor:.1f}x the median,",
    "network": "sends {factor:.1f}x slower than the median",
}


@dataclass(frozen=True)
class Estimate:
    """A median in seconds and its standard error."""

    seconds: float
    error: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        median = statistics.median(values)
        deviation = DEVIATION_OF_MAD * statistics.median(abs(x - median) for x in values)
        return cls(median, ERROR_OF_MEDIAN * deviation / math.sqrt(len(values)))


@dataclass(frozen=True)
class LinkEstimate:
    """Link of a learner: seconds per byte on its fastest connection, and seconds per step; nan if unknown.

    A slow link need not make steps longer: strategies that do not wait send less over it.
    """

    byte_seconds: float = math.nan
    sending_seconds: float = math.nan


@dataclass(frozen=True)
class Window:
    """Cost of one learner's steps over a few seconds: of computing, and of waiting for a minibatch."""

    learner: int
    compute: Estimate
    data: Estimate
    link: LinkEstimate = LinkEstimate()

    @property
    def step(self) -> Estimate:
        error = math.hypot(self.compute.error, self.data.error)
        return Estimate(self.compute.seconds + self.data.seconds, error)

    def note(self) -> tuple[float, ...]:
        compute, data = self.compute, self.data
        link = self.link.byte_seconds, self.link.sending_seconds
        return (compute.seconds, compute.error, data.seconds, data.error, *link)

    @classmethod
    def from_note(cls, learner: int, note: Sequence[float]) -> Window:
        compute, compute_error, data, data_error, byte_seconds, sending_seconds = note
        link = LinkEstimate(byte_seconds, sending_seconds)
        return cls(learner, Estimate(compute, compute_error), Estimate(data, data_error), link)


@dataclass(frozen=True)
class Straggler:
    """A learner that has become slow, or (`over`) keeps up again; `factor` is the largest ratio to the median."""

    learner: int
    cause: Cause
    factor: float
    since_seconds: float
    since_samples: float
    over: bool = False


def slowness(window: Window, others: Sequence[Window], factor: float = FACTOR) -> tuple[Cause, float] | None:
    """Return cause and factor of a learner's slowness, if its ratio to the others is above a factor; else None."""
    if not others:
        return None
    mine, theirs = window.step, [other.step for other in others]
    usual = statistics.median(step.seconds for step in theirs)
    if mine.seconds > factor * usual and mine.seconds - usual > DEVIATIONS * _spread(mine, theirs, usual):
        compute = statistics.median(other.compute.seconds for other in others)
        data = statistics.median(other.data.seconds for other in others)
        if window.compute.seconds - compute >= window.data.seconds - data:
            return "compute", window.compute.seconds / compute if compute > 0 else math.inf
        return "data", mine.seconds / usual if usual > 0 else math.inf
    return _slow_link(window, others, factor * LINK_FACTOR / FACTOR)


def _spread(mine: Estimate, theirs: Sequence[Estimate], usual: float) -> float:
    between = DEVIATION_OF_MAD * statistics.median(abs(step.seconds - usual) for step in theirs)
    return math.hypot(between, mine.error, statistics.median(step.error for step in theirs), LEAST_SPREAD * usual)


def _slow_link(window: Window, others: Sequence[Window], factor: float) -> tuple[Cause, float] | None:
    known = [other.link.byte_seconds for other in others if other.link.byte_seconds > 0]
    mine = window.link.byte_seconds
    if len(known) < 2 or not mine > 0:  # a slow link slows both of its ends
        return None
    usual = statistics.median(known)
    spread = DEVIATION_OF_MAD * statistics.median(abs(x - usual) for x in known)
    costs = window.link.sending_seconds > LINK_SHARE * window.step.seconds
    return ("network", mine / usual) if mine > factor * usual and mine - usual > DEVIATIONS * spread and costs else None


class Stragglers:
    """Compares the windows of all learners as they arrive."""

    def __init__(self) -> None:
        self._windows: dict[int, Window] = {}
        self._slow: dict[int, Straggler] = {}
        self._suspects: dict[int, list[Straggler]] = {}
        self._clear: dict[int, int] = {}

    def only(self, live: Collection[int]) -> None:
        for known in (self._windows, self._slow, self._suspects, self._clear):
            for learner in set(known) - set(live):
                del known[learner]

    def see(self, window: Window, seconds: float, samples: float) -> Straggler | None:
        """Take in a learner's window; return a learner that it makes a straggler, or that has stopped being one."""
        learner = window.learner
        self._windows[learner] = window
        others = [other for other in self._windows.values() if other.learner != learner]
        if learner in self._slow:
            return self._still(self._slow[learner], slowness(window, others, RECOVERED))
        found = slowness(window, others)
        if found is None:
            self._suspects.pop(learner, None)
            return None
        suspected = self._suspects.setdefault(learner, [])
        suspected.append(Straggler(learner, *found, seconds, samples))
        if len(suspected) < LASTING:
            return None
        first = self._suspects.pop(learner)[0]
        # The factor of the latest window: the first one is often only partly slow.
        self._slow[learner] = replace(first, cause=found[0], factor=found[1])
        return self._slow[learner]

    def _still(self, known: Straggler, found: tuple[Cause, float] | None) -> Straggler | None:
        if found is not None:
            self._clear.pop(known.learner, None)
            self._slow[known.learner] = replace(known, factor=max(known.factor, found[1]))
            return None
        self._clear[known.learner] = self._clear.get(known.learner, 0) + 1
        if self._clear[known.learner] < LASTING:
            return None
        del self._clear[known.learner], self._slow[known.learner]
        return replace(known, over=True)


class Pace:
    """Detection of slow learners by one learner: observes its records, and is called at its boundaries."""

    def __init__(
        self, recorder: Recorder, progress: Callable[[], Progress], every_seconds: float = EVERY_SECONDS
    ) -> None:
        self._recorder, self._progress, self._seat, self._every = recorder, progress, recorder.seat, every_seconds
        self._leader, self._rank = 0, recorder.seat.group.rank
        self._stragglers = Stragglers()
        self._began = self._looked = self._seat.now
        self._drawn = recorder.drawn
        self._totals: Mapping[str, float] = self._seat.trace.totals()
        self._compute: list[float] = []
        self._data: list[float] = []

    def __call__(self, record: Record) -> None:
        if record.kind == "step":
            self._count()

    async def boundary(self, me: Learner) -> None:
        """Take in the windows of the other learners, between two gradients, if this learner leads."""
        self._count()
        if self._seat.now - self._looked >= self._every:
            self._looked = self._seat.now
            ranks = me.view
            live = [learner for rank in ranks for learner in me.role.members(rank)]
            self._leader = live[0]
            self._stragglers.only(live)
        if self._leader != self._rank:
            return
        while (message := await self._seat.group.poll(PACE, 0.0)) is not None:
            window = Window.from_note(message.source, message.header)
            found = self._stragglers.see(window, self._recorder.clock.seconds, self._progress().samples)
            if found is not None:
                self._say(found)

    def _count(self) -> None:
        """Add the cost of the gradients since the last call, and send the window if it is complete."""
        done = self._recorder.drawn - self._drawn
        if done == 0:
            return
        totals, before = self._seat.trace.totals(), self._totals
        compute, data = ((totals.get(kind, 0.0) - before.get(kind, 0.0)) / done for kind in (COMPUTE, DATA))
        self._totals, self._drawn = totals, self._recorder.drawn
        self._compute.append(compute)
        self._data.append(data)
        now = self._seat.now
        if now - self._began < self._every or len(self._compute) < FEWEST_STEPS:
            return
        byte_seconds, sending_seconds = self._seat.sending()
        link = LinkEstimate(byte_seconds, sending_seconds / len(self._compute))
        window = Window(self._rank, Estimate.of(self._compute), Estimate.of(self._data), link)
        self._began, self._compute, self._data = now, [], []
        self._seat.group.post(torch.empty(0), self._leader, PACE, window.note())

    def _say(self, found: Straggler) -> None:
        told = self._recorder.moment("straggler", self._progress(), self._recorder.drawn, found.learner)
        host = self._seat.host_of(found.learner)
        record = StragglerRecord(**(told | asdict(found)), loss=math.nan, host=host)
        log.warning("%s", sentence(record, datetime.now()))
        self._recorder.observe(record)


def sentence(record: StragglerRecord, now: datetime) -> str:
    """Return a record as one line of text; `now` is the time of day at which it was made."""
    name = f"learner {record.learner}" + (f" (host {record.host})" if record.host else "")
    what = WORDS[record.cause].format(factor=record.factor)
    lasted, ago = record.seconds - record.since_seconds, record.samples - record.since_samples
    if record.over:
        return (
            f"{name} keeps up again; for {lasted:.0f} s and {ago:,.0f} samples of all learners it was slow: it {what}"
        )
    since = (now - timedelta(seconds=lasted)).strftime("%H:%M:%S")
    return f"{name} {what} since {since}, {ago:,.0f} samples ago"
