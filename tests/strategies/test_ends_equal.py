"""Learners end equal where the rate falls, and where the budget ends in the middle of a round."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.schedule import Exponential
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ALL,
    BMUF,
    KAVG,
    Compressed,
    DecoupledDiLoCo,
    DiLoCo,
    NoLoCo,
    ParameterAveraging,
    SlowMo,
    StreamingDiLoCo,
)
from murmur.testing.strategies import Observed
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.tasks import Point, Quadratic, fit
from tests.support.unscaled import Experiment

LEARNERS = 4
SHORT = {
    "KAVG": KAVG(2),
    "BMUF": BMUF(2, eta=0.5),
    "SlowMo": SlowMo(2),
    "DiLoCo": DiLoCo(2),
    "StreamingDiLoCo": StreamingDiLoCo(4, 2, 1),
    "NoLoCo": NoLoCo(2),
    "DecoupledDiLoCo": DecoupledDiLoCo(2, 2, 2),
    "ParameterAveraging": ParameterAveraging(16),
}
MADE: list[Strategy] = [SHORT.get(name) or make() for name, make in ALL.items()]
MADE += [SlowMo(2, moments="at_outer"), Compressed(SlowMo(2), "int8"), Compressed(BMUF(2), "int8")]
MADE += [Compressed(NoLoCo(2), "int8"), Compressed(DecoupledDiLoCo(2, 2), "int8"), DecoupledDiLoCo(2, 1, servers=1)]


@pytest.mark.parametrize("strategy", [made for made in MADE if Facts.of(made).ends_equal], ids=named)
@pytest.mark.parametrize("minibatches", [2, 9, 13])
def test_learners_end_equal(strategy: Strategy, minibatches: int) -> None:
    """Some learners take their last step earlier than others, at another rate."""
    observed = Observed(strategy)
    experiment = Experiment(Quadratic(), observed, Budget(minibatches=minibatches), SGD(0.3), Exponential(0.01))
    Trainer(experiment, VirtualWorld(Cluster(LEARNERS, LognormalSeconds(sigma=1.0)))).fit()
    assert all(torch.equal(end, observed.ends[0]) for end in observed.ends)


class Far(Quadratic):
    """Begins at large weights."""

    def model(self) -> nn.Module:
        point = Point(self.size)
        point.w.data.fill_(5000.0)
        return point


def test_a_compressed_average_has_the_rate_in_full() -> None:
    """Beside weights of thousands, eight bits would round a rate of 0.1 to 0, and all outer steps would be left out."""

    def end(strategy: Strategy) -> torch.Tensor:
        return fit(Experiment(Far(), strategy, Budget(minibatches=24), SGD(0.1)), VirtualWorld(2))

    plain, compressed = end(SlowMo(3)), end(Compressed(SlowMo(3), "int8"))
    assert plain.mean() < 2500
    assert torch.allclose(compressed, plain, atol=5000 / 100)
