"""Timing of strategies without a model: the real protocols on a virtual clock, with empty weights.

A program for `VirtualWorld` whose gradients cost this machine no work and whose vectors are zeros;
`Cluster.message_bytes` sets the time of their transfer. Strategies that depend on the *values* of weights or losses
(adaptive rules) cannot be timed in this way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from murmur.core.assignment import Assignment, Turns
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.learner import Learner, Strategy
from murmur.core.membership import ENDED, NOTHING, Preparation, RunOver
from murmur.core.moments import Moments
from murmur.core.source import WHOLE, Gradient, Progress
from murmur.core.trace import COMMUNICATING, COMPUTE, WAITING
from murmur.core.weights import Weights
from murmur.core.world import Seat
from murmur.elastic.regrouping import end_run, run_strategy
from murmur.engine.optim.optimizer import PlainAdamW
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld

COUNTED = ("compute_seconds", "waiting_seconds", "communicating_seconds", "sent_bytes", "card_bytes", "clock_seconds",
           "killed")  # fmt: skip
ELEMENTS = 5040  # of a vector; 1 to 10, 12, 14, 15 and 16 servers have equal parts


class NoLayout(Layout):
    """Layout of a vector of zeros that belongs to no model."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(ELEMENTS)])  # so that a snapshot of a leader's weights is not left unfilled


class NoWeights(Weights):
    """Weights without contents that count their changes."""

    def __init__(self, layout: Layout | None = None) -> None:
        super().__init__(NoLayout() if layout is None else layout)
        self._zero = torch.zeros(ELEMENTS)

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        return self._zero if out is None else out.copy_(self._zero)

    def set_(self, w: Tensor) -> None:  # noqa: ARG002 - nothing to set
        self.version += 1

    def add_(self, delta: Tensor, alpha: float = 1.0) -> None:  # noqa: ARG002 - nothing to add to
        self.version += 1

    def pull_(self, theirs: Tensor, mine: Tensor, alpha: float) -> None:  # noqa: ARG002
        self.version += 1

    @contextmanager
    def held(self) -> Iterator[int]:
        yield self.version

    def step(self, change: Callable[[], None]) -> None:
        change()
        self.version += 1


class Idle:
    """Source of `total` minibatches of `samples` each, with zero gradients, that records the times of its steps.

    Attributes:
        staleness: Staleness of the steps that this learner took, and of those that its leader took for it.
    """

    times = decay_times = 1.0
    piece = WHOLE
    recorded = True

    def __init__(self, seat: Seat, total: int, samples: float = 1.0) -> None:
        self.total, self.samples = total, samples
        self.staleness: list[int] = []
        self.taken, self.last_seconds = 0, 0.0
        self._seat, self._group = seat, seat.group
        self._gradient = Gradient(torch.zeros(ELEMENTS), [], samples, 0.0)
        self.turns = Turns(Assignment(tuple(range(seat.group.size)), total), seat.group.rank)

    @property
    def span(self) -> tuple[int, int]:
        return 0, self.total

    @property
    def buffers(self) -> Layout:
        return Layout([])

    def next_index(self, steps: int) -> int | None:
        return self.turns.number(steps)

    def over(self, steps: int) -> bool:
        return self.turns.reached(steps) == self.total

    def claimed(self, claim: range, steps: int) -> None:
        self.turns.claim(claim, steps)

    @property
    def preparation(self) -> Preparation:
        return NOTHING  # there is no data

    def heard(self, loss: float, compute_seconds: float) -> None:
        pass

    def followed(self, staleness: int) -> None:
        self.staleness.append(staleness)
        self.last_seconds = self._seat.now

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:  # noqa: ARG002 - all alike
        if before_backward is not None:
            before_backward(1.0)
        self.taken += 1
        return self._gradient

    def nothing(self) -> Gradient:
        return Gradient(torch.zeros(ELEMENTS), [], 0.0, math.nan)

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:  # noqa: ARG002 - nothing is learnt
        if self.recorded:
            self.staleness.append(staleness)
        self.last_seconds = self._seat.now

    def progress(self) -> Progress:
        return self.progress_at(self.turns.claimed)

    def progress_at(self, minibatches: int) -> Progress:
        share = minibatches / self.total
        return Progress(minibatches, minibatches * self.samples, share, share, 0.0, 1.0)

    @property
    def local_optimizer(self) -> Idle:
        return self

    def restart(self) -> None:
        pass

    def evaluate(self, w: Tensor) -> Mapping[str, float]:  # noqa: ARG002 - all weights are alike
        return {"loss": 0.0}

    async def boundary(self, me: Any) -> None:
        pass

    @cached_property
    def moments(self) -> Moments:
        """Zeros of the length of Adam's moments."""
        layout = NoLayout()
        return Moments(PlainAdamW(layout.tensors), layout)


@dataclass(frozen=True)
class Timing:
    """Results of a timed run; a restarted learner counts with all its lives.

    Attributes:
        seconds: Virtual seconds until the last gradient was taken, without the end of the protocol.
        minibatches: Minibatches that all learners have done, each counted once (`minibatches_done`).
        gradients: Number of gradients that each learner began; a fault may have cut off or undone some.
        exchanges: Completed edge-wise exchanges of each learner; 0 in lock-step.
        staleness: Staleness of every step, by learner.
        compute_seconds, waiting_seconds, communicating_seconds: Seconds of each learner.
    """

    seconds: float
    minibatches: int
    gradients: tuple[int, ...]
    exchanges: tuple[int, ...]
    staleness: tuple[tuple[int, ...], ...]
    sent_bytes: tuple[float, ...]
    card_bytes: tuple[float, ...]
    compute_seconds: tuple[float, ...]
    waiting_seconds: tuple[float, ...]
    communicating_seconds: tuple[float, ...]
    last_seconds: tuple[float, ...]
    clock_seconds: float
    killed: tuple[int, ...]
    events: int

    @property
    def seconds_per_minibatch(self) -> float:
        """Seconds of the cluster for one minibatch of any learner."""
        return self.seconds / self.minibatches

    @property
    def tail_seconds(self) -> float:
        """Seconds from the first learner's last step to the last gradient of the run."""
        return self.seconds - min(self.last_seconds)


class Timed:
    """Program of a timed run that collects its sources and seats."""

    def __init__(self, strategy: Strategy, minibatches: int, learners: int, samples: float) -> None:
        self.strategy, self.minibatches, self.samples = strategy, minibatches, samples
        self.lives: list[list[tuple[Idle, Seat]]] = [[] for _ in range(learners)]
        self.exchanges = [0] * learners

    async def __call__(self, seat: Seat) -> None:
        source, rank = Idle(seat, self.minibatches, self.samples), seat.group.rank
        self.lives[rank].append((source, seat))
        me = Learner(seat, NoWeights(), source, Facts.of(self.strategy).lock_step)
        try:
            await run_strategy(self.strategy, me, lambda: source.buffers, lambda _: None)
            await end_run(self.strategy, me)
        except RunOver:
            return
        if not me.lock_step:
            seat.group.membership.arrive(ENDED)  # it leaves in order
            self.exchanges[rank] += me.averager.exchanges

    def timing(self, world: VirtualWorld) -> Timing:
        sources = [[source for source, _ in lives] for lives in self.lives]
        last = tuple(max(source.last_seconds for source in lives) for lives in sources)
        staleness = tuple(tuple(s for source in lives for s in source.staleness) for lives in sources)
        return Timing(
            seconds=max(last),
            minibatches=minibatches_done(self.minibatches, world.cluster, sum(map(len, staleness))),
            gradients=tuple(sum(source.taken for source in lives) for lives in sources),
            exchanges=tuple(self.exchanges),
            staleness=staleness,
            last_seconds=last,
            events=world.clock.events,
            **counted(world, [[seat for _, seat in lives] for lives in self.lives]),
        )


def counted(world: VirtualWorld, seats: Sequence[Sequence[Seat]]) -> dict[str, Any]:
    """The fields of `COUNTED` after a run; `seats` holds a list for each learner, one for each of its starts."""
    learners, totals = range(world.size), [[seat.trace.totals() for seat in lives] for lives in seats]

    def spent(kind: str) -> tuple[float, ...]:
        return tuple(sum(life.get(kind, 0.0) for life in lives) for lives in totals)

    found = (
        spent(COMPUTE),
        spent(WAITING),
        spent(COMMUNICATING),
        tuple(world.network.sent_bytes[i] for i in learners),
        tuple(world.network.card_bytes[n] for n in world.cluster.places(learners)),
        world.clock.now,
        tuple(world.killed),
    )
    return dict(zip(COUNTED, found, strict=True))


def minibatches_done(due: int, cluster: Cluster, steps: int) -> int:
    """Return the number of minibatches that a run has done, each counted once, from the steps of all learners.

    Without faults all that were due are done. A fault may leave the share of a lost learner undone, so that there are
    fewer steps; it may also undo steps, so that there are more.
    """
    return min(due, steps) if cluster.faults else due


def time_strategy(strategy: Strategy, cluster: Cluster, minibatches: int, samples: float = 1.0) -> Timing:
    """Time a strategy on a cluster for `minibatches` of `samples` samples, of all learners together.

    Raises:
        ValueError: the cluster does not set the size of a message, or `minibatches` is less than 1.
        PeerLost: the cluster's faults ended the run.
    """
    if cluster.message_bytes is None:
        raise ValueError("timing needs Cluster.message_bytes, the size of the model in bytes")
    if minibatches < 1:
        raise ValueError(f"timing needs at least 1 minibatch, got {minibatches}")
    world, timed = VirtualWorld(cluster), Timed(strategy, minibatches, cluster.learners, samples)
    world.run(timed)
    return timed.timing(world)
