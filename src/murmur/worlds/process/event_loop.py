"""Event loop over sockets, in one thread. Standard library only."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread, current_thread
from typing import Protocol

from murmur.worlds.awake_clock import awake_seconds

LONGEST_SECONDS = 3600.0  # of one wait of the selector
Handler = Callable[[int], None]  # is called with the events for which its socket is ready


class LoopPart(Protocol):
    """Part of a loop that acts when time has passed; times are those of `awake_seconds`."""

    def due(self) -> float:
        """Return the time at which `pass_time` has something to do; infinite if there is none."""
        ...

    def pass_time(self, now: float) -> None: ...

    def end(self) -> None:
        """Open no more sockets, and close those without a user; the loop ends once it watches none."""
        ...


class EventLoop:
    """Calls the handlers of sockets that are ready, and the parts whose time has come, in a thread of its own.

    A handler may be called once more in the turn in which its socket is forgotten. All methods but `close` are for the
    thread of the loop, and for its owner before `start`.
    """

    def __init__(self, name: str) -> None:
        self._selector = DefaultSelector()
        self._parts: list[LoopPart] = []
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._woken, EVENT_READ, self._end)
        self._closed = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def add(self, part: LoopPart) -> None:
        self._parts.append(part)

    def start(self) -> None:
        self._thread.start()

    def watch(self, line: socket.socket, handler: Handler, events: int = EVENT_READ) -> None:
        """Call `handler` whenever the socket is ready for one of these events, in place of an earlier handler."""
        if line in self._selector.get_map():
            self._selector.modify(line, events, handler)
        else:
            self._selector.register(line, events, handler)

    def forget(self, line: socket.socket) -> None:
        with suppress(KeyError, ValueError):  # it is not watched, or closed already
            self._selector.unregister(line)

    def close(self) -> None:
        """Let the parts end; the loop ends once no socket is left. Returns when the parts know."""
        self._wake.close()
        if self._thread.is_alive() and self._thread is not current_thread():
            self._closed.wait()

    def _run(self) -> None:
        try:
            while self._selector.get_map() or self._due() < math.inf:
                self._turn()
        finally:
            self._closed.set()
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            self._selector.close()
            self._woken.close()

    def _due(self) -> float:
        return min((part.due() for part in self._parts), default=math.inf)

    def _turn(self) -> None:
        """Wait for events and times, and handle them."""
        left = self._due() - awake_seconds()
        for key, events in self._selector.select(min(max(left, 0.0), LONGEST_SECONDS)):
            key.data(events)
        now = awake_seconds()
        for part in self._parts:
            part.pass_time(now)

    def _end(self, _: int) -> None:
        self.forget(self._woken)
        for part in self._parts:
            part.end()
        self._closed.set()
