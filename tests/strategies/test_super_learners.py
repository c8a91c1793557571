"""Super-learners: equality with large minibatches, replicas to the bit, any strategy among them, and losses."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from murmur.core.group import PeerLost
from murmur.core.learner import Learner, Strategy
from murmur.core.mixing import pairwise, randomized_ring
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.schedule import Cosine
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ADPSGD,
    ASGD,
    BMUF,
    KAVG,
    A2CiD2,
    Compressed,
    DecoupledDiLoCo,
    DelayByOne,
    DiLoCo,
    GossipPGA,
    NoLoCo,
    ParameterAveraging,
    QuasiGlobal,
    SlowMo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import Observed, plain_loop
from murmur.worlds.process.environment import Place
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Link, LognormalSeconds, Rejoin
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.averaging_only import Averaging
from tests.support.grids import thinned
from tests.support.named import named
from tests.support.pool import Pool
from tests.support.tasks import Point, Quadratic, fit, fit_in_process, weights_of
from tests.support.unscaled import Experiment

ALPHA = 0.1


@pytest.mark.parametrize(("node_size", "learners", "minibatches"), thinned([1, 2, 3, 8], [2, 3, 5], [40, 43]))
def test_synchronous_super_learners_are_synchronous_sgd(node_size: int, learners: int, minibatches: int) -> None:
    task, optimizer = Quadratic(ragged=True), SGD(ALPHA, momentum=0.9)
    plain = fit(Experiment(task, SyncSGD(), Budget(minibatches=minibatches), optimizer), VirtualWorld(learners))
    nodes = SuperLearners(SyncSGD(), node_size)
    got = fit(Experiment(task, nodes, Budget(minibatches=minibatches), optimizer), VirtualWorld(learners))
    assert torch.allclose(got, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("minibatches", [36, 41])
def test_k_averaging_among_super_learners(minibatches: int) -> None:
    """Two super-learners of two, K = 3: G_s is the mean of their minibatches, weighted by samples."""
    task, K, size = Quadratic(ragged=True), 3, 2
    consensus = torch.zeros(task.size, dtype=torch.float64)
    for first in range(0, minibatches, K * 4):
        ends, samples = [], []
        for node in (0, 1):
            w, used = consensus, 0.0
            for turn in range(K):
                ns = [n for n in (first + turn * 4 + node * size + i for i in range(size)) if n < minibatches]
                if ns:
                    total = sum(task.weight(n) for n in ns)
                    g = sum((task.weight(n) * (w - task.centre(n)) for n in ns), torch.zeros_like(w)) / total
                    w, used = w - ALPHA * g, used + total
            ends.append(w)
            samples.append(used)
        consensus = sum((s * w for s, w in zip(samples, ends, strict=True)), torch.zeros_like(consensus)) / sum(samples)
    experiment = Experiment(task, SuperLearners(KAVG(K), size), Budget(minibatches=minibatches), SGD(ALPHA))
    got = fit(experiment, VirtualWorld(Cluster(learners=4, compute=LognormalSeconds(0.1, 1.0))))
    assert torch.allclose(got, consensus, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Noted(Quadratic):
    """Quadratic that records the weights at which every minibatch was computed."""

    seen: dict[int, list[Tensor]] = field(default_factory=lambda: defaultdict(list), compare=False, repr=False)

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        self.seen[n].append(torch.empty(0))
        return self.centre(n), float(n)

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float]) -> Loss:
        assert isinstance(model, Point)
        centre, n = minibatch
        self.seen[int(n)][-1] = model.w.detach().clone()
        return Loss(2.0 * 0.5 * ((model.w - centre) ** 2).sum(), 2.0)


@dataclass(frozen=True)
class AddsAndSets:
    """Strategy that sets the weights while an earlier addition is still on its way."""

    lock_step: ClassVar[bool] = False

    async def __call__(self, me: Learner) -> None:
        async for g in me.claimed_gradients():
            me.descend(g)
            me.weights.add_(torch.full_like(g, 0.01 * me.steps))
            if me.steps % 3 == 0:
                me.weights.set_(0.5 * me.weights.snapshot())
        me.weights.set_(await me.consensus())


@dataclass(frozen=True)
class AddsAndStrays:
    """Strategy that adds to the weights, and at times steps with a gradient that its members do not have."""

    lock_step: ClassVar[bool] = False

    async def __call__(self, me: Learner) -> None:
        async for g in me.claimed_gradients():
            me.descend(2 * g if me.steps % 3 == 0 else g)
            me.weights.add_(torch.full_like(g, 0.01 * me.steps))
        me.weights.set_(await me.consensus())


OUTER = [
    ADPSGD(),
    A2CiD2(),
    QuasiGlobal(),
    KAVG(3),
    BMUF(2),
    SlowMo(2),
    DiLoCo(2),
    StreamingDiLoCo(4, 2, 1),
    GossipPGA(2),
    NoLoCo(2),
    DecoupledDiLoCo(2, 2, 2),
    SyncSGD(),
    ASGD(),
    AddsAndSets(),
    AddsAndStrays(),
    ParameterAveraging(8),
]


@pytest.mark.parametrize("outer", OUTER, ids=lambda outer: type(outer).__name__)
def test_members_are_replicas_to_the_bit(outer: Strategy) -> None:
    """All minibatches of one gradient are computed at the same weights, with momentum and falling rates."""
    task, size = Noted(), 3
    cluster = Cluster(learners=9, compute=LognormalSeconds(0.1, 0.8), link=Link(0.01, 1e4))
    experiment = Experiment(
        *(task, SuperLearners(outer, size), Budget(minibatches=180), SGD(0.03, momentum=0.9)), schedule=Cosine()
    )
    fit(experiment, VirtualWorld(cluster))
    assert sorted(task.seen) == list(range(180))
    for first in range(0, 180, size):
        looks = [task.seen[n][0] for n in range(first, first + size)]
        assert all(torch.equal(w, looks[0]) for w in looks), f"minibatches {first} to {first + size - 1}"
    apart = {tuple(task.seen[n][0].round(decimals=6).tolist()) for n in range(180)}  # last digits are no difference
    in_step = (SyncSGD(), GossipPGA(2))  # a ring of three super-learners gives their mean, up to rounding
    assert len(apart) >= (180 // 9 if outer in in_step else 40)


@pytest.mark.parametrize("form", ["bfloat16", "int8"])
@pytest.mark.parametrize("outer", [KAVG(4), ADPSGD(), DelayByOne(), SyncSGD()], ids=named)
def test_replicas_with_compression_end_equal_and_go_on_equal(outer: Strategy, form: str, tmp_path: Path) -> None:
    def looks(budget: int, resume: bool) -> dict[int, list[Tensor]]:
        task, observed = Noted(), Observed(Compressed(SuperLearners(outer, 2), form))
        experiment = Experiment(task, observed, Budget(minibatches=budget), SGD(0.03, momentum=0.9))
        cluster = Cluster(learners=4, compute=LognormalSeconds(0.1, 0.8))
        Trainer(experiment, VirtualWorld(cluster), tmp_path, resume=resume).fit()
        assert len(observed.ends) == 4
        assert all(torch.equal(end, observed.ends[0]) for end in observed.ends)
        return task.seen

    looks(40, resume=False)
    seen = looks(80, resume=True)
    assert sorted(seen) == list(range(40, 80))
    for n in range(40, 80, 2):
        assert torch.equal(seen[n][-1], seen[n + 1][-1])


def test_averaging_among_super_learners_keeps_the_mean() -> None:
    """Without gradients the mean of the super-learners stays, and every member ends with its leader's weights."""
    start = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).repeat_interleave(2, 0)
    cluster = Cluster(learners=8, compute=LognormalSeconds(0.1, 0.9), link=Link(0.02, 1e5))
    ended = VirtualWorld(cluster).run(Averaging(SuperLearners(ADPSGD(), 2), start, 400))
    rows = torch.stack([me.weights.snapshot() for me in ended])
    assert torch.allclose(rows, start.mean(0).expand_as(rows), rtol=0, atol=1e-12)
    assert all(torch.equal(row, rows[0]) for row in rows)


@pytest.mark.parametrize(("outer", "learners"), thinned([ADPSGD(), KAVG(3), ASGD()], [5, 4, 3, 2, 1]))
@pytest.mark.timeout(60)
def test_every_budget_ends(outer: Strategy, learners: int) -> None:
    for minibatches in (1, 41, 42, 43):
        experiment = Experiment(Quadratic(), SuperLearners(outer, 2), Budget(minibatches=minibatches), SGD(0.1))
        compute = ConstantSeconds(0.01, {i: 1.0 + i for i in range(learners)})
        fit(experiment, VirtualWorld(Cluster(learners=learners, compute=compute)))
        world = ThreadWorld(learners, timeout_seconds=20, delay=lambda learner: 2e-4 * learner)
        ends = [weights_of(o.model) for o in world.run(Trainer(experiment, world)._train)]
        assert all(torch.allclose(end, ends[0], rtol=1e-12) for end in ends)


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_super_learners_of_processes(pool: Pool) -> None:
    optimizer = SGD(0.05, momentum=0.5)
    for outer in (SyncSGD(), KAVG(3)):
        experiment = Experiment(Quadratic(ragged=True), SuperLearners(outer, 2), Budget(minibatches=83), optimizer)
        wanted = fit(experiment, VirtualWorld(4))
        for weights in pool.call(fit_in_process, 4, experiment):
            assert torch.allclose(torch.tensor(weights, dtype=torch.float64), wanted, rtol=1e-9)
    experiment = Experiment(Quadratic(), SuperLearners(ADPSGD(), 2), Budget(minibatches=203), optimizer)
    ends = pool.call(fit_in_process, 4, experiment)
    assert all(end == ends[0] for end in ends)
    assert sum(w * w for w in ends[0]) < 1.0


@dataclass(frozen=True)
class Laborious(Quadratic):
    """Task with slow minibatches and gradients; `threads` records the thread that made each minibatch."""

    threads: list[str] = field(default_factory=list, repr=False)

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        self.threads.append(threading.current_thread().name)
        time.sleep(0.005)
        return super().minibatch(n)

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float]) -> Loss:
        time.sleep(0.02)
        return super().loss(model, minibatch)


def who_made_them(place: Place, experiment: Experiment) -> list[str]:
    fit_in_process(place, experiment)
    threads: list[str] = experiment.task.threads  # type: ignore[attr-defined]
    return threads


@pytest.mark.processes
def test_members_prepare_their_shares_of_claims_that_the_leader_holds(pool: Pool) -> None:
    experiment = Experiment(Laborious(), SuperLearners(ADPSGD(), 2), Budget(minibatches=201), SGD(ALPHA))
    for rank, threads in enumerate(pool.call(who_made_them, 4, experiment)):
        beside = sum(name.startswith("minibatches ahead") for name in threads)
        assert beside > len(threads) / 4, (rank, Counter(threads))
    experiment = replace(experiment, prefetch=0)
    for threads in pool.call(who_made_them, 4, experiment):
        assert not any(name.startswith("minibatches ahead") for name in threads)


def test_a_single_super_learner_is_the_large_minibatch() -> None:
    """One super-learner with ADPSGD equals synchronous SGD, and one learner the plain loop, to the bit."""
    experiment = Experiment(Quadratic(ragged=True), SuperLearners(ADPSGD(), 4), Budget(minibatches=40), SGD(ALPHA))
    sync = Experiment(Quadratic(ragged=True), SyncSGD(), Budget(minibatches=40), SGD(ALPHA))
    assert torch.allclose(fit(experiment, VirtualWorld(4)), fit(sync, VirtualWorld(4)), rtol=1e-12)
    assert torch.equal(fit(experiment, VirtualWorld(1)), plain_loop(sync))


def test_a_lost_member_ends_its_super_learner_and_no_other() -> None:
    task = Noted()
    cluster = Cluster(learners=6, compute=ConstantSeconds(0.1), faults=(Kill(3, 1.05),), lease_seconds=0.5)
    world = VirtualWorld(cluster)
    got = fit(Experiment(task, SuperLearners(ADPSGD(), 2), Budget(minibatches=120), SGD(0.05)), world)
    assert sorted(world.killed) == [2, 3]
    assert sorted(task.seen) == list(range(120))
    assert torch.isfinite(got).all()


def test_lock_step_super_learners_end_with_an_error() -> None:
    cluster = Cluster(learners=4, compute=ConstantSeconds(0.1), faults=(Kill(3, 1.05),), lease_seconds=0.5)
    with pytest.raises(PeerLost, match="learner 3 was killed"):
        fit(
            Experiment(Quadratic(), SuperLearners(KAVG(2), 2), Budget(minibatches=120), SGD(0.05)),
            VirtualWorld(cluster),
        )


REPEATED = (KAVG(2), ADPSGD(randomized_ring), DelayByOne())  # members repeat the steps of these
TAKEN = (SyncSGD(), ADPSGD(randomized_ring, moments="averaged"), DelayByOne(moments="averaged"))  # and not of these


@pytest.mark.parametrize("inner", [*REPEATED, *TAKEN], ids=named)
def test_every_member_records_the_steps_of_its_super_learner(inner: Strategy) -> None:
    """A member that does not repeat the leader's steps records them too, with the seconds of its own gradients."""
    records: list[Record] = []
    cluster = Cluster(4, ConstantSeconds(0.5), Link(1e-4, 1e9))
    experiment = Experiment(Quadratic(), SuperLearners(inner, 2), Budget(minibatches=40), SGD(ALPHA, momentum=0.9))
    Trainer(experiment, VirtualWorld(cluster), observers=lambda _: (records.append,)).fit()
    steps = [[record for record in records if record.kind == "step" and record.learner == n] for n in range(4)]
    for leader, member in (steps[:2], steps[2:]):
        assert [(r.step, r.rate) for r in member] == [(r.step, r.rate) for r in leader]
        if inner in TAKEN:
            assert [r.staleness for r in member] == [r.staleness for r in leader]
        assert sum(r.compute_seconds for r in member) == pytest.approx(5.0)
    assert sum(map(len, steps)) == pytest.approx(40, abs=4)


def check_schedule(seed: int) -> None:
    """Run two to four super-learners of two; all members of one are killed and started again together."""
    draw = random.Random(seed)
    nodes = draw.randint(2, 4)
    faults: list[Kill | Rejoin] = []
    for node in draw.sample(range(nodes), draw.randint(0, nodes - 1)):
        at, later = draw.uniform(1.0, 5.0), draw.choice([0.0, 0.3, 2.0, 9.0])
        faults += [Kill(2 * node + i, at) for i in (0, 1)]
        if draw.random() < 0.6:
            faults += [Rejoin(2 * node + i, at + later) for i in (0, 1)]
    compute = LognormalSeconds(0.1, draw.choice([0.0, 1.0]), seed, {0: draw.choice([1.0, 8.0])})
    lease = draw.choice([0.3, 1.0, 5.0])
    cluster = Cluster(learners=2 * nodes, compute=compute, faults=tuple(faults), lease_seconds=lease)
    task, world = Noted(), VirtualWorld(cluster)
    records: list[Record] = []
    experiment = Experiment(task, SuperLearners(ADPSGD(), 2), Budget(minibatches=200), SGD(0.05))
    trainer = Trainer(experiment, world, observers=lambda _: (records.append,))
    outcomes = world.run(trainer._train)
    assert sum(o.leads for o in outcomes) == 1, "exactly one learner saves the model"
    assert sorted(task.seen) == list(range(200)), "every minibatch is looked at"
    steps = sum(record.kind == "step" and record.learner % 2 == 0 for record in records)
    assert 100 <= steps <= 100 + len(faults), "what a lost node had begun is done by another"
    again = Counter(len(looks) for looks in task.seen.values())
    assert sum(count * (times - 1) for times, count in again.items()) <= len(faults), "only what was interrupted"
    assert float((weights_of(next(o.model for o in outcomes if o.leads)) ** 2).sum()) < 1.5


@pytest.mark.parametrize("batch", [0, *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(1, 4))])
def test_fuzzed_schedules_of_super_learners(batch: int) -> None:
    for seed in range(batch * 15, batch * 15 + 15):
        try:
            check_schedule(seed)
        except Exception as error:
            raise AssertionError(f"schedule of seed {seed}: {error}") from error


def test_a_server_that_has_saved_ends_its_super_learner(tmp_path: Path) -> None:
    """Its members took the latest checkpoint for a request to stop."""
    experiment = Experiment(ToyTask(), SuperLearners(ASGD(), 2), Budget(minibatches=60), SGD(0.1))
    outcome = Trainer(replace(experiment, evaluate_every_epochs=0.1), VirtualWorld(6), tmp_path).fit()
    assert outcome.minibatches == 60
    assert not outcome.stopped


@pytest.mark.parametrize("learners", [6, 7])
@pytest.mark.parametrize(
    "outer", [GossipPGA(4, pairwise), DelayByOne(pairwise), DelayByOne(randomized_ring)], ids=named
)
def test_rounds_of_a_resumed_run_are_those_of_an_uninterrupted_one(
    outer: Strategy, learners: int, tmp_path: Path
) -> None:
    run = Experiment(Quadratic(per_epoch=20), SuperLearners(outer, 2), Budget(minibatches=60), SGD(ALPHA))
    Trainer(run, VirtualWorld(learners), tmp_path).fit()
    shutil.rmtree(max((tmp_path / "checkpoints").glob("0*")))
    resumed = Trainer(run, VirtualWorld(learners), tmp_path, resume=True).fit()
    assert torch.equal(weights_of(resumed.model), fit(run, VirtualWorld(learners)))
