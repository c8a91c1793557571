"""Every minibatch of the budget has its gradient applied exactly once, counted at the computation."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from torch import Tensor

from murmur.core.learner import Strategy
from murmur.core.mixing import pairwise
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.strategies import (
    ADPSGD,
    ALL,
    ASGD,
    BMUF,
    EASGD,
    KAVG,
    A2CiD2,
    AdaptiveKAVG,
    Compressed,
    DecoupledDiLoCo,
    DelayByOne,
    DiLoCo,
    Downpour,
    GossipPGA,
    NoLoCo,
    OwnShares,
    ParameterAveraging,
    QuasiGlobal,
    SlowMo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import thinned
from tests.support.named import named
from tests.support.tasks import Counted, fit
from tests.support.unscaled import Experiment

BUDGET = 61  # not a multiple of any number of learners or of members
BASIC: list[Strategy] = [
    *(
        SyncSGD(),
        KAVG(3),
        BMUF(2),
        SlowMo(2),
        DiLoCo(2),
        StreamingDiLoCo(4, 2, 1),
        GossipPGA(2),
        NoLoCo(2),
        AdaptiveKAVG(),
        ParameterAveraging(8),
        DelayByOne(),
        DelayByOne(pairwise),
    ),
    *(ADPSGD(), A2CiD2(), QuasiGlobal(), ASGD(), OwnShares(), Downpour(2, 3, 2), EASGD(2, shards=2)),
    DecoupledDiLoCo(4, 2, 2, shards=2),
]
AROUND: list[Strategy] = [
    *(Compressed(ADPSGD(), "bfloat16"), OwnShares(SuperLearners(ADPSGD(), 2)), OwnShares(SuperLearners(ADPSGD(), 4))),
    *(OwnShares(Compressed(ADPSGD(), "bfloat16")), Compressed(SuperLearners(ADPSGD(), 3), "bfloat16")),
    SuperLearners(Compressed(ADPSGD(), "bfloat16"), 2),
]
CLAIMING: list[Strategy] = [ADPSGD(), ASGD(), OwnShares()]


def check_cover(strategy: Strategy, learners: int, budget: int = BUDGET, uneven: bool = True) -> Tensor:
    """Check that each minibatch is computed once and moves the consensus; return the consensus."""
    task = Counted(budget)
    compute = LognormalSeconds(0.1, 0.7, seed=learners) if uneven else ConstantSeconds(0.1)
    experiment = Experiment(task, strategy, Budget(minibatches=budget), SGD(1.0))
    w = fit(experiment, VirtualWorld(Cluster(learners, compute)))
    missing = [n for n in range(budget) if task.taken[n] == 0]
    assert task.taken == Counter(range(budget)), f"{strategy}, L = {learners}: {missing} were never computed"
    assert (w > 0).all(), f"{strategy}, L = {learners}: {[n for n in range(budget) if w[n] <= 0]} were never applied"
    return w


def test_the_grid_knows_every_strategy() -> None:
    assert {type(strategy).__name__ for strategy in BASIC + AROUND} == set(ALL)


@pytest.mark.parametrize(("strategy", "learners"), thinned(BASIC + AROUND, [5, 3, 9, 2, 1]))
def test_every_minibatch_is_applied_once(strategy: Strategy, learners: int) -> None:
    check_cover(strategy, learners)


@pytest.mark.parametrize(
    ("outer", "sizes"), thinned(BASIC, [(3, 2), (5, 2), (5, 4), (7, 2), (7, 3), (8, 5), (9, 4), (9, 8)])
)
def test_every_minibatch_is_applied_once_by_unequal_super_learners(outer: Strategy, sizes: tuple[int, int]) -> None:
    learners, node_size = sizes
    check_cover(SuperLearners(outer, node_size), learners)


@pytest.mark.parametrize(
    "strategy",
    [ASGD(servers=2), Downpour(2, 3, servers=2), EASGD(2, servers=1), DecoupledDiLoCo(4, 2, servers=2)],
    ids=named,
)
def test_every_minibatch_is_applied_once_with_servers(strategy: Strategy) -> None:
    for learners in (1, 3, 5):
        check_cover(strategy, learners)
    for learners in (2, 6, 7):
        check_cover(SuperLearners(strategy, 2), learners)


@pytest.mark.slow
@pytest.mark.parametrize("learners", range(1, 10))
def test_every_minibatch_is_applied_once_in_the_whole_grid(learners: int) -> None:
    for strategy, uneven in product(BASIC + AROUND, (False, True)):
        check_cover(strategy, learners, uneven=uneven)
    for outer, node_size, uneven in product(BASIC, range(1, 10), (False, True)):
        for budget in (1, BUDGET):
            check_cover(SuperLearners(outer, node_size), learners, budget, uneven)


@pytest.mark.parametrize(("learners", "node_size"), [(3, 2), (5, 4), (7, 2), (9, 4)])
@pytest.mark.parametrize("outer", [ADPSGD(), OwnShares()], ids=named)
def test_the_gradient_of_a_claim_is_a_mean_over_members(outer: Strategy, learners: int, node_size: int) -> None:
    """In the mean of all super-learners, minibatch n has weight 1 / (super-learners x minibatches of its claim)."""
    w = check_cover(SuperLearners(outer, node_size), learners)
    nodes = -(-learners // node_size)
    sizes = [round(float(1 / (nodes * each))) for each in w]
    assert torch.allclose(w, torch.tensor([1 / (nodes * size) for size in sizes], dtype=w.dtype), rtol=1e-9)
    assert {node_size, learners % node_size} <= set(sizes) <= set(range(1, node_size + 1))


@pytest.mark.parametrize("strategy", [SuperLearners(ADPSGD(), 2), SuperLearners(ASGD(), 2), OwnShares()], ids=named)
def test_threads_apply_every_minibatch_once(strategy: Strategy) -> None:
    task = Counted(BUDGET)
    fit(Experiment(task, strategy, Budget(minibatches=BUDGET), SGD(1.0)), ThreadWorld(5, timeout_seconds=60))
    assert task.taken == Counter(range(BUDGET))
