"""The register of a group kept by the key-value server, and a learner's line to it. Standard library only.

A learner lives as long as it gives signs of life: one request about every second, answered at once when the view
changes. It is lost when its connection closes (a killed process) or when it has been silent for the seconds of its
lease (a stopped one, or one behind a cut cable).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, Event, Thread
from typing import Any

from murmur.roll import NOTHING, Preparation, Register, Roll, View
from murmur.worlds.torch.claims import ClaimsAhead, Line

BEAT_SECONDS = 1.0
ENTRY_SECONDS = 120.0  # learners that have never given a sign of life are waited for longer: they are still starting


class Rollcall:
    """The server's side: one register a group. The caller holds the lock of `changed`."""

    def __init__(self, changed: Condition) -> None:
        self._changed = changed
        self._registers: dict[str, Register] = {}
        self._until: dict[tuple[str, int], float] = {}  # when a learner's lease runs out
        self._entered: set[tuple[str, int]] = set()

    def answer(self, head: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request {"act", "roll", "rank", ...}; every answer holds the view."""
        acts: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "enter": self._enter,
            "beat": self._beat,
            "claim": self._claim,
            "spent": lambda h: {"spent": self._registers[h["roll"]].spent},
            "reach": lambda h: {"all": self._registers[h["roll"]].reach(h["rank"], h["stage"])},
            "leave": self._leave,
            "view": lambda _: {},
        }
        self._expire()
        found = acts[head["act"]](head)
        view = self._registers[head["roll"]].view
        return {**found, "number": view.number, "live": list(view.incarnations.items()), "left": view.left}

    def hung_up(self, roll: str, rank: int, incarnation: int) -> None:
        """A connection over which signs of life came has closed."""
        register = self._registers[roll]
        if register.view.incarnations.get(rank) == incarnation:
            register.lose(rank)
            self._changed.notify_all()

    def _enter(self, head: dict[str, Any]) -> dict[str, Any]:
        roll, rank = head["roll"], head["rank"]
        if roll not in self._registers:
            self._registers[roll] = Register.of(head["size"])
            self._until.update({(roll, r): time.monotonic() + ENTRY_SECONDS for r in range(head["size"])})
        if (roll, rank) in self._entered:  # it was here before: this is another process
            self._join(roll, rank)
        self._entered.add((roll, rank))
        self._until[roll, rank] = time.monotonic() + head["lease"]
        return {}

    def _beat(self, head: dict[str, Any]) -> dict[str, Any]:
        roll, rank = head["roll"], head["rank"]
        register = self._registers[roll]
        if rank not in register.view.incarnations:  # it was thought dead, and is not
            self._join(roll, rank)
        self._until[roll, rank] = time.monotonic() + head["lease"]
        deadline = time.monotonic() + head["seconds"]
        while register.view.number == head["known"]:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._changed.wait(left)
            self._expire()
        return {}

    def _claim(self, head: dict[str, Any]) -> dict[str, Any]:
        """Numbers for a learner that is still at some (`doing`, all others of its own are done), and those it names."""
        register, rank, found = self._registers[head["roll"]], head["rank"], list[int]()
        for number in head["done"]:
            register.done(rank, number)
        for _ in range(head["count"]):
            number = register.claim(rank, head["first"], head["total"], [*head["doing"], *found])
            if number is None:
                break
            found.append(number)
        return {"numbers": found}

    def _leave(self, head: dict[str, Any]) -> dict[str, Any]:
        self._registers[head["roll"]].leave(head["rank"])
        self._changed.notify_all()
        return {}

    def _join(self, roll: str, rank: int) -> None:
        self._registers[roll].join(rank)
        self._changed.notify_all()

    def _expire(self) -> None:
        now = time.monotonic()
        for (roll, rank), until in self._until.items():
            register = self._registers[roll]
            if now > until and rank in register.view.incarnations:
                register.lose(rank)
                self._changed.notify_all()


class NetRoll(Roll):
    """A learner's line to the register of its group on the server.

    Raises:
        ConnectionError: the server is gone (from every method).
    """

    def __init__(self, connect: Callable[[], Line], name: str, rank: int, size: int, lease_seconds: float) -> None:
        self.name, self.rank, self.lease_seconds = name, rank, lease_seconds
        self._line, self._pulse = connect(), connect()
        self._left = Event()
        self._failure: Exception | None = None
        self._view = _view(self._ask("enter", size=size, lease=lease_seconds))
        self._latest: tuple[int, tuple[int, int]] | None = None  # and the limits it was made in
        head = {"do": "roll", "act": "claim", "roll": name, "rank": rank}
        self._ahead = ClaimsAhead(connect, head, lambda: self._view.incarnations.get(rank))
        self._thread = Thread(target=self._beat, name=f"signs of life in {name}", daemon=True)
        self._thread.start()

    def view(self, fresh: bool = False) -> View:
        if self._failure is not None:
            raise ConnectionError(f"learner {self.rank} cannot reach the store: {self._failure}") from self._failure
        if fresh:
            self._see(_view(self._ask("view")))
        return self._view

    def claim(self, first: int, total: int) -> int | None:
        number = self._ahead.take()
        if number is None:
            began = time.monotonic()
            numbers = self._ask("claim", first=first, total=total, doing=[], done=[], count=1)["numbers"]
            self._ahead.took(time.monotonic() - began)
            number = numbers[0] if numbers else None
        self._latest = None if number is None else (number, (first, total))
        return number

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:
        if self._latest is not None:
            self._ahead.expect(*self._latest, seconds, preparation)

    @property
    def spent(self) -> bool:
        return bool(self._ask("spent")["spent"])

    def reach(self, stage: str) -> bool:
        return bool(self._ask("reach", stage=stage)["all"])

    def leave(self) -> None:
        if not self._left.is_set():
            self._left.set()
            self._ahead.close()
            self._ask("leave")
            self._line.close()

    def _ask(self, act: str, **more: object) -> dict[str, Any]:
        return self._line.call({"do": "roll", "act": act, "roll": self.name, "rank": self.rank, **more})[0]

    def _see(self, view: View) -> None:
        if view.number > self._view.number:
            self._view = view

    def _beat(self) -> None:
        head = {"do": "roll", "act": "beat", "roll": self.name, "rank": self.rank, "lease": self.lease_seconds}
        try:
            while not self._left.is_set():
                now = {"known": self._view.number, "seconds": min(BEAT_SECONDS, self.lease_seconds / 4)}
                self._see(_view(self._pulse.call({**head, **now})[0]))
        except (ConnectionError, KeyError) as error:
            self._failure = None if self._left.is_set() else error
        finally:
            self._pulse.close()


class CountedRoll(Roll):
    """A register made of shared counters, for stores that only count: claims work, deaths are not noticed."""

    def __init__(self, count: Callable[[str, int], int], rank: int, size: int) -> None:
        self._count, self.rank, self.size = count, rank, size
        self._limits = (0, 0)
        self._doing = False
        self._reached: set[str] = set()

    def view(self, fresh: bool = False) -> View:  # noqa: ARG002 - nothing ever changes
        return View(0, dict.fromkeys(range(self.size), 0))

    def claim(self, first: int, total: int) -> int | None:
        self._limits = (first, total)
        if self._doing:
            self._count("done", 1)
        number = first + self._count("claimed", 1) - 1
        self._doing = number < total
        return number if self._doing else None

    @property
    def spent(self) -> bool:
        first, total = self._limits
        return self._count("done", 0) >= total - first

    def reach(self, stage: str) -> bool:
        fresh = 0 if stage in self._reached else 1
        self._reached.add(stage)
        return self._count(f"reached {stage}", fresh) >= self.size

    def leave(self) -> None:
        """Nobody else would notice."""


def _view(answer: dict[str, Any]) -> View:
    return View(answer["number"], {int(rank): int(incarnation) for rank, incarnation in answer["live"]}, answer["left"])
