"""Membership server: the tables of groups, as part of the store's state. Without IO; standard library only.

A learner lives as long as it gives signs of life: one request about every second, answered at once when the view
changes. It is lost when its connection closes (a killed process), or when it has been silent for longer than its lease
(a stopped process, or one behind a cut cable).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from murmur.core.membership import MembershipTable, Shares
from murmur.worlds.process.wire_format import Head, seconds, text, whole, wholes

MOST_LEARNERS, MOST_NUMBERS, LARGEST = 1 << 16, 1 << 16, 1 << 62  # bounds on a group, on a request, on numbers
ENTRY_SECONDS = 120.0  # default time for learners to enter after the first one
MOST_WORDS = 500  # characters of a cause
LOOK_SECONDS = 0.02  # shortest interval between checks of the leases
PAUSE_SECONDS = 1.5  # a longer gap between checks means that no request arrived
RESUME_SECONDS = 5.0  # after a long pause of the server, for the learners of all hosts to be continued
# Answers to requests of a process that was replaced; those that change nothing are answered as ever.
LATE: dict[str, dict[str, Any]] = {"claim": {"claims": []}, "arrive": {"all": False}}
LATE |= {act: {} for act in ("beat", "divide", "leave", "fail")}


class Instant(NamedTuple):
    """A time.

    Attributes:
        seconds: On the clock of the server, which stands still during a pause of its process.
        settling: True after such a pause, while learners may not have been continued yet.
    """

    seconds: float
    settling: bool = False


class MembershipServer:
    """Server side of membership: one table per group.

    Leases do not run while the server cannot. After a pause of its own it waits for learners that are continued later.

    Attributes:
        changed: Groups whose view has changed, in order; its reader empties it.
    """

    def __init__(self, began: Instant) -> None:
        self.changed: dict[str, None] = {}
        self._tables: dict[str, MembershipTable] = {}
        self._until: dict[tuple[str, int], float] = {}  # ends of the learners' leases
        self._lease: dict[tuple[str, int], float] = {}
        self._waits: dict[tuple[str, int], tuple[str, float]] = {}  # what each learner waits for, and since when
        self._entered: dict[tuple[str, int], int] = {}  # incarnation of each learner's latest process at its entry
        self._ended: set[tuple[str, int]] = set()  # learners that have left; a sign of life may still be under way
        self._lost: dict[str, dict[int, str]] = defaultdict(dict)  # causes by group and rank, in order of the losses
        self._final: dict[str, set[int]] = defaultdict(set)  # lost learners that are not started again
        self._looked = began.seconds

    def answer(self, head: Head, now: Instant) -> dict[str, Any]:
        """Answer a request. Every answer holds what is `told`. See `act`."""
        return {**self.act(head, now), **self.told(head)}

    def act(self, head: Head, now: Instant) -> dict[str, Any]:
        """Do what a request {"act", "group", "rank", ...} asks.

        Requests name the "process" of the answer to its entry. One that arrives after another process of the learner
        has entered changes nothing: its claims would be those of the new process, which does not know of them.

        Raises:
            ValueError: The request is malformed, or names a group that no learner has entered.
        """
        acts: dict[str, Callable[[Head, float], dict[str, Any]]] = {
            "enter": self._enter,
            "beat": self._beat,
            "claim": lambda h, _: self._claim(h),
            "divide": lambda h, _: self._divide(h),
            "unfinished": lambda h, _: {"numbers": self._table(h).unfinished()},
            "complete": lambda h, _: {"complete": self._table(h).complete},
            "undone": lambda h, _: {"undone": self._table(h).undone},
            "spent": lambda h, _: {"spent": self._table(h).spent},
            "arrive": lambda h, _: {"all": self._table(h).arrive(self._rank(h), text(h, "barrier"))},
            "leave": lambda h, _: self._leave(h),
            "fail": lambda h, _: self._fail(h),
            "waits": self._tell_waits,
            "view": lambda _, __: {},
        }
        act = acts.get(text(head, "act"))
        if act is None:
            raise ValueError(f"a membership table knows no {head['act']!r}")
        self.expire(now)
        late = LATE.get(head["act"]) if self._is_replaced(head) else None
        return act(head, now.seconds) if late is None else dict(late)

    def told(self, head: Head) -> dict[str, Any]:
        """Return the view of a group and the causes of losses; its number alone, if the request names it as "known"."""
        view, lost = self._table(head).view, self._lost[text(head, "group")]
        if head.get("known") == view.number:
            return {"number": view.number}
        live = list(view.incarnations.items())
        final = sorted(self._final[text(head, "group")])
        return {"number": view.number, "live": live, "left": view.left, "lost": list(lost.items()), "final": final}

    def living(self, head: Head) -> int | None:
        """Return the incarnation of the process that sends a request; None if it is not alive, or was replaced."""
        return None if self._is_replaced(head) else self.incarnation(text(head, "group"), self._rank(head))

    def incarnation(self, membership: str, rank: int) -> int | None:
        return self._tables[membership].view.incarnations.get(rank)

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
            self.changed[membership] = None
        return {}

    def hung_up(self, membership: str, rank: int, incarnation: int) -> None:
        """Record that a connection that carried signs of life has closed."""
        if self.incarnation(membership, rank) == incarnation:
            self._lose(membership, rank, "its process has ended or its host has closed the connection")

    def _table(self, head: Head) -> MembershipTable:
        name = text(head, "group")
        if name not in self._tables:
            raise ValueError(f"no learner has entered {name!r}")
        return self._tables[name]

    def _is_replaced(self, head: Head) -> bool:
        """True if a request comes from a process of a learner of which a later one has entered."""
        who = text(head, "group"), self._rank(head)
        return "process" in head and head["process"] != self._entered.get(who)

    def _rank(self, head: Head) -> int:
        return whole(head, "rank", 0, MOST_LEARNERS - 1)

    def _enter(self, head: Head, now: float) -> dict[str, Any]:
        membership, lease = text(head, "group"), seconds(head, "lease")
        if membership not in self._tables:
            entry = seconds(head, "entry") if "entry" in head else ENTRY_SECONDS
            size, until = whole(head, "size", 1, MOST_LEARNERS), now + entry
            self._tables[membership] = MembershipTable.of(size)
            self._until.update({(membership, r): until for r in range(size)})
            for gone in [r for r in self._lost[membership] if r < size]:
                self._tables[membership].lose(gone)
        rank = self._rank(head)
        # True if it was here before, as another process, or if it was added.
        if (membership, rank) in self._entered or rank not in self._tables[membership].view.incarnations:
            self._join(membership, rank)
        self._entered[membership, rank] = self._tables[membership].view.incarnations[rank]
        self._ended.discard((membership, rank))
        self._renew(membership, rank, lease, now)
        return {"process": self._entered[membership, rank]}

    def _beat(self, head: Head, now: float) -> dict[str, Any]:
        table, membership, rank = self._table(head), text(head, "group"), self._rank(head)
        lease = seconds(head, "lease")
        if rank not in table.view.incarnations and (membership, rank) not in self._ended:
            self._join(membership, rank)  # it was wrongly considered dead
        self._renew(membership, rank, lease, now)
        waits, waited = head.get("waits", ""), head.get("waited", 0.0)
        if isinstance(waits, str) and isinstance(waited, float) and math.isfinite(waited):
            self._waits[membership, rank] = waits[:MOST_WORDS], now - waited
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
        self.changed[text(head, "group")] = None
        return {}

    def _fail(self, head: Head) -> dict[str, Any]:
        self._ended.add((text(head, "group"), self._rank(head)))
        if self._rank(head) in self._table(head).view.incarnations:
            self._lose(text(head, "group"), self._rank(head), text(head, "why")[:MOST_WORDS])
        return {}

    def _tell_waits(self, head: Head, now: float) -> dict[str, Any]:
        """Return [rank, what it waits for, seconds] of every live learner."""
        membership = text(head, "group")
        found = [
            (rank, *self._waits.get((membership, rank), ("", now))) for rank in self._table(head).view.incarnations
        ]
        return {"waits": [(rank, what, now - since) for rank, what, since in found]}

    def _join(self, membership: str, rank: int) -> None:
        self._tables[membership].join(rank)
        self._final[membership].discard(rank)
        self._lost[membership].pop(rank, None)
        self.changed[membership] = None

    def _lose(self, membership: str, rank: int, why: str) -> None:
        self._tables[membership].lose(rank)
        self._lost[membership].pop(rank, None)  # a repeated loss moves to the end of the order
        self._lost[membership][rank] = why
        self.changed[membership] = None

    def _renew(self, membership: str, rank: int, lease: float, now: float) -> None:
        self._lease[membership, rank] = lease
        self._until[membership, rank] = now + lease

    def expire(self, now: Instant) -> None:
        """Count learners as lost whose leases have ended; checks at most every `LOOK_SECONDS`."""
        pause = now.seconds - self._looked
        if pause < LOOK_SECONDS:
            return
        self._looked = now.seconds
        if pause > PAUSE_SECONDS:  # the server received nothing meanwhile: no learner is to blame
            self._until = {who: until + pause for who, until in self._until.items()}
        if now.settling:
            return
        for (membership, rank), until in self._until.items():
            if now.seconds > until and self.incarnation(membership, rank) is not None:
                lease = self._lease.get((membership, rank))
                silent = "" if lease is None else f"no sign of life for {lease + now.seconds - until:.2f} s, "
                why = "it has never come to the store" if lease is None else f"{silent}its deadline was {lease:.2f} s"
                self._lose(membership, rank, why)
