"""A number that is none, on one learner, at any moment: it stays there, and the run ends with all finite."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from murmur.core.learner import Strategy
from murmur.core.mixing import ring
from murmur.core.source import Gradient
from murmur.core.world import Seat, World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.task import Loss
from murmur.engine.task_source import TaskSource
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ALL,
    BMUF,
    KAVG,
    Compressed,
    DecoupledDiLoCo,
    DelayByOne,
    DiLoCo,
    GossipPGA,
    NoLoCo,
    ParameterAveraging,
    SlowMo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.bad_gradients import spoiled
from tests.support.named import named
from tests.support.tasks import weights_of
from tests.support.unscaled import Experiment

LEARNERS, MINIBATCHES = 3, 60
SMALL = {
    "KAVG": KAVG(3),
    "BMUF": BMUF(3),
    "SlowMo": SlowMo(3),
    "DiLoCo": DiLoCo(3),
    "StreamingDiLoCo": StreamingDiLoCo(4, 2, 1),
    "GossipPGA": GossipPGA(3),
    "NoLoCo": NoLoCo(3),
    "DecoupledDiLoCo": DecoupledDiLoCo(3, 3),
    "ParameterAveraging": ParameterAveraging(24),
}
STRATEGIES: list[Strategy] = [SMALL.get(name) or make() for name, make in ALL.items()]
STRATEGIES += [DelayByOne(ring), Compressed(KAVG(3), "int8"), SuperLearners(KAVG(2))]


@dataclass(frozen=True)
class Bad(ToyTask):
    """Minibatch `at` holds numbers that are none, or gives a gradient that is none."""

    at: int = -1
    what: str = "minibatch"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    def minibatch(self, n: int) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        x, y = super().minibatch(n)
        return (x * math.nan if n == self.at and self.what == "minibatch" else x), y, torch.tensor(n)

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor, Tensor]) -> Loss:  # type: ignore[override]
        x, y, n = minibatch
        loss = super().loss(model, (x, y))
        bad = int(n) == self.at and self.what == "gradient"
        return replace(loss, total=spoiled(loss.total)) if bad else loss


@dataclass
class Poison:
    """Breaks the weights of one learner after one of its gradients; keeps what all learners had after every step."""

    learner: int
    after: int
    drawn: dict[int, int] = field(default_factory=dict)
    others: set[int] = field(default_factory=set)

    def into(self, patch: pytest.MonkeyPatch) -> None:
        draw, apply = TaskSource.draw, TaskSource.apply

        def drawn(source: TaskSource, *arguments: Any) -> Gradient:
            rank = source.seat.group.rank
            self.drawn[rank] = self.drawn.get(rank, 0) + 1
            if rank == self.learner and self.drawn[rank] == self.after:
                source.layout.scatter(source.layout.gather().mul_(math.nan))
            return draw(source, *arguments)

        def applied(source: TaskSource, *arguments: Any) -> None:
            apply(source, *arguments)
            if not bool(source.layout.gather().isfinite().all()):
                self.others.add(source.seat.group.rank)

        patch.setattr(TaskSource, "draw", drawn)
        patch.setattr(TaskSource, "apply", applied)


def run(strategy: Strategy, task: Bad, world: World, poison: Poison, **more: int) -> None:
    optimizer = SGD(0.1, momentum=0.9, weight_decay=1e-3)
    experiment = Experiment(task, strategy, Budget(minibatches=MINIBATCHES), optimizer, **more)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        poison.into(patch)
        outcomes = world.run(Trainer(experiment, world)._train)
    assert poison.others <= {poison.learner}  # nobody else ever held a number that is none
    for outcome in outcomes:
        assert bool(weights_of(outcome.model).isfinite().all())
    leading = next(o for o in outcomes if o.leads)
    assert math.isfinite(leading.figures["loss"])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_it_stays_where_it_is(strategy: Strategy) -> None:
    @settings(
        max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
    )
    @example(what="weights", at=43, learner=0, factors=[0.87, 1.73, 1.18])
    @given(
        what=st.sampled_from(["minibatch", "gradient", "weights"]),
        at=st.integers(0, MINIBATCHES - 1),
        learner=st.integers(0, LEARNERS - 1),
        factors=st.lists(st.floats(0.5, 3.0), min_size=LEARNERS, max_size=LEARNERS),
    )
    def check(what: str, at: int, learner: int, factors: list[float]) -> None:
        task = Bad(samples=8, per_epoch=20, at=at if what != "weights" else -1, what=what)
        world = VirtualWorld(Cluster(LEARNERS, ConstantSeconds(0.1, dict(enumerate(factors)))))
        after = 1 + at // (2 * LEARNERS) if what == "weights" else 0
        run(strategy, task, world, Poison(learner, after))

    check()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
@pytest.mark.timeout(60)
def test_it_stays_where_it_is_in_threads(strategy: Strategy) -> None:
    world = ThreadWorld(LEARNERS, timeout_seconds=20, delay=lambda learner: 1e-3 * learner)
    task = Bad(samples=8, per_epoch=20, at=17, what="gradient")
    # On a busy host a learner may do many of these short rounds before the thread of another one answers.
    run(strategy, task, world, Poison(1, 6), most_skipped=MINIBATCHES)


def test_a_learner_alone_stops_with_advice() -> None:
    experiment = Experiment(Bad(samples=8), SyncSGD(), Budget(minibatches=30), most_skipped=4)
    advice = r"the loss is nan, as it was of the 3 minibatches before.*warm it up"
    with pytest.MonkeyPatch.context() as patch:
        Poison(0, 5).into(patch)
        with pytest.raises(FloatingPointError, match=advice):
            Trainer(experiment, VirtualWorld(1)).fit()


def test_gradients_that_stay_bad_stop_all_learners() -> None:
    @dataclass(frozen=True)
    class Always(Bad):
        def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor, Tensor]) -> Loss:  # type: ignore[override]
            return super().loss(model, (*minibatch[:2], torch.tensor(-1)))

    experiment = Experiment(Always(samples=8, what="gradient"), KAVG(3), Budget(minibatches=90))
    with pytest.raises(FloatingPointError, match=r"the gradient is not finite, at a loss of .*9 minibatches before"):
        Trainer(experiment, VirtualWorld(2)).fit()


def test_it_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Record] = []

    def observers(seat: Seat) -> tuple[Any, ...]:
        return (seen.append,) if seat.group.rank == 1 else ()

    experiment = Experiment(Bad(samples=8, at=4, what="gradient"), KAVG(3), Budget(minibatches=60))
    with pytest.MonkeyPatch.context() as patch:
        Poison(1, 8).into(patch)
        Trainer(experiment, VirtualWorld(2), observers=observers).fit()
    assert seen[-1].replaced == 1
    # Minibatch 4 is learner 0's third; its own: the eighth and the ninth, the round's last ones.
    assert seen[-1].skipped == 2
    assert caplog.messages[-1].startswith("3 minibatches skipped")
    assert caplog.messages[-1].endswith("1 replacement of weights that were not finite")
