"""The register of a group as the key-value server keeps it. Standard library only.

A learner lives as long as it gives signs of life: one request about every second, answered at once when the view
changes. It is lost when its connection closes (a killed process) or when it has been silent for the seconds of its
lease (a stopped one, or one behind a cut cable).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from threading import Condition
from typing import Any

from murmur.core.membership import Register
from murmur.worlds.process.transport.wire_format import Head, seconds, text, whole, wholes

MOST_LEARNERS, MOST_NUMBERS, LARGEST = 1 << 16, 1 << 16, 1 << 62  # of a group, claimed by a request, of numbers
ENTRY_SECONDS = 120.0  # for learners to enter after the first one, where that names no other time
MOST_WORDS = 500  # letters of a reason
LOOK_SECONDS = 0.02  # leases are looked at no more often than this
PAUSE_SECONDS = 1.5  # while learners live the server looks more often; where it did not, it was stopped itself


class Rollcall:
    """The server's side: one register a group. The caller holds the lock of `changed`."""

    def __init__(self, changed: Condition) -> None:
        self._changed = changed
        self._registers: dict[str, Register] = {}
        self._until: dict[tuple[str, int], float] = {}  # when a learner's lease runs out
        self._lease: dict[tuple[str, int], float] = {}
        self._waits: dict[tuple[str, int], tuple[str, float]] = {}  # for what, since when
        self._entered: set[tuple[str, int]] = set()
        self._ended: set[tuple[str, int]] = set()  # have said so; a sign of life may still be under way
        self._lost: dict[str, dict[int, str]] = defaultdict(dict)  # of every roll: why, in the order of the losses
        self._looked = time.monotonic()

    def answer(self, head: Head) -> dict[str, Any]:
        """The answer to a request {"act", "roll", "rank", ...}; every answer holds the view, and why who is lost.

        Raises:
            ValueError: the request is none, or of a group that nobody has entered.
        """
        acts: dict[str, Callable[[Head], dict[str, Any]]] = {
            "enter": self._enter,
            "beat": self._beat,
            "claim": self._claim,
            "unfinished": lambda h: {"numbers": self._register(h).unfinished()},
            "complete": lambda h: {"complete": self._register(h).complete},
            "spent": lambda h: {"spent": self._register(h).spent},
            "reach": lambda h: {"all": self._register(h).reach(self._rank(h), text(h, "stage"))},
            "leave": self._leave,
            "fail": self._fail,
            "waits": self._tell_waits,
            "view": lambda _: {},
        }
        act = acts.get(text(head, "act"))
        if act is None:
            raise ValueError(f"a register knows no {head['act']!r}")
        self._expire()
        found = act(head)
        view, lost = self._register(head).view, self._lost[text(head, "roll")]
        live = list(view.incarnations.items())
        return {**found, "number": view.number, "live": live, "left": view.left, "lost": list(lost.items())}

    def gone(self, head: Head) -> dict[str, Any]:
        """The launcher says that a learner's process has ended, which may never have come to the register."""
        roll, rank = text(head, "roll"), self._rank(head)
        if roll in self._registers and rank in self._registers[roll].view.incarnations:
            self._lose(roll, rank, text(head, "why")[:MOST_WORDS])
        return {}

    def hung_up(self, roll: str, rank: int, incarnation: int) -> None:
        """A connection over which signs of life came has closed."""
        if self._registers[roll].view.incarnations.get(rank) == incarnation:
            self._lose(roll, rank, "its process has ended or its host has closed the connection")

    def _register(self, head: Head) -> Register:
        name = text(head, "roll")
        if name not in self._registers:
            raise ValueError(f"nobody has entered {name!r}")
        return self._registers[name]

    def _rank(self, head: Head) -> int:
        return whole(head, "rank", 0, MOST_LEARNERS - 1)

    def _enter(self, head: Head) -> dict[str, Any]:
        roll, lease = text(head, "roll"), seconds(head, "lease")
        if roll not in self._registers:
            entry = seconds(head, "entry") if "entry" in head else ENTRY_SECONDS
            size, until = whole(head, "size", 1, MOST_LEARNERS), time.monotonic() + entry
            self._registers[roll] = Register.of(size)
            self._until.update({(roll, r): until for r in range(size)})
        rank = self._rank(head)
        # It was here before, so this is another process; or it is one more than there were.
        if (roll, rank) in self._entered or rank not in self._registers[roll].view.incarnations:
            self._join(roll, rank)
        self._entered.add((roll, rank))
        self._ended.discard((roll, rank))
        self._renew(roll, rank, lease)
        return {}

    def _beat(self, head: Head) -> dict[str, Any]:
        register, roll, rank = self._register(head), text(head, "roll"), self._rank(head)
        known, lease = whole(head, "known", -1, LARGEST), seconds(head, "lease")
        deadline = time.monotonic() + seconds(head, "seconds")
        if rank not in register.view.incarnations and (roll, rank) not in self._ended:
            self._join(roll, rank)  # it was thought dead, and is not
        self._renew(roll, rank, lease)
        waits, waited = head.get("waits", ""), head.get("waited", 0.0)
        if isinstance(waits, str) and isinstance(waited, float) and math.isfinite(waited):
            self._waits[roll, rank] = waits[:MOST_WORDS], time.monotonic() - waited
        while register.view.number == known:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._changed.wait(left)
            self._expire()
        return {}

    def _claim(self, head: Head) -> dict[str, Any]:
        """Claims for a learner that is still at the numbers `doing`; all others that it held, and `done`, are done."""
        register, rank, found = self._register(head), self._rank(head), list[range]()
        doing, size = wholes(head, "doing", 0, LARGEST), whole(head, "size", 1, MOST_NUMBERS)
        first, total = whole(head, "first", 0, LARGEST), whole(head, "total", 0, LARGEST)
        count = whole(head, "count", 0, MOST_NUMBERS // size)
        for ended in wholes(head, "done", 0, LARGEST):
            register.done(rank, ended)
        for _ in range(count):
            claim = register.claim(rank, first, total, size, doing)
            if claim is None:
                break
            found.append(claim)
            doing.extend(claim)
        return {"claims": [(claim.start, claim.stop) for claim in found]}

    def _leave(self, head: Head) -> dict[str, Any]:
        self._ended.add((text(head, "roll"), self._rank(head)))
        self._register(head).leave(self._rank(head))
        self._changed.notify_all()
        return {}

    def _fail(self, head: Head) -> dict[str, Any]:
        self._ended.add((text(head, "roll"), self._rank(head)))
        if self._rank(head) in self._register(head).view.incarnations:
            self._lose(text(head, "roll"), self._rank(head), text(head, "why")[:MOST_WORDS])
        return {}

    def _tell_waits(self, head: Head) -> dict[str, Any]:
        """[rank, for what, seconds] of every live learner."""
        roll, now = text(head, "roll"), time.monotonic()
        found = [(rank, *self._waits.get((roll, rank), ("", now))) for rank in self._register(head).view.incarnations]
        return {"waits": [(rank, what, now - since) for rank, what, since in found]}

    def _join(self, roll: str, rank: int) -> None:
        self._registers[roll].join(rank)
        self._lost[roll].pop(rank, None)
        self._changed.notify_all()

    def _lose(self, roll: str, rank: int, why: str) -> None:
        self._registers[roll].lose(rank)
        self._lost[roll].pop(rank, None)  # what was lost again is the latest
        self._lost[roll][rank] = why
        self._changed.notify_all()

    def _renew(self, roll: str, rank: int, lease: float) -> None:
        self._lease[roll, rank] = lease
        self._until[roll, rank] = time.monotonic() + lease

    def _expire(self) -> None:
        now = time.monotonic()
        pause, self._looked = now - self._looked, max(self._looked, now - LOOK_SECONDS)
        if pause < LOOK_SECONDS:
            return
        self._looked = now
        if pause > PAUSE_SECONDS:  # nobody was heard meanwhile, whether he spoke or not
            self._until = {who: until + pause for who, until in self._until.items()}
        for (roll, rank), until in self._until.items():
            if now > until and rank in self._registers[roll].view.incarnations:
                lease = self._lease.get((roll, rank))
                silent = "" if lease is None else f"no sign of life for {lease + now - until:.2f} s, "
                why = "it has never come to the store" if lease is None else f"{silent}its deadline was {lease:.2f} s"
                self._lose(roll, rank, why)
