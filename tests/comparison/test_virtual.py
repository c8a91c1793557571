"""Summaries of runs in the virtual world."""

from __future__ import annotations

import pytest

from murmur.comparison.virtual import VirtualCourse, train
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import Adam
from murmur.engine.record import Record
from murmur.strategies import ADPSGD, SuperLearners
from murmur.strategies.block_moments import MeanMoments
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from tests.support.tasks import Quadratic
from tests.support.unscaled import Experiment


def evaluation(minibatches: int, distance: float | None) -> Record:
    at = {"minibatches": minibatches, "samples": 10.0 * minibatches, "epoch": 1.0, "seconds": 1.0, "loss": 2.0}
    return Record("evaluation", learner=0, step=0, **at, consensus_distance=distance)  # type: ignore[arg-type]


@pytest.mark.parametrize(("points", "expected"), [
    (((500, 2.0), (1000, 0.0)), 2.0),
    (((500, 2.0), (998, 0.01), (1000, 0.0)), 2.0),  # learners that do not go in step pass the last point one by one
    (((500, None), (998, 0.01)), None),
])  # fmt: skip
def test_the_distance_is_one_of_training_and_not_of_the_end(
    points: tuple[tuple[int, float | None], ...], expected: float | None
) -> None:
    course = VirtualCourse(learners=4, minibatches=1000)
    for minibatches, distance in points:
        course.see(evaluation(minibatches, distance))
    assert course.consensus_distance == expected


@pytest.mark.parametrize("moments", ["local", "averaged"])
def test_members_of_super_learners_compute_as_long_as_leaders(moments: MeanMoments) -> None:
    """With averaged moments leaders take the steps of their members, whose time counted as waiting."""
    strategy = SuperLearners(ADPSGD(moments=moments), 4)
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=80), Adam(0.01))
    course = train(experiment, Cluster(8, ConstantSeconds(0.1)))
    assert course.compute_seconds == pytest.approx(80 * 0.1)
    assert course.described()["waiting_share"] < 0.2
