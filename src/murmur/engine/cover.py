"""Check at the end of a run: every minibatch of the budget was computed exactly once.

    count = sum 1,    fingerprint = sum B^n mod P        over the minibatches n that learners have computed

Each learner sums both over the gradients that it computes. All learners add their sums to two counters, and compare
these with the values of the budget. The fingerprint detects a missing minibatch whose place another one took twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from murmur.core.errors import IncompleteRun
from murmur.core.group import Group
from murmur.core.world import Seat

PRIME = 2**44 - 17  # so that sums over 2^16 learners fit into a counter
BASE = 0x5DEECE66D
COUNT, FINGERPRINT, TOLD, LEFT = "computed", "computed fingerprint", "learners that told", "learners that left"
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1e-4, 0.1


class Cover:
    """Number and fingerprint of the minibatches that one learner has computed in this launch."""

    def __init__(self) -> None:
        self.count = self.fingerprint = 0

    def add(self, n: int) -> None:
        """Count minibatch n as computed here."""
        self.count += 1
        self.fingerprint = (self.fingerprint + pow(BASE, n, PRIME)) % PRIME

    def tell(self, group: Group) -> None:
        """Add this learner's part to the counters; called once, at its end."""
        group.count(COUNT, self.count)
        group.count(FINGERPRINT, self.fingerprint)
        group.count(TOLD, 1)


def leave(group: Group) -> None:
    """Note that this learner ends before the run, so that its part is unknown."""
    group.count(LEFT, 1)


def wanted(first: int, total: int, moved: Mapping[int, int]) -> int:
    """Return the fingerprint of the minibatches at positions first to total - 1; `moved` lists those that differ."""
    whole = (pow(BASE, total, PRIME) - pow(BASE, first, PRIME)) * pow(BASE - 1, -1, PRIME)
    kept = ((position, n) for position, n in moved.items() if first <= position < total)
    return (whole + sum(pow(BASE, n, PRIME) - pow(BASE, position, PRIME) for position, n in kept)) % PRIME


async def check(seat: Seat, due: int, fingerprint: int) -> None:
    """Wait until all learners have added their parts, and compare the sums with those of the budget.

    Nothing is compared if a learner was lost, joined late or stopped early: its part is unknown, and its minibatches
    may have been computed again.

    Args:
        seat: Seat of a learner that has added its part.
        due: Number of minibatches of the launch.
        fingerprint: Fingerprint of those minibatches.

    Raises:
        IncompleteRun: Minibatches are missing, or were computed more than once.
    """
    group, pause = seat.group, 0.0  # no wait is needed if all end at the same moment
    while (told := group.count(TOLD)) < group.size and group.count(LEFT) == 0 and group.membership.complete:
        await seat.sleep(pause)
        pause = min(max(PAUSE_SECONDS, 2 * pause), LONGEST_PAUSE_SECONDS)
    if told < group.size or not group.membership.complete:
        return
    computed = group.count(COUNT)
    if (computed, group.count(FINGERPRINT) % PRIME) == (due, fingerprint):
        return
    what = f"{computed} minibatches were computed where the budget had {due} left"
    if computed == due:
        what = f"{due} minibatches were computed, as in the budget, but some of them twice and others never"
    raise IncompleteRun(
        f"{what}, and no learner was lost: the strategy does not take each minibatch once. Its checkpoints and"
        " evaluations stand for another amount of data than they say. With a strategy of your own, take minibatches by"
        " me.gradients(), me.turns() or me.claimed_gradients() alone; otherwise please report this with run.json"
    )
