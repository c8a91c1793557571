"""Asynchronous averaging against W T, its conserved mean, slow edges, and learners that come and go."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from murmur.core.learner import Learner
from murmur.core.mixing import ALL as MIXINGS
from murmur.core.mixing import Mixing, matrix, randomized_ring, ring
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.trainer import Outcome, Trainer
from murmur.strategies import ADPSGD
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Link, LognormalSeconds, Rejoin, Stop
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.averaging_only import Averaging
from tests.support.grids import thinned
from tests.support.tasks import Looked, Quadratic, fit, weights_of
from tests.support.unscaled import Experiment

ALPHA = 0.1
AT_ONCE = Link(latency_seconds=0.0, bytes_per_second=1e18)
SOME_MIXINGS = [pytest.param(MIXINGS[name], id=name) for name in ("ring", "randomized_ring", "pairwise", "exponential")]


def check_papers_equation(mixing: Mixing, cluster: Cluster, rounds: int) -> None:
    """W_{k+1} = (W_k - alpha g(Phi_k)) T_k, Phi_{k+1} = W_k - alpha g(Phi_k): gradients begin before averages land."""
    task, learners = Looked(ragged=True), cluster.learners
    experiment = Experiment(task, ADPSGD(mixing), Budget(minibatches=rounds * learners), SGD(ALPHA))
    consensus = fit(experiment, VirtualWorld(cluster))
    taken = sorted(task.by.values(), key=lambda own: own[0][0])  # learner i begins with minibatch i
    assert [len(own) for own in taken] == [rounds] * learners
    w = phi = torch.zeros(learners, task.size, dtype=torch.float64)
    for k in range(rounds):
        looked = torch.stack([own[k][1] for own in taken])
        assert torch.allclose(looked, phi, rtol=1e-10, atol=1e-12), f"step {k}: {(looked - phi).abs().max():.2g} apart"
        g = torch.stack([task.curvature * (phi[i] - task.centre(taken[i][k][0])) for i in range(learners)])
        phi = w - ALPHA * g
        w = matrix(mixing, k, range(learners)) @ phi
    assert torch.allclose(consensus, w.mean(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("mixing", "learners"), thinned(SOME_MIXINGS, [7, 4, 3, 2, 1]))
def test_equal_speeds_are_the_papers_equation(mixing: Mixing, learners: int) -> None:
    check_papers_equation(mixing, Cluster(learners, ConstantSeconds(0.25), AT_ONCE), rounds=15)


@pytest.mark.parametrize(
    ("mixing", "learners", "seconds"),
    thinned(SOME_MIXINGS, [8, 3], [0.1, 0.3, pytest.param(1 / 3, id="a third"), 0.07]),
)
def test_equal_speeds_are_the_papers_equation_on_the_default_cluster(
    mixing: Mixing, learners: int, seconds: float
) -> None:
    """Rounds and gradients end at the same moments, which are sums of inexact binary fractions."""
    check_papers_equation(mixing, Cluster(learners, ConstantSeconds(seconds)), rounds=40)


@dataclass
class Watched:
    """ADPSGD that records the weights at its end, before the consensus."""

    mixing: Mixing
    lock_step: ClassVar[bool] = False

    async def __call__(self, me: Learner) -> None:
        averaging = me.spawn(ADPSGD(self.mixing).average(me), "averaging")
        async for g in me.claimed_gradients():
            me.descend(g)
        await averaging


def spread(rows: Tensor) -> float:
    return float((rows - rows.mean(0)).square().sum())


@pytest.mark.parametrize(("mixing", "learners"), thinned(SOME_MIXINGS, [8, 3, 2]))
def test_the_mean_never_moves_and_the_spread_shrinks(mixing: Mixing, learners: int) -> None:
    """Run a thousand rounds at random delays over cards of very different speeds."""
    draw = torch.Generator().manual_seed(1)
    start = torch.randn(learners, 6, dtype=torch.float64, generator=draw)
    links = {i: Link(1e-3 * (i + 1), 100.0 * 10.0**i) for i in range(min(3, learners))}
    cluster = Cluster(learners=learners, compute=LognormalSeconds(0.1, 1.0, seed=3), links=links)
    ended = VirtualWorld(cluster).run(Averaging(Watched(mixing), start, 1000))
    rows = torch.stack([me.weights.snapshot() for me in ended])
    assert torch.allclose(rows.mean(0), start.mean(0), rtol=0, atol=1e-13)
    assert spread(rows) < 1e-3 * spread(start)  # over seeds of the delays 1e-33 to 1.2e-4


def test_rounds_of_equal_learners_are_products_of_the_matrices() -> None:
    """With equal speeds and no gradients the learners end at T_k ... T_1 T_0 W, not only near their mean."""
    learners, rounds = 8, 6
    draw = torch.Generator().manual_seed(2)
    start = torch.randn(learners, 20, dtype=torch.float64, generator=draw)
    world = VirtualWorld(Cluster(learners=learners, compute=ConstantSeconds(1.0), link=AT_ONCE))
    ended = world.run(Averaging(Watched(randomized_ring), start, learners * rounds))
    rows = torch.stack([me.weights.snapshot() for me in ended])
    wanted = start
    for k in range(rounds):
        wanted = matrix(randomized_ring, k, range(learners)) @ wanted
    assert torch.allclose(rows, wanted, rtol=0, atol=1e-12)
    assert spread(rows) > 1e-6 * spread(start)


@pytest.mark.parametrize("learners", [2, 3, 5])
def test_equal_learners_are_a_fixed_point_to_the_bit(learners: int) -> None:
    start = torch.randn(1, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).repeat(learners, 1)
    ended = VirtualWorld(Cluster(learners=learners, compute=LognormalSeconds(0.1, 0.7))).run(
        Averaging(Watched(randomized_ring), start, 100)
    )
    assert all(torch.equal(me.weights.snapshot(), start[0]) for me in ended)


def test_threads_keep_the_mean_too() -> None:
    start = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    world = ThreadWorld(4, timeout_seconds=20, delay=lambda learner: 1e-3 * (1 + learner))
    ended = world.run(Averaging(Watched(ring), start, 200))
    rows = torch.stack([me.weights.snapshot() for me in ended])
    assert torch.allclose(rows.mean(0), start.mean(0), rtol=0, atol=1e-13)
    assert spread(rows) < 0.01 * spread(start)


def exchanges(links: dict[int, Link], mixing: Mixing) -> tuple[list[int], float]:
    """Return the exchanges of 16 learners and the duration of the run; 40 bytes per millisecond, a vector each."""
    cluster = Cluster(learners=16, compute=LognormalSeconds(0.01, 0.3), link=Link(0.0, 40 / 1e-3), links=links)
    world = VirtualWorld(cluster)
    ended = world.run(Averaging(Watched(mixing), torch.zeros(16, 5, dtype=torch.float64), 16 * 200))
    return [me.averager.exchanges for me in ended], world.clock.now


@pytest.mark.parametrize(("mixing", "owing"), [(ring, 2), (randomized_ring, 15)], ids=["ring", "randomized_ring"])
def test_a_slow_edge_delays_no_other(mixing: Mixing, owing: int) -> None:
    """Only the end waits: each exchange under way, and the consensus, pass the slow card both ways, 0.1 s each."""
    equal, seconds = exchanges({}, mixing)
    slow, slow_seconds = exchanges({5: Link(0.0, 40 / 0.1)}, mixing)
    away = [i for i in range(16) if i not in (4, 5, 6)]
    assert min(slow[i] / equal[i] for i in away) > 0.8
    assert slow[5] < 0.5 * equal[5]
    assert slow_seconds < seconds + 0.1 * (2 * owing + 4)


def test_a_straggler_takes_few_minibatches_and_delays_no_other() -> None:
    """Samples per second >= 0.9 (L - 1 + 1/s) / L of equal learners; it ends one slow gradient after the budget."""
    learners, slow, budget = 4, 10.0, 400
    equal = VirtualWorld(Cluster(learners=learners, compute=ConstantSeconds(0.1)))
    uneven = VirtualWorld(Cluster(learners=learners, compute=ConstantSeconds(0.1, {2: slow})))
    experiment = Experiment(Quadratic(), ADPSGD(), Budget(minibatches=budget), SGD(0.01))
    fit(experiment, equal)
    fit(experiment, uneven)
    ideal = equal.clock.now * learners / (learners - 1 + 1 / slow)
    assert uneven.clock.now <= ideal / 0.9 + 0.1 * slow


@dataclass(frozen=True)
class Counted(Quadratic):
    """Quadratic that records the minibatches drawn."""

    drawn: list[int] = field(default_factory=list, compare=False, repr=False)

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        self.drawn.append(n)
        return super().minibatch(n)


def random_cluster(seed: int) -> Cluster:
    """Return a cluster with faults; at least one learner always lives."""
    draw = random.Random(seed)
    learners = draw.randint(2, 6)
    faults: list[Kill | Stop | Rejoin] = []
    for learner in draw.sample(range(learners), draw.randint(0, learners - 1)):
        at = draw.uniform(1.0, 5.0)  # no learner may be lost before all have met at the start
        if draw.random() < 0.5:
            faults.append(Stop(learner, at, draw.choice([0.01, 0.4, 3.0, 20.0])))
        else:
            faults.append(Kill(learner, at))
            if draw.random() < 0.6:
                faults.append(Rejoin(learner, at + draw.choice([0.0, 0.2, 1.5, 8.0])))
    return Cluster(
        learners=learners,
        compute=LognormalSeconds(0.1, draw.choice([0.0, 0.5, 1.5]), seed, {0: draw.choice([1.0, 10.0])}),
        links={draw.randrange(learners): Link(draw.choice([0.0, 0.01]), draw.choice([1000.0, 1e9]))},
        faults=tuple(faults),
        lease_seconds=draw.choice([0.3, 1.0, 5.0]),
    )


def check_schedule(seed: int, mixing: Mixing) -> None:
    cluster, task = random_cluster(seed), Counted()
    world = VirtualWorld(cluster)
    records: list[Record] = []
    experiment = Experiment(task, ADPSGD(mixing), Budget(minibatches=200), SGD(0.05))
    trainer = Trainer(experiment, world, observers=lambda _: (records.append,))
    outcomes: Sequence[Outcome] = world.run(trainer._train)
    leading = [o for o in outcomes if o.leads]
    assert len(leading) == 1, "exactly one learner saves the model"
    assert torch.isfinite(weights_of(leading[0].model)).all()
    assert set(task.drawn) == set(range(200)), "every minibatch is looked at"
    steps = sum(record.kind == "step" for record in records)
    assert 200 <= steps <= 200 + len(cluster.faults), "what a lost learner had begun is done by another"
    twice = sum(Counter(task.drawn).values()) - 200
    assert twice <= len(cluster.faults), "only what a fault interrupted is done again"
    if not cluster.faults:
        assert all(torch.equal(weights_of(o.model), weights_of(leading[0].model)) for o in outcomes)
    assert float((weights_of(leading[0].model) ** 2).sum()) < 1.5, "close to the optimum at zero"


@pytest.mark.parametrize("batch", [0, *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(1, 5))])
def test_fuzzed_schedules(batch: int) -> None:
    """Random kills, stops, restarts and slow cards; a failure names its seed."""
    for seed in range(batch * 40, batch * 40 + 40):
        mixing = list(MIXINGS.values())[1 + seed % 5]
        try:
            check_schedule(seed, mixing)
        except Exception as error:
            raise AssertionError(f"schedule of seed {seed}, {random_cluster(seed)}: {error}") from error


def test_a_restarted_learner_gives_nothing_of_its_first_weights() -> None:
    """Learner 1 has other weights at each of its starts; it is lost before it has exchanged them."""
    start = torch.ones(4, 3, dtype=torch.float64)
    start[1] = 100.0
    cluster = Cluster(4, ConstantSeconds(0.1), faults=(Kill(1, 0.05), Rejoin(1, 1.0)), lease_seconds=0.3)
    ended = VirtualWorld(cluster).run(Averaging(ADPSGD(), start, 200))
    assert len(ended) == 4
    assert all(torch.equal(me.weights.snapshot(), torch.ones_like(start[0])) for me in ended)
