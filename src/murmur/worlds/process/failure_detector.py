"""Failure detector polled by every blocking wait, so that a lost learner ends the wait at once.

Lock-step groups cannot go on without a member. They learn of its loss here and not from their collectives, which report
a broken connection but not its cause, and never a stopped learner.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from murmur.core.group import PeerLost
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.mail import Mail
from murmur.worlds.process.membership_client import StoreMembership

log = logging.getLogger(__name__)

LEAST_SECONDS, ROUNDS = 1.0, 10  # a silent learner is lost after max(1 s, 10 median rounds)
FEWEST_ROUNDS, MOST_ROUNDS = 3, 15  # number of rounds of which the median is taken
LOOK_SECONDS = 0.1  # longest delay before a wait notices a loss
SAME_SECONDS = 5.0  # within which several threads report the same loss only once
UNHEARD_SECONDS = 5.0  # without an answer from the store, after which the others have given a learner up
NAME_SECONDS = 2.0  # time for the membership to name the lost learner behind a broken connection


class FailureDetector:
    """One learner's view of the other learners' failures; its mail is told of lost learners."""

    def __init__(
        self,
        membership: StoreMembership,
        host_of: Callable[[int], str],
        mail: Mail,
        least_seconds: float = LEAST_SECONDS,
    ) -> None:
        self.membership, self._host_of, self._mail, self._least = membership, host_of, mail, least_seconds
        self._memberships = [membership]
        self._told = -math.inf
        self._rounds: deque[float] = deque(maxlen=MOST_ROUNDS)
        membership.report_losses(self._lose)

    def took(self, seconds: float) -> None:
        """Record the duration of a round; it determines the silence allowed to this learner."""
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
        """Give the membership of a group the same lease as that of the world."""
        membership.lease_seconds = self.membership.lease_seconds
        self._memberships.append(membership)
        return membership

    def incarnations(self, members: Sequence[int]) -> dict[int, int]:
        """Return the present incarnations of these members; see `missing`."""
        found = self.membership.view().incarnations
        return {m: found[m] for m in members if m in found}

    def missing(self, members: Sequence[int], born: Mapping[int, int]) -> PeerLost | None:
        """Return the loss of the first member that is not here, or not as it was `born` when the group was formed."""
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
                f"learner {self.membership.rank} was counted as lost by the others: it gave no sign of life for longer"
                f" than {self.membership.lease_seconds:.2f} s",
                self.membership.rank,
            )
        first = next((m for m in lost if m in gone), gone[0])
        return self._loss(first, lost.get(first, "it has ended"))

    def _loss(self, rank: int, why: str) -> PeerLost:
        return PeerLost(f"learner {rank} on {self._host_of(rank)} is lost: {why}", rank)

    def _lose(self, rank: int, why: str) -> None:
        self._mail.lose(rank, self._loss(rank, why))

    def tell_stalls(self) -> None:
        """Log the stall table; only the first live learner does, and only once in a while."""
        now = awake_seconds()
        first = min(self.membership.view().live, default=self.membership.rank)
        if first == self.membership.rank and now - self._told > SAME_SECONDS:
            self._told = now
            log.warning("%s", self.membership.stalls())

    def await_missing(self, members: Sequence[int], born: Mapping[int, int]) -> PeerLost | None:
        """Return `missing`, after a short wait: a connection may break a little before the membership knows."""
        deadline = awake_seconds() + NAME_SECONDS
        while (found := self.missing(members, born)) is None and awake_seconds() < deadline:
            time.sleep(LOOK_SECONDS / 10)
        return found
