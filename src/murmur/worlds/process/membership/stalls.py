"""Stall table: what each learner waits for, and since when, as told with its signs of life.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

from murmur.worlds.awake_clock import awake_seconds

TOLD_AFTER_SECONDS = 30.0  # wait after which it is reported; then again after twice as long
Told = tuple[str, float]  # (what is waited for, or "" for nothing; seconds)


class Waits:
    """Current waits of the threads of one learner."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[str, float]] = {}
        self._count = 0
        self._lock = Lock()

    @contextmanager
    def on(self, what: str) -> Iterator[Wait]:
        """Register a wait of this thread for the duration of the block."""
        with self._lock:
            self._count += 1
            number, since = self._count, awake_seconds()
            self._open[number] = what, since
        try:
            yield Wait(since)
        finally:
            with self._lock:
                del self._open[number]

    def longest(self) -> Told:
        """Return the longest current wait: what for, and the seconds."""
        with self._lock:
            what, since = min(self._open.values(), key=lambda each: each[1], default=("", awake_seconds()))
        return what, awake_seconds() - since


class Wait:
    """One wait, to be reported when it lasts long."""

    def __init__(self, since: float) -> None:
        self._since, self._next = since, TOLD_AFTER_SECONDS

    def is_long(self) -> bool:
        """True if the wait has become long, or twice as long as when this was last true."""
        if awake_seconds() - self._since < self._next:
            return False
        self._next *= 2
        return True


def table(told: Mapping[int, Told], lost: Mapping[int, str]) -> str:
    """Return the stall table: lost learners, those that wait for no other (they cause the others' waits), the rest."""
    busy = [f"  learner {rank}: waits for no learner" for rank, (what, _) in sorted(told.items()) if not what]
    waiting = sorted((-seconds, rank, what) for rank, (what, seconds) in told.items() if what)
    lines = [f"  learner {rank}: has waited {-seconds:.1f} s for {what}" for seconds, rank, what in waiting]
    gone = [f"  learner {rank}: lost, {why}" for rank, why in sorted(lost.items())]
    return "\n".join(["learners and their waits:", *gone, *busy, *lines])


def read_table(answer: Mapping[str, object]) -> str:
    """Return the stall table from a membership server's answer."""
    waits, lost = answer["waits"], answer["lost"]
    assert isinstance(waits, Iterable)
    assert isinstance(lost, Iterable)
    told = {int(rank): (str(what), float(seconds)) for rank, what, seconds in waits}
    return table(told, {int(rank): str(why) for rank, why in lost})


def ranks(numbers: Sequence[int]) -> str:
    """Return ranks in short form, with runs as 0-3."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)
