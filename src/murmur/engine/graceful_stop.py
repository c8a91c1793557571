"""Stopping on request: learners save where a run can go on, and end.

In step all of them must stop at the same boundary, whichever was asked and whenever. So every now and then they ask
each other: a mean of two numbers, about once a second, after a number of boundaries that all compute alike. Without
lock-step each saves and ends by itself; only who holds the model for the others stays until they have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.core.membership import StoppedGracefully
from murmur.engine.task_source import TaskSource

CHECK_SECONDS = 1.0
WAIT_SECONDS = 10.0  # so long a learner that has saved waits for the others, which may need what it hosts

Asked = Callable[[], bool]


class GracefulStop:
    """One learner's side of stopping.

    Args:
        source: where the run stands.
        asked: whether this process has been asked to stop.
        save: writes this learner's part of the checkpoint after so many minibatches.
    """

    def __init__(self, source: TaskSource, asked: Asked, save: Callable[[Learner, int], None]) -> None:
        self.source, self.asked, self._save = source, asked, save
        self._period = self._left = 1  # boundaries between two checks; until the next one
        self._since = 0.0
        self._regrouped = -1
        self._entered = False

    def enter(self) -> None:
        """This learner came late: the others have checked at this boundary already."""
        self._entered = True

    async def together(self, me: Learner, done: int, beside: Group) -> None:
        """At a boundary of learners that go in step, after `done` minibatches.

        Raises:
            StoppedGracefully: a learner was asked to stop; this learner has saved, as all others have.
        """
        if self._entered:
            self._entered, self._regrouped = False, -1
            return
        if done < self.source.total and await self._agree(me, beside):
            self._save(me, done)
            raise StoppedGracefully(done)

    async def _agree(self, me: Learner, beside: Group) -> bool:
        """True if all learners stop here; the answer is the same on every learner."""
        now, regrouped = me.seat.now, me.group.regrouped
        if len(me.group.live) == 1:
            return self.asked()
        if regrouped != self._regrouped:  # who has just come in begins to count here: so do all
            self._regrouped, self._period, self._left, self._since = regrouped, 1, 1, now - CHECK_SECONDS
        self._left -= 1
        if self._left > 0:
            return False
        pace = (now - self._since) / self._period
        asked, pace = (await beside.mean(torch.tensor([self.asked(), pace], dtype=torch.float64))).tolist()
        self._period = self._left = max(1, min(2 * self._period, int(CHECK_SECONDS / max(pace, 1e-9))))
        self._since = me.seat.now
        return bool(asked > 0)

    async def alone(self, me: Learner, claimed: int) -> None:
        """Between two gradients of a learner without lock-step, when so many minibatches are handed out.

        Raises:
            StoppedGracefully: this process was asked to stop, and has saved.
        """
        if not self.asked():
            return
        group, others = me.group, len(me.view) - 1
        serves = me.averager.holders is not None and group.rank in me.averager.holders
        if serves and group.count("stopped") < others:
            return
        if group.count("halts", 1) == 1:
            group.count("stopped at", max(1, claimed))
        await self._stop(me)

    async def at_end(self, me: Learner) -> None:
        """Of a learner without lock-step that has nothing left to do, before it saves the end of the run.

        Raises:
            StoppedGracefully: others have stopped, as they and this process were asked to: what they had left is still
                to do.
        """
        if self.asked() and me.group.count("stopped") > 0:
            await self._stop(me)

    async def _stop(self, me: Learner) -> None:
        group = me.group
        while (at := group.count("stopped at")) == 0:
            await me.seat.sleep(me.averager.poll_seconds)
        self._save(me, at)
        group.count("stopped", 1)
        end = me.seat.now + WAIT_SECONDS
        while group.count("stopped") < len(me.view) and me.seat.now < end:
            await me.seat.sleep(me.averager.poll_seconds)
        me.averager.done()
        raise StoppedGracefully(at)
