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
from murmur.worlds.process.membership.client import NetRoll
from murmur.worlds.process.transport.mail import Mail

log = logging.getLogger(__name__)

LEAST_SECONDS, ROUNDS = 1.0, 10  # a silent learner is lost after max(1 s, 10 median rounds)
FEWEST_ROUNDS, MOST_ROUNDS = 3, 15  # of which the median is taken
LOOK_SECONDS = 0.1  # how soon a wait that is under way notices a loss
SAME_SECONDS = 5.0  # within which threads that meet the same loss tell of it once
UNHEARD_SECONDS = 5.0  # a learner that the store does not answer for so long has been given up by the others
NAME_SECONDS = 2.0  # how long a broken connection waits for the register to say whose it is


class Presence:
    """One learner's view of the others.

    Args:
        roll: its line to the register of the whole world.
        host_of: where a learner runs, by rank.
        mail: its post office, which learns who neither writes nor reads any more.
        least_seconds: silence that is always borne.
    """

    def __init__(
        self, roll: NetRoll, host_of: Callable[[int], str], mail: Mail, least_seconds: float = LEAST_SECONDS
    ) -> None:
        self.roll, self._host_of, self._mail, self._least = roll, host_of, mail, least_seconds
        roll.when_gone = self._gone
        self._rolls = [roll]
        self._told = -math.inf
        self._rounds: deque[float] = deque(maxlen=MOST_ROUNDS)

    def took(self, seconds: float) -> None:
        """A round of this learner took so long; sets how long its silence is borne."""
        self._rounds.append(seconds)
        if len(self._rounds) < FEWEST_ROUNDS:
            return
        median = statistics.median(self._rounds)
        for roll in self._rolls:
            roll.lease_seconds = max(self._least, ROUNDS * median)
        if len(self._rounds) == FEWEST_ROUNDS and self.roll.rank == 0:
            log.info(
                "a learner that is silent for %.2f s, max(%g s, %d median rounds of %.3f s), counts as lost",
                *(self.roll.lease_seconds, self._least, ROUNDS, median),
            )

    def adopted(self, roll: NetRoll) -> NetRoll:
        """The register of a group, in which silence is borne as long as in the world."""
        roll.lease_seconds = self.roll.lease_seconds
        self._rolls.append(roll)
        return roll

    def incarnations(self, members: Sequence[int]) -> dict[int, int]:
        """Of those members that are here now; see `missing`."""
        found = self.roll.view().incarnations
        return {m: found[m] for m in members if m in found}

    def missing(self, members: Sequence[int], born: Mapping[int, int]) -> PeerLost | None:
        """The loss of the first of the members that is not here, or not as the one it was when the group was made.

        Args:
            members: of a group.
            born: their incarnations then.

        Raises:
            ConnectionError: the store is gone.
        """
        live, lost = self.roll.view().incarnations, self.roll.lost
        unheard = self.roll.unheard_seconds
        if unheard > max(UNHEARD_SECONDS, 2 * self.roll.lease_seconds):
            me = self.roll.rank
            return PeerLost(f"learner {me} has had no answer from the store for {unheard:.1f} s: is it cut off?", me)
        gone = [m for m in members if m not in live or live[m] != born.get(m, live[m])]
        if not gone:
            return None
        if self.roll.rank in gone:
            return PeerLost(
                f"learner {self.roll.rank} was thought lost by the others: it gave no sign of life for longer than"
                f" {self.roll.lease_seconds:.2f} s",
                self.roll.rank,
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
        first = min(self.roll.view().live, default=self.roll.rank)
        if first == self.roll.rank and now - self._told > SAME_SECONDS:
            self._told = now
            log.warning("%s", self.roll.stalls())

    def await_missing(self, members: Sequence[int], born: Mapping[int, int]) -> PeerLost | None:
        """`missing`, of which the register may hear a little later than a connection breaks."""
        deadline = time.monotonic() + NAME_SECONDS
        while (found := self.missing(members, born)) is None and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 10)
        return found
