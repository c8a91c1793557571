"""Who of a world is still here, as every wait for others looks at it, so that a lost learner ends the wait at once.

Lock-step groups cannot go on without a member. They learn of its loss here and not from their collectives, which tell
of a broken connection but not whose fault it is, and never of a learner that was stopped.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from murmur.core.group import PeerLost
from murmur.worlds.process.membership.client import StoreMembership
from murmur.worlds.process.transport.mail import Mail

log = logging.getLogger(__name__)

LEAST_SECONDS, ROUNDS = 1.0, 10  # a silent learner is lost after max(1 s, 10 median rounds)
FEWEST_ROUNDS, MOST_ROUNDS = 3, 15  # of which the median is taken
LOOK_SECONDS = 0.1  # how soon a wait that is under way notices a loss
SAME_SECONDS = 5.0  # within which threads that meet the same loss tell of it once
UNHEARD_SECONDS = 5.0  # a learner that the store does not answer for so long has been given up by the others
NAME_SECONDS = 2.0  # how long a broken connection waits for the register to say whose it is


class FailureDetector:
    """One learner's view of the others.

    Args:
        roll: its line to the register of the whole world.
        host_of: where a learner runs, by rank.
        mail: its post office, which learns who neither writes nor reads any more.
        least_seconds: silence that is always borne.
    """

    def __init__(
        self,
        membership: StoreMembership,
        host_of: Callable[[int], str],
        mail: Mail,
        least_seconds: float = LEAST_SECONDS,
    ) -> None:
        self.membership, self._host_of, self._mail, self._least = membership, host_of, mail, least_seconds
        membership.when_gone = self._gone
        self._memberships = [membership]
        self._told = -math.inf
        self._rounds: deque[float] = deque(maxlen=MOST_ROUNDS)

    def took(self, seconds: float) -> None:
        """A round of this learner took so long; sets how long its silence is borne."""
        self._rounds.append(seconds)
        if len(self._rounds) < FEWEST_ROUNDS:
            return
        median = statistics.median(self._rounds)
        for membership in self._memberships:
            membership.lease_seconds = max(self._least, ROUNDS * median)
        if len(self._rounds) == FEWEST_ROUNDS and self.membership.rank == 0:
            log.info(
                "a learner that is silent for %.2f s, max(%g s, %d median rounds of %.3f s), counts as lost",
                *(self.membership.lease_seconds, self._least, ROUNDS, median),
            )

    def adopted(self, membership: StoreMembership) -> StoreMembership:
        """The register of a group, in which silence is borne as long as in the world."""
        membership.lease_seconds = self.membership.lease_seconds
        self._memberships.append(membership)
        return membership

    def incarnations(self, members: Sequence[int]) -> dict[int, int]:
        """Of those members that are here now; see `missing`."""
        found = self.membership.view().incarnations
        return {m: found[m] for m in members if m in found}

    def missing(self, members: Sequence[int], born: Mapping[int, int]) -> PeerLost | None:
        """The loss of the first of the members that is not here, or not as the one it was when the group was made.

        Args:
            members: of a group.
            born: their incarnations then.

        Raises:
            ConnectionError: the store is gone.
        """
        live, lost = self.membership.view().incarnations, self.membership.lost
        unheard = self.membership.unheard_seconds
        if unheard > max(UNHEARD_SECONDS, 2 * self.membership.lease_seconds):
            me = self.membership.rank
            return PeerLost(f"learner {me} has had no answer from the store for {unheard:.1f} s: is it cut off?", me)
        gone = [m for m in members if m not in live or live[m] != born.get(m, live[m])]
        if not gone:
            return None
        if self.membership.rank in gone:
            return PeerLost(
                f"learner {self.membership.rank} was thought lost by the others: it gave no sign of life for longer"
                f" than {self.membership.lease_seconds:.2f} s",
                self.membership.rank,
            )
        first = next((m for m in lost if m in gone), gone[0])
        return self._loss(first, lost.get(first, "it has ended"))

    def _loss(self, rank: int, why: str) -> PeerLost:
        return PeerLost(f"learner {rank} on {self._host_of(rank)} is lost: {why}", rank)

    def _gone(self, rank: int, why: str) -> None:
        self._mail.box.lose(rank, self._loss(rank, why))
        self._mail.drop(rank)  # a process that follows it listens elsewhere

    def tell_stalls(self) -> None:
        """Print who waits for what; only the first of those that are here does, if it is not told yet."""
        now = time.monotonic()
        first = min(self.membership.view().live, default=self.membership.rank)
        if first == self.membership.rank and now - self._told > SAME_SECONDS:
            self._told = now
            log.warning("%s", self.membership.stalls())

    def await_missing(self, members: Sequence[int], born: Mapping[int, int]) -> PeerLost | None:
        """`missing`, of which the register may hear a little later than a connection breaks."""
        deadline = time.monotonic() + NAME_SECONDS
        while (found := self.missing(members, born)) is None and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 10)
        return found
