"""Model of a cluster: compute times, network speeds, faults, and the closed forms of its allreduces and broadcasts.

b bytes, L learners on N nodes of n each; a hop takes a + x / B (latency a, bandwidth B) on a card, a' + x / B' inside
a node; adding x bytes takes x / R.

    ring          2 (L - 1) hops of b / L on the slowest link of the ring,  and (L - 1) / L b / R
    tree          2 (log2 n hops inside + log2 N on cards) of b,  and log2 n + log2 N times b / R   (rounded up)
    hierarchical  reduce-scatter and allgather inside: 2 (n - 1) hops of b / n,
                  between them n rings of b / n side by side over shared cards: 2 (N - 1) hops of b / N,
                  and ((n - 1) / n + (N - 1) / (N n)) b / R

    broadcast     inside one node a chain of n - 1 hops, through which the vector flows in small pieces: the latencies
                  and b / B';  among nodes the way down of the tree

A ring visits the learners of a node in succession, so one message per step crosses each card. Every step waits for the
slowest link, as all links of a ring carry equal loads. Thakur, Rabenseifner & Gropp 2005; Patarasu & Yuan 2009.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from murmur.core.mean_gradient import BUCKET_BYTES, FIRST_BUCKET_BYTES
from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.core.trace import COMPUTE, LOOP
from murmur.core.whole_files import FinishedLines

ComputeTime = Callable[[int, int], float]  # (learner, its step) -> seconds
BLOCK = 64  # number of steps whose random times are drawn at once


@dataclass(frozen=True)
class ConstantSeconds:
    """Equal compute times of a minibatch; `factors` are those of single learners (a straggler: {3: 10.0})."""

    seconds: float = 0.1
    factors: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _positive("ConstantSeconds.seconds", self.seconds)
        _positive_factors("ConstantSeconds", self.factors)

    def __call__(self, learner: int, step: int) -> float:  # noqa: ARG002 - constant
        return self.seconds * self.factors.get(learner, 1.0)


@lru_cache(maxsize=4096)  # seeding a generator costs more than many draws
def normals(seed: int, learner: int, block: int) -> tuple[float, ...]:
    """Return `BLOCK` draws from N(0, 1), a function of three numbers."""
    draw = random.Random(f"{seed}/{learner}/{block}")
    return tuple(draw.gauss(0.0, 1.0) for _ in range(BLOCK))


@dataclass(frozen=True)
class LognormalSeconds:
    """Random compute times, repeatable from `seed`.

    Attributes:
        seconds: Median compute time of a minibatch.
        sigma: Spread of the times (standard deviation of their logarithm).
        seed: Seed of the random times.
        factors: Factors on the times of single learners (a straggler: {3: 10.0}).
    """

    seconds: float = 0.1
    sigma: float = 0.2
    seed: int = 0
    factors: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _positive("LognormalSeconds.seconds", self.seconds)
        if not 0 <= self.sigma < 10:
            raise ValueError(f"LognormalSeconds.sigma must lie in [0, 10), got {self.sigma}")
        _positive_factors("LognormalSeconds", self.factors)

    def __call__(self, learner: int, step: int) -> float:
        block, place = divmod(step, BLOCK)
        spread = math.exp(self.sigma * normals(self.seed, learner, block)[place])
        return self.seconds * spread * self.factors.get(learner, 1.0)


@dataclass(frozen=True)
class RecordedSeconds:
    """Compute times of a real run: row i is that of learner i; used-up rows begin again.

    With more learners than rows, learner i takes row i modulo their number, from another start, so that two learners
    with one row are not in phase. `factors` as in `ConstantSeconds`.
    """

    seconds: tuple[tuple[float, ...], ...]
    factors: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.seconds or not all(self.seconds):
            raise ValueError(
                f"RecordedSeconds.seconds needs at least one time for every learner, got {self.seconds!r:.60}"
            )
        for learner, row in enumerate(self.seconds):
            for step, seconds in enumerate(row):
                _positive(f"RecordedSeconds.seconds[{learner}][{step}]", seconds)
        _positive_factors("RecordedSeconds", self.factors)

    @classmethod
    def read(cls, trace: Path, factors: Mapping[int, float] | None = None) -> RecordedSeconds:
        """Read the compute spans of a run's `trace.json` (Chrome trace), also of a run that was killed.

        Raises:
            ValueError: The file holds none, or is not such a trace.
        """
        try:
            spans = [s for s in _spans_of(trace) if s.get("cat") == COMPUTE and s["dur"] > 0]
            rows: dict[int, list[float]] = defaultdict(list)
            loops = [s for s in spans if s.get("name") == LOOP]  # a joined run has other, short ones between them
            for span in sorted(loops or spans, key=lambda s: s["ts"]):
                rows[int(span["pid"])].append(span["dur"] / 1e6)
        except UNREADABLE as error:
            raise ValueError(f"{trace} is not a Chrome trace of a run: {error!r}") from error
        if not rows:
            raise ValueError(f"{trace} holds no spans of kind {COMPUTE!r}: name the trace.json of a training run")
        try:
            return cls(tuple(tuple(rows[learner]) for learner in sorted(rows)), factors or {})
        except ValueError as error:
            raise ValueError(f"{trace}: {error}") from error

    def __call__(self, learner: int, step: int) -> float:
        row = self.seconds[learner % len(self.seconds)]
        lap = learner // len(self.seconds)  # number of earlier learners with the same row
        return row[(step + lap * 61) % len(row)] * self.factors.get(learner, 1.0)


@dataclass(frozen=True)
class MeasuredSeconds:
    """Compute times of user loops as they run on this machine, times a factor of each step."""

    factor: ComputeTime
    _noted: dict[int, float] = field(default_factory=dict, repr=False)

    def note(self, learner: int, seconds: float) -> None:
        """Add seconds that a learner's loop has computed since its latest step."""
        self._noted[learner] = self._noted.get(learner, 0.0) + seconds

    def __call__(self, learner: int, step: int) -> float:
        return self._noted.pop(learner, 0.0) * self.factor(learner, step)


def _spans_of(trace: Path) -> list[Any]:
    """The spans of a trace, whose array is open, and whose last line may be unfinished, until its run has ended."""
    try:
        whole = json.loads(read_plain(trace))
    except json.JSONDecodeError:
        lines = list(FinishedLines(trace))
        spans = [span for line in lines if (span := line.strip().strip(b"[],"))]
        if not spans or not lines[0].startswith(b"["):
            raise
        return [json.loads(span) for span in spans]
    return list(whole["traceEvents"] if isinstance(whole, dict) else whole)


@dataclass(frozen=True)
class Link:
    """A network card.

    Attributes:
        latency_seconds: Latency of the first byte.
        bytes_per_second: Speed in each direction.
    """

    latency_seconds: float = 50e-6
    bytes_per_second: float = 1.25e9

    def __post_init__(self) -> None:
        _positive("Link.bytes_per_second", self.bytes_per_second)
        if not 0 <= self.latency_seconds < float("inf"):
            raise ValueError(f"Link.latency_seconds must be finite and not negative, got {self.latency_seconds}")

    def seconds(self, num_bytes: float) -> float:
        """Return the time until the last of `num_bytes` bytes has arrived."""
        return self.latency_seconds + num_bytes / self.bytes_per_second


@dataclass(frozen=True)
class Kill:
    """Fault: learner `learner` dies at `at_seconds`."""

    learner: int
    at_seconds: float


@dataclass(frozen=True)
class Rejoin:
    """Fault: learner `learner`, killed before, is started again at `at_seconds`, without any state."""

    learner: int
    at_seconds: float


@dataclass(frozen=True)
class Stop:
    """Fault: learner `learner` stands still from `at_seconds` for `for_seconds`, then goes on."""

    learner: int
    at_seconds: float
    for_seconds: float


@dataclass(frozen=True)
class Cluster:
    """`learners` learners on nodes of `learners_per_node`; the learners of a node share its network card.

    Attributes:
        learners: Number of learners.
        compute: Seconds of a minibatch as a function of (learner, step).
        link: Network card of every node, unless `links` has another one.
        links: Cards that differ, by node (with one learner per node: by learner).
        message_bytes: Size on the wire of a vector of the model's length, of sums behind the backward pass and of
            broadcasts; a message with a part of it, or its mean, costs its share. None takes the size of the real
            vectors.
        faults: Kills, stops and restarts, in virtual seconds.
        lease_seconds: Silence after which a learner counts as dead.
        nodes: Number of nodes; None: as many as the learners need.
        learners_per_node: Slots of a node; learner i runs on node i // learners_per_node.
        inside: Link of every learner to the others of its node.
        allreduce: Algorithm of a mean of all: "ring", "tree" or "hierarchical".
        reduce_bytes_per_second: Speed at which a learner adds one vector to another; infinity: at once.
        copy_bytes_per_second: Speed of copies between device and host, once before sending and once after receiving,
            independent in the two directions; infinity: at once.
        backward_share: Share of a gradient's seconds that its backward pass takes, behind which sums of gradients run:
            two thirds for layers whose backward pass costs twice their forward pass.
    """

    learners: int = 2
    compute: ComputeTime = field(default_factory=ConstantSeconds)
    link: Link = field(default_factory=Link)
    links: Mapping[int, Link] = field(default_factory=dict)
    message_bytes: float | None = None
    faults: tuple[Kill | Stop | Rejoin, ...] = ()
    lease_seconds: float = 10.0
    nodes: int | None = None
    learners_per_node: int = 1
    inside: Link = field(default_factory=lambda: Link(5e-6, 10e9))
    allreduce: str = "ring"
    reduce_bytes_per_second: float = float("inf")
    copy_bytes_per_second: float = float("inf")
    backward_share: float = 2 / 3

    def __post_init__(self) -> None:
        _positive("Cluster.lease_seconds", self.lease_seconds)
        if self.message_bytes is not None and not 0 <= self.message_bytes < float("inf"):
            raise ValueError(f"Cluster.message_bytes must be finite and not negative, got {self.message_bytes}")
        for what in ("reduce_bytes_per_second", "copy_bytes_per_second"):
            if not getattr(self, what) > 0:
                raise ValueError(f"Cluster.{what} must be positive, got {getattr(self, what)}")
        if not 0 <= self.backward_share <= 1:
            raise ValueError(f"Cluster.backward_share must lie in [0, 1], got {self.backward_share}")
        if self.allreduce not in ALLREDUCE:
            raise ValueError(f"Cluster.allreduce must be one of {', '.join(ALLREDUCE)}, got {self.allreduce!r}")
        for what in ("learners", "learners_per_node", "nodes"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise ValueError(f"Cluster.{what} must be at least 1, got {value}")
        self._check_places()

    def _check_places(self) -> None:
        if self.nodes is not None and self.learners > self.nodes * self.learners_per_node:
            slots = f"Cluster.nodes={self.nodes} x Cluster.learners_per_node={self.learners_per_node}"
            raise ValueError(f"Cluster.learners={self.learners} do not fit into {slots} slots")
        for node in self.links:
            if not 0 <= node <= self.node_of(self.learners - 1):
                whom = "learner" if self.learners_per_node == 1 else "node"
                last = self.node_of(self.learners - 1)
                raise ValueError(f"the cluster has {whom}s 0..{last}, but Cluster.links: {whom} {node} is named")
        for fault in self.faults:
            if not 0 <= fault.learner < self.learners:
                raise ValueError(
                    f"the cluster has learners 0..{self.learners - 1}, but Cluster.faults: "
                    f"learner {fault.learner} is named"
                )
            if not 0 <= fault.at_seconds < float("inf"):
                raise ValueError(f"{fault} must happen at a finite time that is not negative")
            if isinstance(fault, Stop) and not 0 <= fault.for_seconds < float("inf"):
                raise ValueError(f"{fault} must last a finite time that is not negative")

    def node_of(self, learner: int) -> int:
        return learner // self.learners_per_node

    def link_of(self, learner: int) -> Link:
        return self.links.get(self.node_of(learner), self.link)

    def last_bucket_bytes(self, size: float) -> float:
        """Return the bytes of a gradient of `size` bytes whose sum begins when the backward pass has ended."""
        rest = size - FIRST_BUCKET_BYTES
        return size if rest <= 0 else rest % BUCKET_BYTES or BUCKET_BYTES

    def places(self, learners: Sequence[int]) -> dict[int, int]:
        """Return the number of these learners on each node."""
        found: dict[int, int] = defaultdict(int)
        for learner in learners:
            found[self.node_of(learner)] += 1
        return dict(found)


def _positive_factors(times: str, factors: Mapping[int, float]) -> None:
    for learner, factor in factors.items():
        _positive(f"{times}.factors[{learner}]", factor)


def _positive(what: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{what} must be positive and finite, got {value}")


@dataclass(frozen=True)
class Places:
    """Places of the members of a collective: learners on each node, the slowest card, links inside, adding speed."""

    per_node: tuple[int, ...]
    card: Link
    inside: Link
    reduce_bytes_per_second: float = float("inf")

    @property
    def learners(self) -> int:
        return sum(self.per_node)

    @property
    def widest(self) -> int:
        return max(self.per_node)


@dataclass(frozen=True)
class Cost:
    """Cost of one allreduce: seconds, bytes sent by a learner, bytes that leave through a node's card.

    In a tree members send unequally, and so do cards: these are the means over them.
    """

    seconds: float
    sent_bytes: float
    card_bytes: float


def ring(size: float, places: Places) -> Cost:
    """Reduce-scatter and allgather round one ring through all learners."""
    count, nodes = places.learners, len(places.per_node)
    part = size / count
    hops = [places.inside.seconds(part)] * (places.widest > 1) + [places.card.seconds(part)] * (nodes > 1)
    adding = (count - 1) * part / places.reduce_bytes_per_second
    sent = 2 * (count - 1) * part
    return Cost(2 * (count - 1) * max(hops) + adding, sent, sent if nodes > 1 else 0.0)


def tree(size: float, places: Places) -> Cost:
    """Reduce to one learner up a binomial tree, then broadcast down the same tree: first inside nodes, then between."""
    inside, between = _levels(places.widest), _levels(len(places.per_node))
    moving = inside * places.inside.seconds(size) + between * places.card.seconds(size)
    adding = (inside + between) * size / places.reduce_bytes_per_second
    count, nodes = places.learners, len(places.per_node)
    # Each edge of the tree carries the vector up and down, and a tree of n members has n - 1 edges.
    return Cost(2 * moving + adding, 2 * (count - 1) / count * size, 2 * (nodes - 1) / nodes * size)


def hierarchical(size: float, places: Places) -> Cost:
    """Reduce-scatter inside every node, a ring among nodes for each part, allgather inside."""
    width, nodes = places.widest, len(places.per_node)
    within = 2 * (width - 1) * places.inside.seconds(size / width) if width > 1 else 0.0
    between = 2 * (nodes - 1) * places.card.seconds(size / nodes) if nodes > 1 else 0.0  # `width` rings share a card
    added = (width - 1) / width + (nodes - 1) / (nodes * width)
    over_card = 2 * (nodes - 1) / nodes * size
    sent = 2 * (width - 1) / width * size + over_card / width
    seconds = within + between + added * size / places.reduce_bytes_per_second
    return Cost(seconds, sent, over_card)


def broadcast(size: float, places: Places) -> float:
    """Seconds of sending a vector from one learner to all: a chain inside one node, a binomial tree among nodes."""
    if len(places.per_node) == 1:
        return (places.learners - 1) * places.inside.latency_seconds + size / places.inside.bytes_per_second
    return _levels(places.widest) * places.inside.seconds(size) + _levels(len(places.per_node)) * places.card.seconds(
        size
    )


def _levels(count: int) -> int:
    return math.ceil(math.log2(count))


ALLREDUCE: Mapping[str, Callable[[float, Places], Cost]] = {
    "ring": ring,
    "tree": tree,
    "hierarchical": hierarchical,
}
