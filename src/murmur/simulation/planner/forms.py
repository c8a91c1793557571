"""Closed forms of the strategies: seconds that a minibatch costs the whole cluster.

t_i: compute times of learner i; L: learners; C: seconds of an allreduce with its copies; b: bytes of the model; B, a:
bandwidth and latency of a network card.

    SyncSGD          E (max_i t_i + C - min(C (1 - l / b), beta max_i t_i)) / L
    KAVG, BMUF       (E max_i (t_i1 + ... + t_iK) + C) / (K L)
    ParameterAveraging  the same with J(f) learners in place of L, averaged over the fraction f of the budget
    DelayByOne       d_i <- max(d_i + t_i, max_j d_j + C), per round, / L
    StreamingDiLoCo  d_i <- max(d_i + tau t_i, max_j d_j + C_F) + (K / F - tau) t_i, per fragment, F / (K L)
    ADPSGD           1 / sum_i 1 / E t_i                            gradients do not wait; rounds: `planner.rounds`
    Downpour, EASGD  1 / sum_i 1 / E t_i                            gradients do not wait; see `_sharded`, `_apart`
    ASGD             max(b / (S B), b / (S R_copy), (E t + 2 (a + b / B + 2 b / R_copy)) / (L - S)), S servers;
                     with S > 1 the copies of some parts run beside the transfers of others: `_exchange_seconds`
    SuperLearners    the outer strategy among nodes with t = max(SyncSGD's step inside the node, D) and n minibatches
                     per gradient; a lock-step outer strategy also broadcasts its weights, D after every mean

l: bytes of the last bucket, whose sum begins when the backward pass has ended (for devices on several nodes l = b:
their sums pass through host memory); beta: share of the backward pass; D: seconds of a broadcast inside the node.

E is the mean over a table of compute times drawn from the cluster's description. Recorded times, jitter and stragglers
therefore need no formula of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.core.facts import Facts, Planned, beside_servers
from murmur.core.mixing import Mixing, uniform
from murmur.simulation.planner.rounds import rounds_of
from murmur.worlds.virtual.clock import Clock
from murmur.worlds.virtual.cluster import Cluster, Link
from murmur.worlds.virtual.network import Network

Times = NDArray[np.float64]  # (draws, learners), seconds
JobsRamp = Callable[[float, int], int]  # (fraction of the budget, learners) -> learners that train
DRAWS, CELLS = 512, 65_536  # rows of the table; fewer for very many learners
FRACTIONS = 200  # of the budget at which a ramp of learners is sampled
COMPUTE, NETWORK, STRAGGLER = "compute", "network", "slowest learner"


@dataclass(frozen=True)
class Form:
    """A strategy on a cluster.

    Attributes:
        seconds: Seconds of the whole cluster for one minibatch of one learner.
        binds: Bottleneck.
        vectors: Vectors of the model's length in a learner's memory, beside the optimizer's state and activations.
        lines: The formula, then the formula with numbers.
        rounds: Averaging rounds per gradient that the network carries; None if averaging is part of the step.
    """

    seconds: float
    binds: str
    vectors: float
    lines: tuple[str, ...]
    rounds: float | None = None


@dataclass(frozen=True)
class ClusterSetting:
    """A cluster with the table of its compute times.

    Attributes:
        unit: Minibatches in the gradient of one entry of the table (several for a node of learners).
        samples: Samples of a minibatch, for strategies that count them; None: unknown.
    """

    cluster: Cluster
    times: Times
    unit: int = 1
    samples: float | None = None
    size: float = field(init=False)

    def __post_init__(self) -> None:
        if self.cluster.message_bytes is None:
            raise ValueError("planning needs Cluster.message_bytes, the size of the model in bytes")
        object.__setattr__(self, "size", self.cluster.message_bytes)

    @classmethod
    def of(cls, cluster: Cluster, samples: float | None = None) -> ClusterSetting:
        """Return the setting of a cluster, with compute times drawn from its description."""
        draws = max(32, min(DRAWS, CELLS // cluster.learners))
        rows = [[cluster.compute(i, k) for i in range(cluster.learners)] for k in range(draws)]
        return cls(cluster, np.asarray(rows, dtype=np.float64), samples=samples)

    @property
    def learners(self) -> int:
        """Number of columns of the table."""
        return int(self.times.shape[1])

    @property
    def copies(self) -> float:
        """Seconds of copying one vector between device and host."""
        return self.size / self.cluster.copy_bytes_per_second

    def synchronous(self) -> Times:
        """Seconds of a step of synchronous SGD, (draws,): the slowest gradient, and what its sum takes after it."""
        network, learners, size = Network(Clock(), self.cluster), range(self.cluster.learners), int(self.size) or 1
        slowest = self.times.max(1)
        exposed = [network.exposed_allreduce_seconds(learners, size, float(t)) for t in slowest]
        steps: Times = slowest + np.asarray(exposed)
        return steps

    def broadcast(self) -> float:
        """Seconds of a broadcast by the first learner of the cluster."""
        return Network(Clock(), self.cluster).broadcast_seconds(range(self.cluster.learners), int(self.size) or 1, 0)

    def allreduce(self, parts: int = 1) -> float:
        """Seconds of a mean of all learners of the cluster, of one of some equal parts of the vector."""
        if self.cluster.learners < 2:
            return 0.0
        network = Network(Clock(), self.cluster)
        network.whole = parts
        return network.allreduce_seconds(range(self.cluster.learners), int(self.size) or 1, 1)


def form_of(strategy: Any, setting: ClusterSetting) -> Form:
    """Return the form that a strategy declares by `planned`.

    Raises:
        ValueError: the strategy declares none, or its cost depends on the course of training.
    """
    if not isinstance(strategy, Planned):
        name = getattr(strategy, "__name__", type(strategy).__name__)
        raise ValueError(f"{name} has no closed form (it declares no `planned`): simulate it instead")
    form: Form = strategy.planned(ClosedForms(setting))
    return form


@dataclass(frozen=True)
class ClosedForms:
    """The closed forms on one setting, from which a strategy chooses; see `murmur.core.facts.Planner`."""

    setting: ClusterSetting

    @property
    def samples(self) -> float:
        if self.setting.samples is None:
            raise ValueError("this strategy counts samples: the setting needs the samples of a minibatch")
        return self.setting.samples

    def synchronous(self, vectors: float) -> Form:
        return _synchronous(vectors, self.setting)

    def every(self, K: int, vectors: float, jobs: JobsRamp | None = None) -> Form:
        return _periodic(K, vectors, self.setting) if jobs is None else _ramped(K, vectors, jobs, self.setting)

    def delayed(self, mixing: Mixing) -> Form:
        return _delayed(mixing, self.setting)

    def streamed(self, K: int, fragments: int, tau: int, vectors: float) -> Form:
        return _streamed(K, fragments, tau, vectors, self.setting)

    def pairwise(self, mixing: Mixing, more_vectors: float = 0) -> Form:
        form = _gossiping(mixing, self.setting)
        return replace(form, vectors=form.vectors + more_vectors)

    def served(self, servers: int) -> Form:
        return _served(servers, self.setting)

    def sharded(self, shards: int, exchanges: float) -> Form:
        return _sharded(shards, exchanges, self.setting)

    def apart(self, servers: int, exchanges: float) -> Form:
        return _apart(servers, exchanges, self.setting)

    def nodes(self, outer: object, size: int) -> Form:
        return _nodes(outer, size, self.setting)


def _slowest(times: Times, K: int) -> float:
    """E max_i of the sum of K compute times, divided by K."""
    tiled = np.concatenate([np.roll(times, -7 * shift, axis=0) for shift in range(-(-4 * K // len(times)))] or [times])
    rows = len(tiled) // K * K
    return float(tiled[:rows].reshape(-1, K, times.shape[1]).sum(1).max(1).mean() / K)


def _bound_by(waiting: float, communicating: float, own: float) -> str:
    largest = max((communicating, NETWORK), (waiting, STRAGGLER), (own, COMPUTE))
    return largest[1]


def _synchronous(vectors: float, setting: ClusterSetting) -> Form:
    """Form of synchronous SGD, whose sum runs behind the backward pass."""
    step, count = float(setting.synchronous().mean()), setting.learners * setting.unit
    slowest, own = _slowest(setting.times, 1), float(setting.times.mean(0).min())
    lines = (
        "seconds a minibatch = E (max_i t_i + C - min(C (1 - l / b), beta max_i t_i)) / L",
        f"                    = ({slowest:.6g} + {step - slowest:.6g}) / {count} = {step / count:.6g}"
        f"      (C {setting.allreduce():.6g})",
    )
    return Form(step / count, _bound_by(slowest - own, step - slowest, own), vectors, lines)


def _periodic(K: int, vectors: float, setting: ClusterSetting) -> Form:
    """Form of K steps followed by a mean of all learners."""
    slowest, cost, count = _slowest(setting.times, K), setting.allreduce(), setting.learners * setting.unit
    own = float(setting.times.mean(0).min())
    seconds = (slowest + cost / K) / count
    lines = (
        "seconds a minibatch = (E max_i sum of K t_i / K + C / K) / L",
        f"                    = ({slowest:.6g} + {cost:.6g} / {K}) / {count} = {seconds:.6g}",
    )
    return Form(seconds, _bound_by(slowest - own, cost / K, own), vectors, lines)


def _ramped(K: int, vectors: float, jobs: JobsRamp, setting: ClusterSetting) -> Form:
    """Form of K steps of J learners followed by a mean, with J from a ramp over the budget."""
    cost, own = setting.allreduce(), float(setting.times.mean(0).min())
    widths = [jobs((step + 0.5) / FRACTIONS, setting.learners) for step in range(FRACTIONS)]
    slowest = {J: _slowest(setting.times[:, :J], K) for J in set(widths)}
    each = [(slowest[J] + cost / K) / (J * setting.unit) for J in widths]
    seconds, waiting = float(np.mean(each)), slowest[widths[-1]] - own
    lines = (
        "seconds a minibatch = mean over f of (E max_{i < J(f)} sum of K t_i / K + C / K) / J(f)",
        f"                    = {seconds:.6g}      (J from {widths[0]} to {widths[-1]}, K {K}, C {cost:.6g})",
    )
    return Form(seconds, _bound_by(waiting, cost / K, own), vectors, lines)


def _delayed(mixing: Mixing, setting: ClusterSetting) -> Form:
    if mixing is not uniform:
        raise ValueError(f"DelayByOne(mixing={mixing.__name__}) has no closed form: simulate it instead")
    cost, count = setting.allreduce(), setting.learners * setting.unit
    done, steps = np.zeros(setting.learners), len(setting.times)
    for row in setting.times:
        done = np.maximum(done + row, done.max() + cost)
    step = float(done.max()) / steps
    own = float(setting.times.mean(0).min())
    lines = (
        "seconds a minibatch = (round of d_i <- max(d_i + t_i, max_j d_j + C)) / L;  equal constant t: max(t, C) / L",
        f"                    = {step:.6g} / {count} = {step / count:.6g}      (mean t {own:.6g}, C {cost:.6g})",
    )
    binds = NETWORK if cost > step * 0.999 else _bound_by(step - own, 0.0, own)
    return Form(step / count, binds, 5.0, lines)


def _streamed(K: int, fragments: int, tau: int, vectors: float, setting: ClusterSetting) -> Form:
    """Form of means of fragments beside the next tau gradients; C_F: seconds of the mean of a fragment."""
    cost, count = setting.allreduce(fragments), setting.learners * setting.unit
    begins = [K * p // fragments for p in range(fragments + 1)]
    rows = np.concatenate([setting.times] * -(-4 * K // len(setting.times)))
    rows = rows[: len(rows) // K * K]
    done, waited = np.zeros(setting.learners), 0.0
    for block in rows.reshape(-1, K, setting.learners):
        for begin, end in pairwise(begins):
            beside = done + block[begin : begin + tau].sum(0)
            merged = np.maximum(beside, done.max() + cost)
            waited += float((merged - np.maximum(beside, done.max())).mean())
            done = merged + block[begin + tau : end].sum(0)
    step, own, exposed = float(done.max()) / len(rows), float(setting.times.mean(0).min()), waited / len(rows)
    lines = (
        "seconds a minibatch = F / (K L) (round of d_i <- max(d_i + tau t_i, max_j d_j + C_F) + (K / F - tau) t_i)",
        f"                    = {step:.6g} / {count} = {step / count:.6g}      (mean t {own:.6g}, C_F {cost:.6g})",
    )
    return Form(step / count, _bound_by(step - own - exposed, exposed, own), vectors, lines)


def _gossiping(mixing: Mixing, setting: ClusterSetting) -> Form:
    rate = float((1 / setting.times.mean(0)).sum()) * setting.unit
    rounds = rounds_of(mixing, setting.cluster, setting.times)
    lines = (
        "seconds a minibatch = 1 / sum_i 1 / E t_i;  rounds a gradient from s, the seconds of an exchange, and t",
        f"                    = 1 / {rate:.6g} = {1 / rate:.6g};  {rounds.neighbours:.3g} neighbours, s at most"
        f" {rounds.seconds:.6g} s, so {rounds.per_gradient:.3g} rounds a gradient",
    )
    return Form(1 / rate, COMPUTE, 4.0 + 2 * rounds.neighbours, lines, rounds.per_gradient)


def _alone(setting: ClusterSetting, vectors: float) -> Form:
    """Form of a single learner of a strategy with servers."""
    alone = float(setting.times.mean())
    return Form(alone / setting.unit, COMPUTE, vectors, ("one learner is its own server", f"t = {alone:.6g}"))


def _exchange_seconds(latency: float, transfer: float, copies: float, servers: int) -> float:
    """Seconds of an exchange with S servers: a + v there and back, and copies c between device and host at both ends.

    Parts of the vector follow each other: while one is transferred or copied by its server, the next is copied by the
    learner. Either the transfers bind or the learner's copies: max(2 v + 4 c / S, 2 v / S + c + 3 c / S).
    """
    transfers, own = 2 * transfer + 4 * copies / servers, 2 * transfer / servers + copies * (1 + 3 / servers)
    return 2 * latency + max(transfers, own)


def _served(servers: int, setting: ClusterSetting) -> Form:
    """Form of learners that wait for the parts of all servers. The busiest node with servers may bind."""
    cluster, size, copies = setting.cluster, setting.size, setting.copies
    if setting.learners == 1:
        return _alone(setting, 3.0)
    training = range(setting.learners - beside_servers(servers, setting.learners), setting.learners)
    width, speed = cluster.learners_per_node, cluster.link.bytes_per_second
    there = cluster.places(range(servers))  # servers on each node
    far = np.asarray([1 - there.get(cluster.node_of(i), 0) / servers for i in training])  # share of parts over cards
    # The learners of a node begin together, and fair shares of their card keep them together.
    card = np.asarray([min(width, cluster.places(training)[cluster.node_of(i)]) for i in training]) * far * size / speed
    inside = (1 - far) * size / cluster.inside.bytes_per_second
    latency = np.where(far > 0, cluster.link.latency_seconds, cluster.inside.latency_seconds)
    ways = zip(latency, np.maximum(card, inside), strict=True)
    exchanges = [_exchange_seconds(float(a), float(v), copies, servers) for a, v in ways]
    cycle = setting.times[:, training.start :].mean(0) + np.asarray(exchanges)
    rates = 1 / cycle
    loads = [
        held
        / servers
        * size
        / speed
        * float(sum(r for i, r in zip(training, rates, strict=True) if cluster.node_of(i) != n))
        for n, held in there.items()
    ]
    free = 1 / float(rates.sum())
    carrying, serving = max(loads) * free, copies / servers
    seconds = max(carrying, serving, free)
    lines = (
        "seconds a minibatch = max(b / (S B), b / (S R_copy), 1 / sum_i 1 / (t_i + 2 (a + b / B + 2 b / R_copy)))",
        f"                    = max({carrying:.6g}, {serving:.6g}, {free:.6g}) = {seconds:.6g}      (S = {servers})",
    )
    binds = "server's card" if max(carrying, serving) >= free else COMPUTE
    return Form(seconds / setting.unit, binds, 4.0, lines)


def _sharded(shards: int, exchanges: float, setting: ClusterSetting) -> Form:
    """Form of a server cut over S learners: an exchange that is due while one is under way is left out.

    The cards of the holders carry S B / b exchanges a second of the other learners; copies to the host are left out.
    """
    cluster, learners = setting.cluster, setting.learners
    rate = float((1 / setting.times.mean(0)).sum())
    vector = (setting.size or 1) / cluster.link.bytes_per_second
    own = float(setting.times.mean()) / (2 * (cluster.link.latency_seconds + vector + setting.copies))
    held = min(shards, learners)
    far = min(exchanges, own, held / vector / (rate * (learners - 1) / learners)) if learners > 1 else 0.0
    near = exchanges if held == 1 else far  # a holder of everything exchanges with itself
    carried = (near + (learners - 1) * far) / learners
    lines = (
        "seconds a minibatch = 1 / sum_i 1 / E t_i;  exchanges of others a second: at most S B / b",
        f"                    = {1 / (rate * setting.unit):.6g};  {carried:.3g} of {exchanges:.3g} due a gradient",
    )
    return Form(1 / (rate * setting.unit), COMPUTE, 5.0, lines, carried)


def _apart(servers: int, exchanges: float, setting: ClusterSetting) -> Form:
    """Form of a server cut over S learners that take no gradients; exchanges are left out as in `_sharded`.

    The cards of the servers carry S B / b exchanges a second, and their copies S R_copy / b. An exchange that takes x
    gradients holds up those that are due within ceil(x) gradients, or about x + 1 / 2 if gradients take random times.
    """
    cluster = setting.cluster
    if setting.learners == 1:
        return _alone(setting, 5.0)
    first = setting.learners - beside_servers(servers, setting.learners)
    times = setting.times[:, first:]
    rate = float((1 / times.mean(0)).sum())
    vector = (setting.size or 1) / cluster.link.bytes_per_second
    taken = _exchange_seconds(cluster.link.latency_seconds, vector, setting.copies, servers) / float(times.mean())
    held = 1.0 if taken <= 1 else math.ceil(taken - 1e-9) if np.ptp(times) == 0 else taken + 0.5
    carried = min(exchanges, 1 / held, servers / max(vector, setting.copies) / rate)
    lines = (
        "seconds a minibatch = 1 / sum_i 1 / E t_i over the learners that train;  exchanges a second: at most S B / b",
        f"                    = {1 / (rate * setting.unit):.6g};  {carried:.3g} of {exchanges:.3g} due a gradient",
    )
    return Form(1 / (rate * setting.unit), COMPUTE, 5.0, lines, carried)


def _nodes(outer_strategy: object, width: int, setting: ClusterSetting) -> Form:
    """Form of nodes as learners: a gradient takes the time of the slowest member and a mean inside the node."""
    cluster = setting.cluster
    learners = setting.learners
    if learners % width:
        raise ValueError(f"SuperLearners(node_size={width}) does not divide {learners} learners: plan full nodes")
    within = replace(cluster, learners=width, links={}, faults=())
    rows = setting.times.reshape(-1, width)
    node, handed = ClusterSetting(within, rows).synchronous(), ClusterSetting(within, rows).broadcast()
    every = Facts.of(outer_strategy).sets_weights_every
    sets = 0.0 if every is None else 1 / every
    own = node.reshape(len(setting.times), -1)
    inside = float((node - rows.max(1)).mean())
    times = np.maximum(own, 0.0 if sets else handed) + sets * handed
    a_card = max(1, cluster.learners_per_node // width)  # nodes of this strategy that share one card
    card = Link(cluster.link.latency_seconds, cluster.link.bytes_per_second / a_card)
    outer = replace(
        cluster,
        learners=learners // width,
        link=card,
        links={},
        faults=(),
        nodes=None,
        learners_per_node=1,
        backward_share=0.0,  # sums among nodes begin when those inside have ended
    )
    form = form_of(outer_strategy, ClusterSetting(outer, times, setting.unit * width, setting.samples))
    lines = (
        "a node's gradient   = E max inside + exposed sum inside, and D beside it",
        f"                    = {float(rows.max(1).mean()):.6g} + {inside:.6g}, {handed:.6g} s:"
        f" {float(times.mean()):.6g} s for {width} minibatches",
        *form.lines,
    )
    binds = NETWORK + " inside nodes" if inside > float(times.mean()) / 2 else form.binds
    return replace(form, lines=lines, binds=binds, vectors=form.vectors + 1)
