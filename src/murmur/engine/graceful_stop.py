"""Graceful stop: on request, learners save a checkpoint and end.

In lock-step all learners must stop at the same boundary, although the request reaches them at different times. About
once a second, after a number of boundaries that is the same for all, they therefore share two numbers. Without
lock-step each learner saves and ends by itself; learners that hold the model stay until the others have saved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from murmur.core.group import Group, PeerLost
from murmur.core.learner import Learner
from murmur.core.membership import StoppedGracefully
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)
CHECK_SECONDS = 1.0
WAIT_SECONDS = 10.0  # longest wait of a learner that has saved for the others, which may need it

Asked = Callable[[], bool]


class StopTogether:
    """Agreement of learners in lock-step on the boundary at which they stop, once any of them was `asked` to."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._period = self._left = 1  # boundaries between two checks, and until the next one
        self._since = 0.0
        self._regrouped = -1
        self._entered = False

    def enter(self) -> None:
        """Skip the check at this boundary, for a learner that joins late: the others have made it."""
        self._entered = True

    async def agree(self, me: Learner, beside: Group) -> bool:
        """Return True if all stop at this boundary; `beside` is a group of the same learners for such exchanges."""
        if self._entered:
            self._entered, self._regrouped = False, -1
            return False
        now, regrouped = me.seat.now, me.group.regrouped
        if len(me.group.live) == 1:
            return self.asked()
        if regrouped != self._regrouped:  # a learner that has just joined starts to count here: so do all
            self._regrouped, self._period, self._left, self._since = regrouped, 1, 1, now - CHECK_SECONDS
        self._left -= 1
        if self._left > 0:
            return False
        mine = (float(self.asked()), (now - self._since) / self._period)
        asked, paces = zip(*await beside.share_numbers(me.weights.layout.empty()[:0], mine), strict=True)
        self._period = self._left = max(1, min(2 * self._period, int(CHECK_SECONDS / max(*paces, 1e-9))))
        self._since = me.seat.now
        return any(asked)


class GracefulStop:
    """Graceful stop of one learner: `asked` tells a request to this process, `save` writes a part of the checkpoint."""

    def __init__(self, source: TaskSource, asked: Asked, save: Callable[[Learner, int], None]) -> None:
        self.source, self.asked, self._save = source, asked, save
        self._together = StopTogether(asked)

    def enter(self) -> None:
        self._together.enter()

    async def together(self, me: Learner, done: int, beside: Group) -> None:
        """Stop, by `StoppedGracefully`, at a boundary of lock-step learners if any of them was asked to."""
        if done < self.source.total and await self._together.agree(me, beside):
            self._save(me, done)
            raise StoppedGracefully(done)

    async def alone(self, me: Learner, claimed: int) -> None:
        """Stop a learner without lock-step between two gradients, with a number of minibatches claimed, if asked to."""
        if not self.asked():
            return
        group, takers = me.group, me.averager.takers or ()
        others = sum(rank not in takers for rank in me.view)
        if group.rank in takers and group.count("stopped") < others:
            return
        if group.count("halts", 1) == 1:
            group.count("stopped at", max(1, claimed))
        await self._stop(me)

    async def at_end(self, me: Learner) -> None:
        """Stop a learner without work before it saves the end of the run, if others have stopped on the request."""
        if self.asked() and me.group.count("stopped") > 0:
            await self._stop(me)

    async def _stop(self, me: Learner) -> None:
        group = me.group
        while (at := group.count("stopped at")) == 0:
            await me.seat.sleep(me.averager.poll_seconds)
        self._save(me, at)
        rests = await self._rest(me, at)
        end = me.seat.now + WAIT_SECONDS
        await _all_have(me, "stopped", end)
        if rests:
            self._save(me, at)  # with what the others have given since
            await _all_have(me, "saved again", end)
        me.averager.done()
        raise StoppedGracefully(at)

    async def _rest(self, me: Learner, at: int) -> bool:
        """Bring what the strategy has under way to its end, and save again; return False if there is nothing."""
        if me.outer.rest is None:
            return False
        try:
            await me.outer.rest()
        except PeerLost as lost:
            log.warning("what was under way at the stop is left to the next launch: %s", lost)
        self._save(me, at)
        return True


async def _all_have(me: Learner, counter: str, end: float) -> None:
    me.group.count(counter, 1)
    while me.group.count(counter) < len(me.view) and me.seat.now < end:
        await me.seat.sleep(me.averager.poll_seconds)
