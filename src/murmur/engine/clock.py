"""Seconds of training without evaluation, by kind of work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from murmur.core.trace import EVALUATION
from murmur.core.world import Seat


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
        """Seconds of training so far."""
        return self.before + self._seat.now - self._off

    def since_last(self) -> dict[str, float]:
        """Return the seconds of each kind since the last call."""
        totals = self._seat.trace.totals()
        spent = {kind: seconds - self._last.get(kind, 0.0) for kind, seconds in totals.items()}
        self._last = totals
        return spent

    def moment(self) -> Moment:
        """Return the present moment, the start of a span that `leave_out` may leave out."""
        return Moment(self._seat.now, self._seat.trace.totals())

    def leave_out(self, since: Moment) -> None:
        """Count the time since a moment as evaluation, instead of what it was recorded as."""
        now = self._seat.now
        self._off += now - since.seconds
        self._seat.trace.add(EVALUATION, since.seconds, now, "evaluation")
        for kind, seconds in self._seat.trace.totals().items():
            self._last[kind] = self._last.get(kind, 0.0) + seconds - since.totals.get(kind, 0.0)
