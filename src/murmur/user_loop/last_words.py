"""The end of a program whose loop has lost a learner or the store: one line and a status, in place of a traceback.

`PeerLost` is an event of the cluster, not an error in the program. A loop may catch it. If it does not, the launcher
also needs the status, by which it tells the learners that gave up from the one that failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from murmur.core.group import PeerLost
from murmur.core.printable import say
from murmur.core.stop_signals import end_process
from murmur.worlds.process.endings import PEER_LOST_STATUS

REMEDY = "start all learners again; me.load_state_dict() goes on from a saved state"
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class LastWords:
    """Hook for errors that a program does not catch; those other than `PeerLost` go to the hook `before` it."""

    def __init__(self, before: Hook) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, PeerLost):
            self._before(kind, error, trace)
            return
        say(f"murmur: {error}; {REMEDY}", err=True)
        end_process(PEER_LOST_STATUS)


def tell_losses_in_one_line() -> None:
    if not isinstance(sys.excepthook, LastWords):
        sys.excepthook = LastWords(sys.excepthook)
