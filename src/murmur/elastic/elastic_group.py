"""Lock-step averaging that goes on when a learner is lost, and lets in those that come late.

A collective in which a member is lost fails for all. Then:

    1. the register has lost a member too               ->  those that are left form a new group (`rendezvous`)
    2. some have the result already, others have not    ->  it is handed on: nobody averages twice
    3. nobody has it                                    ->  the collective is held again by those that are left
    4. the next round                                   ->  what the lost had not handed in is dealt out again

A learner that comes late is let in between two rounds, where nothing local is un-averaged: every mean tells everybody
whether somebody waits. It takes over the weights, the strategy's own vectors, and the deal; its optimizer begins anew.
A learner that was thought dead and was not is such a learner, unless all were: then one of them goes on alone.

Ranks stay what they were. A lost learner's minibatches of the unfinished round are done by the others
(`murmur.core.assignment`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.flat import Layout, is_finite
from murmur.core.group import Group, GroupAround, PeerLost, WorldMismatch, share_of
from murmur.core.membership import View
from murmur.core.source import SKIPPED_SAMPLES, Source
from murmur.core.weights import Weights
from murmur.elastic.rendezvous import POLL_SECONDS, LeftBehind, Named, Rendezvous, ThoughtLost
from murmur.elastic.state_transfer import LearnerState, transfer_state

NEVER = -1  # the incarnation of a member that was lost before this learner saw it
DEATH_SECONDS = 60.0  # a collective has failed: so long until the register must know who was lost


class Member(Protocol):
    """What a learner that takes part has to give, or takes over."""

    steps: int
    weights: Weights
    outer: dict[str, Tensor]
    source: Source


@dataclass
class Latest:
    """The result of the latest collective, for a member that did not live to see it; who took part."""

    result: Tensor
    total_weight: float
    waiting: bool


class ElasticGroup(GroupAround):
    """The learners of `world` that are left.

    Args:
        world: all learners; must be able to outlive one.
        me: this learner.
        buffers: tensors of its model that are no weights.
    """

    def __init__(self, world: Group, me: Member, buffers: Layout) -> None:
        super().__init__(world)
        self.name = f"{world.name} that is left"
        self.me, self.buffers = me, buffers
        self.adds_beside, self.tolerates_loss = False, True
        self.regrouped = 0
        self._now: Group = world
        # A member that was lost before this moment is one all the same: the first collective fails, and finds it gone.
        alive = world.membership.view().incarnations
        self._members: Mapping[int, int] = {**dict.fromkeys(range(world.size), NEVER), **alive}
        self._begun = 0  # steps of this learner when the round began
        self._completed = 0
        self._latest: Latest | None = None
        self._waiting = False  # whether somebody waits to be let in: all know it since the same mean
        self._reunion = Rendezvous(world)

    @property
    def live(self) -> tuple[int, ...]:
        return tuple(sorted(self._members))

    @property
    def plain(self) -> Group:
        return self

    def split(self, parts: Sequence[Sequence[int]]) -> Group | None:
        """This group itself, for evaluation beside training.

        Raises:
            PeerLost: other parts are asked for, which could not outlive a learner.
        """
        if [list(part) for part in parts] != [list(range(self.size))]:
            raise PeerLost(f"{self.name} cannot be split: its parts could not go on without a lost learner")
        return self

    async def mean(self, x: Tensor, weight: float = 1.0) -> Tensor:
        return await self._hold(partial(self._average, x, share_of(x, weight)), x, ends_round=True)

    async def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """The vector of `root`; of the first that is left, if root is lost."""

        def give(group: Group) -> Awaitable[Tensor]:
            return group.broadcast(x, self.live.index(root) if root in self._members else 0)

        return await self._hold(give, x)

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        """The sum over those that are left; not begun before it is awaited."""
        return self._hold(lambda group: group.start_sum(x.clone()), x)

    async def _average(self, x: Tensor, weight: float, group: Group) -> Tensor:
        said = await group._words(x, (weight, float(bool(self._latecomers())), float(is_finite(x))))
        weights = [words[0] for words in said]
        self.total_weight, self._waiting = sum(weights), any(words[1] > 0 for words in said)
        deal = self._dealt()
        if self.total_weight == 0 and deal.reached(self.me.steps) < deal.total:
            # Those who had samples are lost; theirs will be done again, so this is not the end.
            weights, self.total_weight = [words[2] for words in said], SKIPPED_SAMPLES
        if not any(weights):
            return x.clone()
        if self.total_weight == 0 or group.size == 1:
            return x.clone()
        return await group._mean(x, weights)

    async def _hold(self, act: Callable[[Group], Awaitable[Tensor]], like: Tensor, ends_round: bool = False) -> Tensor:
        """Hold a collective until it succeeds, or until somebody hands its result on."""
        result: Tensor | None = None
        while result is None:
            members = self._members
            try:
                result = await act(self._now)
            except PeerLost as lost:
                result = await self._again(like, lost)
        if ends_round:
            self.me.source.assignment, self._begun = self._dealt(members), self.me.steps
        self._completed += 1
        self._latest = Latest(result.clone(), self.total_weight, self._waiting)
        return result

    def _dealt(self, members: Mapping[int, int] | None = None) -> Assignment:
        """The deal of the next round, once these have averaged this one."""
        deal, left = self.me.source.assignment, self._members if members is None else members
        missing = set(deal.to) - left.keys()
        return deal.without(self._begun, self.me.steps, missing, sorted(left)) if missing else deal

    def _latecomers(self) -> dict[int, int]:
        view = self.membership.view()
        return {r: i for r, i in view.incarnations.items() if self._members.get(r) != i}

    async def welcome(self) -> None:
        """Between two rounds: let in who waits, if the latest mean has said so."""
        while self._waiting:
            try:
                self._now.close()
                await self._form(None, latecomers=True)
                self._waiting = False
            except PeerLost:
                continue  # somebody was lost at the door
            except ThoughtLost:
                await self._go_on_alone()

    async def meet(self, barrier: str) -> None:
        """Wait until all that are left have come to a stage; who comes late finds that nothing is left to do."""
        self.membership.claim(0, 0)
        while not self.membership.arrive(barrier):
            try:
                if self._whole(self._reunion.view(self._members)):
                    await self._reunion.listen()
                    continue
                await self._form(None, over=lambda: self.membership.arrive(barrier))
            except PeerLost:
                continue
            except ThoughtLost:
                await self._go_on_alone()

    async def _again(self, like: Tensor, lost: PeerLost) -> Tensor | None:
        """After a failure: a new group of those that are left; the collective's result if somebody has it."""
        self._now.close()
        waited = 0.0
        try:
            while self._whole(self._reunion.view(self._members)):
                if waited > DEATH_SECONDS:
                    raise lost  # nobody has died: something else is wrong
                await self._reunion.listen()
                waited += POLL_SECONDS
            while True:
                try:
                    return await self._form(like)
                except PeerLost:
                    self._now.close()
        except ThoughtLost:
            await self._go_on_alone()
            return None

    async def _go_on_alone(self) -> None:
        """After this learner was thought dead: be the only member, where all were; LeftBehind where others go on."""
        named = await self._reunion.request_to_join(self._completed)
        if set(named.members) != {self.rank}:
            raise LeftBehind(named)
        self._now.close()
        self._now = self.inner.among([self.rank], named.name)
        self._be(named.members)
        self.regrouped += 1

    def _be(self, members: Mapping[int, int]) -> None:
        """The group is made of these from now on; one that was added later may have a rank beyond the others'."""
        self._members, self.size = members, max(self.size, *(r + 1 for r in members))

    def _whole(self, view: View) -> bool:
        return all(view.incarnations.get(r) == i for r, i in self._members.items())

    async def _form(
        self, like: Tensor | None, latecomers: bool = False, over: Callable[[], bool] = lambda: False
    ) -> Tensor | None:
        """A new group; the result of the collective in hand, if others have it already."""
        named = await self._reunion.gather(self._members, latecomers, over)
        if named is None:
            return None
        completed, new = await self._join(named, entering=False)
        if any(new):
            await self._let_in(entering=False, root=new.index(0.0), named=named)
            found = None
        else:
            found = await self._hand_on(completed, like)
        self._be(named.members)
        self.regrouped += 1
        return found

    async def _join(self, named: Named, entering: bool) -> tuple[list[float], list[float]]:
        """Be in the group that was named; of all members how many collectives they have completed, and who is new."""
        ranks = sorted(named.members)
        self._now = self.inner.among(ranks, named.name)
        table = torch.zeros(2, len(ranks), dtype=torch.float64)
        table[:, ranks.index(self.rank)] = torch.tensor([self._completed, float(entering)])
        completed, new = (await self._now.start_sum(table.flatten())).view(2, -1).tolist()
        return completed, new

    async def _hand_on(self, completed: Sequence[float], like: Tensor | None) -> Tensor | None:
        """The result of the latest collective, to those that were not there to see it."""
        most, group, latest = max(completed), self._now, self._latest
        if min(completed) == most:
            return None
        root, behind = completed.index(most), self._completed < most
        if most - min(completed) > 1 or (latest is None and not behind) or (behind and like is None):
            raise WorldMismatch(f"the members of {self.name} have completed {completed} collectives: same strategy?")
        mine = like if behind or latest is None else latest.result
        assert mine is not None
        result = await group.broadcast(mine, root)
        facts = [0.0, 0.0] if latest is None else [latest.total_weight, float(latest.waiting)]
        total, waiting = (await group.broadcast(torch.tensor(facts, dtype=torch.float64), root)).tolist()
        if not behind:
            return None
        self.total_weight, self._waiting = total, waiting > 0
        return result

    async def _let_in(self, entering: bool, root: int, named: Named) -> None:
        """Give latecomers, or take over as one of them, all that a learner knows between two rounds."""
        me = self.me
        seen = (me.steps, self._completed, self.size)
        state = LearnerState(*seen, me.source.assignment, me.weights.snapshot(), me.outer, self.buffers)
        given = await transfer_state(self._now, state, root, entering)
        if entering:
            me.weights.set_(given.weights)
            me.outer.update(given.outer)
            me.source.restart()
        me.steps, self._completed, self.size = given.steps, given.completed, given.size
        assignment = given.assignment
        me.source.assignment = assignment.anew(me.steps, assignment.reached(me.steps), sorted(named.members))
        self._begun = me.steps

    async def enter(self, named: Named | None = None) -> None:
        """Join learners that are under way: wait until they let this one in between two rounds.

        Args:
            named: the group, if they have named it already.

        Raises:
            RunOver: the others have done everything.
            PeerLost: nobody is left who holds the model.
        """
        self.total_weight, self._waiting, self._latest, self._completed = float("inf"), False, None, 0
        while True:
            if named is None:
                named = await self._reunion.request_to_join()
            try:
                _, new = await self._join(named, entering=True)
                await self._let_in(entering=True, root=new.index(0.0), named=named)
            except PeerLost:
                self._now.close()
                named = None
            else:
                self._be(named.members)
                return
