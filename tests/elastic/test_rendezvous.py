"""Choice of the learner that goes on after all were considered dead, from scripted messages and views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from murmur.core.group import Message, PeerLost
from murmur.core.membership import RunOver, View
from murmur.elastic.rendezvous import GO, HERE, NEW, NOTHING_HELD, POLL_SECONDS, SETTLED_SECONDS, Named, Rendezvous

POLLS = int(SETTLED_SECONDS / POLL_SECONDS) + 2
RecognisedWord = tuple[int, tuple[float, ...]]  # (sender, header)


class Tired(Exception):
    """No result after the expected number of polls."""


@dataclass
class Scripted:
    """World with views and messages scripted by poll."""

    views: Mapping[int, View]
    messages: Mapping[int, Sequence[RecognisedWord]] = field(default_factory=dict)
    until: int = 3 * POLLS
    rank: int = 0
    polls: int = 0
    over: bool = False
    said: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._queue: list[RecognisedWord] = []
        self._to_come = dict(self.messages)
        self.membership = self

    def view(self, fresh: bool) -> View:
        assert fresh
        return self.views[max(poll for poll in self.views if poll <= self.polls)]

    async def poll(self, tag: str, seconds: float) -> Message | None:
        self._queue += self._to_come.pop(self.polls, ())
        if self._queue:
            source, header = self._queue.pop(0)
            return Message(torch.empty(0), source, header)
        self.polls += 1
        if self.polls > self.until:
            raise Tired
        return None

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float]) -> None:
        self.said.append((to, tuple(header)))


def request_to_join(world: Scripted, completed: int = 5) -> Named:
    """Run a coroutine that waits for messages only to its end."""
    coroutine = Rendezvous(world).request_to_join(completed)  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    found = ended.value.value
    assert isinstance(found, Named)
    return found


def new(view: View, rank: int, completed: float) -> RecognisedWord:
    return rank, (NEW, float(view.incarnations[rank]), completed, float(view.number))


TWO, THREE = View(7, {0: 4, 1: 5}), View(6, {0: 4, 1: 5, 2: 0})


def test_the_most_advanced_learner_goes_on_alone() -> None:
    world = Scripted({0: TWO}, {3: [new(TWO, 1, 4.0)]})
    assert request_to_join(world).members == {0: 4}
    assert world.polls >= POLLS - 4
    assert world.said == [(1, (NEW, 4.0, 5.0, 7.0))]


@pytest.mark.parametrize(("theirs", "goes_on"), [(4.0, True), (5.0, True), (6.0, False), (NOTHING_HELD, True)])
def test_of_equals_the_lowest_rank(theirs: float, goes_on: bool) -> None:
    world = Scripted({0: TWO}, {3: [new(TWO, 1, theirs)]})
    if goes_on:
        assert request_to_join(world).members == {0: 4}
    else:
        with pytest.raises(Tired):
            Rendezvous(world).request_to_join(5).send(None)  # type: ignore[arg-type]


def test_no_learner_goes_on_before_the_others_could_return() -> None:
    alone = View(7, {0: 4})
    late = POLLS // 2
    world = Scripted({0: alone, late: TWO}, {late + 1: [new(TWO, 1, 9.0)]})
    with pytest.raises(Tired):
        Rendezvous(world).request_to_join(5).send(None)  # type: ignore[arg-type]
    assert request_to_join(Scripted({0: alone})).members == {0: 4}


def test_time_counts_from_the_latest_change() -> None:
    """The view changes every half of the settling time."""
    views = {n * POLLS // 2: View(7 + n, {0: 4, 1: 5 + n}) for n in range(5)}
    messages = {poll + 1: [new(view, 1, 0.0)] for poll, view in views.items()}
    with pytest.raises(Tired):
        Rendezvous(Scripted(views, messages, until=5 * POLLS // 2)).request_to_join(5).send(None)  # type: ignore[arg-type]
    assert request_to_join(Scripted(views, messages, until=4 * POLLS)).members == {0: 4}


def test_a_message_from_before_a_change_does_not_count() -> None:
    """The third may have admitted the second and died: the second then holds the model, and waits no more."""
    world = Scripted({0: THREE, 5: TWO}, {2: [new(THREE, 1, 4.0)]})
    with pytest.raises(Tired):
        Rendezvous(world).request_to_join(5).send(None)  # type: ignore[arg-type]
    assert [header[3] for _, header in world.said] == [6.0, 6.0, 7.0]
    again = Scripted({0: THREE, 5: TWO}, {2: [new(THREE, 1, 4.0)], 9: [new(TWO, 1, 4.0)]})
    assert request_to_join(again).members == {0: 4}


def test_while_one_that_was_never_lost_is_there_all_wait_for_it() -> None:
    world = Scripted({0: THREE}, {2: [new(THREE, 1, 4.0), (2, (HERE, 0.0))]})
    with pytest.raises(Tired):
        Rendezvous(world).request_to_join(5).send(None)  # type: ignore[arg-type]
    go = (2, (GO, 2.0, 0.0, 1.0, 0.0, 4.0, 1.0, 5.0, 2.0, 0.0))
    assert request_to_join(Scripted({0: THREE}, {8: [go]})).members == {0: 4, 1: 5, 2: 0}


def test_an_invitation_to_an_earlier_life_is_none() -> None:
    go = (2, (GO, 2.0, 0.0, 1.0, 0.0, 3.0, 2.0, 0.0))  # incarnation 3, which was lost again
    with pytest.raises(Tired):
        Rendezvous(Scripted({0: THREE}, {8: [go]})).request_to_join(5).send(None)  # type: ignore[arg-type]


def test_all_are_told_when_the_model_is_lost() -> None:
    world = Scripted({0: TWO}, {3: [new(TWO, 1, NOTHING_HELD)]})
    with pytest.raises(PeerLost, match="newest checkpoint"):
        Rendezvous(world).request_to_join().send(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("completed", [NOTHING_HELD, 5])
def test_when_everything_is_done_late_ones_leave(completed: int) -> None:
    left = View(8, {0: 4, 1: 5}, left=1)
    with pytest.raises(RunOver):
        Rendezvous(Scripted({0: left})).request_to_join(completed).send(None)  # type: ignore[arg-type]
    over = Scripted({0: TWO}, {3: [new(TWO, 1, 6.0)]}, over=True)
    with pytest.raises(RunOver):
        Rendezvous(over).request_to_join(completed).send(None)  # type: ignore[arg-type]
    last = Scripted({0: TWO}, {3: [new(TWO, 1, 4.0)]}, over=True)
    if completed == 5:  # only the end of the run is left
        assert request_to_join(last).members == {0: 4}


def test_a_learner_unknown_to_the_membership_waits() -> None:
    world = Scripted({0: View(6, {1: 5})})
    with pytest.raises(Tired):
        Rendezvous(world).request_to_join(5).send(None)  # type: ignore[arg-type]
    assert world.said == []
