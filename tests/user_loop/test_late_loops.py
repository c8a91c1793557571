"""A loop that comes late, because its learner was started again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from murmur.core.membership import LocalMembership, MembershipTable
from murmur.user_loop.loop import LoopMembership


def test_a_late_loop_is_not_announced_as_over_while_it_looks_for_the_others() -> None:
    """It was: the learner took no step any more, and a server did not answer it."""
    over, announced = set[int](), list[int]()
    group: Any = SimpleNamespace(
        rank=1,
        over_for=lambda rank: rank in over,
        super_learner_of=lambda rank: range(rank, rank + 1),
        loops=SimpleNamespace(announce=announced.extend),
    )
    membership = LoopMembership(LocalMembership(MembershipTable.of(3), 1), group)
    assert not membership.over
    over.update((0, 2))
    assert membership.over
    assert not announced
    assert not membership.spent
    assert announced == [1]
