"""Groups of learners on the virtual clock: real vectors, modelled seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from murmur.core.group import Group, Message, PeerLost, check_alike, weighted_mean
from murmur.core.membership import LocalMembership, MembershipTable
from murmur.core.trace import COMMUNICATING, WAITING, Trace
from murmur.worlds.virtual.clock import Clock, Event, EventKind
from murmur.worlds.virtual.network import Network

Inbox = dict[str, list[Message]]
Waiting = tuple[str, int | None, Event[Any]]  # tag, source (None: any), event that fires


@dataclass
class Alarm:
    """Alarm that ends waits for a message at the moment `at`."""

    at: float
    waiting: Waiting


class Meeting:
    """One collective of one group: it fires for all, `seconds` after the last member has joined."""

    def __init__(self, clock: Clock, what: str, size: int) -> None:
        self.done = clock.event(what)
        self.last_seconds = 0.0
        self.given: dict[int, Any] = {}
        self.clock, self.size = clock, size

    def join(self, rank: int, value: Any, finish: Callable[[list[Any]], tuple[Any, float]]) -> None:
        """Contribute a value; the last member's `finish` turns all values into (result, seconds)."""
        if self.done.fired:
            return  # a member is gone
        self.given[rank] = value
        if len(self.given) == self.size:
            self.last_seconds = self.clock.now
            result, seconds = finish([self.given[r] for r in range(self.size)])
            self.clock.after(seconds, lambda: self.done.fire(result))

    def lose(self, rank: int, learner: int) -> None:
        """Record that a member is lost; if it has not joined, the collective fails."""
        if rank not in self.given and not self.done.fired:
            what = f"{self.done.what} waits for learner {learner}, which is lost"
            self.done.fire(error=PeerLost(what, learner))


@dataclass
class Arrival:
    """One broadcast of one group, by the member of rank `root`: `done` fires with the vector when it has arrived.

    `asked` are the ranks of the members that take part so far.
    """

    done: Event[Tensor]
    root: int
    asked: set[int] = field(default_factory=set)

    def deliver(self, x: Tensor) -> None:
        """Let the vector arrive, unless the sender was counted as lost before: a suspended one may send it later."""
        if not self.done.fired:
            self.done.fire(x)


@dataclass(frozen=True)
class Awaited:
    """A member's side of a broadcast; awaiting it records the wait."""

    done: Event[Tensor]
    trace: Trace

    def __await__(self) -> Generator[Any, None, Tensor]:
        came = self.trace.now()
        x = yield from self.done.__await__()
        self.trace.add(WAITING, came, self.trace.now(), self.done.what)
        return x


class VirtualHub:
    """State shared by the members of one group: collectives by number, inboxes, counters, sub-groups."""

    def __init__(self, clock: Clock, network: Network, name: str, members: Sequence[int]) -> None:
        self.clock, self.network, self.name, self.members = clock, network, name, list(members)
        self.meetings: dict[tuple[str, int], Meeting] = {}
        self.arrivals: dict[tuple[str, int], Arrival] = {}
        self.inboxes: list[Inbox] = [defaultdict(list) for _ in members]
        self.receivers: list[list[Waiting]] = [[] for _ in members]
        self.counters: dict[str, int] = defaultdict(int)
        self.parts: dict[str, VirtualHub] = {}
        self.table = MembershipTable.of(len(members))
        self.gone: dict[int, int] = {}  # learners that take part in no further collective, by rank
        self.dead: set[int] = set()  # learners of the world that are dead, or considered so
        self.left: set[int] = set()  # learners of the world that have ended in order; its parts share it
        self.under_way: dict[tuple[int, int], int] = defaultdict(int)  # messages posted and not delivered, by ranks

    def part(self, name: str, members: Sequence[int]) -> VirtualHub:
        """Return the hub of a new sub-group, without the members that are gone already."""
        part = VirtualHub(self.clock, self.network, name, members)
        part.left = self.left
        for learner in self.dead & set(members):
            part.forget(learner)
            if self.members.index(learner) not in self.table.view.incarnations:
                part.lose(learner)
        return part

    def meeting(self, verb: str, number: int) -> Meeting:
        """Return the meeting for the number-th call of a verb; it is forgotten when all members have joined it."""
        key = (verb, number)
        if key not in self.meetings:
            self.meetings[key] = Meeting(self.clock, f"{verb} #{number} of {self.name}", len(self.members))
        meeting = self.meetings[key]
        for rank, learner in self.gone.items():
            meeting.lose(rank, learner)
        if len(meeting.given) == len(self.members) - 1:
            del self.meetings[key]
        return meeting

    def arrival(self, verb: str, number: int, rank: int, root: int) -> Arrival:
        """Return the number-th broadcast of a verb for a member; it is forgotten when all members have asked for it."""
        key = (verb, number)
        arrival = self.arrivals.get(key)
        if arrival is None:
            arrival = self.arrivals[key] = Arrival(self.clock.event(f"{verb} #{number} of {self.name}"), root)
        arrival.asked.add(rank)
        if len(arrival.asked) == len(self.members):
            del self.arrivals[key]
        if root in self.gone:
            self._lose_broadcasts(root)
        return arrival

    def _lose_broadcasts(self, root: int) -> None:
        """Let all broadcasts fail that a lost member has not begun."""
        for arrival in self.arrivals.values():
            if arrival.root == root and root not in arrival.asked and not arrival.done.fired:
                arrival.done.fire(error=self.silence_of(root))

    def deliver(self, to: int, tag: str, message: Message) -> None:
        self.under_way[message.source, to] -= 1
        self.inboxes[to][tag].append(message)
        for waiting in list(self.receivers[to]):
            found = self.take(to, waiting[1], waiting[0])
            if found is not None:
                self.receivers[to].remove(waiting)
                waiting[2].fire(found)
        if self.members[message.source] in self.left:
            self.end_waits(message.source, to)

    def take(self, rank: int, source: int | None, tag: str) -> Message | None:
        """Return the oldest message under a tag, if any."""
        for i, message in enumerate(self.inboxes[rank][tag]):
            if source is None or message.source == source:
                del self.inboxes[rank][tag][i]
                return message
        return None

    def places_of(self, learner: int) -> Iterator[tuple[VirtualHub, int]]:
        """Yield this group and its parts, at any depth, in which a learner of the world is, with its rank there."""
        if learner in self.members:
            yield self, self.members.index(learner)
            for part in self.parts.values():
                yield from part.places_of(learner)

    def everywhere(self, learner: int, act: Callable[[MembershipTable, int], object]) -> None:
        """Apply a change for a learner of the world to the membership tables of this group and all its parts."""
        for hub, rank in self.places_of(learner):
            act(hub.table, rank)

    def lose(self, learner: int) -> None:
        """End a learner's lease: the membership tables lose it, and waits for it alone fail."""
        for hub, rank in self.places_of(learner):
            hub.dead.add(learner)
            hub.table.lose(rank)
            hub.quit(rank)
            for to in range(len(hub.members)):
                hub.fail_waits(rank, to)

    def leave(self, learner: int) -> None:
        """Let a learner of the world end in order: waits for it alone fail once its last message has arrived."""
        self.everywhere(learner, MembershipTable.leave)
        self.left.add(learner)
        self.end_waits_for(learner)

    def end_waits_for(self, learner: int) -> None:
        """Let waits for a learner fail to which nothing can come from it any more, here and in all parts."""
        for hub, rank in self.places_of(learner):
            hub.quit(rank)
            for to in range(len(hub.members)):
                hub.end_waits(rank, to)

    def end_waits(self, rank: int, to: int) -> None:
        """Let the waits of a member for another one fail if no further message can come from it."""
        if self.is_silent(rank, to):
            self.fail_waits(rank, to)

    def fail_waits(self, rank: int, to: int) -> None:
        """Let the waits of member `to` for member `rank` alone fail."""
        ended = [waiting for waiting in self.receivers[to] if waiting[1] == rank]
        self.receivers[to] = [waiting for waiting in self.receivers[to] if waiting[1] != rank]
        for waiting in ended:
            waiting[2].fire(error=self.silence_of(rank))

    def is_silent(self, rank: int, to: int) -> bool:
        """True if no further message from a member can come to another one, for it is lost or has ended."""
        if self.members[rank] in self.left:
            return self.under_way[rank, to] == 0
        return rank in self.table.lost and rank not in self.table.view.incarnations

    def quit(self, rank: int) -> None:
        """Take a member out of all further collectives; waits for it there fail."""
        self.gone[rank] = self.members[rank]
        for meeting in self.meetings.values():
            meeting.lose(rank, self.members[rank])
        self._lose_broadcasts(rank)

    def silence_of(self, rank: int) -> PeerLost:
        learner = self.members[rank]
        return PeerLost(f"learner {learner} is gone, and another one waits for it in {self.name}", learner)

    def welcome(self, learner: int) -> None:
        """Start a killed learner again. No group meets again after a loss: its members form another one."""
        for hub, _ in self.places_of(learner):
            hub.dead.discard(learner)

    def forget(self, learner: int) -> None:
        """Forget the messages that had arrived for a learner whose process is gone."""
        for hub, rank in self.places_of(learner):
            hub.dead.add(learner)
            hub.inboxes[rank].clear()
            hub.receivers[rank].clear()
            hub.quit(rank)


class VirtualGroup(Group):
    tolerates_loss = True

    def __init__(self, hub: VirtualHub, rank: int, trace: Trace) -> None:
        self.hub, self.rank, self.trace = hub, rank, trace
        self.size, self.name = len(hub.members), hub.name
        self._calls: dict[str, int] = defaultdict(int)
        self._membership = LocalMembership(hub.table, rank)
        self._awaited: dict[tuple[str, int | None], str] = {}  # names of events, cached
        self._alarm: Alarm | None = None

    async def _meet(self, verb: str, value: Any, finish: Callable[[list[Any]], tuple[Any, float]]) -> Any:
        self._calls[verb] += 1
        meeting = self.hub.meeting(verb, self._calls[verb])
        came = self.hub.clock.now
        meeting.join(self.rank, value, finish)
        result = await meeting.done
        self.trace.add(WAITING, came, meeting.last_seconds, meeting.done.what)
        self.trace.add(COMMUNICATING, meeting.last_seconds, self.hub.clock.now, meeting.done.what)
        return result

    async def share_numbers(self, x: Tensor, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        # They travel with the vectors and cost no message of their own.
        def finish(given: list[tuple[Tensor, tuple[float, ...]]]) -> tuple[list[tuple[float, ...]], float]:
            check_alike([x for x, _ in given], self.name)
            return [said for _, said in given], 0.0

        found: list[tuple[float, ...]] = await self._meet("mean", (x, tuple(numbers)), finish)
        return found

    async def mean_with(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        hub, size = self.hub, x.numel() * x.element_size()
        return await self._mean_in(x, weights, lambda: hub.network.allreduce_seconds(hub.members, size, x.numel()))

    async def mean_with_behind(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        hub, size = self.hub, x.numel() * x.element_size()

        def seconds() -> float:
            behind = hub.network.gradient_seconds[hub.members[self.rank]]  # of the member that comes last
            return hub.network.exposed_allreduce_seconds(hub.members, size, behind)

        return await self._mean_in(x, weights, seconds)

    async def _mean_in(self, x: Tensor, weights: Sequence[float], seconds: Callable[[], float]) -> Tensor:
        def finish(xs: list[Tensor]) -> tuple[Tensor, float]:
            return weighted_mean(xs, weights), seconds()

        return (await self._meet("exchange of mean", x.clone(), finish)).clone()  # type: ignore[no-any-return]

    def start_broadcast(self, x: Tensor, root: int, tag: str) -> Awaitable[Tensor]:
        verb = f"broadcast {tag}"
        self._calls[verb] += 1
        arrival = self.hub.arrival(verb, self._calls[verb], self.rank, root)
        if self.rank == root:
            given, hub = x.clone(), self.hub
            seconds = hub.network.broadcast_seconds(hub.members, x.numel() * x.element_size(), hub.members[root])
            hub.clock.after(seconds, lambda: arrival.deliver(given))
        return Awaited(arrival.done, self.trace)

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        async def added() -> Tensor:
            def finish(xs: list[Tensor]) -> tuple[Tensor, float]:
                check_alike(xs, self.name)
                seconds = self.hub.network.allreduce_seconds(self.hub.members, x.numel() * x.element_size())
                return torch.stack(xs).sum(0), seconds

            return x.copy_(await self._meet("sum", x.clone(), finish))

        return self.hub.clock.start(added(), f"sum of {self.name}", self.hub.members[self.rank])

    def post(self, x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        hub, message = self.hub, Message(x.clone(), self.rank, tuple(header))
        hub.under_way[self.rank, to] += 1
        hub.network.send(
            hub.members[self.rank],
            hub.members[to],
            x.numel() * x.element_size(),
            lambda: hub.deliver(to, tag, message),
            x.numel(),
        )

    async def recv(self, source: int | None = None, tag: str = "") -> Message:
        came = self.hub.clock.now
        message = await self._next(source, tag, float("inf"))
        assert message is not None  # the wait has no end
        self.trace.add(WAITING, came, self.hub.clock.now, f"a message {tag!r}")
        return message

    async def poll(self, tag: str, seconds: float) -> Message | None:
        return await self._next(None, tag, seconds)

    async def _next(self, source: int | None, tag: str, seconds: float) -> Message | None:
        hub, clock = self.hub, self.hub.clock
        found = hub.take(self.rank, source, tag)
        if found is not None:
            return found
        if source is not None and hub.is_silent(source, self.rank):
            raise hub.silence_of(source)
        event: Event[Message | None] = clock.event(self._awaited.get((tag, source)) or self._name_of(tag, source))
        waiting = (tag, source, event)
        hub.receivers[self.rank].append(waiting)

        if seconds < float("inf"):
            self._alarm_after(seconds, waiting)
        return await event

    def _alarm_after(self, seconds: float, waiting: Waiting) -> None:
        """Set an alarm that ends a wait. Successive waits often end at the same moment: they share one alarm."""
        at, alarm = self.hub.clock.now + seconds, self._alarm
        if alarm is not None and alarm.waiting[2].fired and alarm.at == at:
            alarm.waiting = waiting
            return
        self._alarm = alarm = Alarm(at, waiting)
        self.hub.clock.after(seconds, partial(self._ring, alarm), EventKind.POLL)

    def _ring(self, alarm: Alarm) -> None:
        if self._alarm is alarm:
            self._alarm = None
        receivers = self.hub.receivers[self.rank]
        if not alarm.waiting[2].fired and alarm.waiting in receivers:
            receivers.remove(alarm.waiting)
            alarm.waiting[2].fire(None)

    def _name_of(self, tag: str, source: int | None) -> str:
        whom = "anyone" if source is None else f"learner {self.hub.members[source]}"
        name = self._awaited[tag, source] = f"a message {tag!r} from {whom} in {self.name}"
        return name

    @property
    def membership(self) -> LocalMembership:
        return self._membership

    async def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        def finish(xs: list[Tensor]) -> tuple[Tensor, float]:
            check_alike(xs, self.name)
            size, members = x.numel() * x.element_size(), self.hub.members
            return xs[root], self.hub.network.broadcast_seconds(members, size, members[root])

        return (await self._meet("broadcast", x.clone(), finish)).clone()  # type: ignore[no-any-return]

    def split(self, parts: Sequence[Sequence[int]]) -> VirtualGroup | None:
        self._calls["split"] += 1
        for number, part in enumerate(parts):
            if self.rank in part:
                name = f"{self.name}/{self._calls['split']}.{number}"
                if name not in self.hub.parts:
                    members = [self.hub.members[r] for r in part]
                    self.hub.parts[name] = self.hub.part(name, members)
                return VirtualGroup(self.hub.parts[name], list(part).index(self.rank), self.trace)
        return None

    def among(self, ranks: Sequence[int], name: str) -> VirtualGroup:
        members = [self.hub.members[r] for r in ranks]
        if name not in self.hub.parts:
            self.hub.parts[name] = self.hub.part(f"{self.name} {name}", members)
        return VirtualGroup(self.hub.parts[name], list(ranks).index(self.rank), self.trace)

    def close(self) -> None:
        self.hub.quit(self.rank)

    def count(self, counter: str, amount: int = 0) -> int:
        self.hub.counters[counter] += amount
        return self.hub.counters[counter]
