"""Progress display of slow work: a spinner while it runs (on a terminal), and the time it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


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
