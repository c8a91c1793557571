"""Closed forms of the strategies: seconds that a minibatch costs the whole cluster.

t_i: compute times of learner i; L: learners; C: seconds of an allreduce with its copies; b: bytes of the model; B, a:
bandwidth and latency of a network card.

    SyncSGD          E (max_i t_i + C - min(C (1 - l / b), beta max_i t_i)) / L
    KAVG, BMUF       (E max_i (t_i1 + ... + t_iK) + C) / (K L)
    ParameterAveraging  the same with J(f) learners in place of L, averaged over the fraction f of the budget
    DelayByOne       d_i <- max(d_i + t_i, max_j d_j + C), per round, / L
    StreamingDiLoCo  d_i <- max(d_i + tau t_i, max_j d_j + C_F) + (K / F - tau) t_i, per fragment, F / (K L)
    GossipPGA        d_i <- max(d_i + t_i, max_j d_j + t_j + s_ji), j: neighbours; every H-th time max_j d_j + t_j + C
    NoLoCo           the same with the sums of K times, a random partner for j, and no C
    ADPSGD           1 / sum_i 1 / E t_i                            gradients do not wait; rounds: `planner.rounds`
    Downpour, EASGD, DecoupledDiLoCo  1 / sum_i 1 / E t_i           gradients do not wait; exchanges: `planner.servers`
    ASGD             1 / sum_i 1 / (E t_i + 2 (a + b / B + 2 b / R_copy)), or what the servers carry: `planner.servers`
    SuperLearners    the outer strategy among leaders with t = max(SyncSGD's step inside, D) and n minibatches per
                     gradient; D, a broadcast, comes on top of every step whose weights members must wait for

With moments of Adam that are averaged too, b is that of three vectors.
l: bytes of the last bucket, whose sum begins when the backward pass has ended (for devices on several nodes l = b:
their sums pass through host memory); beta: share of the backward pass; D: seconds of a broadcast inside the node.

E is the mean over a table of compute times drawn from the cluster's description. Recorded times, jitter and stragglers
therefore need no formula of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from murmur.core.facts import Facts, Form, Planned
from murmur.core.mixing import Mixing, Row, uniform
from murmur.simulation.planner.rounds import SAMPLED, changes, edges_of, lock_step_seconds, rounds_of
from murmur.simulation.planner.servers import apart, served, sharded
from murmur.simulation.planner.setting import COMPUTE, NETWORK, STRAGGLER, ClusterSetting, Times
from murmur.worlds.virtual.cluster import Cluster

JobsRamp = Callable[[float, int], int]  # (fraction of the budget, learners) -> learners that train
FRACTIONS = 200  # of the budget at which a ramp of learners is sampled
FEWEST = 8  # rounds at least that sample a mixing with other edges in every round


def form_of(strategy: object, setting: ClusterSetting) -> Form:
    """Return the form that a strategy declares by `planned`.

    Raises:
        ValueError: the strategy declares none, or its cost depends on the course of training.
    """
    if not isinstance(strategy, Planned):
        name = getattr(strategy, "__name__", type(strategy).__name__)
        raise ValueError(f"{name} has no closed form (it declares no `planned`): simulate it instead")
    return strategy.planned(ClosedForms(setting))


def _slowest(times: Times, K: int) -> float:
    """E max_i of the sum of K compute times, divided by K."""
    tiled = np.concatenate([np.roll(times, -7 * shift, axis=0) for shift in range(-(-4 * K // len(times)))] or [times])
    rows = len(tiled) // K * K
    return float(tiled[:rows].reshape(-1, K, times.shape[1]).sum(1).max(1).mean() / K)


def _bound_by(waiting: float, communicating: float, own: float) -> str:
    largest = max((communicating, NETWORK), (waiting, STRAGGLER), (own, COMPUTE))
    return largest[1]


@dataclass(frozen=True)
class LockStepRounds:
    """Rounds of learners that mix with neighbours and wait for them; s_ji: seconds of an exchange begun together.

    Attributes:
        seconds: Of a round.
        moving: Of them, for exchanges.
        neighbours: Of a learner.
        slowest: Largest s_ji.
    """

    seconds: float
    moving: float
    neighbours: float
    slowest: float


@dataclass(frozen=True)
class ClosedForms:
    """The closed forms on one setting, from which a strategy chooses; see `murmur.core.facts.Planner`."""

    setting: ClusterSetting

    @property
    def samples(self) -> float:
        if self.setting.samples is None:
            raise ValueError("this strategy counts samples: the setting needs the samples of a minibatch")
        return self.setting.samples

    @property
    def _own(self) -> float:
        """Mean seconds of a gradient of the fastest learner."""
        return float(self.setting.times.mean(0).min())

    def synchronous(self, vectors: float) -> Form:
        step, count = float(self.setting.synchronous().mean()), self.setting.learners * self.setting.unit
        slowest, own = _slowest(self.setting.times, 1), self._own
        lines = (
            "seconds a minibatch = E (max_i t_i + C - min(C (1 - l / b), beta max_i t_i)) / L",
            f"                    = ({slowest:.6g} + {step - slowest:.6g}) / {count} = {step / count:.6g}"
            f"      (C {self.setting.allreduce():.6g})",
        )
        return Form(step / count, _bound_by(slowest - own, step - slowest, own), vectors, lines)

    def every(self, K: int, vectors: float, jobs: JobsRamp | None = None, sent: int = 1) -> Form:
        return self._periodic(K, vectors, sent) if jobs is None else self._ramped(K, vectors, jobs)

    def _periodic(self, K: int, vectors: float, sent: int) -> Form:
        slowest, count = _slowest(self.setting.times, K), self.setting.learners * self.setting.unit
        own = self._own
        cost = self.setting.allreduce(sent)
        seconds = (slowest + cost / K) / count
        lines = (
            "seconds a minibatch = (E max_i sum of K t_i / K + C / K) / L",
            f"                    = ({slowest:.6g} + {cost:.6g} / {K}) / {count} = {seconds:.6g}",
        )
        return Form(seconds, _bound_by(slowest - own, cost / K, own), vectors, lines)

    def _ramped(self, K: int, vectors: float, jobs: JobsRamp) -> Form:
        cost, own = self.setting.allreduce(), self._own
        widths = [jobs((step + 0.5) / FRACTIONS, self.setting.learners) for step in range(FRACTIONS)]
        slowest = {J: _slowest(self.setting.times[:, :J], K) for J in set(widths)}
        each = [(slowest[J] + cost / K) / (J * self.setting.unit) for J in widths]
        seconds, waiting = float(np.mean(each)), slowest[widths[-1]] - own
        lines = (
            "seconds a minibatch = mean over f of (E max_{i < J(f)} sum of K t_i / K + C / K) / J(f)",
            f"                    = {seconds:.6g}      (J from {widths[0]} to {widths[-1]}, K {K}, C {cost:.6g})",
        )
        return Form(seconds, _bound_by(waiting, cost / K, own), vectors, lines)

    def delayed(self, mixing: Mixing, sent: int = 1) -> Form:
        if mixing is not uniform:
            raise ValueError(f"DelayByOne(mixing={mixing.__name__}) has no closed form: simulate it instead")
        cost, count = self.setting.allreduce(sent), self.setting.learners * self.setting.unit
        done, steps = np.zeros(self.setting.learners), len(self.setting.times)
        for row in self.setting.times:
            done = np.maximum(done + row, done.max() + cost)
        step = float(done.max()) / steps
        own = self._own
        lines = (
            "seconds a minibatch = (round of d_i <- max(d_i + t_i, max_j d_j + C)) / L;  equal constant t: max(t, C)"
            " / L",
            f"                    = {step:.6g} / {count} = {step / count:.6g}      (mean t {own:.6g}, C {cost:.6g})",
        )
        binds = NETWORK if cost > step * 0.999 else _bound_by(step - own, 0.0, own)
        return Form(step / count, binds, 3.0 + 2 * sent, lines)

    def in_step(self, mixing: Mixing, every: int, sent: int = 1, sent_by_all: int = 1) -> Form:
        cost, rounds = self.setting.allreduce(sent_by_all), len(self.setting.times)
        rounds = -(-max(rounds, 4 * every) // every) * every
        mixed = self._rounds(mixing, self.setting.times, rounds, sent, every, cost)
        step, own, count = mixed.seconds, self._own, self.setting.learners * self.setting.unit
        moving = min(mixed.moving, step - own)
        lines = (
            "seconds a minibatch = (round of d_i <- max(d_i + t_i, max_j d_j + t_j + s_ji over the neighbours j)) / L,",
            f"                      every H-th time max_j d_j + t_j + C = {step:.6g} / {count} = {step / count:.6g}"
            f"      (H {every}, C {cost:.6g}, s at most {mixed.slowest:.6g})",
        )
        vectors = 2 + max(2 * sent_by_all, (2 + mixed.neighbours) * sent)
        return Form(step / count, _bound_by(step - own - moving, moving, own), vectors, lines)

    def mixed(self, mixing: Mixing, K: int, vectors: float) -> Form:
        times = np.concatenate([self.setting.times] * -(-4 * K // len(self.setting.times)))
        times = times[: len(times) // K * K].reshape(-1, K, self.setting.learners).sum(1)
        mixed = self._rounds(mixing, times, max(len(times), FEWEST), 1, math.inf, 0.0)
        step, own, count = mixed.seconds / K, self._own, self.setting.learners * self.setting.unit
        moving = min(mixed.moving / K, step - own)
        lines = (
            "seconds a minibatch = (round of d_i <- max(d_i + T_i, max_j d_j + T_j + s_ji over the neighbours j)) / KL",
            f"                    = {step:.6g} / {count} = {step / count:.6g}"
            f"      (T_i: K gradients, K {K}, s at most {mixed.slowest:.6g})",
        )
        return Form(step / count, _bound_by(step - own - moving, moving, own), vectors, lines)

    def _rounds(
        self, mixing: Mixing, times: Times, count: int, sent: int, every: float, mean_seconds: float
    ) -> LockStepRounds:
        """Learners that mix after `times`, and after each `every`-th round wait for a mean of all."""
        learners = range(self.setting.learners)
        cluster = replace(self.setting.cluster, message_bytes=self.setting.size * sent)
        drawn = max(FEWEST, SAMPLED // len(learners)) if changes(mixing, learners) else 1
        rounds = [[mixing(k, learners, i) for i in learners] for k in range(drawn)]
        if drawn > 1:
            _check_cards(mixing, rounds, cluster)
        edges, lags = [edges_of([rows]) for rows in rounds], [lock_step_seconds(cluster, rows) for rows in rounds]
        done, waited = np.zeros(len(learners)), 0.0
        for k in range(count):
            begun = done + times[k % len(times)]
            source, to = edges[k % drawn].T
            done = begun.copy()
            if (k + 1) % every == 0:
                done[:] = begun.max() + mean_seconds
                waited += mean_seconds
            else:
                np.maximum.at(done, to, begun[source] + lags[k % drawn])
                waited += float(lags[k % drawn].max(initial=0.0))
        neighbours = sum(map(len, edges)) / drawn / len(learners)
        slowest = max(float(lag.max(initial=0.0)) for lag in lags)
        return LockStepRounds(float(done.max()) / count, waited / count, neighbours, slowest)

    def streamed(self, K: int, fragments: int, tau: int, vectors: float) -> Form:
        """C_F: seconds of the mean of a fragment."""
        cost, count = self.setting.allreduce(parts=fragments), self.setting.learners * self.setting.unit
        begins = [K * p // fragments for p in range(fragments + 1)]
        rows = np.concatenate([self.setting.times] * -(-4 * K // len(self.setting.times)))
        rows = rows[: len(rows) // K * K]
        done, waited = np.zeros(self.setting.learners), 0.0
        for block in rows.reshape(-1, K, self.setting.learners):
            for begin, end in pairwise(begins):
                beside = done + block[begin : begin + tau].sum(0)
                merged = np.maximum(beside, done.max() + cost)
                waited += float((merged - np.maximum(beside, done.max())).mean())
                done = merged + block[begin + tau : end].sum(0)
        step, own, exposed = float(done.max()) / len(rows), self._own, waited / len(rows)
        lines = (
            "seconds a minibatch = F / (K L) (round of d_i <- max(d_i + tau t_i, max_j d_j + C_F) + (K / F - tau) t_i)",
            f"                    = {step:.6g} / {count} = {step / count:.6g}      (mean t {own:.6g}, C_F {cost:.6g})",
        )
        return Form(step / count, _bound_by(step - own - exposed, exposed, own), vectors, lines)

    def pairwise(self, mixing: Mixing, more_vectors: float = 0, sent: int = 1) -> Form:
        rate = float((1 / self.setting.times.mean(0)).sum()) * self.setting.unit
        rounds = rounds_of(
            mixing, replace(self.setting.cluster, message_bytes=self.setting.size * sent), self.setting.times
        )
        lines = (
            "seconds a minibatch = 1 / sum_i 1 / E t_i;  rounds a gradient from s, the seconds of an exchange, and t",
            f"                    = 1 / {rate:.6g} = {1 / rate:.6g};  {rounds.neighbours:.3g} neighbours, s at most"
            f" {rounds.seconds:.6g} s, so {rounds.per_gradient:.3g} rounds a gradient",
        )
        vectors = 2.0 + (2 + 2 * rounds.neighbours) * sent + more_vectors
        return Form(1 / rate, COMPUTE, vectors, lines, rounds.per_gradient)

    def served(self, servers: int) -> Form:
        return served(servers, self.setting)

    def sharded(self, shards: int, exchanges: float) -> Form:
        return sharded(shards, exchanges, self.setting)

    def apart(self, servers: int, exchanges: float) -> Form:
        return apart(servers, exchanges, self.setting)

    def nodes(self, outer: object, size: int) -> Form:
        _check_nodes(size, self.setting)
        rows = self.setting.times.reshape(len(self.setting.times), -1, size)
        inner = [ClusterSetting(_within(self.setting.cluster, s, size), rows[:, s]) for s in range(rows.shape[1])]
        own = np.stack([node.synchronous() for node in inner], axis=1)
        handed = np.asarray([node.broadcast() for node in inner])
        facts = Facts.of(outer)
        every = facts.sets_weights_every if facts.repeatable_steps else 1
        sets = 0.0 if every is None else 1 / every
        inside = float((own - rows.max(2)).mean())
        times = np.maximum(own, 0.0 if sets else handed) + sets * handed
        among = ClusterSetting(
            _among(self.setting.cluster, size), times, self.setting.unit * size, self.setting.samples
        )
        form = form_of(outer, among)
        lines = (
            "a node's gradient   = E max inside + exposed sum inside, and D beside it",
            f"                    = {float(rows.max(2).mean()):.6g} + {inside:.6g}, {float(handed.mean()):.6g} s:"
            f" {float(times.mean()):.6g} s for {size} minibatches",
            *form.lines,
        )
        binds = NETWORK + " inside nodes" if inside > float(times.mean()) / 2 else form.binds
        return replace(form, lines=lines, binds=binds, vectors=form.vectors + 1)


def _check_cards(mixing: Mixing, rounds: Sequence[Sequence[Row]], cluster: Cluster) -> None:
    """Check that learners that share a card keep step, as they wait for other neighbours in every round."""
    nodes = [edges_of([rows]) // cluster.learners_per_node for rows in rounds]
    sent = [np.bincount(ends[ends[:, 0] != ends[:, 1], 0], minlength=1).max() for ends in nodes]
    if cluster.learners_per_node > 1 and max(sent) > 2:
        raise ValueError(
            f"steps that wait for the neighbours of mixing={mixing.__name__} have no closed form on nodes whose"
            " learners share a card: simulate them instead"
        )


def _check_nodes(width: int, setting: ClusterSetting) -> None:
    """Check that every super-learner is full, and that all lie alike on the nodes of the cluster."""
    learners, slots = setting.learners, setting.cluster.learners_per_node
    if learners % width:
        raise ValueError(f"SuperLearners(node_size={width}) does not divide {learners} learners: plan full nodes")
    if slots % width and width % slots:
        raise ValueError(
            f"SuperLearners(node_size={width}) on nodes of {slots} learners has no closed form, as some super-learners"
            " lie on two nodes and others on one: simulate it instead"
        )


def _within(cluster: Cluster, number: int, width: int) -> Cluster:
    """Return the cluster of the members of one super-learner."""
    first = cluster.node_of(number * width)
    nodes = range(first, cluster.node_of(number * width + width - 1) + 1)
    cards = {node - first: cluster.links[node] for node in nodes if node in cluster.links}
    return replace(cluster, learners=width, links=cards, faults=(), nodes=None)


def _among(cluster: Cluster, width: int) -> Cluster:
    """Return the cluster of the leaders: several of a node share its card, and reach each other inside it."""
    a_node = max(1, cluster.learners_per_node // width)
    wide = max(1, width // cluster.learners_per_node)  # nodes of one super-learner; its leader is on the first
    cards = {node // wide: card for node, card in cluster.links.items() if node % wide == 0}
    return replace(
        cluster,
        learners=cluster.learners // width,
        links=cards,
        faults=(),
        nodes=None,
        learners_per_node=a_node,
        backward_share=0.0,  # sums among nodes begin when those inside have ended
    )
