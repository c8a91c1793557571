"""Ends of learner processes: their exit statuses, and how messages describe them."""

from __future__ import annotations

from collections.abc import Iterable

from murmur.worlds.process.signals import UNKNOWN_CODE

PEER_LOST_STATUS = 75  # of a learner that gave up because another one is lost: a temporary failure


def status_of(code: int | None) -> int:
    """Return the exit status for a learner's end; one ended by a signal counts as lost."""
    return PEER_LOST_STATUS if code is None or code < 0 else code


def how_ended(code: int | None) -> str:
    """Describe a failure; None: it has not ended, and the others have given it up."""
    if code is None:
        return "is stopped (the others have given it up)"
    if code == UNKNOWN_CODE:
        return "ended with an unknown status (other code of this program has waited for it)"
    if code < 0:
        return f"ended with signal {-code}"
    return f"ended with status {code}" + (" (it has lost another one)" if code == PEER_LOST_STATUS else "")


def status_of_all(statuses: Iterable[int]) -> int:
    """Return the exit status for learners that have not finished a run: that of an error of their own, if any."""
    return max(set(statuses) - {0, PEER_LOST_STATUS}, default=PEER_LOST_STATUS)
