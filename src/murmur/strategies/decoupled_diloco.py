"""Decoupled DiLoCo: learners at their own pace; an outer step takes the fragments of those that deliver in time.

    learner i:      w_i <- w_i + s_i                     s_i: a step of its local optimizer
                    d_ip: its steps in fragment p since its latest delivery of p, n_ip samples in k_ip steps
                    it delivers d_ip after its steps t_p + n K,                         t_p = floor(K (p + 1) / F)
    synchronizer:   once Q learners have delivered p, and after a window, or once all live ones have:
                    D_p  <-  - sum_i c_ip d_ip / sum_i c_ip,                            c_ip = n_ip (n_ip / k_ip)
                    v_p  <-  mu v_p + D_p
                    x_p  <-  x_p - rate (D_p + mu v_p)
    learner i:      w_ip <- x_p + (its steps in p that x_p does not have)               when x_p arrives

    window = slack max(0, tau t - t_Q - t_way)

t: seconds of a gradient; t_Q: from the first to the Q-th delivery; t_way: of an exchange on its way (running means).
No learner waits for another one. An outer step leaves out a learner that is late or lost; the next one takes what a
late learner has delivered. At the end of the budget a last outer step takes what is left, of all live learners.

Douillard et al. 2026 (arXiv 2604.21428): K = F = 24, Q = 1, tau = 2, slack < 1. The paper could be read in analyses and
codes of others only; its slack, rate and mu are not known here (rate and mu are those of `DiLoCo`). It sets w_ip to
x_p, so that steps beside an exchange, and those of late learners, are lost; here they stay. It averages norm and
direction of each tensor apart, and balances fragments by tensors; here fragments are equal parts, with plain means. The
synchronizer is a parameter server (`parameter_shards`), beside the gradients or on ranks of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from murmur.core.flat import is_finite
from murmur.core.group import Barrier, Message, weighted_mean
from murmur.core.learner import Learner
from murmur.strategies.parameter_shards import (
    BESIDE,
    CENTRE,
    GIVEN,
    SHARDS,
    ServedShards,
    Sharded,
    check_centre,
    check_counts,
    parts_of,
)

V, BASE, COUNTS, TURN = "v", "base", "counts", "turn"  # names among the vectors of a checkpoint
DELIVER, MERGED, WITHDRAW, CLOSE, LOOK = 3.0, 4.0, 5.0, 6.0, 7.0  # kinds of messages after those of `parameter_shards`
UNKNOWN = -1.0  # seconds of an exchange before the first one
SHARE = 0.2  # of a new value in a running mean
MOMENT_SECONDS = 1e-6  # before the end of a window at which it counts as over


@dataclass(frozen=True)
class Delivery:
    """Steps of a learner in a fragment.

    Attributes:
        d: Change of the fragment.
        samples, steps: Numbers of samples and steps.
        launch: Launch of the learner.
        number: Number of the delivery, counted by the learner for each fragment.
        at: Time at which it left the learner, on the learner's side; at which it came, on the synchronizer's.
    """

    d: Tensor
    samples: float
    steps: float
    launch: float
    number: float
    at: float

    def followed_by(self, later: Delivery) -> Delivery:
        """Return both as one delivery, with the number of the later one and the time of the earlier one."""
        samples, steps = self.samples + later.samples, self.steps + later.steps
        return replace(later, d=self.d + later.d, samples=samples, steps=steps, at=self.at)


class MeanSeconds:
    """Running mean of durations, 0 before the first one."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._share = 1.0

    def add(self, seconds: float) -> None:
        self.seconds += (seconds - self.seconds) * self._share
        self._share = SHARE


class Synchronizer:
    """Outer steps on the fragments of the shard that a learner holds.

    Args:
        me: Learner that holds the shard.
        strategy: Strategy.
        fragments: Parts of the shard.

    Attributes:
        closing: True from the first delivery of the end on: the last outer steps wait for all.
    """

    def __init__(self, me: Learner, strategy: DecoupledDiLoCo, fragments: tuple[slice, ...]) -> None:
        self._me, self._strategy, self._fragments = me, strategy, fragments
        self.closing = self._closed = False
        self._delivered: list[dict[int, Delivery]] = [{} for _ in fragments]  # by rank
        self._merged: list[dict[int, tuple[float, float, float]]] = [{} for _ in fragments]
        self._ends = [math.inf] * len(fragments)  # of the windows
        self._gradient, self._quorum, self._way = MeanSeconds(), MeanSeconds(), MeanSeconds()
        me.outer.setdefault(V, torch.zeros_like(me.outer[CENTRE]))

    def fragment(self, p: int) -> Tensor:
        """Return the outer weights x_p. No outer step changes this vector."""
        return self._me.outer[CENTRE][self._fragments[p]]

    @property
    def wait_seconds(self) -> float:
        """Seconds until the first window ends."""
        return math.inf if self.closing else max(0.0, min(self._ends) - self._me.seat.now)

    def take(self, p: int, rank: int, delivery: Delivery, gradient_seconds: float, way_seconds: float) -> None:
        """Take a delivery of fragment p, with the time of the learner's gradients and of its latest exchange."""
        before = self._delivered[p].get(rank)
        self._delivered[p][rank] = delivery if before is None else before.followed_by(delivery)
        self._gradient.add(gradient_seconds)
        if way_seconds != UNKNOWN:
            self._way.add(way_seconds)

    def give_back(self, rank: int) -> None:
        """Forget the deliveries of a learner, which keeps these steps."""
        for delivered in self._delivered:
            delivered.pop(rank, None)

    def due(self) -> list[int]:
        """Open the windows of fragments with a quorum; return the fragments whose outer step is due."""
        now, averager = self._me.seat.now, self._me.averager
        live = {rank for rank in averager.live if rank not in averager.servers}
        for p, delivered in enumerate(self._delivered):
            if not delivered:
                self._ends[p] = math.inf
            elif self._ends[p] == math.inf and len(delivered) >= min(self._strategy.quorum, len(live)):
                self._quorum.add(now - min(delivery.at for delivery in delivered.values()))
                self._ends[p] = now + self._window_seconds
        open_ = [p for p, end in enumerate(self._ends) if end < math.inf and not self.closing]
        return [p for p in open_ if self._ends[p] <= now + MOMENT_SECONDS or self._delivered[p].keys() >= live]

    @property
    def _window_seconds(self) -> float:
        left = self._strategy.tau * self._gradient.seconds - self._quorum.seconds - self._way.seconds
        return self._strategy.slack * max(0.0, left)

    def merge(self, p: int) -> None:
        """Take the outer step on fragment p with all that has been delivered."""
        delivered, self._delivered[p], self._ends[p] = sorted(self._delivered[p].items()), {}, math.inf
        if not delivered:
            return
        s, part, outer, now = self._strategy, self._fragments[p], self._me.outer, self._me.seat.now
        weights = [each.samples * (each.samples / each.steps) for _, each in delivered]
        change = weighted_mean([each.d for _, each in delivered], weights).neg_()
        x, v = outer[CENTRE].clone(), outer[V].clone()  # a checkpoint may hold the old ones
        v[part] = s.mu * v[part] + change
        x[part] -= s.rate * (change + s.mu * v[part])
        outer[CENTRE], outer[V] = x, v
        self._merged[p].update({rank: (each.launch, each.number, now - each.at) for rank, each in delivered})

    def close(self) -> None:
        """Take the last outer steps. What comes later, from a learner that counted as lost, changes nothing."""
        if not self._closed:
            self.closing = self._closed = True
            for p in range(len(self._fragments)):
                self.merge(p)

    def merged(self, p: int, rank: int) -> tuple[float, float, float]:
        """Return launch and number of a learner's latest delivery in x_p, and the seconds for which it lay here."""
        return self._merged[p].get(rank, (UNKNOWN, UNKNOWN, 0.0))


class Deliveries(ServedShards):
    """One learner's side of a synchronizer that is cut into shards: its deliveries, and the shard that it may hold.

    Fragment f is part f mod F of the shard of the holder of rank f // F. `base` is its outer weights, as known here,
    with the steps that are delivered and not known to be merged: w - base is not delivered yet.
    """

    def __init__(self, me: Learner, strategy: DecoupledDiLoCo, servers: int) -> None:
        super().__init__(me, strategy.shards, servers)
        sizes = [part.stop - part.start for part in self._parts]
        self._K, self._F = strategy.K, min(strategy.fragments, *sizes)
        cut = [parts_of(size, self._F) for size in sizes]
        self._slices = [
            slice(shard.start + part.start, shard.start + part.stop)
            for shard, parts in zip(self._parts, cut, strict=True)
            for part in parts
        ]
        self._counts = f"{COUNTS} of {len(self._slices)}"
        self._delivered: dict[int, Delivery] = {}  # by fragment, if not known to be merged
        self._numbers = [0] * len(self._slices)
        self._way_seconds = UNKNOWN
        self._synchronizer: Synchronizer | None = None
        if me.group.rank in self.holders:
            self._synchronizer = Synchronizer(me, strategy, cut[me.group.rank])
        if not me.seat.late:
            self.start()
        self.begin()

    def start(self) -> None:
        """Begin to count steps, from the present weights; a late learner takes over those of the others before."""
        outer = self.me.outer
        with outer.steady:
            if BASE not in outer:
                outer[BASE] = self.me.weights.snapshot()
            outer.setdefault(TURN, torch.zeros(1, dtype=torch.int64))
            outer.setdefault(self._counts, torch.zeros(len(self._slices), 2, dtype=torch.float64))

    def count(self, samples: float) -> None:
        """Count a step of so many samples, and deliver the fragments that are due."""
        outer = self.me.outer
        with outer.steady:
            outer[TURN] = outer[TURN] + 1
            outer[self._counts] = outer[self._counts] + torch.tensor([samples, 1.0], dtype=torch.float64)
            turn = (int(outer[TURN]) - 1) % self._K + 1
            for f in range(len(self._slices)):
                if self._K * (f % self._F + 1) // self._F == turn and f not in self._delivered:
                    self._deliver(f)

    def _deliver(self, f: int, last: bool = False) -> None:
        me, part, holder = self.me, self._slices[f], f // self._F
        samples, steps = me.outer[self._counts][f].tolist()
        if samples == 0:
            return
        self._add_counts({f: (-samples, -steps)})
        w, base = me.weights.snapshot(), me.outer[BASE].clone()
        d = w[part] - base[part]
        if not is_finite(d):  # the learner goes on from what it knows of the outer weights
            w[part] = base[part]
            me.weights.set_(w)
            return
        d = me.group.as_sent(d)  # what a compression has lost is delivered later
        base[part] += d
        me.outer[BASE] = base
        self._numbers[f] += 1
        delivery = Delivery(d, samples, steps, self._launch, self._numbers[f], me.seat.now)
        before = self._delivered.get(f)
        self._delivered[f] = delivery if before is None else before.followed_by(delivery)
        if holder == me.group.rank:
            self._take_delivery(f, holder, delivery, last, me.averager.pace_seconds, UNKNOWN)
            self._tell(holder, LOOK)
        else:
            numbers = (samples, steps, self._launch, delivery.number)
            seconds = (me.averager.pace_seconds, self._way_seconds)
            me.group.post(d, holder, SHARDS, (DELIVER, f, last, *numbers, *seconds))

    def _add_counts(self, changes: Mapping[int, tuple[float, float]]) -> None:
        counts = self.me.outer[self._counts].clone()
        for f, change in changes.items():
            counts[f] += counts.new_tensor(change)
        self.me.outer[self._counts] = counts

    def _take(self, message: Message) -> None:
        kind, *numbers = message.header
        with self.me.outer.steady:
            if kind == DELIVER:
                f, last, samples, steps, launch, number, *seconds = numbers
                delivery = Delivery(message.x, samples, steps, launch, number, self.me.seat.now)
                self._take_delivery(int(f), message.source, delivery, last > 0, *seconds)
            elif kind == MERGED:
                self._continue_from(int(numbers[0]), message.x, *numbers[1:])
            elif kind == WITHDRAW and self._synchronizer is not None:
                self._synchronizer.give_back(message.source)
            elif kind == CLOSE and self._synchronizer is not None:
                self._synchronizer.close()
            elif kind not in (WITHDRAW, CLOSE, LOOK):
                super()._take(message)

    def _take_delivery(
        self, f: int, rank: int, delivery: Delivery, last: bool, gradient_seconds: float, way_seconds: float
    ) -> None:
        assert self._synchronizer is not None
        self._synchronizer.closing |= last
        self._synchronizer.take(f % self._F, rank, delivery, gradient_seconds, way_seconds)

    @property
    def _wait_seconds(self) -> float:
        seconds = super()._wait_seconds
        return seconds if self._synchronizer is None else min(seconds, self._synchronizer.wait_seconds)

    def _do_due(self) -> None:
        me, synchronizer = self.me, self._synchronizer
        if synchronizer is None:
            return
        with me.outer.steady:
            for p in synchronizer.due():
                synchronizer.merge(p)
                f, x = me.group.rank * self._F + p, synchronizer.fragment(p)
                if not self.serves_only:
                    self._continue_from(f, me.group.as_sent(x), *synchronizer.merged(p, me.group.rank))
                for rank in {*me.view} - {me.group.rank, *me.averager.servers}:
                    me.group.post(x, rank, SHARDS, (MERGED, f, *synchronizer.merged(p, rank)))

    def _continue_from(self, f: int, x: Tensor, launch: float, number: float, lay_seconds: float) -> None:
        """w_f <- x + (steps that x does not have); it has those up to a delivery of a launch."""
        check_centre(x)
        if BASE not in self.me.outer:
            return  # it is late, and has not started
        delivery = self._delivered.get(f)
        if delivery is not None and (delivery.launch, delivery.number) == (launch, number):
            self._way_seconds = max(0.0, self.me.seat.now - delivery.at - lay_seconds)
            del self._delivered[f]
            delivery = None
        self._move_base({f: x if delivery is None else x + delivery.d})
        self.me.averager.exchanges += f == len(self._slices) - 1  # of the whole vector

    def _move_base(self, found: Mapping[int, Tensor]) -> None:
        """Set the base of fragments, and move the weights with it."""
        before, base = self.me.outer[BASE], self.me.outer[BASE].clone()
        for f, x in found.items():
            base[self._slices[f]] = x
        self.me.outer[BASE] = base
        self.me.weights.add_(base - before)

    def _land(self, answer: Tensor) -> None:
        """Continue from the centre with all steps that it does not have, of which none counts as delivered any more."""
        delivered, self._delivered = self._delivered, {}
        self._move_base({f: answer[part] for f, part in enumerate(self._slices)})
        steps = torch.zeros_like(answer)
        for f, delivery in delivered.items():
            steps[self._slices[f]] = delivery.d
        self.me.weights.add_(steps)
        self._add_counts({f: (delivery.samples, delivery.steps) for f, delivery in delivered.items()})

    async def rest(self) -> None:
        """Withdraw the deliveries that are not merged, so that this learner's checkpoint has their steps."""
        given = Barrier(self.me.group, GIVEN)
        self._check(given)
        self.start()
        self._tell_holders(WITHDRAW)
        with self.me.outer.steady:
            if self._synchronizer is not None:
                self._synchronizer.give_back(self.me.group.rank)
            self._ask(None, BESIDE)
        await self._arrived(given)

    async def end(self) -> None:
        """Deliver all that is left; take the centre, after a last outer step with what all learners had left."""
        given = Barrier(self.me.group, GIVEN)
        self._check(given)
        self.start()
        with self.me.outer.steady:
            for f in range(len(self._slices)):
                self._deliver(f, last=True)
        await self._awaited(None, given)  # all of it has arrived
        await self._conclude()

    def _all_have_given(self) -> None:
        self._tell_holders(CLOSE)
        if self._synchronizer is not None:
            with self.me.outer.steady:
                self._synchronizer.close()

    def _tell_holders(self, kind: float) -> None:
        for holder in self.holders:
            if holder != self.me.group.rank:
                self._tell(holder, kind)


@dataclass(frozen=True)
class DecoupledDiLoCo(Sharded):
    """Outer Nesterov momentum on fragments, of those learners that deliver in time.

    Attributes:
        K: Steps of a learner between two deliveries of a fragment.
        fragments: Fragments F of a shard; at most one for each element counts.
        quorum: Deliveries Q that an outer step needs; those of all live learners, if there are fewer.
        tau: Gradients beside which an exchange may take place.
        slack: Share of the time that is left of them in the window for further learners; 0: no window.
        rate: Outer rate.
        mu: Outer momentum.
        shards, servers: Placement of the synchronizer, as in `Sharded`.

    Raises:
        ValueError: A number is out of its range, or both `shards` and `servers` are given; at the start of a run, that
            all learners would serve.
        PeerLost: A learner with a shard is lost; training goes on without another one.
    """

    bitwise_alone: ClassVar[bool] = False
    K: int = 32
    fragments: int = 4
    quorum: int = 1
    tau: float = 2.0
    slack: float = 0.5
    rate: float = 0.7
    mu: float = 0.9
    shards: int = 1
    servers: int = 0

    def __post_init__(self) -> None:
        check_counts(K=self.K, fragments=self.fragments, quorum=self.quorum)
        self.check_placement()
        if self.fragments > self.K or not 0 <= self.tau < math.inf or not 0 <= self.slack < 1:
            raise ValueError(f"DecoupledDiLoCo needs fragments <= K, tau >= 0 and 0 <= slack < 1, got {self}")
        if not self.rate > 0 or not 0 <= self.mu < 1:
            raise ValueError(f"DecoupledDiLoCo needs rate > 0 and 0 <= mu < 1, got {self}")

    async def __call__(self, me: Learner) -> None:
        self.training_learners(me.group.size)  # refuses servers alone
        await self.learn(me)  # a single learner takes outer steps too

    async def learn(self, me: Learner) -> None:
        deliveries = Deliveries(me, self, self.servers if me.group.size > 1 else 0)
        if deliveries.serves_only:
            await deliveries.serve()
            return
        async for g in me.claimed_gradients():
            deliveries.tell()
            deliveries.start()
            me.descend(g)
            deliveries.count(me.fresh_samples)
        await deliveries.end()

    @property
    def exchanges(self) -> float:
        return 1 / self.K
