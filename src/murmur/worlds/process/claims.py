"""Claims of minibatches ahead of need, so that no gradient waits for the server. Standard library only."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, NamedTuple

from murmur.core.membership import NOTHING, Preparation
from murmur.worlds.process.store_server import StoreClient

TRIPS = 5  # number of latest round trips kept; the slowest of them counts
WORTH = 0.01  # of a gradient's time: if a round trip takes less, claims are not made ahead
MOST_AHEAD = 16


Standing = tuple[int, int | None]


class Limits(NamedTuple):
    """Bounds of claims: numbers from `first` to `total` - 1, at most `size` of them per claim."""

    first: int
    total: int
    size: int = 1


def claims_in(answer: Mapping[str, Any]) -> list[range]:
    return [range(start, stop) for start, stop in answer["claims"]]


@dataclass
class Holdings:
    """Claims of one learner, and the times of its next ones, without IO; times are those of one monotonic clock.

    Attributes:
        doing: Claim whose gradient is under way.
        held: Claims made ahead and not begun.
        done: Numbers done but not yet reported to the server.
        due: Time at which the next claim is needed; None while no gradient is under way.
        none_left: True if the server had fewer claims than requested.
        asking: True while a request for claims has no answer.
        of: Standing to which the claims belong: those of an earlier incarnation belong to other learners by now.
        limits: Bounds of the claims.
    """

    doing: range | None = None
    held: deque[range] = field(default_factory=deque)
    done: list[int] = field(default_factory=list)
    due: float | None = None
    pace_seconds: float = 0.0
    preparing_seconds: float = 0.0
    trips: deque[float] = field(default_factory=lambda: deque([0.0], maxlen=TRIPS))
    none_left: bool = False
    asking: bool = False
    of: Standing = (0, None)
    limits: Limits = field(default_factory=lambda: Limits(0, 0))

    @property
    def seconds_ahead(self) -> float:
        """Time before it is due at which a claim is requested; short, because held claims wait."""
        return 2 * (max(self.trips) + self.preparing_seconds)

    def expect(self, claim: range, limits: Limits, seconds: float, preparing_seconds: float, now: float) -> bool:
        """Begin the gradient of a claim; return False if its time is too long or unknown for claims ahead."""
        if max(*self.trips, preparing_seconds) < WORTH * seconds or seconds <= 0:
            return False
        self.doing, self.limits, self.none_left, self.preparing_seconds = claim, limits, False, preparing_seconds
        self.due, self.pace_seconds = now + seconds, seconds
        return True

    def take(self, standing: Standing) -> range | None:
        """Begin the next held claim; None if there is none."""
        self._stand(standing)
        self.due = None
        if not self.held:
            return None
        if self.doing is not None:
            self.done.extend(self.doing)
        self.doing = self.held.popleft()
        return self.doing

    def request(self, now: float) -> dict[str, Any] | None:
        """Return the fields of the next request, to be sent now; None if it is too early for one."""
        count = self.wanted(now)
        if not count and not self.done:
            return None
        done, self.done, self.asking = self.done, [], count > 0
        doing = [n for claim in (self.doing, *self.held) if claim is not None for n in claim]
        return {"known": self.of[0], **self.limits._asdict(), "doing": doing, "done": done, "count": count}

    def answered(self, answer: Mapping[str, Any], rank: int, count: int, trip_seconds: float) -> list[range]:
        """Hold the claims that a learner's request for `count` of them has brought; return them."""
        if "live" in answer:
            self._stand((answer["number"], dict(answer["live"]).get(rank)))
        claims = claims_in(answer)
        self.trips.append(trip_seconds)
        self.held.extend(claims)
        self.none_left |= len(claims) < count
        self.asking = False
        return claims

    def wanted(self, now: float) -> int:
        if self.due is None or self.none_left or now + self.seconds_ahead < self.due:
            return 0
        needed = 1 + math.floor((now + self.seconds_ahead - self.due) / self.pace_seconds)
        return max(0, min(needed, MOST_AHEAD) - len(self.held))

    def seconds_until_wanted(self, now: float) -> float | None:
        """Return the time until the next request; None if another event must come first."""
        if self.due is None or self.none_left or len(self.held) >= MOST_AHEAD:
            return None
        return max(0.0, self.due + len(self.held) * self.pace_seconds - self.seconds_ahead - now)

    def _stand(self, now: Standing) -> None:
        """Drop the claims of an earlier incarnation; ignore a view older than the latest."""
        if now[0] < self.of[0]:
            return
        if now[1] != self.of[1]:
            self.held.clear()
            self.done.clear()
        self.of = now


class ClaimsAhead:
    """Requests claims ahead, in a thread and on a connection of its own.

    Args:
        connect: Opens a connection; called at first need.
        head: Fields of every request, to which {"first", "total", "size", "doing", "done", "count"} are added.
        standing: Returns the number of the latest known view, and this learner's incarnation in it (None: lost). Claims
            of an earlier incarnation belong to other learners by now. An answer may know of a later view.
    """

    def __init__(
        self, connect: Callable[[], StoreClient], head: dict[str, Any], standing: Callable[[], Standing]
    ) -> None:
        self._connect, self._head, self._standing = connect, head, standing
        self._has = Holdings(of=standing())
        self._preparation = NOTHING
        self._changed = Condition()
        self._closed = False
        self._failure: Exception | None = None
        self._thread: Thread | None = None

    def expect(self, claim: range, limits: Limits, seconds: float, preparation: Preparation = NOTHING) -> None:
        """Announce that the gradient of `claim` has begun and its expected time; prepare claims ahead at once."""
        with self._changed:
            if not self._has.expect(claim, limits, seconds, preparation.seconds, time.monotonic()):
                return
            self._preparation = preparation
            self._changed.notify_all()
        if self._thread is None:
            self._thread = Thread(target=self._run, name="claims ahead", daemon=True)
            self._thread.start()

    def took(self, seconds: float) -> None:
        with self._changed:
            self._has.trips.append(seconds)

    def take(self) -> range | None:
        """Take the next held claim, after an open request has been answered; None: claim from the server."""
        with self._changed:
            self._changed.wait_for(lambda: self._has.held or not self._has.asking)
            if self._failure is not None:
                raise ConnectionError(f"the connection for claims is broken: {self._failure}") from self._failure
            claim = self._has.take(self._standing())
            self._changed.notify_all()
            return claim

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            line = self._connect()
            while (request := self._next()) is not None:
                began = time.monotonic()
                answer = line.call({**self._head, **request})[0]
                with self._changed:
                    trip_seconds = time.monotonic() - began
                    claims = self._has.answered(answer, self._head["rank"], request["count"], trip_seconds)
                    self._changed.notify_all()
                for claim in claims:
                    self._preparation.begin(claim)
            line.close()
        except (ConnectionError, KeyError) as error:
            with self._changed:
                self._failure, self._has.asking = error, False
                self._changed.notify_all()

    def _next(self) -> dict[str, Any] | None:
        """Wait for the time of the next request and return it; None at the end."""
        with self._changed:
            while not self._closed:
                if (request := self._has.request(time.monotonic())) is not None:
                    return request
                self._changed.wait(self._has.seconds_until_wanted(time.monotonic()))
            return None
