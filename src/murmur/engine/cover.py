"""A check at the end of a run: every minibatch of the budget was computed exactly once.

    count = sum 1,    fingerprint = sum B^n mod P        over the minibatches n that learners have computed

Each learner adds up both where it computes its gradients, all add theirs to two counters, and compare these with those
of the budget. The fingerprint tells a minibatch that is missing from another one that was computed twice.
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
    """The minibatches that one learner has computed in this launch, as their number and their fingerprint."""

    def __init__(self) -> None:
        self.count = self.fingerprint = 0

    def add(self, n: int) -> None:
        """Minibatch n was computed here."""
        self.count += 1
        self.fingerprint = (self.fingerprint + pow(BASE, n, PRIME)) % PRIME

    def tell(self, group: Group) -> None:
        """Add this learner's part to that of the others; once, at its end."""
        group.count(COUNT, self.count)
        group.count(FINGERPRINT, self.fingerprint)
        group.count(TOLD, 1)


def leave(group: Group) -> None:
    """A learner ends before the run does: its part is not known."""
    group.count(LEFT, 1)


def wanted(first: int, total: int, moved: Mapping[int, int]) -> int:
    """The fingerprint of the minibatches at positions first to total - 1; `moved`: their numbers, where others."""
    whole = (pow(BASE, total, PRIME) - pow(BASE, first, PRIME)) * pow(BASE - 1, -1, PRIME)
    kept = ((position, n) for position, n in moved.items() if first <= position < total)
    return (whole + sum(pow(BASE, n, PRIME) - pow(BASE, position, PRIME) for position, n in kept)) % PRIME


async def check(seat: Seat, due: int, fingerprint: int) -> None:
    """Wait until all learners have told their parts, and compare them with what the launch had to do.

    Where a learner was lost, has joined late or has stopped early nothing is compared: what it computed is not known,
    and its minibatches may rightly have been computed again.

    Args:
        seat: of a learner that has told its part.
        due: how many minibatches there were.
        fingerprint: theirs.

    Raises:
        IncompleteRun: minibatches are missing, or were computed more than once.
    """
    group, pause = seat.group, 0.0  # learners that end at the same moment need no time for it
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
        what = f"{due} minibatches were computed, as the budget asks, but some of them twice and others never"
    raise IncompleteRun(
        f"{what}, and no learner was lost: the strategy does not take each minibatch once. Its checkpoints and"
        " evaluations stand for another amount of data than they say. With a strategy of your own, take minibatches by"
        " me.gradients(), me.turns() or me.claimed_gradients() alone; otherwise please report this with run.json"
    )
