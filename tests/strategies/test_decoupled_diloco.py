"""Decoupled DiLoCo: an event-by-event oracle, DiLoCo's outer steps, windows, stragglers, losses, stops."""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from murmur.core.facts import learners_for
from murmur.core.group import PeerLost
from murmur.core.learner import Learner, Strategy
from murmur.core.learner_state import StrategyVectors
from murmur.core.membership import StoppedGracefully
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.strategies import Compressed, DecoupledDiLoCo, DiLoCo, SuperLearners
from murmur.strategies.decoupled_diloco import UNKNOWN, Delivery, Synchronizer
from murmur.strategies.parameter_shards import CENTRE
from murmur.testing.strategies import Observed
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Link, LognormalSeconds, Rejoin, Stop
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import thinned
from tests.support.named import named
from tests.support.pool import Pool
from tests.support.tally import Tally
from tests.support.tasks import Counted, Quadratic, Steps, fit, fit_in_process, weights_of
from tests.support.unscaled import Experiment

AT_ONCE = Link(latency_seconds=0.0, bytes_per_second=1e18)
ALPHA = 0.1


@dataclass
class Replayed:
    """A learner of the oracle: weights, and for each fragment the point to which its steps are delivered.

    Attributes:
        w: Weights.
        base: Outer weights that it knows, with its steps that are delivered and not merged.
        since: Samples and steps since the latest delivery of each fragment.
        out: What it has delivered of each fragment; 0: all of it is merged.
        times: Durations of its latest gradients.
    """

    w: Tensor
    base: Tensor
    since: list[list[float]]
    out: list[Tensor | float]
    turn: int = 0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=15))


class Oracle:
    """Decoupled DiLoCo on a network that takes no time, from gradient to gradient.

    A gradient is begun before anything lands that its learner has caused by the end of the one before.
    """

    def __init__(
        self, s: DecoupledDiLoCo, learners: int, minibatches: int, compute: Callable[[int, int], float]
    ) -> None:
        self.s, self.task, self.compute, self.left = s, Quadratic(ragged=True), compute, list(range(minibatches))
        zero, F = torch.zeros(self.task.size, dtype=torch.float64), s.fragments
        self.parts = [slice(5 * p // F, 5 * (p + 1) // F) for p in range(F)]
        self.them = [
            Replayed(zero.clone(), zero.clone(), [[0.0, 0.0] for _ in range(F)], [0.0] * F) for _ in range(learners)
        ]
        self.x, self.v = zero.clone(), zero.clone()
        self.delivered: list[dict[int, tuple[Tensor, float, float, float]]] = [{} for _ in range(F)]
        self.ends = [math.inf] * F
        self.gradient = self.quorum = math.nan
        self.jobs: list[tuple[float, int, int, Tensor, float]] = []  # end, learner, minibatch, its point, its duration
        self.steps = [0] * learners
        self.merges = 0

    def run(self) -> Tensor:
        for i in range(len(self.them)):
            self.begin(0.0, i)
        while self.jobs:
            now = min(self.jobs[0][0], *self.ends)
            if now < self.jobs[0][0]:
                self.merge_due(now)
                continue
            _, i, n, point, seconds = heapq.heappop(self.jobs)
            it = self.them[i]
            it.w = it.w - ALPHA * self.task.curvature * (point - self.task.centre(n))
            it.turn += 1
            it.times.append(seconds)
            due = self.due(it, self.task.weight(n))
            self.begin(now, i)
            for p in due:
                self.deliver(now, i, p)
            if self.jobs or i > 0 or not any(steps for _, steps in it.since):
                self.merge_due(now)
        for i in range(len(self.them)):
            for p in range(self.s.fragments):
                self.deliver(math.inf, i, p)
        for p in range(self.s.fragments):
            self.outer_step(p)
        return self.x

    def begin(self, now: float, i: int) -> None:
        if self.left:
            seconds = self.compute(i, self.steps[i])
            heapq.heappush(self.jobs, (now + seconds, i, self.left.pop(0), self.them[i].w.clone(), seconds))
            self.steps[i] += 1

    def due(self, it: Replayed, samples: float) -> list[int]:
        found = []
        for p, since in enumerate(it.since):
            since[0], since[1] = since[0] + samples, since[1] + 1
            points = self.s.K * (p + 1) // self.s.fragments
            if it.turn % self.s.K == points % self.s.K and isinstance(it.out[p], float):
                found.append(p)
        return found

    def deliver(self, now: float, i: int, p: int) -> None:
        it, part = self.them[i], self.parts[p]
        samples, steps = it.since[p]
        if steps == 0:
            return
        d = it.w[part] - it.base[part]
        it.base[part] += d
        it.out[p] = it.out[p] + d
        it.since[p] = [0.0, 0.0]
        if i in self.delivered[p]:
            before = self.delivered[p][i]
            d, samples, steps, now = before[0] + d, before[1] + samples, before[2] + steps, before[3]
        self.delivered[p][i] = d, samples, steps, now
        pace = statistics.median(it.times)
        self.gradient = pace if math.isnan(self.gradient) else self.gradient + 0.2 * (pace - self.gradient)

    def merge_due(self, now: float) -> None:
        for p, given in enumerate(self.delivered):
            if self.ends[p] == math.inf and given and len(given) >= min(self.s.quorum, len(self.them)):
                waited = now - min(came for *_, came in given.values())
                self.quorum = waited if math.isnan(self.quorum) else self.quorum + 0.2 * (waited - self.quorum)
                self.ends[p] = now + self.s.slack * max(0.0, self.s.tau * self.gradient - self.quorum)
            if self.ends[p] < math.inf and (len(given) == len(self.them) or self.ends[p] <= now + 1e-6):
                self.outer_step(p)
                self.merges += 1

    def outer_step(self, p: int) -> None:
        given, self.delivered[p], self.ends[p], part = self.delivered[p], {}, math.inf, self.parts[p]
        if not given:
            return
        weights = {i: samples * samples / steps for i, (_, samples, steps, _) in given.items()}
        change = -sum((weights[i] * given[i][0] for i in given), torch.zeros(1)) / sum(weights.values())
        self.v[part] = self.s.mu * self.v[part] + change
        self.x[part] -= self.s.rate * (change + self.s.mu * self.v[part])
        for i, it in enumerate(self.them):
            it.out[p] = 0.0 if i in given else it.out[p]
            known = self.x[part] + it.out[p]
            it.w[part] += known - it.base[part]
            it.base[part] = known


SHAPES = [
    DecoupledDiLoCo(4, 2, quorum=2, slack=0.0),
    DecoupledDiLoCo(3, 1, quorum=1, slack=0.0),
    DecoupledDiLoCo(4, 2, quorum=1, tau=2.0, slack=0.5),
    DecoupledDiLoCo(5, 5, quorum=2, tau=4.0, slack=0.9, rate=0.5, mu=0.6),
    DecoupledDiLoCo(3, 3, quorum=9),
]


@pytest.mark.parametrize(("strategy", "learners", "minibatches"), thinned(SHAPES, [3, 2, 5, 1], [61, 60, 40]))
def test_event_by_event(strategy: DecoupledDiLoCo, learners: int, minibatches: int) -> None:
    compute = LognormalSeconds(0.1, 0.6, seed=learners)
    oracle = Oracle(strategy, learners, minibatches, compute)
    wanted = oracle.run()
    run = Experiment(Quadratic(ragged=True), strategy, Budget(minibatches=minibatches), SGD(ALPHA))
    got = fit(run, VirtualWorld(Cluster(learners, compute, AT_ONCE)))
    assert oracle.merges >= 4
    assert torch.allclose(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("minibatches", [48, 61, 3])
@pytest.mark.parametrize("learners", [1, 3, 4])
def test_a_quorum_of_all_takes_the_outer_steps_of_diloco(learners: int, minibatches: int) -> None:
    """With gradients that do not depend on the weights, steps beside an exchange are those after it."""

    def end(strategy: Strategy) -> Tensor:
        run = Experiment(Steps(), strategy, Budget(minibatches=minibatches), SGD(ALPHA))
        return fit(run, VirtualWorld(Cluster(learners, ConstantSeconds(0.1), AT_ONCE)))

    found = end(DecoupledDiLoCo(4, 1, quorum=learners, rate=0.7, mu=0.8))
    assert torch.allclose(found, end(DiLoCo(4, 0.7, 0.8)), rtol=1e-12, atol=1e-13)


@dataclass
class Merges:
    """Outer steps of a run: fragment, moment, and the learners whose deliveries they took."""

    found: list[tuple[int, float, tuple[int, ...]]] = field(default_factory=list)

    def into(self, patch: pytest.MonkeyPatch) -> None:
        merge = Synchronizer.merge

        def noted(it: Synchronizer, p: int) -> None:
            given = tuple(sorted(it._delivered[p]))
            if given:
                self.found.append((p, it._me.seat.now, given))
            merge(it, p)

        patch.setattr(Synchronizer, "merge", noted)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> Merges:
    found = Merges()
    found.into(monkeypatch)
    return found


LATE = ConstantSeconds(0.1, {2: 1.05, 3: 10.0})  # of four learners one is a little late, another one hopelessly


@pytest.mark.parametrize("slack", [0.0, 0.9])
def test_a_window_lets_a_late_learner_in_and_leaves_a_straggler_out(slack: float, merges: Merges) -> None:
    """Two learners deliver at 0.4 s, the third at 0.42 s, the fourth at 4 s; the window has 0.9 * 0.2 s."""
    strategy = DecoupledDiLoCo(4, 1, quorum=2, tau=2.0, slack=slack)
    run = Experiment(Quadratic(), strategy, Budget(minibatches=60), SGD(ALPHA))
    fit(run, VirtualWorld(Cluster(4, LATE, AT_ONCE)))
    _, at, given = merges.found[0]
    assert given == ((0, 1) if slack == 0 else (0, 1, 2))
    assert at == pytest.approx(0.4 if slack == 0 else 0.4 + 0.9 * 0.2, abs=1e-5)
    assert {3} <= set(merges.found[-1][2])  # the steps of the straggler count at the end


def test_a_window_ends_early_when_all_have_delivered(merges: Merges) -> None:
    strategy = DecoupledDiLoCo(4, 1, quorum=2, tau=2.0, slack=0.9)
    run = Experiment(Quadratic(), strategy, Budget(minibatches=60), SGD(ALPHA))
    fit(run, VirtualWorld(Cluster(3, ConstantSeconds(0.1, {2: 1.05}), AT_ONCE)))
    assert merges.found[0] == (0, pytest.approx(0.42), (0, 1, 2))


def test_there_is_no_window_when_exchanges_take_longer_than_tau_gradients(merges: Merges) -> None:
    """The first windows do not know the 0.3 s of the way to the synchronizer and back yet."""
    strategy = DecoupledDiLoCo(4, 1, quorum=2, tau=2.0, slack=0.9, servers=1)
    compute = ConstantSeconds(0.1, {3: 1.3})
    run = Experiment(Quadratic(), strategy, Budget(minibatches=300), SGD(0.01))
    fit(run, VirtualWorld(Cluster(4, compute, Link(0.15, 1e18))))
    assert merges.found[0][2] == (1, 2, 3)
    assert [given for _, _, given in merges.found[4:8]].count((1, 2, 3)) == 0


def pace(strategy: Strategy, factors: dict[int, float], learners: int = 4) -> float:
    """Seconds of a run of 400 minibatches."""
    world = VirtualWorld(Cluster(learners, ConstantSeconds(0.1, factors)))
    fit(Experiment(Quadratic(), strategy, Budget(minibatches=400), SGD(0.01)), world)
    return world.clock.now


@pytest.mark.parametrize("straggler", [0, 2])
@pytest.mark.parametrize("quorum", [1, 2, 4])
def test_no_learner_waits_for_a_straggler(quorum: int, straggler: int) -> None:
    """It takes fewer minibatches, also if it holds the synchronizer or outer steps wait for it; DiLoCo waits."""
    equal, slow = (pace(DecoupledDiLoCo(4, 2, quorum), factors) for factors in ({}, {straggler: 10.0}))
    assert slow < equal * 4 / 3.1 / 0.95 + 1.0  # of four learners 3.1 are left, and the last gradient takes 1 s
    waits = pace(DiLoCo(4), {straggler: 10.0})
    assert waits > 6 * slow


def test_outer_steps_go_on_beside_a_straggler(merges: Merges) -> None:
    pace(DecoupledDiLoCo(4, 1, quorum=2), {2: 10.0})
    by_others = [given for _, _, given in merges.found if 2 not in given]
    with_it = [given for _, _, given in merges.found if 2 in given]
    assert len(by_others) > 25
    assert 2 <= len(with_it) <= 5  # about one in ten


@pytest.mark.parametrize(
    "strategy",
    [DecoupledDiLoCo(4, 2, 2), DecoupledDiLoCo(3, 1, 9), DecoupledDiLoCo(4, 2, 2, servers=1)],
    ids=named,
)
def test_learners_without_a_shard_may_die_and_come_back(strategy: DecoupledDiLoCo, merges: Merges) -> None:
    """The budget is computed; outer steps go on with those that are there, also with a quorum of all.

    A lost learner takes with it the steps that it has not delivered, at most about K and those beside an exchange.
    """
    faults = (Kill(2, 1.05), Kill(3, 1.5), Rejoin(3, 2.2))
    cluster = Cluster(5, ConstantSeconds(0.1), faults=faults, lease_seconds=0.5)
    task = Counted(200)
    got = fit(Experiment(task, strategy, Budget(minibatches=200), SGD(1.0)), VirtualWorld(cluster))
    assert set(task.taken) == set(range(200))
    assert int((got == 0).sum()) <= 2 * (strategy.K + 2)
    assert [given for _, at, given in merges.found if 2.0 <= at < 2.3]
    assert any(3 in given for _, at, given in merges.found if at > 2.8)


@pytest.mark.parametrize("strategy", [DecoupledDiLoCo(4, 2, shards=2), DecoupledDiLoCo(4, 2, servers=2)], ids=named)
@pytest.mark.parametrize("faults", [(Kill(1, 1.0),), (Kill(1, 1.0), Rejoin(1, 1.2))], ids=["lost", "started again"])
def test_a_lost_shard_ends_the_run_by_name(strategy: DecoupledDiLoCo, faults: tuple[Kill | Rejoin, ...]) -> None:
    cluster = Cluster(4, ConstantSeconds(0.1), faults=faults, lease_seconds=0.5)
    with pytest.raises(PeerLost, match=r"learner 1.* part of the parameters, is lost|learner 1 was started again"):
        fit(Experiment(Quadratic(), strategy, Budget(minibatches=200), SGD(0.05)), VirtualWorld(cluster))


@pytest.mark.parametrize("silent", [0.6, 3.0])
def test_a_learner_that_counted_as_lost_goes_on_with_its_steps(silent: float, merges: Merges) -> None:
    cluster = Cluster(4, ConstantSeconds(0.1), faults=(Stop(2, 1.05, silent),), lease_seconds=0.5)
    task = Tally(cut={"left": 10_000}, size=200)
    run = Experiment(task, DecoupledDiLoCo(4, 2, 2), Budget(minibatches=200), SGD(1.0))
    assert (fit(run, VirtualWorld(cluster)) > 0).all()
    assert any(2 in given for _, at, given in merges.found if 1.05 + silent + 0.9 < at)


ONE_BY_ONE = [
    DecoupledDiLoCo(3, 1, slack=0.0, rate=1.0, mu=0.0),
    DecoupledDiLoCo(4, 2, slack=0.0, rate=1.0, mu=0.0, shards=2),
    DecoupledDiLoCo(3, 1, slack=0.0, rate=1.0, mu=0.0, servers=1),
]


def check_once(w: Tensor) -> None:
    """Deliveries merged one by one, at a rate of 1: steps count once; those of the last outer step are averaged."""
    assert float(w.max()) < 1 + 1e-9
    assert float(w.min()) > 0
    assert float((w > 1 - 1e-9).double().mean()) > 0.5


@pytest.mark.parametrize("strategy", ONE_BY_ONE, ids=named)
@pytest.mark.parametrize("latency", [0.0, 0.13])
def test_steps_count_once(strategy: DecoupledDiLoCo, latency: float) -> None:
    cluster = Cluster(4, LognormalSeconds(0.1, 0.7, seed=3), Link(latency, 1e4))
    run = Experiment(Tally(cut={"left": 1000}), strategy, Budget(minibatches=60), SGD(1.0))
    check_once(fit(run, VirtualWorld(cluster)))


def stop(run: Experiment, cluster: Cluster, seconds: float, out: Path, resume: bool = False) -> None:
    """Train, and ask the run to stop after some virtual seconds."""
    world = VirtualWorld(cluster)
    with pytest.raises(StoppedGracefully):
        Trainer(run, world, out, resume=resume, asked=lambda: world.clock.now > seconds).fit()


@pytest.mark.parametrize("strategy", ONE_BY_ONE, ids=named)
@pytest.mark.parametrize("latency", [0.0, 0.13])
def test_a_stopped_run_goes_on_and_steps_count_once(strategy: DecoupledDiLoCo, latency: float, tmp_path: Path) -> None:
    run = Experiment(Tally(cut={"left": 1000}), strategy, Budget(minibatches=60), SGD(1.0))
    cluster = Cluster(4, LognormalSeconds(0.1, 0.5, seed=2), Link(latency, 1e4))
    for launch, seconds in enumerate((0.45, 0.8)):
        stop(run, cluster, seconds, tmp_path, resume=launch > 0)
    check_once(weights_of(Trainer(run, VirtualWorld(cluster), tmp_path, resume=True).fit().model))


def test_a_resumed_run_keeps_the_outer_momentum(tmp_path: Path) -> None:
    """A stop between two outer steps of equal learners: the end is that of a run without one."""
    strategy = DecoupledDiLoCo(4, 1, quorum=3, rate=0.7, mu=0.8)
    run = Experiment(Steps(), strategy, Budget(minibatches=96), SGD(ALPHA))
    cluster = Cluster(3, ConstantSeconds(0.1), AT_ONCE)
    wanted = fit(run, VirtualWorld(cluster))
    stop(run, cluster, 1.35, tmp_path)
    found = weights_of(Trainer(run, VirtualWorld(cluster), tmp_path, resume=True).fit().model)
    assert torch.allclose(found, wanted, rtol=1e-11, atol=1e-12)


def test_what_comes_after_the_last_outer_step_changes_nothing() -> None:
    """A delivery of a learner that counted as lost may come between the answers to two others, which must end equal."""
    me: Any = SimpleNamespace(outer=StrategyVectors({CENTRE: torch.zeros(4)}), seat=SimpleNamespace(now=1.0))
    it = Synchronizer(me, DecoupledDiLoCo(4, 2, rate=0.5, mu=0.0), (slice(0, 2), slice(2, 4)))
    it.take(0, 1, Delivery(torch.ones(2), 2.0, 1.0, launch=1.0, number=1, at=0.5), 0.1, UNKNOWN)
    it.close()
    assert me.outer[CENTRE].tolist() == [0.5, 0.5, 0.0, 0.0]
    it.take(1, 2, Delivery(torch.ones(2), 2.0, 1.0, launch=1.0, number=1, at=0.5), 0.1, UNKNOWN)
    it.close()
    assert me.outer[CENTRE].tolist() == [0.5, 0.5, 0.0, 0.0]


@dataclass(frozen=True)
class Broken:
    """A strategy in which the weights of learner 1 stop being finite once."""

    strategy: DecoupledDiLoCo
    lock_step: ClassVar[bool] = False

    async def __call__(self, me: Learner) -> None:
        if me.group.rank == 1:
            descend = me.descend

            def broken(g: Tensor, staleness: int | None = None) -> None:
                descend(g, staleness)
                if me.steps == 5:
                    me.weights.set_(torch.full_like(g, torch.nan))

            me.descend = broken  # type: ignore[method-assign]
        await self.strategy(me)


@pytest.mark.parametrize("strategy", [DecoupledDiLoCo(4, 2), DecoupledDiLoCo(3, 1, 3, shards=2)], ids=named)
def test_a_learner_without_finite_weights_goes_on_from_the_outer_weights(strategy: DecoupledDiLoCo) -> None:
    run = Experiment(Quadratic(), Broken(strategy), Budget(minibatches=240), SGD(0.1))
    assert float((fit(run, VirtualWorld(Cluster(3, ConstantSeconds(0.1)))) ** 2).sum()) < 1.0


def test_what_a_compression_loses_is_delivered_later() -> None:
    """Deliveries of one learner at a rate of 1, so that the sum of all steps is known."""
    task = Steps(size=600)
    strategy = Observed(Compressed(DecoupledDiLoCo(3, 2, rate=1.0, mu=0.0, servers=1), "int8"))
    got = fit(Experiment(task, strategy, Budget(minibatches=240), SGD(ALPHA)), VirtualWorld(2))
    wanted = ALPHA * sum(task.centre(n) for n in range(240))
    assert float((got - wanted).abs().max()) < (float(wanted.abs().max()) + 8 * ALPHA * 3.5) / 254
    assert all(torch.equal(end, strategy.ends[0]) for end in strategy.ends)


def test_more_fragments_than_elements_do_not_count() -> None:
    run = Experiment(Quadratic(), DecoupledDiLoCo(8, 8, shards=2), Budget(minibatches=60), SGD(0.05))
    assert torch.isfinite(fit(run, VirtualWorld(3))).all()


@pytest.mark.parametrize(
    "strategy",
    [DecoupledDiLoCo(4, 2, 2), DecoupledDiLoCo(4, 2, 2, shards=2), DecoupledDiLoCo(4, 2, 2, servers=1)],
    ids=named,
)
def test_threads_end_with_the_same_weights(strategy: DecoupledDiLoCo) -> None:
    observed = Observed(strategy)
    run = Experiment(Quadratic(), observed, Budget(minibatches=300), SGD(0.05))
    world = ThreadWorld(learners_for(strategy, 3), timeout_seconds=30, delay=lambda learner: 1e-3 * (1 + learner))
    assert float((fit(run, world) ** 2).sum()) < 1.0
    assert all(torch.equal(end, observed.ends[0]) for end in observed.ends)


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", ONE_BY_ONE, ids=named)
def test_processes_count_steps_once(strategy: DecoupledDiLoCo, pool: Pool) -> None:
    run = Experiment(Tally(cut={"left": 1000}), strategy, Budget(minibatches=60), SGD(1.0))
    ends = pool.call(fit_in_process, 3, run)
    assert all(end == ends[0] for end in ends)
    check_once(torch.tensor(ends[0], dtype=torch.float64))


def test_super_learners_deliver_all_their_samples(merges: Merges) -> None:
    run = Experiment(
        Tally(cut={"left": 1000}), SuperLearners(DecoupledDiLoCo(3, 1), 2), Budget(minibatches=60), SGD(1.0)
    )
    assert (fit(run, VirtualWorld(Cluster(6, ConstantSeconds(0.1)))) > 0).all()
    assert Counter(len(given) for _, _, given in merges.found)[3] >= 3


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: DecoupledDiLoCo(0), "K must be at least 1"),
        (lambda: DecoupledDiLoCo(quorum=0), "quorum must be at least 1"),
        (lambda: DecoupledDiLoCo(4, 5), "fragments <= K"),
        (lambda: DecoupledDiLoCo(tau=-1.0), "tau >= 0"),
        (lambda: DecoupledDiLoCo(slack=1.0), "slack < 1"),
        (lambda: DecoupledDiLoCo(rate=0.0), "rate > 0"),
        (lambda: DecoupledDiLoCo(mu=1.0), "mu < 1"),
        (lambda: DecoupledDiLoCo(shards=2, servers=1), "give one of the two numbers"),
    ],
)
def test_errors(made: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        made()
