"""How learners that are left, or come late, agree on who forms a group: letters to the first of those that are left.

Who is left says "here" to the first of them, by rank; who comes late says so to everybody. When all that are alive have
spoken, the first one names the members, with their incarnations, to all. If it dies, the next one is told.

A machine that stands still for longer than the leases makes all learners take all others for lost. Each then comes
late, to nobody. So who was thought dead keeps its place in its program until somebody who was not names it a member; if
there is nobody, the one that has seen most means (of these the lowest rank) goes on alone, and lets the others in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from murmur.core.group import Group, PeerLost
from murmur.core.membership import RunOver, View

TAG = "regroup"
HERE, NEW, GO = 0.0, 1.0, 2.0  # what a letter says: a member waits, a latecomer waits, the members are ...
POLL_SECONDS = 0.05
SETTLED_SECONDS = 2.0  # so long must nobody come or go before one that was thought dead goes on alone
NOTHING_HELD = -1  # a learner that has only just begun has seen no mean, and has no model worth going on with


@dataclass(frozen=True)
class Named:
    """A group to be formed: incarnations by rank, and a name that no other group has."""

    members: Mapping[int, int]
    name: str


class ThoughtLost(Exception):
    """The others have taken this learner for dead."""


class LeftBehind(Exception):
    """The others have gone on without this learner; it is to come to them, as one that comes late, in `named`."""

    def __init__(self, named: Named) -> None:
        super().__init__(f"the others have gone on; they form {named.name!r}")
        self.named = named


@dataclass(frozen=True)
class Waiting:
    """Who waits for a group: HERE or NEW, as which incarnation; who is NEW says what it holds, and in which view."""

    kind: float
    incarnation: float
    completed: float = NOTHING_HELD
    view: float = -1.0


class Rendezvous:
    """One learner's part in forming groups of the members of `world`."""

    def __init__(self, world: Group) -> None:
        self.world, self.rank = world, world.rank
        self._named = 0
        self._heard: dict[int, Waiting] = {}

    async def listen(self) -> Named | None:
        """Hear one letter, or let a little time pass; the group if one was named."""
        message = await self.world.poll(TAG, POLL_SECONDS)
        if message is None:
            return None
        if message.header[0] != GO:
            self._heard[message.source] = Waiting(*message.header)
            return None
        _, first, incarnation, number, *pairs = map(int, message.header)
        return Named(dict(zip(pairs[::2], pairs[1::2], strict=True)), f"again {first}.{incarnation}.{number}")

    def view(self, members: Mapping[int, int]) -> View:
        """Who is alive, by the register itself.

        Raises:
            ThoughtLost: this learner is not, as what it was.
        """
        view = self.world.membership.view(fresh=True)
        if view.incarnations.get(self.rank) != members[self.rank]:
            raise ThoughtLost
        return view

    async def gather(
        self, members: Mapping[int, int], latecomers: bool, over: Callable[[], bool] = lambda: False
    ) -> Named | None:
        """Wait for all that are left of the members, and for latecomers where they are asked in; None once it is over.

        Raises:
            ThoughtLost: this learner is not among them.
        """
        told: int | None = None
        while not over():
            view = self.view(members)
            left = {r: i for r, i in members.items() if view.incarnations.get(r) == i}
            first = min(left)
            if first == self.rank:
                new = {r: i for r, i in view.incarnations.items() if left.get(r) != i} if latecomers else {}
                expected = {r: (HERE, i) for r, i in left.items() if r != first} | {r: (NEW, i) for r, i in new.items()}
                if all(self._says(r, kind, i) for r, (kind, i) in expected.items()):
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

    def _says(self, rank: int, kind: float, incarnation: int) -> bool:
        heard = self._heard.get(rank)
        return heard is not None and (heard.kind, heard.incarnation) == (kind, incarnation)

    async def request_to_join(self, completed: int = NOTHING_HELD) -> Named:
        """As one that comes late, or was thought dead: wait until a group with this learner in it is named.

        Args:
            completed: collectives that this learner has seen the end of, if it still stands in its program.

        Returns:
            The group; it has no other member if all others wait as well and this learner is the one to go on.

        Raises:
            RunOver: the others have done everything.
            PeerLost: nobody is left who holds the model.
        """
        told: tuple[int, int] | None = None
        quiet = 0.0
        while True:
            view = self.world.membership.view(fresh=True)
            own = view.incarnations.get(self.rank)
            if view.left > 0 or (completed == NOTHING_HELD and self.world.membership.spent):
                raise RunOver
            if own is not None and told != (own, view.number):
                told, quiet = (own, view.number), 0.0
                for r in view.live:
                    if r != self.rank:
                        self._say(r, (NEW, float(own), float(completed), float(view.number)))
            if own is not None and quiet > SETTLED_SECONDS and self._goes_on(view, completed) == self.rank:
                return Named({self.rank: own}, f"alone {self.rank}.{own}")
            named = await self.listen()
            quiet += POLL_SECONDS
            if named is not None and own is not None and named.members.get(self.rank) == own:
                return named

    def _goes_on(self, view: View, completed: int) -> int | None:
        """Where nobody comes or goes and all wait to be let in: who of them goes on alone; None where others do.

        Raises:
            RunOver: everything is done, and it is for another one to say so.
            PeerLost: none of them holds the model.
        """
        held = {self.rank: float(completed)}
        for r in view.live:
            heard = self._heard.get(r)
            if heard is not None and (heard.kind, heard.view) == (NEW, view.number):
                held[r] = heard.completed
        first = max(held, key=lambda r: (held[r], -r)) if held.keys() >= set(view.live) else None
        if first is not None and held[first] == NOTHING_HELD:
            raise PeerLost("all that held the model are gone: start the run again from its newest checkpoint")
        if first != self.rank and self.world.membership.spent:
            raise RunOver
        return first

    def _say(self, to: int, header: Sequence[float]) -> None:
        self.world.post(torch.empty(0), to, TAG, header)
