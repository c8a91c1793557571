"""Membership clients: of the server, and of shared counters for stores that can only count; and the stall table.

The stall table shows what each learner waits for, and since when, as told with its signs of life.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any

from murmur.core.membership import NOTHING, Membership, Preparation, Shares, View
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.claims import ClaimsAhead, Limits, claims_in
from murmur.worlds.process.membership_server import ENTRY_SECONDS
from murmur.worlds.process.store_server import StoreClient

log = logging.getLogger(__name__)
BEAT_SECONDS = 0.25
REACHABLE_SECONDS = 2.0  # since its latest answer, the server is expected to answer again
WORLD = "world"  # name of the membership, and of the group, of all learners
ENDED_ALREADY = "it has ended"
Report = Callable[[int, str], None]
TOLD_AFTER_SECONDS = 30.0  # wait after which it is reported; then again after twice as long
Told = tuple[str, float]  # (what is waited for, or "" for nothing; seconds)


def ignore(_rank: int, _why: str) -> None:
    """Ignore a loss."""


def stalls_of(line: StoreClient, prefix: str) -> str:
    """Return the stall table of the world whose keys have this prefix; ConnectionError if none has entered yet."""
    return stall_table(line.call({"do": "membership", "act": "waits", "group": prefix + WORLD, "rank": 0})[0])


class StoreMembership(Membership):
    """A learner's client of its group's membership table on the server.

    Every method raises ConnectionError if the server is gone.

    Attributes:
        lease_seconds: Silence allowed to this learner from its next sign of life on.
        lost: Causes of the losses of members that had not ended in order, by rank, in the order of their losses.

    Args:
        connect: Opens a connection to the server.
        entry_seconds: Time after the first entry until learners that have not entered count as lost.
        waiting: Returns what this learner waits for, and the seconds; sent with its signs of life.
    """

    def __init__(
        self,
        connect: Callable[[], StoreClient],
        name: str,
        rank: int,
        size: int,
        lease_seconds: float,
        entry_seconds: float = ENTRY_SECONDS,
        waiting: Callable[[], Told] = lambda: ("", 0.0),
    ) -> None:
        self.name, self.rank, self.lease_seconds = name, rank, lease_seconds
        self._line, self._pulse = connect(), connect()
        self._left = Event()
        self._failure: Exception | None = None
        self._waiting = waiting
        self._report: Report = ignore
        self._answered = awake_seconds()
        self._seeing = Lock()
        self._process: dict[str, int] = {}  # by which the server knows this process from an earlier one of the learner
        answer = self._ask("enter", size=size, lease=lease_seconds, entry=entry_seconds)
        self._process = {"process": answer["process"]}
        self._view, self.lost, self._final = _view(answer), _causes(answer), frozenset(answer["final"])
        self._latest: tuple[range, Limits] | None = None
        head = self._request("claim")
        self._ahead = ClaimsAhead(connect, head, lambda: (self._view.number, self._view.incarnations.get(rank)))
        self._thread = Thread(target=self._beat, name=f"signs of life in {name}", daemon=True)
        self._thread.start()

    def report_losses(self, report: Report) -> None:
        """Report losses from now on: a member is gone, or is another process now.

        `report` is called with the rank and the cause, before this client's view shows the loss; also for members that
        were lost before, once it is known that they are not started again.
        """
        with self._seeing:
            if self._report is not ignore:
                raise RuntimeError(f"the losses of {self.name} are reported already")
            self._report = report
            for rank in self._final:
                report(rank, self.lost.get(rank, ENDED_ALREADY))

    def view(self, fresh: bool = False) -> View:
        if self._failure is not None:
            raise ConnectionError(f"learner {self.rank} cannot reach the store: {self._failure}") from self._failure
        if fresh:
            self._see(self._ask("view"))
        return self._view

    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        claim = self._ahead.take()
        if claim is None:
            began = time.monotonic()
            bounds = Limits(first, total, size)._asdict()
            answer = self._ask("claim", known=self._view.number, **bounds, doing=[], done=[], count=1)
            self._ahead.took(time.monotonic() - began)
            claim = next(iter(claims_in(answer)), None)
        self._latest = None if claim is None else (claim, Limits(first, total, size))
        return claim

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:
        if self._latest is not None:
            self._ahead.expect(*self._latest, seconds, preparation)

    def divide(self, shares: Shares) -> None:
        self._ask("divide", places=list(shares.places), of=shares.of)

    def unfinished(self) -> Collection[int]:
        return list(self._ask("unfinished")["numbers"])

    @property
    def complete(self) -> bool:
        return bool(self._ask("complete")["complete"])

    @property
    def spent(self) -> bool:
        return bool(self._ask("spent", known=self._view.number)["spent"])

    @property
    def undone(self) -> int | None:
        found = self._ask("undone")["undone"]
        return None if found is None else int(found)

    def arrive(self, barrier: str) -> bool:
        return bool(self._ask("arrive", known=self._view.number, barrier=barrier)["all"])

    def leave(self) -> None:
        if not self._left.is_set():
            self._end("leave")

    @property
    def unheard_seconds(self) -> float:
        """Seconds since the server answered a sign of life of this learner; it does so several times a second."""
        return awake_seconds() - self._answered

    def stalls(self) -> str:
        return stall_table(self._ask("waits")) if self.unheard_seconds < REACHABLE_SECONDS else ""

    def fail(self, why: str) -> None:
        """End before the others, and tell them the cause."""
        if not self._left.is_set():
            self._end("fail" if self.unheard_seconds < REACHABLE_SECONDS else "", why=why)

    def _end(self, act: str, **more: object) -> None:
        """Send a last request, or none if `act` is empty, and close the connections."""
        self._left.set()
        self._ahead.close()
        try:
            if act:
                self._ask(act, **more)
        finally:  # a line that closes before the request is answered is a loss without its cause
            self._line.close()
            self._pulse.close()

    def _ask(self, act: str, **more: object) -> dict[str, Any]:
        return self._line.call(self._request(act, **more))[0]

    def _request(self, act: str, **more: object) -> dict[str, Any]:
        return {"do": "membership", "act": act, "group": self.name, "rank": self.rank, **self._process, **more}

    def _see(self, answer: dict[str, Any]) -> None:
        with self._seeing:
            if answer["number"] <= self._view.number:
                return
            view, before = _view(answer), self._view.incarnations
            self.lost = _causes(answer)
            for rank in before.keys() - {self.rank}:
                if view.incarnations.get(rank) != before[rank]:
                    again = "it was started again" if rank in view.incarnations else ENDED_ALREADY
                    self._report(rank, self.lost.get(rank, again))
            for rank in frozenset(answer["final"]) - self._final - before.keys():
                self._report(rank, self.lost.get(rank, ENDED_ALREADY))
            self._final = frozenset(answer["final"])
            own = view.incarnations.get(self.rank)
            if own is not None and own != before.get(self.rank, own):
                log.warning(
                    "learner %d was silent for longer than %.2f s: the others counted it as lost (murmur train"
                    " --lease-seconds or murmur.Plan(lease_seconds=...) allows more)",
                    *(self.rank, self.lease_seconds),
                )
            self._view = view

    def _beat(self) -> None:
        try:
            while not self._left.is_set():
                lease = self.lease_seconds
                waits, waited = self._waiting()
                told = {"waits": waits, "waited": waited, "known": self._view.number, "lease": lease}
                self._see(self._pulse.call(self._request("beat", seconds=min(BEAT_SECONDS, lease / 4), **told))[0])
                self._answered = awake_seconds()
        except (ConnectionError, KeyError) as error:
            self._failure = None if self._left.is_set() else error
        finally:
            if not self._left.is_set():
                self._pulse.close()


class CountedMembership(Membership):
    """Membership made of shared counters, for stores that can only count: claims work, losses are not detected."""

    def __init__(self, count: Callable[[str, int], int], rank: int, size: int) -> None:
        self._count, self.rank, self.size = count, rank, size
        self._limits = (0, 0)
        self._doing = 0
        self._shares: Shares | None = None
        self._reached: set[str] = set()

    def view(self, fresh: bool = False) -> View:  # noqa: ARG002 - the view never changes
        return View(0, dict.fromkeys(range(self.size), 0))

    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        self._limits = (first, total)
        if self._doing:
            self._count("done", self._doing)
        if self._shares is not None:
            turn = self._count(f"share of {self.rank}", 1) - 1
            claim = self._shares.of_rank(self.rank, turn, first, total)
        else:
            end = first + self._count("claimed", size)
            claim = range(end - size, min(end, total))
        self._doing = len(claim)
        return claim or None

    def divide(self, shares: Shares) -> None:
        self._shares = shares

    @property
    def complete(self) -> bool:
        return True  # counters detect no loss

    @property
    def spent(self) -> bool:
        first, total = self._limits
        return self._count("done", 0) >= total - first

    def arrive(self, barrier: str) -> bool:
        fresh = 0 if barrier in self._reached else 1
        self._reached.add(barrier)
        return self._count(f"reached {barrier}", fresh) >= self.size

    def leave(self) -> None:
        """Do nothing: counters detect no departure."""


def _view(answer: dict[str, Any]) -> View:
    return View(answer["number"], {int(rank): int(incarnation) for rank, incarnation in answer["live"]}, answer["left"])


def _causes(answer: dict[str, Any]) -> Mapping[int, str]:
    return {int(rank): str(why) for rank, why in answer["lost"]}


class Waits:
    """Current waits of the threads of one learner."""

    def __init__(self) -> None:
        self._open: list[Wait] = []
        self._lock = Lock()

    @contextmanager
    def on(self, what: str) -> Iterator[Wait]:
        """Register a wait of this thread for the duration of the block."""
        wait = Wait(what, awake_seconds())
        with self._lock:
            self._open.append(wait)
        try:
            yield wait
        finally:
            with self._lock:
                self._open.remove(wait)

    def longest(self) -> Told:
        """Return the longest current wait: what for, and the seconds."""
        with self._lock:
            wait = min(self._open, key=lambda each: each.since, default=Wait("", awake_seconds()))
        return wait.what, awake_seconds() - wait.since


class Wait:
    """One wait, to be reported when it lasts long."""

    def __init__(self, what: str, since: float) -> None:
        self.what, self.since, self._next = what, since, TOLD_AFTER_SECONDS

    def is_long(self) -> bool:
        """True if the wait has become long, or twice as long as when this was last true."""
        if awake_seconds() - self.since < self._next:
            return False
        self._next *= 2
        return True


def stall_table(answer: Mapping[str, Any]) -> str:
    """Return the stall table in an answer of the server.

    Lost learners come first, then those that wait for no other (they cause the others' waits), then the longest waits.
    """
    gone = [f"  learner {rank}: lost, {why}" for rank, why in sorted(answer["lost"])]
    busy = [f"  learner {rank}: waits for no learner" for rank, what, _ in sorted(answer["waits"]) if not what]
    waiting = sorted((-seconds, rank, what) for rank, what, seconds in answer["waits"] if what)
    lines = [f"  learner {rank}: has waited {-seconds:.1f} s for {what}" for seconds, rank, what in waiting]
    return "\n".join(["learners and their waits:", *gone, *busy, *lines])


def ranks(numbers: Sequence[int]) -> str:
    """Return ranks in short form, with runs as 0-3."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs)
