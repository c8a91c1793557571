"""Detects slow learners: compares the cost of a step between learners, before any of them waits for another.

A learner is a straggler when a step takes it clearly longer than the median of the others, by more than the spread of
the others and the noise of its own figures explain, in several windows in a row. Nothing here looks at a clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Cause = Literal["compute", "data", "network"]
FACTOR, RECOVERED = 1.5, 1.25  # ratios to the median of the others at which slowness begins and ends
DEVIATIONS = 5.0
LASTING = 3  # consecutive windows
LEAST_SPREAD = 0.1  # share of the median: figures of a few learners may agree by chance
DEVIATION_OF_MAD = 1.4826  # for a normal distribution
ERROR_OF_MEDIAN = 1.2533  # factor of deviation / sqrt(number)
LINK_FACTOR, LINK_SHARE = 3.0, 0.2  # a slow link also takes this share of a step


@dataclass(frozen=True)
class Estimate:
    """A median in seconds and its standard error."""

    seconds: float
    error: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Return the estimate of at least one value."""
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
    """Cost of one learner's steps over a few seconds.

    Attributes:
        learner: Number of the learner.
        compute: Time of a step, without any waiting.
        data: Time that a step waits for its minibatch.
        link: Link on which it sends.
    """

    learner: int
    compute: Estimate
    data: Estimate
    link: LinkEstimate = LinkEstimate()

    @property
    def step(self) -> Estimate:
        """Estimate of computation and data together."""
        error = math.hypot(self.compute.error, self.data.error)
        return Estimate(self.compute.seconds + self.data.seconds, error)

    def note(self) -> tuple[float, ...]:
        """Return the window as numbers to send, without the learner."""
        compute, data = self.compute, self.data
        link = self.link.byte_seconds, self.link.sending_seconds
        return (compute.seconds, compute.error, data.seconds, data.error, *link)

    @classmethod
    def from_note(cls, learner: int, note: Sequence[float]) -> Window:
        """Decode the numbers made by `note`."""
        compute, compute_error, data, data_error, byte_seconds, sending_seconds = note
        link = LinkEstimate(byte_seconds, sending_seconds)
        return cls(learner, Estimate(compute, compute_error), Estimate(data, data_error), link)


@dataclass(frozen=True)
class Straggler:
    """A learner that has become slow, or (`over`) keeps up again.

    Attributes:
        learner: Number of the learner.
        cause: Slow part of a step.
        factor: Largest ratio so far to the median of the others.
        since_seconds, since_samples: Progress of the run when the slowness began.
        over: True if the slowness has ended.
    """

    learner: int
    cause: Cause
    factor: float
    since_seconds: float
    since_samples: float
    over: bool = False


def slowness(window: Window, others: Sequence[Window], factor: float = FACTOR) -> tuple[Cause, float] | None:
    """Cause and factor of a learner's slowness relative to the others; None if it keeps up.

    Args:
        window: Window of the learner.
        others: Latest windows of the others.
        factor: Ratio from which a learner counts as slow.
    """
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
    """Return the deviation that a difference from the median would have by chance."""
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
        """Forget all learners but these."""
        for known in (self._windows, self._slow, self._suspects, self._clear):
            for learner in set(known) - set(live):
                del known[learner]

    def see(self, window: Window, seconds: float, samples: float) -> Straggler | None:
        """Take in a learner's window; return a learner that it makes a straggler, or that has stopped being one.

        Args:
            window: Window of any learner.
            seconds, samples: Progress of the run.
        """
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
