"""Membership server: the table of a group, kept by the store server. Standard library only.

A learner lives as long as it gives signs of life: one request about every second, answered at once when the view
changes. It is lost when its connection closes (a killed process), or when it has been silent for longer than its lease
(a stopped process, or one behind a cut cable).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from threading import Condition
from typing import Any

from murmur.core.membership import MembershipTable, Shares
from murmur.worlds.awake_clock import AwakeClock, awake_clock
from murmur.worlds.process.wire_format import Head, seconds, text, whole, wholes

MOST_LEARNERS, MOST_NUMBERS, LARGEST = 1 << 16, 1 << 16, 1 << 62  # bounds on a group, on a request, on numbers
ENTRY_SECONDS = 120.0  # default time for learners to enter after the first one
MOST_WORDS = 500  # characters of a cause
LOOK_SECONDS = 0.02  # shortest interval between checks of the leases
PAUSE_SECONDS = 1.5  # a longer gap between checks means that no request arrived
RESUME_SECONDS = 5.0  # after a long pause of the server, for the learners of all hosts to be continued


class MembershipServer:
    """Server side of membership: one table per group. The caller holds the lock of `changed`.

    Leases do not run while the server cannot. After a pause of its own it waits for learners that are continued later.
    """

    def __init__(self, changed: Condition, clock: AwakeClock | None = None) -> None:
        self._changed, self._clock = changed, clock or awake_clock()
        self._tables: dict[str, MembershipTable] = {}
        self._until: dict[tuple[str, int], float] = {}  # ends of the learners' leases
        self._lease: dict[tuple[str, int], float] = {}
        self._waits: dict[tuple[str, int], tuple[str, float]] = {}  # what each learner waits for, and since when
        self._entered: set[tuple[str, int]] = set()
        self._ended: set[tuple[str, int]] = set()  # learners that have left; a sign of life may still be under way
        self._lost: dict[str, dict[int, str]] = defaultdict(dict)  # causes by group and rank, in order of the losses
        self._final: dict[str, set[int]] = defaultdict(set)  # lost learners that are not started again
        self._looked = self._clock()

    def answer(self, head: Head) -> dict[str, Any]:
        """Answer a request {"act", "group", "rank", ...}; every answer holds the view and the causes of losses.

        Raises:
            ValueError: The request is malformed, or names a group that no learner has entered.
        """
        acts: dict[str, Callable[[Head], dict[str, Any]]] = {
            "enter": self._enter,
            "beat": self._beat,
            "claim": self._claim,
            "divide": self._divide,
            "unfinished": lambda h: {"numbers": self._table(h).unfinished()},
            "complete": lambda h: {"complete": self._table(h).complete},
            "undone": lambda h: {"undone": self._table(h).undone},
            "spent": lambda h: {"spent": self._table(h).spent},
            "arrive": lambda h: {"all": self._table(h).arrive(self._rank(h), text(h, "barrier"))},
            "leave": self._leave,
            "fail": self._fail,
            "waits": self._tell_waits,
            "view": lambda _: {},
        }
        act = acts.get(text(head, "act"))
        if act is None:
            raise ValueError(f"a membership table knows no {head['act']!r}")
        self._expire()
        found = act(head)
        view, lost = self._table(head).view, self._lost[text(head, "group")]
        live = list(view.incarnations.items())
        final = sorted(self._final[text(head, "group")])
        told = {"number": view.number, "live": live, "left": view.left, "lost": list(lost.items()), "final": final}
        return {**found, **told}

    def gone(self, head: Head) -> dict[str, Any]:
        """Record that a learner's process has ended, as told by the launcher; it may never have entered.

        With `final` it is not started again, and no other learner may wait for it.
        """
        membership, rank, why = text(head, "group"), self._rank(head), text(head, "why")[:MOST_WORDS]
        final = head.get("final") is True
        if final:
            self._final[membership].add(rank)
        if membership not in self._tables:
            self._lost[membership][rank] = why  # the first learner that enters makes the table
        elif rank in self._tables[membership].view.incarnations:
            self._lose(membership, rank, why)
        elif final:
            self._tables[membership].renumber()
            self._changed.notify_all()
        return {}

    def hung_up(self, membership: str, rank: int, incarnation: int) -> None:
        """Record that a connection that carried signs of life has closed."""
        if self._tables[membership].view.incarnations.get(rank) == incarnation:
            self._lose(membership, rank, "its process has ended or its host has closed the connection")

    def _table(self, head: Head) -> MembershipTable:
        name = text(head, "group")
        if name not in self._tables:
            raise ValueError(f"no learner has entered {name!r}")
        return self._tables[name]

    def _rank(self, head: Head) -> int:
        return whole(head, "rank", 0, MOST_LEARNERS - 1)

    def _enter(self, head: Head) -> dict[str, Any]:
        membership, lease = text(head, "group"), seconds(head, "lease")
        if membership not in self._tables:
            entry = seconds(head, "entry") if "entry" in head else ENTRY_SECONDS
            size, until = whole(head, "size", 1, MOST_LEARNERS), self._clock() + entry
            self._tables[membership] = MembershipTable.of(size)
            self._until.update({(membership, r): until for r in range(size)})
            for gone in [r for r in self._lost[membership] if r < size]:
                self._tables[membership].lose(gone)
        rank = self._rank(head)
        # True if it was here before, as another process, or if it was added.
        if (membership, rank) in self._entered or rank not in self._tables[membership].view.incarnations:
            self._join(membership, rank)
        self._entered.add((membership, rank))
        self._ended.discard((membership, rank))
        self._renew(membership, rank, lease)
        return {}

    def _beat(self, head: Head) -> dict[str, Any]:
        table, membership, rank = self._table(head), text(head, "group"), self._rank(head)
        known, lease = whole(head, "known", -1, LARGEST), seconds(head, "lease")
        deadline = self._clock() + seconds(head, "seconds")
        if rank not in table.view.incarnations and (membership, rank) not in self._ended:
            self._join(membership, rank)  # it was wrongly considered dead
        self._renew(membership, rank, lease)
        waits, waited = head.get("waits", ""), head.get("waited", 0.0)
        if isinstance(waits, str) and isinstance(waited, float) and math.isfinite(waited):
            self._waits[membership, rank] = waits[:MOST_WORDS], self._clock() - waited
        while table.view.number == known:
            left = deadline - self._clock()
            if left <= 0:
                break
            self._changed.wait(left)
            self._expire()
        return {}

    def _claim(self, head: Head) -> dict[str, Any]:
        """Claim for a learner that still does the numbers `doing`; its other numbers, and `done`, become done."""
        table, rank, found = self._table(head), self._rank(head), list[range]()
        doing, size = wholes(head, "doing", 0, LARGEST), whole(head, "size", 1, MOST_NUMBERS)
        first, total = whole(head, "first", 0, LARGEST), whole(head, "total", 0, LARGEST)
        count = whole(head, "count", 0, MOST_NUMBERS // size)
        for ended in wholes(head, "done", 0, LARGEST):
            table.done(rank, ended)
        for _ in range(count):
            claim = table.claim(rank, first, total, size, doing)
            if claim is None:
                break
            found.append(claim)
            doing.extend(claim)
        return {"claims": [(claim.start, claim.stop) for claim in found]}

    def _divide(self, head: Head) -> dict[str, Any]:
        places = tuple(wholes(head, "places", 0, LARGEST))
        self._table(head).divide(Shares(places, whole(head, "of", 1, LARGEST)))
        return {}

    def _leave(self, head: Head) -> dict[str, Any]:
        self._ended.add((text(head, "group"), self._rank(head)))
        self._table(head).leave(self._rank(head))
        self._changed.notify_all()
        return {}

    def _fail(self, head: Head) -> dict[str, Any]:
        self._ended.add((text(head, "group"), self._rank(head)))
        if self._rank(head) in self._table(head).view.incarnations:
            self._lose(text(head, "group"), self._rank(head), text(head, "why")[:MOST_WORDS])
        return {}

    def _tell_waits(self, head: Head) -> dict[str, Any]:
        """Return [rank, what it waits for, seconds] of every live learner."""
        membership, now = text(head, "group"), self._clock()
        found = [
            (rank, *self._waits.get((membership, rank), ("", now))) for rank in self._table(head).view.incarnations
        ]
        return {"waits": [(rank, what, now - since) for rank, what, since in found]}

    def _join(self, membership: str, rank: int) -> None:
        self._tables[membership].join(rank)
        self._final[membership].discard(rank)
        self._lost[membership].pop(rank, None)
        self._changed.notify_all()

    def _lose(self, membership: str, rank: int, why: str) -> None:
        self._tables[membership].lose(rank)
        self._lost[membership].pop(rank, None)  # a repeated loss moves to the end of the order
        self._lost[membership][rank] = why
        self._changed.notify_all()

    def _renew(self, membership: str, rank: int, lease: float) -> None:
        self._lease[membership, rank] = lease
        self._until[membership, rank] = self._clock() + lease

    def _expire(self) -> None:
        now = self._clock()
        pause, self._looked = now - self._looked, max(self._looked, now - LOOK_SECONDS)
        if pause < LOOK_SECONDS:
            return
        self._looked = now
        if pause > PAUSE_SECONDS:  # the server received nothing meanwhile: no learner is to blame
            self._until = {who: until + pause for who, until in self._until.items()}
        if self._clock.settles(RESUME_SECONDS):
            return
        for (membership, rank), until in self._until.items():
            if now > until and rank in self._tables[membership].view.incarnations:
                lease = self._lease.get((membership, rank))
                silent = "" if lease is None else f"no sign of life for {lease + now - until:.2f} s, "
                why = "it has never come to the store" if lease is None else f"{silent}its deadline was {lease:.2f} s"
                self._lose(membership, rank, why)
