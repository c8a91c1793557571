"""Progress line of a simulation: minibatches, loss, virtual and real time."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from murmur.engine.record import Record, duration


class VirtualProgress:
    """Observer of all learners' records that writes a line every few real seconds and one for each evaluation.

    `label` begins every line, to distinguish simulations that run side by side.
    """

    def __init__(
        self, total: int, label: str = "", stream: TextIO | None = None, every_seconds: float | None = None
    ) -> None:
        self._total, self._label, self._out = total, f"{label}: " if label else "", stream or sys.stderr
        self._live = self._out.isatty() and not label
        self._every = every_seconds if every_seconds is not None else 0.5 if self._live else 10.0
        self._began = time.monotonic()
        self._last = self._began - self._every
        self._first: Record | None = None

    def __call__(self, record: Record) -> None:
        if record.kind == "evaluation":
            figures = "  ".join(f"{name} {value:.4g}" for name, value in record.figures.items())
            self._write(f"epoch {record.epoch:6.2f}  held-out  {figures}  at {virtual(record.seconds)}", final=True)
            return
        self._first = self._first or record
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            self._write(self._line(record, self._first), final=not self._live)

    def _line(self, r: Record, first: Record) -> str:
        real = time.monotonic() - self._began
        done = r.minibatches - first.minibatches
        pace = (r.seconds - first.seconds) / max(real, 1e-9)
        left = f"about {duration(real / done * (self._total - r.minibatches))} left" if done > 0 else ""
        return (
            f"minibatch {min(r.minibatches, self._total):7d}/{self._total}  epoch {r.epoch:6.2f}  loss {r.loss:8.4f}  "
            f"{virtual(r.seconds)}, real {duration(real)} ({pace:.3g} virtual s a real s)  "
            f"{left}"
        ).rstrip()

    def _write(self, text: str, final: bool) -> None:
        self._out.write(("\r\033[K" if self._live else "") + self._label + text + ("\n" if final else ""))
        self._out.flush()


def virtual(seconds: float) -> str:
    """Format virtual seconds in a suitable unit."""
    if seconds < 60:
        return f"virtual {seconds:.3g} s"
    return f"virtual {seconds / 60:.3g} min" if seconds < 3600 else f"virtual {seconds / 3600:.4g} h"
