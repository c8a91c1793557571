"""Rate of work over the latest records, for the time that is left."""

from __future__ import annotations

from collections import deque

RECENT = 200  # records


class RecentRate:
    """Rate over the latest records of one start.

    What was done before the first record, by an earlier start for one, does not count. A record whose time or work is
    behind the one before belongs to another start, which repeats some work: it begins a new rate.
    """

    def __init__(self) -> None:
        self._records: deque[tuple[float, float]] = deque(maxlen=RECENT)

    def add(self, seconds: float, done: float) -> None:
        """Add a record: the time, and all work that is done by then."""
        if self._records and (seconds < self._records[-1][0] or done < self._records[-1][1]):
            self._records.clear()
        self._records.append((seconds, done))

    def forget(self) -> None:
        """Begin a new rate: another start has begun."""
        self._records.clear()

    @property
    def per_second(self) -> float | None:
        """Work done per second; None before two records, or without progress."""
        if len(self._records) < 2:
            return None
        (began, first), (ended, last) = self._records[0], self._records[-1]
        return (last - first) / (ended - began) if ended > began and last > first else None

    def seconds_left(self, total: float) -> float | None:
        """Seconds until `total` work is done; None if the rate is unknown."""
        speed = self.per_second
        return None if speed is None else max(0.0, total - self._records[-1][1]) / speed
