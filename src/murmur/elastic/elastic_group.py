"""Lock-step averaging that tolerates lost learners and admits late ones.

A collective in which a member is lost fails for all. Then:

    1. the membership table has lost a member too       ->  the remaining members form a new group (`rendezvous`)
    2. some members have the result, others have not    ->  it is broadcast: no learner averages twice
    3. no member has it                                 ->  the remaining members repeat the collective
    4. the next round                                   ->  uncompleted minibatches of the lost are assigned again

Each mean also carries the sums of the minibatches that the members have computed. Those of a lost member are kept as of
its last mean: what it has computed since is assigned again. So the sums of all count each minibatch once.

A late learner is admitted between two rounds, right after an average: every mean tells all members if a learner waits.
The late learner takes over the weights, the strategy's vectors, and the assignment; its optimizer is reset. A learner
that was wrongly considered dead enters as a late one. If all were considered dead, one of them goes on alone.

Ranks never change. The other learners do a lost learner's minibatches of the unfinished round
(`murmur.core.assignment`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol

import torch
from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.flat import Layout, is_finite
from murmur.core.group import Group, GroupAround, PeerLost, WorldMismatch, share_of
from murmur.core.membership import View
from murmur.core.source import SKIPPED_SAMPLES, Computed, Source
from murmur.core.weights import Weights
from murmur.elastic.rendezvous import POLL_SECONDS, LeftBehind, Named, Rendezvous, ThoughtLost
from murmur.elastic.state_transfer import LOST, LearnerState, transfer_state

NEVER = -1  # incarnation of a member that was lost before this learner saw it
DEATH_SECONDS = 60.0  # after a failed collective, time for the membership table to show the lost member


class Member(Protocol):
    """State of a learner that it gives to late learners, or takes over from the others."""

    steps: int
    weights: Weights
    outer: dict[str, Tensor]
    source: Source


@dataclass
class Latest:
    """Result of the latest collective, for a member that failed before receiving it."""

    result: Tensor
    total_weight: float
    waiting: bool


class ElasticGroup(GroupAround):
    """The remaining learners of `world`.

    Args:
        world: Group of all learners; must tolerate loss.
        me: This learner.
        buffers: Returns the tensors that its model has now beside the weights.
        began: View once all learners had come; None: the present one. A member that was lost since then and is back is
            another one, which waits to be admitted.
        computed: Returns the minibatches that this learner has computed.
    """

    def __init__(
        self,
        world: Group,
        me: Member,
        buffers: Callable[[], Layout],
        began: View | None = None,
        computed: Callable[[], Computed] = Computed,
    ) -> None:
        super().__init__(world)
        self.name = f"elastic {world.name}"
        self.me, self.buffers = me, buffers
        self.adds_beside, self.tolerates_loss = False, True
        self.regrouped = self._formed = 0
        self._now: Group = world
        # A member that was lost before this moment counts as a member: the first collective fails, and finds it gone.
        alive = (world.membership.view() if began is None else began).incarnations
        self._members: Mapping[int, int] = {**dict.fromkeys(range(world.size), NEVER), **alive}
        self._begun = 0  # steps of this learner when the round began
        self._completed = 0
        self._latest: Latest | None = None
        self._computed_here, self._before = computed, computed()  # now, and before this learner became a member
        self._shares: dict[int, Computed] = {}  # of the members, by rank, as of their latest mean
        self._of_lost = Computed()
        self._said: dict[int, Computed] = {}  # by the members in the mean under way
        self._waiting = False  # True if a late learner waits; all members know it since the same mean
        self._rendezvous = Rendezvous(world)

    @property
    def live(self) -> tuple[int, ...]:
        return tuple(sorted(self._members))

    @property
    def computed(self) -> Computed:
        """Minibatches that the members have computed until the latest mean, and lost members until their last one."""
        return sum(self._shares.values(), self._of_lost)

    @property
    def plain(self) -> Group:
        return self

    def split(self, parts: Sequence[Sequence[int]]) -> Group | None:
        """Return this group itself, for evaluation beside training.

        Raises:
            PeerLost: Other parts are asked for, which could not tolerate a lost learner.
        """
        if [list(part) for part in parts] != [list(range(self.size))]:
            raise PeerLost(f"{self.name} cannot be split: its parts could not go on without a lost learner")
        return self

    async def mean(self, x: Tensor, weight: float = 1.0) -> Tensor:
        return await self._hold(partial(self._average, x, share_of(x, weight)), x, ends_round=True)

    async def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """Return the vector of `root`, or of the first remaining member if root is lost."""

        def give(group: Group) -> Awaitable[Tensor]:
            return group.broadcast(x, self.live.index(root) if root in self._members else 0)

        return await self._hold(give, x)

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        """Sum over the remaining members. It does not begin before it is awaited."""
        return self._hold(lambda group: group.start_sum(x.clone()), x)

    async def _average(self, x: Tensor, weight: float, group: Group) -> Tensor:
        mine, late = self._computed_here() - self._before, float(bool(self._latecomers()))
        numbers = (weight, late, float(is_finite(x)), float(mine.count), float(mine.fingerprint))
        said = await group.share_numbers(x, numbers)
        self._said = {r: Computed(*map(int, words[3:])) for r, words in zip(self.live, said, strict=True)}
        weights = [words[0] for words in said]
        self.total_weight, self._waiting = sum(weights), any(words[1] > 0 for words in said)
        assignment = self._next_assignment()
        if self.total_weight == 0 and assignment.reached(self.me.steps) < assignment.total:
            # All members with samples are lost. Their minibatches will be done again, so this is not the end.
            weights, self.total_weight = [words[2] for words in said], SKIPPED_SAMPLES
        if not any(weights):
            return x.clone()
        if self.total_weight == 0 or group.size == 1:
            return x.clone()
        return await group.mean_with(x, weights)

    async def _hold(self, act: Callable[[Group], Awaitable[Tensor]], like: Tensor, ends_round: bool = False) -> Tensor:
        """Repeat a collective until it succeeds, or until another member supplies its result."""
        result: Tensor | None = None
        while result is None:
            members = self._members
            try:
                result = await act(self._now)
                self.regrouped = self._formed
            except PeerLost as lost:
                # A result of others is one of the former group, in which they are until the next collective.
                result = await self._recover(like, lost)
        if ends_round:
            self._shares = {r: share for r, share in self._said.items() if r in self._members}
            self.me.source.assignment, self._begun = self._next_assignment(members), self.me.steps
        self._completed += 1
        self._latest = Latest(result.clone(), self.total_weight, self._waiting)
        return result

    def _next_assignment(self, members: Mapping[int, int] | None = None) -> Assignment:
        """Return the assignment of the next round, once these members have averaged this one."""
        assignment, left = self.me.source.assignment, self._members if members is None else members
        missing = set(assignment.to) - left.keys()
        return assignment.without(self._begun, self.me.steps, missing, sorted(left)) if missing else assignment

    def _latecomers(self) -> dict[int, int]:
        view = self.membership.view()
        return {r: i for r, i in view.incarnations.items() if self._members.get(r) != i}

    async def welcome(self) -> None:
        """Admit waiting learners between two rounds, if the latest mean has announced any."""
        while self._waiting:
            try:
                self._now.close()
                await self._form(None, latecomers=True)
                self._waiting, self.regrouped = False, self._formed
            except PeerLost:
                continue  # a member or a late learner was lost meanwhile
            except ThoughtLost:
                await self._go_on_alone()

    async def meet(self, barrier: str) -> None:
        """Wait until all remaining learners have arrived at a barrier; late learners then find no work left."""
        self.membership.claim(0, 0)
        while not self.membership.arrive(barrier):
            try:
                if self._whole(self._rendezvous.view(self._members)):
                    await self._rendezvous.poll()
                    continue
                await self._form(None, over=lambda: self.membership.arrive(barrier))
            except PeerLost:
                continue
            except ThoughtLost:
                await self._go_on_alone()

    async def _recover(self, like: Tensor, lost: PeerLost) -> Tensor | None:
        """Form a group of the remaining members after a failure; return the collective's result if a member has it."""
        self._now.close()
        waited = 0.0
        try:
            while self._whole(self._rendezvous.view(self._members)):
                if waited > DEATH_SECONDS:
                    raise lost  # no member has died: the cause is another one
                await self._rendezvous.poll()
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
        """Go on as the only member, if all learners were considered dead.

        Raises:
            LeftBehind: Other learners go on.
        """
        named = await self._rendezvous.request_to_join(self._completed)
        if set(named.members) != {self.rank}:
            raise LeftBehind(named)
        self._now.close()
        self._now = self.inner.among([self.rank], named.name)
        self._set_members(named.members)
        self._formed += 1

    def _set_members(self, members: Mapping[int, int]) -> None:
        """Set the members; one that was added later may have a rank beyond the others'."""
        self._keep_shares_of_lost(members)
        self._members, self.size = members, max(self.size, *(r + 1 for r in members))

    def _keep_shares_of_lost(self, members: Mapping[int, int]) -> None:
        """Keep what the members that are not among these have computed until their last mean."""
        for r in self._shares.keys() - {self.rank}:
            if members.get(r) != self._members.get(r):
                self._of_lost += self._shares.pop(r)

    def _whole(self, view: View) -> bool:
        return all(view.incarnations.get(r) == i for r, i in self._members.items())

    async def _form(
        self, like: Tensor | None, latecomers: bool = False, over: Callable[[], bool] = lambda: False
    ) -> Tensor | None:
        """Form a new group; return the result of the present collective, if other members have it already."""
        named = await self._rendezvous.gather(self._members, latecomers, over)
        if named is None:
            return None
        completed, new = await self._join(named, entering=False)
        if any(new):
            await self._transfer(entering=False, root=new.index(0.0), named=named)
            found = None
        else:
            found = await self._share_result(completed, like)
        self._set_members(named.members)
        self._formed += 1
        return found

    async def _join(self, named: Named, entering: bool) -> tuple[list[float], list[float]]:
        """Join the named group; return the number of collectives completed by each member, and flags of new members."""
        ranks = sorted(named.members)
        self._now = self.inner.among(ranks, named.name)
        table = torch.zeros(2, len(ranks), dtype=torch.float64)
        table[:, ranks.index(self.rank)] = torch.tensor([self._completed, float(entering)])
        completed, new = (await self._now.start_sum(table.flatten())).view(2, -1).tolist()
        return completed, new

    async def _share_result(self, completed: Sequence[float], like: Tensor | None) -> Tensor | None:
        """Broadcast the result of the latest collective to the members that have not received it."""
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
        for r in self.live:
            share = self._shares.get(r, Computed())
            facts += [float(share.count), float(share.fingerprint)]
        told = (await group.broadcast(torch.tensor(facts, dtype=torch.float64), root)).tolist()
        if not behind:
            return None
        self.total_weight, self._waiting = told[0], told[1] > 0
        self._shares = self._said = {r: Computed(*map(int, told[i : i + 2])) for i, r in zip(count(2, 2), self.live)}
        return result

    async def _transfer(self, entering: bool, root: int, named: Named) -> None:
        """Transfer a learner's state between two rounds to new members, or take it over as one of them."""
        me = self.me
        self._keep_shares_of_lost(named.members)
        seen = (me.steps, self._completed, self.size, {**self._shares, LOST: self._of_lost})
        state = LearnerState(*seen, me.source.assignment, me.weights.snapshot(), me.outer, self.buffers())
        given = await transfer_state(self._now, state, root, entering)
        if entering:
            self._shares = dict(given.computed)
            self._of_lost, self._before = self._shares.pop(LOST), self._computed_here()
            me.weights.set_(given.weights)
            me.outer.update(given.outer)
            me.source.restart()
        me.steps, self._completed, self.size = given.steps, given.completed, given.size
        assignment = given.assignment
        me.source.assignment = assignment.anew(me.steps, assignment.reached(me.steps), sorted(named.members))
        self._begun = me.steps

    async def enter(self, named: Named | None = None) -> None:
        """Join learners that are under way, once they admit this one between two rounds.

        Args:
            named: The group, if they have named it already.

        Raises:
            RunOver: The others have finished the run.
            PeerLost: No learner with the model is left.
        """
        self.total_weight, self._waiting, self._latest, self._completed = float("inf"), False, None, 0
        while True:
            if named is None:
                named = await self._rendezvous.request_to_join()
            try:
                self._members = named.members
                _, new = await self._join(named, entering=True)
                await self._transfer(entering=True, root=new.index(0.0), named=named)
            except PeerLost:
                self._now.close()
                named = None
            else:
                self._set_members(named.members)
                return
