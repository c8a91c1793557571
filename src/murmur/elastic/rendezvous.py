"""Rendezvous: the remaining and the late learners agree on the members of a group, by messages to the first of them.

A remaining member sends "here" to the first of them, by rank; a late learner sends a request to join to all. Once all
live learners have sent theirs, the first member names the members, with their incarnations, to all. If it dies, the
next member is told.

A machine that stands still for longer than the leases makes all learners consider all others lost. Each then waits to
rejoin a group that no longer exists. A learner that was considered dead therefore keeps its place in its program until
a learner that was not names it a member. If there is none, the learner that has completed most collectives (of several,
the lowest rank) goes on alone and admits the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from murmur.core.group import Group, PeerLost
from murmur.core.membership import RunOver, View

TAG = "rendezvous"
HERE, NEW, GO = 0.0, 1.0, 2.0  # kinds of messages: a member waits, a late learner waits, the members are ...
POLL_SECONDS = 0.05
SETTLED_SECONDS = 2.0  # without a change of the view, until a learner that was considered dead goes on alone
NOTHING_HELD = -1  # collectives completed by a learner that has just begun, and has no trained model


@dataclass(frozen=True)
class Named:
    """Group to be formed: incarnations by rank, and a unique name."""

    members: Mapping[int, int]
    name: str


class ThoughtLost(Exception):
    """The others have considered this learner dead."""


class LeftBehind(Exception):
    """The others have gone on without this learner, which is to join them late in the group `named`."""

    def __init__(self, named: Named) -> None:
        super().__init__(f"the others have gone on; they form {named.name!r}")
        self.named = named


@dataclass(frozen=True)
class Waiting:
    """Message of a waiting learner.

    Attributes:
        kind: HERE or NEW.
        incarnation: Its incarnation.
        completed: Collectives that it has completed, if NEW.
        view: Number of its view, if NEW.
        addressee: Incarnation of the learner to which the message was sent, if HERE. A restarted learner finds messages
            to its earlier incarnation in its mailbox: their senders wait no longer.
    """

    kind: float
    incarnation: float
    completed: float = NOTHING_HELD
    view: float = -1.0
    addressee: float = -1.0


class Rendezvous:
    """One learner's side of forming groups of the members of `world`."""

    def __init__(self, world: Group) -> None:
        self.world, self.rank = world, world.rank
        self._named = 0
        self._waiting: dict[int, Waiting] = {}

    async def poll(self) -> Named | None:
        """Receive one message, or let a little time pass; return the group if one was named."""
        message = await self.world.poll(TAG, POLL_SECONDS)
        if message is None:
            return None
        if message.header[0] != GO:
            self._waiting[message.source] = Waiting(*message.header)
            return None
        _, first, incarnation, number, *pairs = map(int, message.header)
        return Named(dict(zip(pairs[::2], pairs[1::2], strict=True)), f"again {first}.{incarnation}.{number}")

    def view(self, members: Mapping[int, int]) -> View:
        """Return the present view; raise `ThoughtLost` if it does not hold this learner as it is now."""
        view = self.world.membership.view(fresh=True)
        if view.incarnations.get(self.rank) != members[self.rank]:
            raise ThoughtLost
        return view

    async def gather(
        self, members: Mapping[int, int], latecomers: bool, over: Callable[[], bool] = lambda: False
    ) -> Named | None:
        """Wait for the remaining members, and for late learners if `latecomers`; None once `over()` is true.

        Raises:
            ThoughtLost: This learner is not among the remaining members.
        """
        told: int | None = None
        while not over():
            view = self.view(members)
            left = {r: i for r, i in members.items() if view.incarnations.get(r) == i}
            first = min(left)
            if first == self.rank:
                new = {r: i for r, i in view.incarnations.items() if left.get(r) != i} if latecomers else {}
                here = all(self._has_sent_here(r, i, left[first]) for r, i in left.items() if r != first)
                if here and all(self._has_sent_new(r, i) for r, i in new.items()):
                    return self._name({**left, **new})
            elif told != first:
                told = first
                self._send(first, (HERE, float(members[self.rank]), NOTHING_HELD, -1.0, float(left[first])))
            named = await self.poll()
            if named is not None:
                return named
        return None

    def _name(self, members: Mapping[int, int]) -> Named:
        self._named += 1
        pairs = [float(number) for r in sorted(members) for number in (r, members[r])]
        for r in members:
            self._waiting.pop(r, None)
            if r != self.rank:
                self._send(r, (GO, float(self.rank), float(members[self.rank]), float(self._named), *pairs))
        return Named(members, f"again {self.rank}.{members[self.rank]}.{self._named}")

    def _has_sent_here(self, rank: int, incarnation: int, own: int) -> bool:
        waiting, wanted = self._waiting.get(rank), (HERE, incarnation, own)
        return waiting is not None and (waiting.kind, waiting.incarnation, waiting.addressee) == wanted

    def _has_sent_new(self, rank: int, incarnation: int) -> bool:
        waiting = self._waiting.get(rank)
        return waiting is not None and (waiting.kind, waiting.incarnation) == (NEW, incarnation)

    async def request_to_join(self, completed: int = NOTHING_HELD) -> Named:
        """Wait until a group with this learner is named, after a late start or after it was considered dead.

        Args:
            completed: Collectives that this learner has completed, if it still has its place in its program.

        Returns:
            The group. It has no other member if all others wait as well and this learner is the one to go on.

        Raises:
            RunOver: The others have finished the run.
            PeerLost: No learner with the model is left.
        """
        told: tuple[int, int] | None = None
        quiet = 0.0
        while True:
            view = self.world.membership.view(fresh=True)
            own = view.incarnations.get(self.rank)
            if view.left > 0 or (completed == NOTHING_HELD and self.world.membership.over):
                raise RunOver
            if own is not None and told != (own, view.number):
                told, quiet = (own, view.number), 0.0
                for r in view.live:
                    if r != self.rank:
                        self._send(r, (NEW, float(own), float(completed), float(view.number)))
            if own is not None and quiet > SETTLED_SECONDS and self._goes_on(view, completed) == self.rank:
                return Named({self.rank: own}, f"alone {self.rank}.{own}")
            named = await self.poll()
            quiet += POLL_SECONDS
            if named is not None and own is not None and named.members.get(self.rank) == own:
                return named

    def _goes_on(self, view: View, completed: int) -> int | None:
        """Return the learner that goes on alone if all live learners wait to be admitted; None if others go on.

        Raises:
            RunOver: Every minibatch is done, and another learner will end the run.
            PeerLost: None of them holds the model.
        """
        held = {self.rank: float(completed)}
        for r in view.live:
            waiting = self._waiting.get(r)
            if waiting is not None and (waiting.kind, waiting.view) == (NEW, view.number):
                held[r] = waiting.completed
        first = max(held, key=lambda r: (held[r], -r)) if held.keys() >= set(view.live) else None
        if first is not None and held[first] == NOTHING_HELD:
            raise PeerLost("all learners with the model are gone: start the run again from its newest checkpoint")
        if first != self.rank and self.world.membership.over:
            raise RunOver
        return first

    def _send(self, to: int, header: Sequence[float]) -> None:
        self.world.post(torch.empty(0), to, TAG, header)
