"""Progress display of slow work, the time it took, and whether other work of the machine slows it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from murmur.core.counted import counted
from murmur.execution.workers import cores_here

IDLE_LOAD = 0.25  # per core; a machine below this load counts as idle


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Show `what` until the block ends, then its duration; on standard error, so that results can be piped."""
    console = Console(stderr=True)
    begin = time.monotonic()
    if not console.is_terminal:
        console.print(f"{what} ...", highlight=False, soft_wrap=True)
    with console.status(what):
        yield
    console.print(f"{what}: {time.monotonic() - begin:.1f} s", highlight=False, soft_wrap=True)


def busy_line() -> str:
    """Return a line that says if the machine is busy with other work: call it before own work adds to the load."""
    load, cores = os.getloadavg()[0], cores_here()
    told = f"(load average {load:.1f}, {counted(cores, 'core')})"
    if load < IDLE_LOAD * cores:
        return f"this machine was idle {told}"
    return f"this machine was busy {told}: other work lengthened the times above"


def slowdown() -> float:
    """Return the factor by which other work lengthens that of a process, by the load average; 1 if there is none."""
    return max(1.0, (os.getloadavg()[0] + 1) / cores_here())
