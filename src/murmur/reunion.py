"""How learners that are left, or come late, agree on who forms a group: letters to the first of those that are left.

Who is left says "here" to the first of them, by rank; who comes late says so to everybody. When all that are alive have
spoken, the first one names the members, with their incarnations, to all. If it dies, the next one is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from murmur.group import Group, PeerLost
from murmur.roll import RunOver, View

TAG = "regroup"
HERE, NEW, GO = 0.0, 1.0, 2.0  # what a letter says: a member waits, a latecomer waits, the members are ...
POLL_SECONDS = 0.05


class LeftBehind(Exception):
    """The others have taken this learner for dead and gone on; it can join them again as one that comes late."""


@dataclass(frozen=True)
class Named:
    """A group to be formed: incarnations by rank, and a name that no other group has."""

    members: Mapping[int, int]
    name: str


class Reunion:
    """One learner's part in forming groups of the members of `world`."""

    def __init__(self, world: Group) -> None:
        self.world, self.rank = world, world.rank
        self._named = 0
        self._heard: dict[int, tuple[float, float]] = {}  # who waits for a group: (HERE or NEW, incarnation)

    async def listen(self) -> Named | None:
        """Hear one letter, or let a little time pass; the group if one was named."""
        letter = await self.world.hear(TAG, POLL_SECONDS)
        if letter is None:
            return None
        if letter.note[0] != GO:
            self._heard[letter.source] = letter.note[0], letter.note[1]
            return None
        _, first, incarnation, number, *pairs = map(int, letter.note)
        return Named(dict(zip(pairs[::2], pairs[1::2], strict=True)), f"again {first}.{incarnation}.{number}")

    def view(self, members: Mapping[int, int]) -> View:
        """Who is alive, by the register itself.

        Raises:
            LeftBehind: this learner is not, as what it was.
        """
        view = self.world.roll.view(fresh=True)
        if view.incarnations.get(self.rank) != members[self.rank]:
            raise LeftBehind
        return view

    async def gather(
        self, members: Mapping[int, int], latecomers: bool, over: Callable[[], bool] = lambda: False
    ) -> Named | None:
        """Wait for all that are left of the members, and for latecomers where they are asked in; None once it is over.

        Raises:
            LeftBehind: this learner is not among them.
        """
        told: int | None = None
        while not over():
            view = self.view(members)
            left = {r: i for r, i in members.items() if view.incarnations.get(r) == i}
            first = min(left)
            if first == self.rank:
                new = {r: i for r, i in view.incarnations.items() if left.get(r) != i} if latecomers else {}
                expected = {r: (HERE, i) for r, i in left.items() if r != first} | {r: (NEW, i) for r, i in new.items()}
                if all(self._heard.get(r) == (kind, float(i)) for r, (kind, i) in expected.items()):
                    return self._name({**left, **new})
            elif told != first:
                told = first
                self._say(first, (HERE, float(members[self.rank])))
            named = await self.listen()
            if named is not None:
                return named
        return None

    def _name(self, members: Mapping[int, int]) -> Named:
        self._named += 1
        pairs = [float(number) for r in sorted(members) for number in (r, members[r])]
        for r in members:
            self._heard.pop(r, None)
            if r != self.rank:
                self._say(r, (GO, float(self.rank), float(members[self.rank]), float(self._named), *pairs))
        return Named(members, f"again {self.rank}.{members[self.rank]}.{self._named}")

    async def knock(self) -> Named:
        """As one that comes late: wait until a group with this learner in it is named.

        Raises:
            RunOver: the others have done everything.
            PeerLost: nobody is left who holds the model.
        """
        told: tuple[int, tuple[int, ...]] | None = None
        self._heard.clear()
        while True:
            view = self.world.roll.view(fresh=True)
            if view.left > 0 or self.world.roll.spent:
                raise RunOver
            others = tuple(r for r in view.live if r != self.rank)
            own = view.incarnations.get(self.rank)
            if own is not None and all(self._heard.get(r, (HERE, 0.0))[0] == NEW for r in others):
                raise PeerLost("all that held the model are gone: start the run again from its newest checkpoint")
            if own is not None and told != (own, others):
                told = own, others
                for r in others:
                    self._say(r, (NEW, float(own)))
            named = await self.listen()
            if named is not None and own is not None and named.members.get(self.rank) == own:
                return named

    def _say(self, to: int, note: Sequence[float]) -> None:
        self.world.post(torch.empty(0), to, TAG, note)
