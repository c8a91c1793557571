"""A run that is asked to stop saves, ends, and goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from murmur.core.learner import Strategy
from murmur.core.membership import StoppedGracefully
from murmur.core.world import World
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import Checkpoints
from murmur.engine.optim.optimizer import SGD
from murmur.engine.schedule import NewBob
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ADPSGD,
    ASGD,
    BMUF,
    KAVG,
    A2CiD2,
    Compressed,
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
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import few
from tests.support.named import named
from tests.support.tally import LEARNERS, Tally, alone, expected
from tests.support.tasks import fit, weights_of
from tests.support.unscaled import Experiment

IN_STEP: list[Strategy] = [
    SyncSGD(),
    KAVG(3),
    BMUF(3),
    SlowMo(3),
    DiLoCo(3),
    StreamingDiLoCo(4, 2, 1),
    GossipPGA(3),
    NoLoCo(3),
    DelayByOne(),
    ParameterAveraging(24),
    Compressed(KAVG(3), "int8"),
    SuperLearners(KAVG(3)),
]


def after(seconds: float, world: Callable[[], VirtualWorld]) -> Callable[[], bool]:
    return lambda: world().clock.now > seconds


@pytest.mark.parametrize("strategy", few(IN_STEP))
def test_all_stop_at_the_same_boundary(strategy: Strategy, tmp_path: Path) -> None:
    task = ToyTask(samples=8, hidden=8, dropout=0.2, per_epoch=16)
    experiment = Experiment(task, strategy, Budget(minibatches=90), SGD(0.1, momentum=0.9), NewBob())
    cluster = Cluster(LEARNERS, ConstantSeconds(0.1, {1: 3.0}))
    wanted = fit(experiment, VirtualWorld(cluster))
    for launch, seconds in enumerate((0.3, 0.5, 0.05)):
        world = VirtualWorld(cluster)
        with pytest.raises(StoppedGracefully, match=r"saved after \d+ minibatches") as stopped:
            Trainer(experiment, world, tmp_path, resume=launch > 0, asked=after(seconds, lambda w=world: w)).fit()  # type: ignore[misc]
        parts = {p.name for p in (tmp_path / "checkpoints" / f"{stopped.value.minibatches:010d}").glob("*.json")}
        assert parts == {f"learner-{r}.json" for r in range(LEARNERS)}
    outcome = Trainer(experiment, VirtualWorld(cluster), tmp_path, resume=True).fit()
    assert torch.equal(weights_of(outcome.model), wanted)


SERVED = [ASGD(), ASGD(servers=2), Downpour(), Downpour(3, 2, shards=4), Downpour(3, 2, servers=2)]


@pytest.mark.parametrize(
    "strategy",
    [
        ADPSGD(alone),
        A2CiD2(alone),
        QuasiGlobal(alone, beta=0.0),
        *SERVED,
        SuperLearners(ADPSGD(alone)),
        OwnShares(ADPSGD(alone)),
    ],
    ids=named,
)
def test_without_lock_step_each_stops_by_itself_and_nothing_is_lost(strategy: Strategy, tmp_path: Path) -> None:
    experiment = Experiment(Tally(cut={"left": 1000}), strategy, Budget(minibatches=60), SGD(1.0))
    cluster = Cluster(LEARNERS, ConstantSeconds(0.1, {1: 3.0, 2: 0.6}))
    for launch, seconds in enumerate((0.35, 0.8)):
        world = VirtualWorld(cluster)
        with pytest.raises(StoppedGracefully):
            Trainer(experiment, world, tmp_path, resume=launch > 0, asked=after(seconds, lambda w=world: w)).fit()  # type: ignore[misc]
    outcome = Trainer(experiment, VirtualWorld(cluster), tmp_path, resume=True).fit()
    assert torch.allclose(weights_of(outcome.model), expected(strategy))


@pytest.mark.parametrize("strategy", [KAVG(3), ADPSGD(alone), *SERVED], ids=named)
@pytest.mark.timeout(60)
def test_threads_stop_too(strategy: Strategy, tmp_path: Path) -> None:
    began: list[int] = []
    experiment = Experiment(Tally(cut={"left": 10_000}), strategy, Budget(minibatches=60), SGD(1.0))

    def asked() -> bool:
        began.append(0)
        return len(began) > 6

    def world() -> World:
        return ThreadWorld(LEARNERS, timeout_seconds=20, delay=lambda learner: 1e-3 * learner)

    with pytest.raises(StoppedGracefully):
        Trainer(experiment, world(), tmp_path, asked=asked).fit()
    assert Checkpoints(tmp_path / "checkpoints").marks()
    outcome = Trainer(experiment, world(), tmp_path, resume=True).fit()
    if not isinstance(strategy, KAVG):
        assert torch.allclose(weights_of(outcome.model), expected(strategy))
