"""Plans of experiments: work and times of minibatches that are cut, memory of optimizers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD, Adam
from murmur.engine.scaling import Auto
from murmur.recipes import toy
from murmur.run.dry_run import first_steps
from murmur.simulation.plan import Site, own_site, preset_site
from murmur.simulation.planner.table import row_of, scaled
from murmur.simulation.planner.timing import time_strategy
from murmur.simulation.run import with_message
from murmur.simulation.scenario import Scenario
from murmur.strategies import ASGD, KAVG, SyncSGD
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link
from murmur.worlds.virtual.presets import preset
from tests.support.named import named

CLUSTER = Cluster(8, ConstantSeconds(0.1), Link(1e-6, 1e12))


def experiment(minibatch: Any, strategy: Any = None) -> Any:
    """The toy on a cluster of its own, on which a gradient of a whole minibatch takes 0.1 s."""
    rule, strategy = Auto(minibatch), strategy or SyncSGD()
    return replace(toy.experiment(), budget=Budget(minibatches=640), scaling=rule, cluster=CLUSTER, strategy=strategy)


def simulated_hours(planned: Any, learners: int) -> float:
    """Hours of the budget in the simulator, as `murmur simulate --timing-only` has them."""
    cluster, run = with_message(Scenario(learners).cluster(planned), planned), planned.scaled(learners)
    return time_strategy(planned.strategy, cluster, run.total).seconds / 3600


@pytest.mark.parametrize("minibatch", ["grows", "stays"])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4), ASGD()], ids=named)
def test_a_plan_on_the_experiments_cluster_is_what_the_simulator_takes(minibatch: str, strategy: Any) -> None:
    planned = experiment(minibatch, strategy)
    site = own_site(planned, Scenario(), {})
    for row in scaled(strategy, site.cluster_of, site.work_of, [1, 2, 4, 8, 16]):
        assert row.hours * site.epochs == pytest.approx(simulated_hours(planned, row.learners), rel=0.1)


def test_cut_minibatches_are_as_many_samples_in_as_much_time() -> None:
    """Free of waiting, L learners are L times as fast, however the minibatch is cut and wherever it was measured."""
    planned = experiment("stays")
    own = own_site(planned, Scenario(), {})
    kind = replace(preset("ethernet-1g"), link=Link(1e-6, 1e12), reduce_bytes_per_second=float("inf"))
    measured = preset_site(kind, 8, own.cluster_of(8).compute, own.work, "measured", planned)

    def hours(site: Site, learners: int) -> float:
        return row_of(SyncSGD(), site.cluster_of(learners), site.work_of(learners)).hours

    for site in (own, measured):
        for learners in (1, 2, 8, 16):
            assert hours(site, learners) * learners == pytest.approx(hours(own, 1), rel=0.01)


def test_a_plan_of_fewer_learners_than_servers_has_the_pieces_of_the_fewest() -> None:
    site = own_site(experiment("stays", ASGD(servers=3)), Scenario(), {})
    assert site.work_of(2) == site.work_of(4)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9), Adam(), torch.optim.Adadelta], ids=str)
def test_the_memory_counts_the_state_of_the_optimizer(optimizer: Any) -> None:
    made = optimizer if not isinstance(optimizer, type) else (lambda model: torch.optim.Adadelta(model.parameters()))
    planned = replace(experiment("grows"), optimizer=made)
    found = first_steps(planned, planned.task.model(), "cpu").optimizer_bytes
    assert own_site(planned, Scenario(), {}).work.optimizer_bytes == pytest.approx(found)
    assert own_site(planned, Scenario(), {"model_bytes": 1e9}).work.optimizer_bytes == pytest.approx(
        found * 1e9 / own_site(planned, Scenario(), {}).work.model_bytes
    )
