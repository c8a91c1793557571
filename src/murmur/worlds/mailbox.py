"""Mailbox of messages that have arrived for one learner, by tag, for worlds in which receiving blocks a thread."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Protocol

from torch import Tensor

from murmur.core.group import Message
from murmur.worlds.awake_clock import awake_seconds, wait_awake


class PostOffice(Protocol):
    """One learner's sender of vectors, and its mailbox."""

    box: Mailbox

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float] = ()) -> None:
        """Queue a copy of x, with header numbers, for the learner at position `to`; return at once."""


class Mailbox:
    """Vectors in order of arrival. Any thread may put, any thread may take."""

    def __init__(self) -> None:
        self._arrived = Condition()
        self._messages: dict[str, list[Message]] = defaultdict(list)
        self._failure: Exception | None = None
        self._lost: dict[int, Exception] = {}

    def put(self, source: int, tag: str, x: Tensor, header: Sequence[float] = ()) -> None:
        """Add a message that has arrived."""
        with self._arrived:
            self._lost.pop(source, None)  # a message shows that the sender is here again
            self._messages[tag].append(Message(x, source, tuple(header)))
            self._arrived.notify_all()

    def fail(self, failure: Exception) -> None:
        """Raise this error in all present and later waits: nothing more will arrive."""
        with self._arrived:
            self._failure = self._failure or failure
            self._arrived.notify_all()

    def lose(self, source: int, failure: Exception) -> None:
        """Raise this error in all waits for `source` alone, present and later: nothing more will arrive from it."""
        with self._arrived:
            self._lost[source] = failure
            self._arrived.notify_all()

    def wait(self, tag: str, seconds: float) -> Message | None:
        """Return the oldest message under a tag, or None after `seconds`; raise the error given to `fail`."""
        deadline = awake_seconds() + seconds
        with self._arrived:
            while (found := self._find(None, tag)) is None:
                if self._failure is not None:
                    raise self._failure
                left = deadline - awake_seconds()
                if left <= 0:
                    return None
                self._arrived.wait(min(left, threading.TIMEOUT_MAX))
            return found

    def take(self, source: int | None, tag: str, timeout_seconds: float, missing: Callable[[], Exception]) -> Message:
        """Wait for a message; raise the error made by `missing()` if none arrives in time."""
        with self._arrived:
            found = self._find(source, tag)
            while found is None:
                failure = self._failure or (None if source is None else self._lost.get(source))
                if failure is not None:
                    raise failure
                if not wait_awake(self._arrived.wait, timeout_seconds):
                    raise missing()
                found = self._find(source, tag)
            return found

    def _find(self, source: int | None, tag: str) -> Message | None:
        queue = self._messages[tag]
        for i, message in enumerate(queue):
            if source is None or message.source == source:
                del queue[i]
                return message
        return None
