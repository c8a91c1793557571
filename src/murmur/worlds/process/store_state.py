"""State of the store: keys and membership, without IO. Standard library only.

It takes requests of clients with their times, and returns replies. A request that has to wait is parked until what it
waits for has changed, or its time is over. A client sends its next request after the reply to the one before.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from murmur.worlds.process.membership_server import Instant, MembershipServer
from murmur.worlds.process.wire_format import Head, seconds, text, texts, whole

LARGEST = 1 << 62  # bound on counters
SPARE_ENDS = 64  # ends of requests that are answered already, before these are dropped
Answer = tuple[Head, bytes]


class Reply(NamedTuple):
    """Answer to the request of a client."""

    client: int
    head: Head
    value: bytes


@dataclass(frozen=True)
class Parked:
    """A request that waits.

    Attributes:
        names: Keys or groups whose change may answer it.
        answer: Returns the answer; None: it waits on. It is told whether the time is over, and then has an answer.
    """

    serial: int
    names: tuple[tuple[str, str], ...]
    answer: Callable[[bool], Answer | None]


NOTHING = Parked(0, (), lambda _: None)


class StoreState:
    """Keys with their values, and the membership of groups.

    Every method returns the replies that are due, also to requests of other clients.
    """

    def __init__(self, began: Instant) -> None:
        self.membership = MembershipServer(began)
        self._values: dict[str, bytes] = {}
        self._changed: dict[tuple[str, str], None] = {}  # names that have changed since the last look
        self._parked: dict[int, Parked] = {}
        self._waiting: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)  # clients by what they wait for
        self._ends: list[tuple[float, int, int]] = []  # heap of (end, serial, client); some are answered already
        self._serial = 0
        # Incarnations of the learners that have entered, or given signs of life, over the connection of a client.
        self._living: dict[int, dict[tuple[str, int], int | None]] = defaultdict(dict)

    def receive(self, client: int, head: Head, value: bytes, now: Instant) -> list[Reply]:
        """Take a request.

        Raises:
            ValueError: The request is malformed; the connection of the client is to be closed.
        """
        verbs: dict[str, Callable[[int, Head, bytes, Instant], Answer | None]] = {
            "set": self._set,
            "add": self._add,
            "wait": self._wait,
            "swap": self._swap,
            "check": lambda _, h, *__: ({"there": all(k in self._values for k in texts(h, "keys"))}, b""),
            "delete": lambda _, h, *__: ({"there": self._values.pop(text(h, "key"), None) is not None}, b""),
            "membership": self._member,
            "gone": lambda _, h, *__: (self.membership.gone(h), b""),
            "size": lambda *_: ({"total": len(self._values)}, b""),
        }
        verb = verbs.get(text(head, "do"))
        if verb is None:
            raise ValueError(f"the store knows no request {head['do']!r}")
        answer = verb(client, head, value, now)
        own = [] if answer is None else [Reply(client, *answer)]
        return own + self._news()

    def hang_up(self, client: int) -> list[Reply]:
        """Take the end of a client's connection."""
        self._unpark(client)
        for (membership, rank), incarnation in self._living.pop(client, {}).items():
            if incarnation is not None:
                self.membership.hung_up(membership, rank, incarnation)
        return self._news()

    def pass_time(self, now: Instant) -> list[Reply]:
        """Let the leases and the requests end whose time is over."""
        if self.due() > now.seconds:
            return []
        self.membership.expire(now)
        replies = self._news()
        while self.due() <= now.seconds:
            client = self._ends[0][-1]
            replies += self._answered(client, late=True)
        return replies

    def due(self) -> float:
        """Return the time at which the first parked request ends; infinite if there is none."""
        while self._ends and not self._is_open(*self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else math.inf

    def _set(self, _: int, head: Head, value: bytes, __: Instant) -> Answer:
        self._put(text(head, "key"), value)
        return {}, b""

    def _add(self, _: int, head: Head, __: bytes, ___: Instant) -> Answer:
        key, amount = text(head, "key"), whole(head, "amount", -LARGEST, LARGEST)
        total = int(self._values.get(key, b"0")) + amount
        self._put(key, str(total).encode())
        return {"total": total}, b""

    def _swap(self, _: int, head: Head, value: bytes, __: Instant) -> Answer:
        key, expected = text(head, "key"), bytes.fromhex(text(head, "expected"))
        if self._values.get(key, b"") == expected:
            self._put(key, value)
        return {}, self._values.get(key, expected)

    def _wait(self, client: int, head: Head, _: bytes, now: Instant) -> Answer | None:
        keys, longest = texts(head, "keys"), seconds(head, "seconds")

        def answer(late: bool) -> Answer | None:
            if missing := [k for k in keys if k not in self._values]:
                return ({"missing": missing}, b"") if late else None
            return {"missing": []}, self._values[keys[0]]

        return self._answer_or_park(client, [("key", key) for key in keys], answer, longest, now)

    def _member(self, client: int, head: Head, _: bytes, now: Instant) -> Answer | None:
        if text(head, "act") != "beat":
            found = self.membership.answer(head, now), b""
            if head["act"] == "enter":
                self._keep_alive(client, head)
            return found
        known, longest = whole(head, "known", -1, LARGEST), seconds(head, "seconds")
        self.membership.act(head, now)
        self._keep_alive(client, head)

        def answer(late: bool) -> Answer | None:
            told = self.membership.told(head)
            return (told, b"") if late or told["number"] != known else None

        return self._answer_or_park(client, [("group", text(head, "group"))], answer, longest, now)

    def _keep_alive(self, client: int, head: Head) -> None:
        """Bind a learner's life to the connection of this client."""
        self._living[client][text(head, "group"), head["rank"]] = self.membership.living(head)

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed["key", key] = None

    def _answer_or_park(
        self,
        client: int,
        names: Iterable[tuple[str, str]],
        answer: Callable[[bool], Answer | None],
        longest: float,
        now: Instant,
    ) -> Answer | None:
        if (found := answer(longest <= 0)) is not None:
            return found
        self._serial += 1
        self._parked[client] = Parked(self._serial, tuple(names), answer)
        for name in self._parked[client].names:
            self._waiting[name][client] = None
        heapq.heappush(self._ends, (now.seconds + longest, self._serial, client))
        if len(self._ends) > 2 * len(self._parked) + SPARE_ENDS:
            self._ends = [each for each in self._ends if self._is_open(*each)]
            heapq.heapify(self._ends)
        return None

    def _unpark(self, client: int) -> None:
        for name in self._parked.pop(client, NOTHING).names:
            self._waiting[name].pop(client, None)
            if not self._waiting[name]:
                del self._waiting[name]

    def _is_open(self, _: float, serial: int, client: int) -> bool:
        parked = self._parked.get(client)
        return parked is not None and parked.serial == serial

    def _news(self) -> list[Reply]:
        """Answer the parked requests for which something has changed."""
        self._changed.update((("group", name), None) for name in self.membership.changed)
        self.membership.changed.clear()
        waiting = {client: None for name in self._changed for client in self._waiting.get(name, ())}
        self._changed.clear()
        return [reply for client in waiting for reply in self._answered(client, late=False)]

    def _answered(self, client: int, late: bool) -> list[Reply]:
        """Return the reply to a parked request, if it has one now."""
        answer = self._parked[client].answer(late)
        if answer is None:
            return []
        self._unpark(client)
        return [Reply(client, *answer)]
