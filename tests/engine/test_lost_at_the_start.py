"""Learners that are lost and come back: while others wait for the weights at the start, or when shards have ended."""

from collections.abc import Sequence

import pytest

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Outcome, Trainer
from murmur.strategies import KAVG, AdaptiveKAVG, Downpour, SlowMo
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Link, LognormalSeconds, Rejoin, Stop
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.tasks import Quadratic
from tests.support.unscaled import Experiment

NETWORK = Link(1e-4, 1e9)
SLOW_BYTES = 1e8  # the weights are under way for longer than the lease


def train(strategy: Strategy, cluster: Cluster, minibatches: int) -> Sequence[Outcome]:
    world = VirtualWorld(cluster)
    trainer = Trainer(Experiment(Quadratic(per_epoch=10), strategy, Budget(minibatches=minibatches), SGD(0.05)), world)
    return world.run(trainer._train)


@pytest.mark.parametrize("strategy", [KAVG(), AdaptiveKAVG(), SlowMo()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    ("learners", "lease", "faults"),
    [
        (6, 0.3, (Kill(5, 0.664), Rejoin(5, 1.107), Kill(0, 0.673), Rejoin(0, 0.717))),
        (8, 0.05, (Kill(4, 0.515), Rejoin(4, 0.618), Stop(2, 0.679, 0.154))),
        (6, 0.05, (Stop(5, 0.506, 0.499), Stop(0, 0.74, 0.155), Stop(4, 0.562, 0.314))),
    ],
    ids=["killed", "killed and suspended", "suspended"],
)
def test_learners_back_during_the_start_are_admitted(
    strategy: Strategy, learners: int, lease: float, faults: tuple[Kill | Rejoin | Stop, ...]
) -> None:
    """Learners that had begun counted a learner that was back as a member, and waited for it; it waited for them."""
    cluster = Cluster(
        learners, ConstantSeconds(0.1), NETWORK, message_bytes=SLOW_BYTES, faults=faults, lease_seconds=lease
    )
    assert sum(outcome.leads for outcome in train(strategy, cluster, 80)) == 1


def test_a_learner_back_when_shards_answer_no_more_leaves() -> None:
    """It waited for an answer of holders that had ended, and the holders waited for it."""
    for at in (0.9, 0.952, 1.0):
        faults = (Stop(2, at, 0.449),)
        compute = LognormalSeconds(0.1, 0.2, 487)
        cluster = Cluster(4, compute, NETWORK, message_bytes=1e6, faults=faults, lease_seconds=0.3)
        assert sum(outcome.leads for outcome in train(Downpour(), cluster, 40)) == 1, at
