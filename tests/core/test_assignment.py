"""Minibatches assigned in turns: each is done exactly once, even if learners are lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.core.assignment import Assignment


def test_positions_are_assigned_in_order() -> None:
    assignment = Assignment((0, 1, 2), total=8)
    assert [[assignment.number(t, r) for r in range(3)] for t in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, None]]
    assert [assignment.reached(t) for t in range(4)] == [0, 3, 6, 8]


def test_an_assignment_without_learners_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Assignment((0,)).anew(0, 0, ())


@settings(deadline=None)
@given(st.data())
def test_every_minibatch_is_done_once_despite_losses(data: st.DataObject) -> None:
    """Play rounds of a few turns, in some of which learners are lost with their minibatches, or come back."""
    total = data.draw(st.integers(1, 60), "total")
    everyone = range(data.draw(st.integers(1, 6), "learners"))
    assignment, turn, done = Assignment(tuple(everyone), total), 0, list[int]()
    while assignment.reached(turn) < total:
        begun, turn = turn, turn + data.draw(st.integers(1, 4), "turns of the round")
        missing = set(data.draw(st.lists(st.sampled_from(assignment.to), max_size=len(assignment.to) - 1), "missing"))
        for rank in set(assignment.to) - missing:
            numbers = [assignment.number(t, rank) for t in range(begun, turn)]
            done += [n for n in numbers if n is not None]
        back = data.draw(st.sets(st.sampled_from(everyone)), "there next time")
        to = sorted(back - missing | set(assignment.to) - missing)
        assignment = assignment.without(begun, turn, missing, to)
        assert assignment.reached(turn) == len(done)
        assert len(assignment.to_come(turn)) <= total - len(done)
    assert sorted(done) == list(range(total))
