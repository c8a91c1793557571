"""Check at the end of a run: every minibatch of the budget was computed.

    count = sum 1,    fingerprint = sum B^n mod P        over the minibatches n that learners have computed

Each learner sums both over the gradients that it computes. The fingerprint detects a missing minibatch whose place
another one took twice. Three accounts, by the way in which learners are assigned minibatches:

    all learners lived       all add their sums to two counters, and compare these with the values of the budget
    lock-step, one was lost  each mean carries the sums of all members, and the others keep those of a lost member as of
                             its last mean; what it computed later is computed again (`murmur.elastic.elastic_group`)
    claims, one was lost     the membership table knows the claims that were finished; the others are given back
"""

from __future__ import annotations

from collections.abc import Mapping

from murmur.core.errors import IncompleteRun
from murmur.core.group import Barrier, Group
from murmur.core.learner import Learner
from murmur.core.source import Computed
from murmur.elastic.elastic_group import ElasticGroup

PRIME = 2**44 - 17  # so that sums over 2^16 learners fit into a counter, and sums over 2^9 into a float
BASE = 0x5DEECE66D
COUNT, FINGERPRINT, TOLD, LEFT = "computed", "computed fingerprint", "learners that told", "learners that left"
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1e-4, 0.1


def with_one(computed: Computed, n: int) -> Computed:
    return Computed(computed.count + 1, (computed.fingerprint + pow(BASE, n, PRIME)) % PRIME)


def leave(group: Group) -> None:
    """Note that this learner ends before the run, so that its part is unknown."""
    group.count(LEFT, 1)


def wanted(first: int, total: int, moved: Mapping[int, int]) -> int:
    """Return the fingerprint of the minibatches at positions first to total - 1; `moved` lists those that differ."""
    whole = (pow(BASE, total, PRIME) - pow(BASE, first, PRIME)) * pow(BASE - 1, -1, PRIME)
    kept = ((position, n) for position, n in moved.items() if first <= position < total)
    return (whole + sum(pow(BASE, n, PRIME) - pow(BASE, position, PRIME) for position, n in kept)) % PRIME


async def check(me: Learner, computed: Computed, due: Computed) -> None:
    """Add this learner's part, wait until all have added theirs, and compare the sums with those `due`.

    If a learner was lost, joined late or stopped early, its part is unknown, and its minibatches may have been computed
    again: the membership table is asked instead. An elastic group is checked by `check_elastic`.

    Raises:
        IncompleteRun: Minibatches are missing, or were computed more than once.
    """
    if isinstance(me.group, ElasticGroup):
        return
    group, pause = me.seat.group, 0.0  # no wait is needed if all end at the same moment
    group.count(COUNT, computed.count)
    group.count(FINGERPRINT, computed.fingerprint)
    group.count(TOLD, 1)
    while (told := group.count(TOLD)) < group.size and group.count(LEFT) == 0 and group.membership.complete:
        await me.seat.sleep(pause)
        pause = min(max(PAUSE_SECONDS, 2 * pause), LONGEST_PAUSE_SECONDS)
    if told >= group.size and group.membership.complete:
        _compare(Computed(group.count(COUNT), group.count(FINGERPRINT)), due)
    elif not me.lock_step and not me.role.follows:  # in lock-step the next mean fails
        await _check_claims(me, due)


def check_elastic(me: Learner, due: Computed) -> None:
    """Compare the sums of all members of an elastic group, those of lost ones included, after a mean of all."""
    if isinstance(me.group, ElasticGroup):
        _compare(me.group.computed, due)


async def _check_claims(me: Learner, due: Computed) -> None:
    undone = me.group.membership.undone
    if undone is None:
        barrier = Barrier(me.seat.group, TOLD)
        while not barrier.arrive():
            await me.seat.sleep(LONGEST_PAUSE_SECONDS)
        undone = max(0, due.count - me.seat.group.count(COUNT))
    if undone > 0:
        raise IncompleteRun(
            f"{undone} of {due.count} minibatches were not computed: a learner was lost, and no other one took over its"
            " share; --resume computes them",
            lost=True,
        )


def _compare(computed: Computed, due: Computed) -> None:
    if (computed.count, computed.fingerprint % PRIME) == (due.count, due.fingerprint):
        return
    what = f"{computed.count} minibatches were computed where the budget had {due.count} left"
    if computed.count == due.count:
        what = f"{due.count} minibatches were computed, as in the budget, but some of them twice and others never"
    raise IncompleteRun(
        f"{what}: the strategy does not take each minibatch once. Its checkpoints and evaluations stand for another"
        " amount of data than they say. With a strategy of your own, take minibatches by me.gradients(), me.turns() or"
        " me.claimed_gradients() alone; otherwise please report this with run.json"
    )
