"""Simulated launches around the state of the store: learners that claim, with faults, as pure functions of a seed.

The code under test is what ships: `StoreState` answers, and learners hold their claims by `Holdings`. Connections keep
the order of their own messages; those of different connections overtake each other. Faults are delays, a busy server,
connections that break or go silent, learners that are killed in the middle of a claim, stopped, and started again while
messages of the process before are under way, and repeated messages of the launcher.

The oracle has its own account of the leases. A run fails if

    - a number is given to a learner while the claim of another one, whose lease lives, covers it (`TWICE`);
    - the server says that all numbers are done, and one was never computed (`LOST`);
    - a learner without faults cannot finish the run (`STUCK`).
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from murmur.worlds.process.claims import Holdings, Limits, claims_in
from murmur.worlds.process.membership_server import Instant
from murmur.worlds.process.store_state import Reply, StoreState

TWICE, LOST, STUCK = "numbers given twice", "numbers lost", "runs that never end"
GROUP, BEAT_SECONDS, FAULT_SECONDS, LIMIT_SECONDS = "world", 0.25, 2.0, 60.0
Done = Callable[[dict[str, Any]], None]


class Broken(Exception):
    """The oracle has found a fault."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(f"{kind}: {said}")
        self.kind = kind


@dataclass
class Connection:
    """Connection of a learner; `up` and `down` are the arrivals of the latest messages."""

    number: int
    learner: SimulatedLearner
    up: float = 0.0
    down: float = 0.0
    open_here: bool = True  # at the learner
    open_there: bool = True
    busy: bool = False  # the server has a request without a reply
    queue: deque[tuple[dict[str, Any], Done]] = field(default_factory=deque)
    awaited: deque[Done] = field(default_factory=deque)


class Simulation:
    """A launch: its clock, the network, the server and the oracle."""

    def __init__(self, seed: int, state: Callable[[Instant], StoreState] = StoreState) -> None:
        self.draw = random.Random(seed)
        self.now, self._serial, self._events = 0.0, 0, list[tuple[float, int, Callable[[], None]]]()
        self.state = state(Instant(0.0))
        self.size, self.lease = self.draw.randint(1, 4), self.draw.choice([0.6, 1.0, 2.0])
        self.limits = Limits(0, self.draw.randint(1, 12), self.draw.randint(1, 3))
        self.delay = self.draw.choice([0.002, 0.02, 0.2])
        self.shares = self.draw.random() < 0.3
        self.oracle = Oracle(self.limits.total)
        self.over = False
        self._lines: dict[int, Connection] = {}
        self._busy_until = self._settled_at = self._wake_at = 0.0

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Run `act` in that many seconds."""
        self._serial += 1
        heapq.heappush(self._events, (self.now + seconds, self._serial, act))

    def run(self) -> None:
        """Run to the end; raises Broken."""
        for rank in range(self.size):
            self.at(self.draw.random() * 0.2, partial(self.start, rank))
        for _ in range(self.draw.randint(0, 4)):
            self.at(self.draw.random() * FAULT_SECONDS, self._fault)
        self.at(2 * FAULT_SECONDS, partial(self.start, 0, True))  # a learner without faults ends the run
        while self._events and not self.over:
            self.now, _, act = heapq.heappop(self._events)
            if self.now > LIMIT_SECONDS:
                raise Broken(STUCK, f"after {LIMIT_SECONDS} s of its clock the run has not ended")
            act()

    def start(self, rank: int, last: bool = False) -> None:
        """Start a process of a learner; the launcher has ended the one before."""
        for old in [line.learner for line in self._lines.values() if line.learner.rank == rank]:
            old.end()
        SimulatedLearner(self, rank, last)

    def connect(self, learner: SimulatedLearner) -> Connection:
        line = Connection(len(self._lines), learner)
        self._lines[line.number] = line
        return line

    def send(self, line: Connection, head: dict[str, Any], done: Done) -> None:
        if line.open_here:
            line.up = max(line.up, self.now + self._delay())
            self.at(line.up - self.now, partial(self._arrive, line, head, done))

    def hang_up(self, line: Connection, silent: bool = False) -> None:
        """Close a connection at its learner; the server learns of it after all messages, or never."""
        line.open_here = False
        if not silent:
            line.up = max(line.up, self.now + self._delay())
            self.at(line.up - self.now, partial(self._close, line))

    def break_up(self, line: Connection) -> None:
        """Break a connection: what is under way is lost, and both sides learn of it, each in its time."""
        self.at(self._delay(), partial(self._close, line))
        self.at(self._delay(), line.learner.end)
        line.open_here = False

    def _delay(self) -> float:
        return self.delay * self.draw.expovariate(1.0)

    def _arrive(self, line: Connection, head: dict[str, Any], done: Done) -> None:
        if self.now < self._busy_until:
            self.at(self._busy_until - self.now, partial(self._arrive, line, head, done))
        elif line.open_there:
            line.queue.append((head, done))
            self._serve(line)

    def _serve(self, line: Connection) -> None:
        while line.queue and not line.busy and line.open_there:
            head, done = line.queue.popleft()
            line.busy = True
            line.awaited.append(done)
            self.oracle.hears(line.learner, head, self.now)
            self._deliver(self.state.receive(line.number, head, b"", self._instant()), head)

    def _deliver(self, replies: list[Reply], request: dict[str, Any] | None = None) -> None:
        for client, head, _ in replies:
            line = self._lines[client]
            line.busy = False
            self.oracle.says(line.learner, head, self.now)
            line.down = max(line.down, self.now + self._delay())
            self.at(line.down - self.now, partial(self._return, line, line.awaited.popleft(), head))
            self._serve(line)
        if self.state.due() < math.inf and not self.now < self._wake_at <= self.state.due():
            self._wake_at = max(self.state.due(), self.now)
            self.at(self._wake_at - self.now, self._pass_time)

    def _return(self, line: Connection, done: Done, head: dict[str, Any]) -> None:
        if line.open_here:
            line.learner.hear(partial(done, head))

    def _pass_time(self) -> None:
        if self.now < self._busy_until:
            self.at(self._busy_until - self.now, self._pass_time)
        else:
            self._deliver(self.state.pass_time(self._instant()))

    def _close(self, line: Connection) -> None:
        if line.open_there:
            line.open_there = False
            self.oracle.loses(line.learner)
            self._deliver(self.state.hang_up(line.number))

    def _instant(self) -> Instant:
        return Instant(self.now, self.now < self._settled_at)

    def _fault(self) -> None:
        draw, lines = self.draw, [line for line in self._lines.values() if line.open_here]
        kind = draw.choice(["kill", "kill", "vanish", "break", "stop", "busy", "settle"])
        if kind == "busy":
            self._busy_until = self.now + draw.random()
        elif kind == "settle":
            self._settled_at = self.now + draw.random()
        elif lines:
            line = draw.choice(lines)
            if kind == "break":
                self.break_up(line)
            elif kind == "stop":
                line.learner.stop(draw.random() * 2 * self.lease)
            else:
                line.learner.end(silent=kind == "vanish")
                self._tell_gone(line.learner)
            if draw.random() < 0.6:
                self.at(draw.random() * self.delay * 3, partial(self.start, line.learner.rank))

    def _tell_gone(self, learner: SimulatedLearner) -> None:
        """Tell the store what the launcher has seen, perhaps twice, before the next process is started."""
        for _ in range(self.draw.randint(0, 2)):
            self.oracle.loses_rank(learner.rank)
            head = {"do": "gone", "group": GROUP, "rank": learner.rank, "why": "killed", "final": False}
            line = self.connect(learner)
            line.awaited.append(lambda _: None)
            line.open_here = False
            self._deliver(self.state.receive(line.number, head, b"", self._instant()))


class SimulatedLearner:
    """A process of a learner, with three connections as `StoreMembership` has."""

    def __init__(self, world: Simulation, rank: int, last: bool) -> None:
        self.world, self.rank, self.last, self.alive = world, rank, last, True
        self.line, self.pulse, self.ahead = (world.connect(self) for _ in range(3))
        self.holdings, self._standing = Holdings(), (0, 0)
        self._entered: dict[str, Any] = {}
        self._claim: range | None = None
        self._waits = self._calls = False  # for a claim that is asked for ahead; the connection for these is in use
        self._awake_at = 0.0
        self._far = world.draw.random() < 0.5
        self.ask("enter", self._enter, size=world.size, lease=world.lease, entry=3.0)

    def ask(self, act: str, then: Done, on: Connection | None = None, **more: Any) -> None:
        head = {"do": "membership", "act": act, "group": GROUP, "rank": self.rank, **self._entered, **more}
        self.world.send(on or self.line, head, then)

    def hear(self, act: Callable[[], None]) -> None:
        """Act on what has arrived, or on the time that has passed, unless this process has ended or is stopped."""
        if self.alive and self.world.now < self._awake_at:
            self.world.at(self._awake_at - self.world.now, partial(self.hear, act))
        elif self.alive:
            act()

    def stop(self, seconds: float) -> None:
        self._awake_at = self.world.now + seconds

    def end(self, silent: bool = False) -> None:
        self.alive = False
        for line in (self.line, self.pulse, self.ahead):
            self.world.hang_up(line, silent)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.world.at(seconds, partial(self.hear, act))

    def _see(self, answer: dict[str, Any]) -> None:
        if "live" in answer and answer["number"] >= self._standing[0]:
            self._standing = answer["number"], dict(answer["live"]).get(self.rank)

    def _enter(self, answer: dict[str, Any]) -> None:
        self._see(answer)
        self._entered = {key: answer[key] for key in ("process",) if key in answer}
        self.holdings = Holdings(of=self._standing)
        self._beat()
        if self.world.shares:
            places = list(range(0, self.world.size * self.world.limits.size, self.world.limits.size))
            self.ask("divide", lambda _: self._work(), places=places, of=self.world.size * self.world.limits.size)
        else:
            self._work()

    def _beat(self) -> None:
        seconds, known = min(BEAT_SECONDS, self.world.lease / 4), self._standing[0]
        told = {"waits": "", "waited": 0.0, "known": known, "lease": self.world.lease, "seconds": seconds}
        self.ask("beat", self._beaten, self.pulse, **told)

    def _beaten(self, answer: dict[str, Any]) -> None:
        self._see(answer)
        self._beat()

    def _work(self) -> None:
        """Take a claim that is held, wait for one that is asked for, or ask for one."""
        has = self.holdings
        self._waits = not has.held and has.asking
        if self._waits:
            return  # `_answered` goes on
        if (claim := has.take(self._standing)) is not None:
            self._begin(claim)
            return
        bounds = self.world.limits._asdict()
        self.ask("claim", self._claimed, known=self._standing[0], **bounds, doing=[], done=[], count=1)

    def _claimed(self, answer: dict[str, Any]) -> None:
        claims = claims_in(answer)
        if claims:
            self._begin(claims[0])
        else:
            self.ask("spent", self._spent)

    def _spent(self, answer: dict[str, Any]) -> None:
        if answer["spent"] and self.last:
            self.world.over = True
        elif answer["spent"]:
            self.ask("leave", lambda _: self.end())
        else:
            self.after(0.1, self._work)

    def _begin(self, claim: range) -> None:
        seconds, self._claim = self.world.draw.uniform(0.02, 0.3), claim
        if self._far:
            self.holdings.expect(claim, self.world.limits, seconds, 0.05, self.world.now)
            self._ask_ahead()
        self.after(seconds, self._compute)

    def _compute(self) -> None:
        assert self._claim is not None
        self.world.oracle.computed.update(self._claim)
        self._work()
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        has = self.holdings
        if self._calls:
            return
        if (request := has.request(self.world.now)) is not None:
            self._calls = True
            self.ask("claim", partial(self._answered, request["count"], self.world.now), self.ahead, **request)
        elif (wait := has.seconds_until_wanted(self.world.now)) is not None and wait < 1.0:
            self.after(wait + 0.001, self._ask_ahead)

    def _answered(self, count: int, began: float, answer: dict[str, Any]) -> None:
        self.holdings.answered(answer, self.rank, count, self.world.now - began)
        self._calls = False
        if self._waits:
            self._work()
        self._ask_ahead()


class Oracle:
    """Account of the leases and of the claims; a life of a learner ends with its lease or its connections."""

    def __init__(self, total: int) -> None:
        self.computed, self._total = set[int](), total
        self._lives: dict[int, tuple[SimulatedLearner, int, float]] = {}  # by rank: process, number, end of the lease
        self._given: dict[int, tuple[SimulatedLearner, int]] = {}  # latest holder of each number, and its life
        self._numbers = 0

    def hears(self, learner: SimulatedLearner, head: dict[str, Any], now: float) -> None:
        """Take a request at its arrival."""
        if head["act"] == "leave":
            self.loses(learner)
        if head["act"] not in ("enter", "beat"):
            return
        process, number, until = self._lives.get(learner.rank, (None, 0, -math.inf))
        if head["act"] == "enter" or process is not learner or now > until:
            if head["act"] == "beat" and process is not learner and process is not None:
                return  # of a process before
            self._numbers += 1
            number = self._numbers
        self._lives[learner.rank] = learner, number, now + head["lease"]

    def says(self, learner: SimulatedLearner, head: dict[str, Any], now: float) -> None:
        """Take a reply as it leaves the server."""
        for claim in head.get("claims", ()):
            for n in range(*claim):
                holder, life = self._given.get(n, (None, 0))
                if holder is not None and self._life_of(holder, now) == life:
                    raise Broken(TWICE, f"{n} at {now:.3f} s to {learner.rank}, while {holder.rank} has it")
                self._given[n] = learner, self._life_of(learner, now)
        if head.get("spent") and (missing := set(range(self._total)) - self.computed):
            raise Broken(LOST, f"{sorted(missing)} at {now:.3f} s")

    def loses(self, learner: SimulatedLearner) -> None:
        if self._lives.get(learner.rank, (None,))[0] is learner:
            self.loses_rank(learner.rank)

    def loses_rank(self, rank: int) -> None:
        process, _, until = self._lives.get(rank, (None, 0, 0.0))
        if process is not None:
            self._numbers += 1
            self._lives[rank] = process, self._numbers, until

    def _life_of(self, learner: SimulatedLearner, now: float) -> int:
        """Return the number of the life that this process has now; 0 or less: none, different at each call."""
        process, number, until = self._lives.get(learner.rank, (None, 0, -math.inf))
        if process is learner and now <= until:
            return number
        self._numbers += 1
        return -self._numbers


def found(seed: int, state: Callable[[Instant], StoreState] = StoreState) -> Broken | None:
    """Run the launch of a seed; return what the oracle has found."""
    try:
        Simulation(seed, state).run()
    except Broken as broken:
        return broken
    return None
