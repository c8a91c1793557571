"""Open descriptors of this process, for tests that look for leaks."""

from __future__ import annotations

import gc
import os
import time

QUIET_SECONDS, MOST_SECONDS = 1.0, 30.0


def settled_descriptors() -> list[str]:
    """Return the open descriptors once threads of earlier tests have closed theirs."""
    found, since, deadline = list[str](), time.monotonic(), time.monotonic() + MOST_SECONDS
    while time.monotonic() - since < QUIET_SECONDS and time.monotonic() < deadline:
        gc.collect()
        now = sorted(os.listdir("/proc/self/fd"))
        if now != found:
            found, since = now, time.monotonic()
        time.sleep(0.05)
    return found
