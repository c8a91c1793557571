"""Runs of a strategy that go on without lost learners, and with learners that join late."""

from __future__ import annotations

import logging
from collections.abc import Callable

from murmur.core.counted import counted
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.learner import Learner, Strategy
from murmur.core.membership import ENDED, RunOver, View
from murmur.core.source import Computed
from murmur.elastic.elastic_group import ElasticGroup, OwnState
from murmur.elastic.rendezvous import LeftBehind

log = logging.getLogger(__name__)


def regroups(strategy: Strategy) -> bool:
    facts = Facts.of(strategy)
    return facts.lock_step and facts.tolerates_loss


async def run_strategy(
    strategy: Strategy,
    me: Learner,
    buffers: Callable[[], Layout],
    entered: Callable[[int], None],
    began: View | None = None,
    computed: Callable[[], Computed] = Computed,
    own: OwnState | None = None,
) -> None:
    """Run a strategy to its end, without learners that are lost, and with learners that join late.

    Args:
        strategy: Strategy to run.
        me: Learner; its group becomes an elastic group if members can be lost.
        buffers: Returns the tensors that its model has now beside the weights.
        entered: Called with the number of completed minibatches when this learner has joined late.
        began: View once all learners had come; None: the present one.
        computed: Returns the minibatches that this learner has computed; none where the budget is unknown.
        own: Further state that a learner that joins late takes over; None: the optimizer is reset.
    """
    if not _elastic(strategy, me):
        await strategy(me)
        return
    me.group = left = ElasticGroup(me.group, me.local, me.outer, buffers, began, computed, own)
    outside, named = me.seat.late, None
    while True:
        try:
            if outside:
                me.outer.clear()
                await left.enter(named)
                entered(done := me.local.source.turns.reached(me.steps))
                log.info("learner %d goes on with the others after %s", me.group.rank, counted(done, "minibatch"))
            await strategy(me)
        except LeftBehind as left_behind:
            log.warning("learner %d was taken for lost: the others let it in again", me.group.rank)
            outside, named = True, left_behind.named
        else:
            return


async def end_run(strategy: Strategy, me: Learner) -> None:
    """Wait at the end of a run for the others of an elastic group; one that comes late then finds no work left."""
    if _elastic(strategy, me) and not me.role.follows:
        try:
            await me.group.meet(ENDED)
        except LeftBehind as left_behind:
            raise RunOver from left_behind


def _elastic(strategy: Strategy, me: Learner) -> bool:
    return regroups(strategy) and me.group.tolerates_loss and me.group.size > 1
