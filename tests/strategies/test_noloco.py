"""NoLoCo against its equation, its decay of differences, and its waits: for the partner alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from murmur.core.learner import Learner, Strategy
from murmur.core.mixing import random_pairs
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.strategies import KAVG, DiLoCo, NoLoCo
from murmur.strategies.noloco import PHI
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.averaging_only import Averaging
from tests.support.grids import thinned
from tests.support.tasks import Quadratic, fit
from tests.support.unscaled import Experiment

ALPHA = 0.1


def experiment(strategy: Strategy, minibatches: int, ragged: bool = True) -> Experiment:
    return Experiment(Quadratic(ragged=ragged), strategy, Budget(minibatches=minibatches), SGD(ALPHA))


def uneven(learners: int) -> VirtualWorld:
    return VirtualWorld(Cluster(learners, LognormalSeconds(0.1, 0.8), Link(0.03, 1e4)))


def oracle(s: NoLoCo, learners: int, minibatches: int) -> Tensor:
    """Mean of phi at the end, with the two vectors of the paper and means over groups of two learners or one."""
    task = Quadratic(ragged=True)
    phi = torch.zeros(learners, task.size, dtype=torch.float64)
    delta = phi.clone()
    for k, first in enumerate(range(0, minibatches, s.K * learners)):
        theta = phi.clone()
        for n in range(first, min(first + s.K * learners, minibatches)):
            i = n % learners
            theta[i] -= ALPHA * task.curvature * (theta[i] - task.centre(n))
        change, before = theta - phi, phi.clone()
        for i in range(learners):
            group = sorted(random_pairs(k, range(learners), i))
            pull = before[i] - before[group].mean(0)
            delta[i] = s.alpha * delta[i] + s.beta * change[group].mean(0) - s.gamma * pull
        phi = before + delta
    return phi.mean(0)


SHAPES = [NoLoCo(4), NoLoCo(1, 0.3, 1.0, 1.2), NoLoCo(3, 0.0, 0.7, 0.4), NoLoCo(5, 0.8, 0.2, 0.5), NoLoCo(2, gamma=0.0)]


@pytest.mark.parametrize(("strategy", "learners", "minibatches"), thinned(SHAPES, [4, 1, 2, 3, 5], [40, 43, 1, 60]))
def test_equation(strategy: NoLoCo, learners: int, minibatches: int) -> None:
    wanted = oracle(strategy, learners, minibatches)
    for world in (uneven(learners), ThreadWorld(learners, timeout_seconds=20)):
        assert torch.allclose(fit(experiment(strategy, minibatches), world), wanted, rtol=1e-12, atol=1e-12)


def test_the_oracle_tells_shapes_apart() -> None:
    found = [oracle(shape, 4, 100) for shape in SHAPES]
    assert all((a - b).abs().max() > 1e-3 for i, a in enumerate(found) for b in found[:i])


@pytest.mark.parametrize("minibatches", [40, 48])
def test_two_learners_without_momentum_and_pull_average_their_models(minibatches: int) -> None:
    """In whole blocks of equal minibatches."""
    pair = fit(experiment(NoLoCo(4, 0.0, 1.0, 0.0), minibatches, ragged=False), uneven(2))
    mean = fit(experiment(KAVG(4), minibatches, ragged=False), uneven(2))
    assert torch.allclose(pair, mean, rtol=1e-12, atol=1e-14)


@dataclass(frozen=True)
class Watched(NoLoCo):
    """NoLoCo that notes phi before the first outer step and after each, and the moments at which they end."""

    rows: dict[int, list[Tensor]] = field(default_factory=dict, compare=False)
    ends: dict[int, list[float]] = field(default_factory=dict, compare=False)

    async def step(self, me: Learner, k: int) -> None:
        rows = self.rows.setdefault(me.group.rank, [me.outer[PHI]])
        await super().step(me, k)
        rows.append(me.outer[PHI])
        self.ends.setdefault(me.group.rank, []).append(me.seat.now)

    def spread(self) -> Tensor:
        """Mean square distance from the mean, in each round."""
        rows = torch.stack([torch.stack(self.rows[i]) for i in sorted(self.rows)])
        return (rows - rows.mean(0)).square().sum(2).mean(0)


@pytest.mark.parametrize("learners", [2, 3, 8, 9])
def test_differences_decay_and_the_mean_stays_without_gradients(learners: int) -> None:
    start = torch.randn(learners, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    strategy = Watched(K=2)
    ended = VirtualWorld(learners).run(Averaging(strategy, start, 120))
    assert all(torch.allclose(me.weights.snapshot(), start.mean(0), rtol=0, atol=1e-12) for me in ended)
    spread = strategy.spread()
    assert float(spread[-1] / spread[0]) < 0.8**60  # 0.70 a round in the mean of all pairings (below)


def growth(alpha: float, gamma: float, learners: int) -> float:
    """Factor of the mean square differences of learners in a round, over all pairings, without gradients.

    The state is (E|d|^2, E d.delta, E|delta|^2), d: a learner's difference from the mean. Half of the difference of a
    pair is a projection P with E P = q on such differences.
    """
    q = learners / (2 * (learners - 1)) if learners % 2 == 0 else 0.5
    deltas = [gamma**2 * q, -2 * alpha * gamma * q, alpha**2]
    both = [deltas[0] - gamma * q, deltas[1] + alpha, deltas[2]]
    own = [1 - 2 * gamma * q + deltas[0], 2 * alpha + deltas[1], deltas[2]]
    return float(torch.linalg.eigvals(torch.tensor([own, both, deltas], dtype=torch.float64)).abs().max())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.9])
def test_the_bound_of_gamma_is_that_of_the_decay(alpha: float) -> None:
    bound = 2 * (1 - alpha**2)
    for learners in (2, 3, 4, 6, 8, 100):
        for share in (0.01, 0.3, 0.9, 0.999):
            assert growth(alpha, share * bound, learners) < 1
    assert growth(alpha, 1.001 * bound, 9) > 1
    assert NoLoCo(alpha=alpha, gamma=0.999 * bound).gamma < bound
    with pytest.raises(ValueError, match="learners would come apart"):
        NoLoCo(alpha=alpha, gamma=bound)


def test_the_decay_is_the_one_of_the_mean_over_pairings() -> None:
    """The rates of many rounds of nine learners; random pairings repeat seldom."""
    start = torch.randn(9, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for alpha, gamma in ((0.5, 0.7), (0.0, 0.5), (0.6, 1.1)):
        strategy = Watched(1, alpha, 1.0, gamma)
        VirtualWorld(9).run(Averaging(strategy, start, 100))
        spread = strategy.spread()
        rate = float(spread[-1] / spread[0]) ** 0.01
        assert rate == pytest.approx(growth(alpha, gamma, 9), abs=0.12)


@dataclass(frozen=True)
class OnePause:
    """Constant times, but for one gradient of one learner."""

    learner: int
    step: int

    def __call__(self, learner: int, step: int) -> float:
        return 5.0 if (learner, step) == (self.learner, self.step) else 0.1


def test_a_pause_delays_the_partners_of_those_that_it_has_delayed() -> None:
    learners, late = 8, {3}
    strategy = Watched(K=2)
    cluster = Cluster(learners, OnePause(3, 4), Link(0.0, 1e18))
    fit(experiment(strategy, learners * 12), VirtualWorld(cluster))
    for k in range(6):
        if k >= 2:  # the pause lies in the third round
            late = {j for i in late for j in random_pairs(k, range(learners), i)}
        on_time = 0.2 * (k + 1)
        for i in range(learners):
            delayed = k >= 2 and i in late
            assert strategy.ends[i][k] == pytest.approx(on_time + (4.9 if delayed else 0.0)), (i, k)
    assert len(late) == learners  # it has reached all in three rounds, or four


def test_the_time_of_an_exchange_does_not_grow_with_the_learners() -> None:
    def of_a_block(strategy: Strategy, learners: int) -> float:
        cluster = Cluster(learners, ConstantSeconds(0.1), Link(1e-3, 1e6), message_bytes=1e5)
        found = []
        for blocks in (2, 6):
            world = VirtualWorld(cluster)
            fit(experiment(strategy, 8 * learners * blocks), world)
            found.append(world.clock.now)
        return (found[1] - found[0]) / 4

    assert of_a_block(NoLoCo(8), 16) == pytest.approx(of_a_block(NoLoCo(8), 2))
    assert of_a_block(NoLoCo(8), 16) == pytest.approx(0.8 + 0.1 + 1e-3)
    assert of_a_block(DiLoCo(8), 16) > of_a_block(NoLoCo(8), 16) + 0.05


def test_weights_that_are_not_finite_give_way_to_the_partners() -> None:
    class Breaking(NoLoCo):
        async def __call__(self, me: Learner) -> None:
            descend = me.descend

            def broken(g: Tensor, staleness: int | None = None) -> None:
                descend(g, staleness)
                if me.group.rank in (1, 2) and me.steps in (3, 9):
                    me.weights.set_(torch.full_like(g, torch.nan))

            me.descend = broken  # type: ignore[method-assign]
            await super().__call__(me)

    got = fit(experiment(Breaking(2), 300), uneven(3))
    assert float((got**2).sum()) < 1.0


def test_every_learner_draws_the_same_pairs() -> None:
    draw = random.Random(1)
    for _ in range(50):
        k, learners = draw.randrange(1000), draw.randint(1, 12)
        partner = {i: max(random_pairs(k, range(learners), i), key=lambda j, i=i: j != i) for i in range(learners)}
        assert all(partner[partner[i]] == i for i in range(learners))
        assert sum(partner[i] == i for i in range(learners)) == learners % 2


def test_errors() -> None:
    for wrong in (lambda: NoLoCo(0), lambda: NoLoCo(alpha=1.0), lambda: NoLoCo(beta=0.0), lambda: NoLoCo(gamma=-0.1)):
        with pytest.raises(ValueError, match="NoLoCo needs"):
            wrong()
