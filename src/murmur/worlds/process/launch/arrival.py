"""Wait at start until all learners of a launch can be reached; it ends early if one is known to be lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from murmur.core.group import PeerLost
from murmur.core.torch_private import Store
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.launch.environment import COME_KEY, READY_KEY
from murmur.worlds.process.membership.stalls import ranks
from murmur.worlds.process.store.server import TELL_SECONDS, clock_time

log = logging.getLogger(__name__)
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Arrival:
    """One learner's wait for the others.

    Attributes:
        store: Store of the launch.
        rank: Rank of this learner.
        size: Number of learners.
        seconds: Longest wait.
        lost: Returns the causes of losses by rank, as the membership knows them.
    """

    store: Store
    rank: int
    size: int
    seconds: float
    lost: Callable[[], Mapping[int, str]]

    def wait(self) -> None:
        """Return once all learners can be reached; log a line every few seconds.

        Raises:
            PeerLost: A learner is lost, or some have not come in time; names them all.
            ConnectionError: The store is gone.
        """
        began, until = awake_seconds(), clock_time(self.seconds)
        tell_at = began + TELL_SECONDS
        while not self.store.check([f"{READY_KEY}/{r}" for r in range(self.size)]):
            waited = awake_seconds() - began
            if lost := {r: why for r, why in self.lost().items() if r < self.size}:
                named = "; ".join(f"{self._named(r)} is lost: {why}" for r, why in lost.items())
                raise PeerLost(f"training cannot begin: {named}", next(iter(lost)))
            if waited > self.seconds:
                absent = self._absent()
                raise PeerLost(
                    f"training cannot begin: after {self.seconds:g} s (--start-seconds) {self._status(absent)}; were"
                    " they started, and can their hosts reach the store?",
                    absent[0],
                )
            if awake_seconds() > tell_at:
                tell_at += TELL_SECONDS
                log.warning("learner %d waits until %s: %s", self.rank, until, self._status(self._absent()))
            time.sleep(POLL_SECONDS)

    def _absent(self) -> list[int]:
        """Return the learners waited for; at least one, as all may have come since the last check."""
        absent = [r for r in range(self.size) if not self.store.check([f"{READY_KEY}/{r}"])]
        return absent or [self.size - 1]

    def _status(self, absent: Collection[int]) -> str:
        """Describe the absent and the present learners, with hosts."""
        never = [r for r in absent if not self._has_come(r)]
        starting = [self._named(r) for r in absent if r not in never]
        here = [self._named(r) for r in range(self.size) if r not in absent]
        found = [f"{_many(never)} not come to the store"] if never else []
        found += [f"{name} has come and is still starting" for name in starting]
        return ", ".join([*found, f"here: {', '.join(here)}"])

    def _has_come(self, rank: int) -> bool:
        return self.store.check([f"{COME_KEY}/{rank}"])

    def _named(self, rank: int) -> str:
        """Return a learner's name with its host, if known."""
        if not self._has_come(rank):
            return f"learner {rank}"
        return f"learner {rank} ({self.store.get(f'{COME_KEY}/{rank}').decode().split()[0]})"


def _many(never: list[int]) -> str:
    return f"learner {never[0]} has" if len(never) == 1 else f"learners {ranks(never)} have"
