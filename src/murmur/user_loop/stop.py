"""Graceful stop of joined loops: a request to any learner is seen by all of them.

    with murmur.join(KAVG(8), model, optimizer) as me:
        for batch in loader:
            ...
            me.step()
            if me.should_stop:
                torch.save(me.state_dict(), f"learner-{me.rank}.pt")
                sys.exit(murmur.STOPPED_STATUS)

In lock-step all see it after the same step, so that none waits for one that has left. A request is therefore seen after
a second or a round, whichever is longer. Without lock-step each learner looks once a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.engine.graceful_stop import CHECK_SECONDS, StopTogether
from murmur.worlds.awake_clock import awake_seconds
from murmur.worlds.process.signals import StopWhenPolled

ASKED = "learners that were asked to stop"


class LoopStop:
    """Requests to stop, as one loop sees them.

    Until the loop asks for the first time, signals have the effect that they had before.

    Attributes:
        any_member, all_members: Return True if a flag holds on any, or on all, of the processes of this learner.
    """

    def __init__(self, world: Group) -> None:
        self._world = world
        self.any_member: Callable[[bool], bool] = bool
        self.all_members: Callable[[bool], bool] = bool
        self._signals = StopWhenPolled()
        self._polled = self._told = self._agreed = False
        self._looked = -math.inf
        self._together = StopTogether(lambda: self._asked_here() or world.count(ASKED) > 0)

    def asked(self, lock_step: bool) -> bool:
        """Return True if this loop is to stop now."""
        self._polled = True
        if self.any_member(self._asked_here()) and not self._told:
            self._told = True
            self._world.count(ASKED, 1)
        if self._world.size == 1:
            return self._told
        if not lock_step and not self._agreed and awake_seconds() - self._looked > CHECK_SECONDS:
            self._looked = awake_seconds()
            self._agreed = self._world.count(ASKED) > 0
        return self.all_members(self._agreed)

    def _asked_here(self) -> bool:
        return self._polled and self._signals()

    def enter(self) -> None:
        """Count from here on, for a loop that has come late."""
        self._together.enter()

    async def boundary(self, me: Learner, beside: Callable[[Group], Group]) -> None:
        """Agree with the others in lock-step, right after an average; a leader tells the members of its super-learner.

        Args:
            me: Learner.
            beside: Returns a group of the same learners for such exchanges.
        """
        if me.checkpoints.told is not None:
            self._agreed = True
        elif me.lock_step and not self._agreed and me.group.size > 1:
            self._agreed = await self._together.agree(me, beside(me.group))
        if self._agreed and me.lock_step:
            me.checkpoints.saved = me.steps

    def close(self) -> None:
        """Give signals their earlier effect back."""
        self._signals.__exit__(None, None, None)
