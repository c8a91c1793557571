"""A2CiD2 against its equations on the stacked matrices W and Z, its conserved mean, and the gain of the momentum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from murmur.core.learner import Learner, Strategy
from murmur.core.mixing import ALL as MIXINGS
from murmur.core.mixing import Mixing, Row, matrix, pairwise, ring
from murmur.core.world import World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.strategies import ADPSGD, A2CiD2, SuperLearners
from murmur.strategies.a2cid2 import graph_constants
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Link, LognormalSeconds, Rejoin
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.averaging_only import Averaging
from tests.support.grids import thinned
from tests.support.tasks import Looked, fit
from tests.support.unscaled import Experiment

ALPHA = 0.1
AT_ONCE = Link(latency_seconds=0.0, bytes_per_second=1e18)
SOME_MIXINGS = [pytest.param(MIXINGS[name], id=name) for name in ("ring", "pairwise", "exponential", "random_pairs")]


def alone(k: int, view: Sequence[int], learner: int) -> Row:
    return {learner: 1.0}


@pytest.mark.parametrize(("mixing", "learners"), thinned(SOME_MIXINGS, [8, 5, 3, 2, 1]))
def test_equal_speeds_are_the_equations(mixing: Mixing, learners: int) -> None:
    """A step of every learner, then a round of exchanges; the next gradient begins in between."""
    task, rounds = Looked(ragged=True), 12
    chi_1, chi_2 = graph_constants(mixing, learners)
    eta, ratio = (0.5 / math.sqrt(chi_1 * chi_2), math.sqrt(chi_1 / chi_2)) if learners > 1 else (0.0, 1.0)
    experiment = Experiment(task, A2CiD2(mixing), Budget(minibatches=rounds * learners), SGD(ALPHA))
    consensus = fit(experiment, VirtualWorld(Cluster(learners, ConstantSeconds(0.25), AT_ONCE)))
    taken = sorted(task.by.values(), key=lambda own: own[0][0])  # learner i begins with minibatch i
    assert [len(own) for own in taken] == [rounds] * learners
    mixed = torch.linalg.matrix_exp(eta * torch.tensor([[-1.0, 1.0], [1.0, -1.0]], dtype=torch.float64))
    phi = torch.zeros(learners, task.size, dtype=torch.float64)
    wz = torch.stack([phi, phi])
    for k in range(rounds):
        looked = torch.stack([own[k][1] for own in taken])
        assert torch.allclose(looked, phi, rtol=1e-7, atol=1e-9), f"step {k}: {(looked - phi).abs().max():.2g} apart"
        g = torch.stack([task.curvature * (phi[i] - task.centre(taken[i][k][0])) for i in range(learners)])
        wz = torch.einsum("ab,bip->aip", mixed, wz) - ALPHA * g
        phi = wz[0]
        moved = matrix(mixing, k, range(learners)) @ phi - phi
        wz = wz + torch.stack([moved, ratio * moved])
    assert torch.allclose(wz.mean(1)[0], wz.mean(1)[1], rtol=1e-9)
    assert torch.allclose(consensus, wz.mean(1)[0], rtol=1e-9)


def test_constants_of_rings() -> None:
    """An edge that is used in every second round has conductance 1/2; the way around has the others in series."""
    for learners in (4, 8, 30):
        chi_1, resistance = 1 / (1 - math.cos(2 * math.pi / learners)), 2 * (learners - 1) / learners
        assert graph_constants(pairwise, learners) == pytest.approx((chi_1, resistance / 2))
    for learners in (4, 5, 8, 9):  # T_ij of 1/3 in every round: conductance 2/3
        chi_1, resistance = 0.75 / (1 - math.cos(2 * math.pi / learners)), 1.5 * (learners - 1) / learners
        assert graph_constants(ring, learners) == pytest.approx((chi_1, resistance / 2))
    assert graph_constants(pairwise, 2) == pytest.approx((0.5, 0.5))


def test_a_graph_that_is_not_connected_has_no_constants() -> None:
    assert graph_constants(alone, 4) == (math.inf, math.inf)
    assert graph_constants(ring, 1) == (math.inf, math.inf)


@dataclass
class Watched:
    """Average without gradients and without the consensus at the end; (w + z) / 2 are the weights at the end."""

    strategy: A2CiD2 | ADPSGD
    lock_step: ClassVar[bool] = False

    async def __call__(self, me: Learner) -> None:
        async def consensus() -> Tensor:
            return me.weights.snapshot()

        me.consensus = consensus  # type: ignore[method-assign]
        await self.strategy(me)


def ends(strategy: A2CiD2 | ADPSGD, start: Tensor, world: World, rounds: int) -> Tensor:
    ended = world.run(Averaging(Watched(strategy), start, rounds * len(start)))
    return torch.stack([me.weights.snapshot() for me in ended])


def spread(rows: Tensor) -> float:
    return float((rows - rows.mean(0)).square().sum())


def drawn(learners: int) -> Tensor:
    return torch.randn(learners, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


WORLDS = {
    "constant": Cluster(16, ConstantSeconds(1.0)),
    "jitter": Cluster(16, LognormalSeconds(1.0, 0.5, seed=3)),
    "straggler": Cluster(16, ConstantSeconds(1.0, {2: 10.0})),
    "slow links": Cluster(16, LognormalSeconds(1.0, 0.3, seed=3), Link(0.9, 1e12)),
    "slower than a gradient": Cluster(16, LognormalSeconds(1.0, 0.3, seed=3), Link(3.0, 1e12)),
}


@pytest.mark.parametrize("where", WORLDS)
def test_the_mean_never_moves_and_the_spread_shrinks_faster_than_without_momentum(where: str) -> None:
    start, world = drawn(16), WORLDS[where]
    rows = ends(A2CiD2(), start, VirtualWorld(world), 80)
    assert torch.allclose(rows.mean(0), start.mean(0), rtol=0, atol=1e-12)
    assert spread(rows) < 0.3 * spread(ends(ADPSGD(ring), start, VirtualWorld(world), 80)) < 0.3 * spread(start)


def test_threads_keep_the_mean_too() -> None:
    start = drawn(4)
    world = ThreadWorld(4, timeout_seconds=20, delay=lambda learner: 1e-3 * (1 + learner))
    rows = ends(A2CiD2(), start, world, 50)
    assert torch.allclose(rows.mean(0), start.mean(0), rtol=0, atol=1e-12)
    assert spread(rows) < 0.01 * spread(start)


@pytest.mark.parametrize("mixing", [pairwise, ring])
def test_without_mixing_it_is_adpsgd_to_the_bit(mixing: Mixing) -> None:
    cluster = Cluster(5, LognormalSeconds(0.1, 1.0, seed=2), Link(0.03, 1e5))

    def trained(strategy: Strategy) -> Tensor:
        run = Experiment(ToyTask(samples=4, hidden=8), strategy, Budget(minibatches=60), SGD(0.1, momentum=0.9))
        return fit(run, VirtualWorld(cluster))

    assert torch.equal(trained(A2CiD2(mixing, eta=0.0)), trained(ADPSGD(mixing)))
    assert not torch.equal(trained(A2CiD2(mixing)), trained(ADPSGD(mixing)))


@dataclass
class WithZ:
    """A2CiD2 of a run that goes on from a checkpoint with these vectors z, shape (L, P)."""

    z: Tensor
    lock_step: ClassVar[bool] = False

    async def __call__(self, me: Learner) -> None:
        me.outer["z"] = self.z[me.group.rank].clone()
        await A2CiD2()(me)
        assert torch.equal(me.outer["z"], me.weights.snapshot())


def test_a_run_goes_on_with_its_second_vectors() -> None:
    w, z = drawn(4), 3 * drawn(4).flip(0)
    for ended in VirtualWorld(Cluster(4, LognormalSeconds(0.1, 0.5))).run(Averaging(WithZ(z), w, 100)):
        assert torch.allclose(ended.weights.snapshot(), ((w + z) / 2).mean(0), rtol=0, atol=1e-12)


def test_super_learners_keep_the_mean() -> None:
    start = drawn(4).repeat_interleave(2, 0)
    cluster = Cluster(8, LognormalSeconds(0.1, 0.9), Link(0.02, 1e5))
    for ended in VirtualWorld(cluster).run(Averaging(SuperLearners(A2CiD2(), 2), start, 400)):
        assert torch.allclose(ended.weights.snapshot(), start.mean(0), rtol=0, atol=1e-12)


def test_errors() -> None:
    for eta in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match="0 <= eta"):
            A2CiD2(eta=eta)


def test_a_learner_that_comes_back_takes_both_vectors_from_another_one() -> None:
    """Learner 1 has other weights at each of its starts; it is lost before it has exchanged them."""
    start = torch.ones(4, 3, dtype=torch.float64)
    start[1] = 100.0
    faults = (Kill(1, 0.05), Rejoin(1, 1.0))
    world = VirtualWorld(Cluster(4, ConstantSeconds(0.1), faults=faults, lease_seconds=0.3))
    ended = world.run(Averaging(A2CiD2(), start, 200))
    assert len(ended) == 4
    assert all(torch.equal(me.weights.snapshot(), torch.ones_like(start[0])) for me in ended)
