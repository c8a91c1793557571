"""Lock-step averaging that tolerates lost learners and admits late ones.

A collective in which a member is lost fails for all. Then:

    1. the membership table has lost a member too       ->  the remaining members form a new group (`rendezvous`)
    2. some members have the result, others have not    ->  it is broadcast: no learner averages twice
    3. no member has it                                 ->  the remaining members repeat the collective
    4. the next round                                   ->  uncompleted minibatches of the lost are assigned again

Each mean also carries the sums of the minibatches that the members have computed. Those of a lost member are kept as of
its last mean: what it has computed since is assigned again. So the sums of all count each minibatch once.

A late learner is admitted between two rounds, right after an average: every mean tells all members if a learner waits.
The late learner takes over the weights, the strategy's vectors, and the assignment. Its optimizer is reset, or takes
over the state of a member's (`OwnState`). A learner that was wrongly considered dead enters as a late one. If all were
considered dead, one of them goes on alone.

Ranks never change. The other learners do a lost learner's minibatches of the unfinished round
(`murmur.core.assignment`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.flat import Layout, is_finite
from murmur.core.group import Group, GroupAround, PeerLost, WorldMismatch, share_of
from murmur.core.local_steps import LocalSteps
from murmur.core.membership import View
from murmur.core.source import SKIPPED_SAMPLES, Computed
from murmur.elastic.rendezvous import POLL_SECONDS, LeftBehind, Named, Rendezvous, ThoughtLost

LOST = -1  # key of all lost members together


def no_bytes() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class OwnState:
    """State beside weights and vectors that a late learner takes over.

    Attributes:
        give: Returns it as a vector of bytes, on the member that sends.
        take: Takes it over.
    """

    give: Callable[[], Tensor]
    take: Callable[[Tensor], None]


@dataclass(frozen=True)
class LearnerState:
    """State of a learner between two rounds.

    Attributes:
        steps: Turns completed.
        completed: Collectives that it has taken part in.
        size: One more than the highest rank so far.
        computed: Minibatches computed by each member until its last mean, by rank, and by lost members (`LOST`).
        assignment: Assignment of minibatches to learners.
        weights: Its weights w, shape (P,).
        outer: The strategy's vectors.
        buffers: Tensors of the model that are not weights; they are set in place.
        own: Further state, a vector of bytes.
    """

    steps: int
    completed: int
    size: int
    computed: Mapping[int, Computed]
    assignment: Assignment
    weights: Tensor
    outer: Mapping[str, Tensor]
    buffers: Layout
    own: Tensor = field(default_factory=no_bytes)


async def transfer_state(group: Group, mine: LearnerState, root: int, entering: bool) -> LearnerState:
    """Send the state of member `root` to those that enter; the others keep theirs, which is the same. All call it.

    Args:
        group: Present members and those that enter.
        mine: This learner's own state; for one that enters, only the shapes of weights and buffers matter.
        root: A present member.
        entering: True if this learner takes the state over.
    """
    facts = {
        "steps": mine.steps,
        "completed": mine.completed,
        "size": mine.size,
        "computed": [(rank, share.count, share.fingerprint) for rank, share in mine.computed.items()],
        "assignment": asdict(mine.assignment),
        "own": mine.own.numel(),
        "outer": {name: [x.numel(), str(x.dtype).removeprefix("torch.")] for name, x in mine.outer.items()},
    }
    raw = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
    length = int(await group.broadcast(torch.tensor([float(raw.numel())], dtype=torch.float64), root))
    # Only root's facts count: another member may have fewer outer vectors (a leader has some of its own).
    raw = await group.broadcast(raw if group.rank == root else torch.zeros(length, dtype=torch.uint8), root)
    told = json.loads(bytes(raw.tolist()))
    weights = await group.broadcast(mine.weights, root)
    outer = {}
    for name, (numel, dtype) in told["outer"].items():
        x = mine.outer[name] if group.rank == root else weights.new_zeros(numel, dtype=getattr(torch, dtype))
        outer[name] = await group.broadcast(x, root)
    if mine.buffers.tensors:
        buffers = await group.broadcast(mine.buffers.gather(), root)
    own = await _own(group, mine.own, told["own"], root)
    if not entering:
        return mine
    if mine.buffers.tensors:
        mine.buffers.scatter(buffers)
    counts = {name: told[name] for name in ("steps", "completed", "size")}
    computed = {rank: Computed(*share) for rank, *share in told["computed"]}
    received = _assignment(told["assignment"])
    return replace(mine, **counts, computed=computed, assignment=received, weights=weights, outer=outer, own=own)


async def _own(group: Group, own: Tensor, numel: int, root: int) -> Tensor:
    if numel == 0:
        return no_bytes()
    return await group.broadcast(own if group.rank == root else no_bytes().new_empty(numel), root)


def _assignment(told: Mapping[str, Any]) -> Assignment:
    moved = {int(position): number for position, number in told["moved"].items()}
    return Assignment(**{**told, "to": tuple(told["to"]), "moved": moved})


NEVER = -1  # incarnation of a member that was lost before this learner saw it
DEATH_SECONDS = 60.0  # after a failed collective, time for the membership table to show the lost member


@dataclass
class Latest:
    """Result of the latest collective, for a member that failed before receiving it."""

    result: Callable[[], Tensor]
    total_weight: float
    waiting: bool


class ElasticGroup(GroupAround):
    """The remaining learners of `world`.

    Args:
        world: Group of all learners; must tolerate loss.
        local: Gradients and steps of this learner.
        outer: Vectors of its strategy.
        buffers: Returns the tensors that its model has now beside the weights.
        began: View once all learners had come; None: the present one. A member that was lost since then and is back is
            another one, which waits to be admitted.
        computed: Returns the minibatches that this learner has computed.
        own: Further state that a late learner takes over; None: its optimizer is reset.
    """

    def __init__(
        self,
        world: Group,
        local: LocalSteps,
        outer: dict[str, Tensor],
        buffers: Callable[[], Layout],
        began: View | None = None,
        computed: Callable[[], Computed] = Computed,
        own: OwnState | None = None,
    ) -> None:
        super().__init__(world)
        self.name = f"elastic {world.name}"
        self.local, self.outer, self.buffers = local, outer, buffers
        self._own = own or OwnState(no_bytes, lambda _: local.restart())
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
    def present(self) -> tuple[int, ...]:
        """Ranks of the members that are there, as far as this learner knows, and have not been started again."""
        here = self.membership.view().incarnations
        return tuple(r for r in self.live if here.get(r) == self._members[r] or r == self.rank)

    @property
    def computed(self) -> Computed:
        """Minibatches that the members have computed until the latest mean, and lost members until their last one."""
        return sum(self._shares.values(), self._of_lost)

    @property
    def plain(self) -> Group:
        return self

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        return self._now.room(numel, dtype)

    def split(self, parts: Sequence[Sequence[int]]) -> Group | None:
        """Return this group itself, for evaluation beside training; other parts could not tolerate a loss."""
        if [list(part) for part in parts] != [list(range(self.size))]:
            raise PeerLost(f"{self.name} cannot be split: its parts could not go on without a lost learner")
        return self

    async def share_numbers(self, x: Tensor, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        """Share a few numbers; those of learners that are not members are 0."""
        table = x.new_zeros((self.size, len(numbers)), dtype=torch.float64)
        table[self.rank] = table.new_tensor(numbers)
        rows = (await self.start_sum(table.flatten())).view(self.size, -1).tolist()
        return [tuple(row) for row in rows]

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
        numbers = (weight, late, float(weight > 0 or is_finite(x)), float(mine.count), float(mine.fingerprint))
        said = await group.share_numbers(x, numbers)
        self._said = {r: Computed(*map(int, words[3:])) for r, words in zip(self.live, said, strict=True)}
        weights = [words[0] for words in said]
        self.total_weight, self._waiting = sum(weights), any(words[1] > 0 for words in said)
        assignment = self._next_assignment()
        if self.total_weight == 0 and assignment.has_left(self.local.steps):
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
            self.local.source.turns.assignment, self._begun = self._next_assignment(members), self.local.steps
        self._completed += 1
        self._latest = Latest(self._now.keep(result), self.total_weight, self._waiting)
        return result

    def _next_assignment(self, members: Mapping[int, int] | None = None) -> Assignment:
        """Return the assignment of the next round, once these members have averaged this one."""
        assignment, left = self.local.source.turns.assignment, self._members if members is None else members
        missing = set(assignment.to) - left.keys()
        return assignment.without(self._begun, self.local.steps, missing, sorted(left)) if missing else assignment

    def _latecomers(self) -> dict[int, int]:
        view = self.membership.view()
        return {r: i for r, i in view.incarnations.items() if self._members.get(r) != i}

    async def welcome(self) -> None:
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
        """Go on as the only member, if all were considered dead; raise `LeftBehind` if others go on."""
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
        most, group, latest = max(completed), self._now, self._latest
        if min(completed) == most:
            return None
        root, behind = completed.index(most), self._completed < most
        if most - min(completed) > 1 or (latest is None and not behind) or (behind and like is None):
            raise WorldMismatch(f"the members of {self.name} have completed {completed} collectives: same strategy?")
        mine = like if behind or latest is None else latest.result()
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
        local = self.local
        self._keep_shares_of_lost(named.members)
        seen = (local.steps, self._completed, self.size, {**self._shares, LOST: self._of_lost})
        own = self._own.give() if self._now.rank == root else no_bytes()
        held = (local.weights.snapshot(), self.outer, self.buffers(), own)
        state = LearnerState(*seen, local.source.turns.assignment, *held)
        given = await transfer_state(self._now, state, root, entering)
        if entering:
            self._shares = dict(given.computed)
            self._of_lost, self._before = self._shares.pop(LOST), self._computed_here()
            local.weights.set_(given.weights)
            self.outer.update(given.outer)
            self._own.take(given.own)
        local.steps, self._completed, self.size = given.steps, given.completed, given.size
        local.source.turns.assignment = given.assignment
        local.assign(given.assignment.reached(local.steps), sorted(named.members))
        self._begun = local.steps

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
