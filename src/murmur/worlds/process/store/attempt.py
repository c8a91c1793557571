"""Agreement of torchrun's learners on the name of their attempt, under which their keys are new.

torchrun's agents may keep one store for all attempts, and each agent counts its own restarts, so that neither the store
nor the count separates the keys of two attempts. Learner 0 therefore offers a new name, the others answer with marks of
their own, and learner 0 confirms the marks. A name that an earlier process offered is never confirmed for a new mark.
"""

from __future__ import annotations

import logging
import time
from uuid import uuid4

from murmur.core.torch_private import Store
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.launch.environment import Place
from murmur.worlds.process.membership.stalls import ranks
from murmur.worlds.process.store.server import TELL_SECONDS, clock_time

log = logging.getLogger(__name__)
OFFER_KEY = "attempt"
POLL_SECONDS = 0.05
REMEDY = (
    "if this follows a restart, torchrun's agents have given their learners different stores: start torchrun with"
    " TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
)


class Attempt:
    """One learner's side of the agreement; `step` is called until it returns a name."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._mark = uuid4().hex
        if rank == 0:
            store.set(OFFER_KEY, self._mark)

    def step(self) -> str | None:
        """Read and answer what the others have written; return the name once all have the same."""
        if self._rank == 0:
            return None if self.absent() else self._confirm()
        if not self._store.check([OFFER_KEY]):
            return None
        name = self._store.get(OFFER_KEY).decode()
        self._store.set(f"{OFFER_KEY}/{name}/{self._rank}", self._mark)
        confirmed = f"{OFFER_KEY}/{name}/all"
        if self._store.check([confirmed]) and self._mark in self._store.get(confirmed).decode().split():
            return name
        return None

    def absent(self) -> list[int]:
        """Return the learners that have not answered learner 0, as far as this learner can know."""
        if self._rank > 0:
            return [0]
        return [r for r in range(1, self._size) if not self._store.check([f"{OFFER_KEY}/{self._mark}/{r}"])]

    def _confirm(self) -> str:
        marks = [self._store.get(f"{OFFER_KEY}/{self._mark}/{r}").decode() for r in range(1, self._size)]
        self._store.set(f"{OFFER_KEY}/{self._mark}/all", " ".join(marks))
        return self._mark


def agreed_attempt(place: Place, store: Store, seconds: float) -> str:
    """Return the name of this attempt, the same on all learners.

    Raises:
        ConnectionError: Not all learners have come in time; names them and the remedy.
    """
    attempt = Attempt(store, place.rank, place.size)
    began, until = awake_seconds(), clock_time(seconds)
    tell_at = began + TELL_SECONDS
    while (name := attempt.step()) is None:
        now, where = awake_seconds(), f"{place.host}:{place.port}"
        if now > began + seconds:
            absent = ranks(attempt.absent())
            raise ConnectionError(
                f"training cannot begin: after {seconds:g} s learners {absent} have not come to the store at {where};"
                f" {REMEDY}"
            )
        if now > tell_at:
            tell_at = now + TELL_SECONDS
            absent = ranks(attempt.absent())
            what = "learner %d waits until %s: learners %s have not come to the store at %s; %s"
            log.warning(what, place.rank, until, absent, where, REMEDY)
        time.sleep(POLL_SECONDS)
    return name
