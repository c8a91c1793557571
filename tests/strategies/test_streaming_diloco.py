"""StreamingDiLoCo against its equations on the stacked matrix, against DiLoCo, and the gain of its overlap."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.schedule import NewBob
from murmur.strategies import DiLoCo, StreamingDiLoCo
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.grids import thinned
from tests.support.tasks import Quadratic, fit
from tests.support.unscaled import Experiment

ALPHA = 0.1


def uneven(learners: int) -> VirtualWorld:
    return VirtualWorld(Cluster(learners, LognormalSeconds(0.1, 0.8), Link(0.03, 1e4)))


def experiment(strategy: Strategy, minibatches: int) -> Experiment:
    return Experiment(Quadratic(ragged=True), strategy, Budget(minibatches=minibatches), SGD(ALPHA))


def oracle(s: StreamingDiLoCo, learners: int, minibatches: int) -> Tensor:
    """Outer weights at the end, turn by turn; every learner's samples are counted for each fragment."""
    task = Quadratic(ragged=True)
    cuts = [task.size * p // s.fragments for p in range(s.fragments + 1)]
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    W = torch.zeros(learners, task.size, dtype=torch.float64)
    samples = torch.zeros(learners, s.fragments, dtype=torch.float64)
    x, v = W[0].clone(), W[0].clone()
    due: dict[int, tuple[int, Tensor]] = {}  # turn of the merge -> fragment and its mean
    turn = 0
    while True:
        for i, n in enumerate(range(turn * learners, min((turn + 1) * learners, minibatches))):
            W[i] -= ALPHA * task.curvature * (W[i] - task.centre(n))
            samples[i] += task.weight(n)
        turn += 1
        for events in ("merge", "begin", "merge"):
            if events == "merge" and turn in due:
                p, mean = due.pop(turn)
                change = x[parts[p]] - mean
                v[parts[p]] = s.mu * v[parts[p]] + change
                x[parts[p]] -= s.rate * (change + s.mu * v[parts[p]])
                W[:, parts[p]] = s.alpha * W[:, parts[p]] + (1 - s.alpha) * x[parts[p]]
            for p in range(s.fragments) if events == "begin" else ():
                if turn % s.K == s.K * (p + 1) // s.fragments % s.K:
                    if samples[:, p].sum() == 0:
                        return x
                    shares = samples[:, p] / samples[:, p].sum()
                    due[turn + s.tau] = p, shares @ W[:, parts[p]]
                    samples[:, p] = 0


SHAPES = [
    StreamingDiLoCo(4, 2, 1, 0.7, 0.8, 0.5),
    StreamingDiLoCo(4, 2, 2, 0.5, 0.6, 0.25),
    StreamingDiLoCo(7, 3, 2, 0.7, 0.8, 0.0),
    StreamingDiLoCo(5, 5, 1, 0.7, 0.3, 0.9),
    StreamingDiLoCo(6, 2, 0, 0.7, 0.8, 0.5),
    StreamingDiLoCo(3, 1, 3, 1.0, 0.0, 0.5),
]


@pytest.mark.parametrize(("strategy", "learners", "minibatches"), thinned(SHAPES, [3, 1, 4], [40, 43, 1, 60]))
def test_equation(strategy: StreamingDiLoCo, learners: int, minibatches: int) -> None:
    wanted = oracle(strategy, learners, minibatches)
    got = fit(experiment(strategy, minibatches), uneven(learners))
    assert torch.allclose(got, wanted, rtol=1e-11, atol=1e-12)


def test_the_oracle_tells_shapes_apart() -> None:
    found = [oracle(shape, 3, 100) for shape in SHAPES]
    assert all((a - b).abs().max() > 1e-3 for i, a in enumerate(found) for b in found[:i])


@pytest.mark.parametrize("minibatches", [3, 40, 48, 61])
@pytest.mark.parametrize("learners", [1, 3])
def test_one_fragment_without_overlap_is_diloco_to_the_bit(learners: int, minibatches: int) -> None:
    """Evaluations and the schedule that follows them come at the same moments too."""
    task = ToyTask(samples=8, ragged=True, hidden=16, dropout=0.2, per_epoch=20)
    ends = [
        fit(
            Experiment(
                *(task, strategy, Budget(minibatches=minibatches), SGD(0.02, momentum=0.9), NewBob(improvement=0.5)),
                evaluate_every_epochs=0.5,
            ),
            world,
        )
        for strategy in (DiLoCo(4, 0.7, 0.8), StreamingDiLoCo(4, 1, 0, 0.7, 0.8, 0.0))
        for world in (uneven(learners), ThreadWorld(learners, timeout_seconds=20))
    ]
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_a_learner_whose_fragment_is_not_finite_takes_the_outer_weights() -> None:
    """alpha w + (1 - alpha) x would keep what is not a number."""

    class Breaking(StreamingDiLoCo):
        async def __call__(self, me):  # type: ignore[no-untyped-def]
            descend = me.descend

            def broken(g: Tensor) -> None:
                descend(g)
                if me.group.rank == 1 and me.steps == 5:
                    w = me.weights.snapshot()
                    w[0] = torch.nan
                    me.weights.set_(w)

            me.descend = broken
            await super().__call__(me)

    got = fit(experiment(Breaking(4, 2, 1), 60), uneven(3))
    assert torch.isfinite(got).all()


def test_exchanges_are_hidden() -> None:
    """Eight gradients of 0.1 s and a mean of 0.6 s, whose two parts overlap four gradients each or are waited for."""
    cluster = Cluster(4, ConstantSeconds(0.1), Link(0.0, 1e6), message_bytes=0.6e6 / 1.5)

    def seconds(strategy: Strategy, minibatches: int) -> float:
        world = VirtualWorld(cluster)
        fit(Experiment(Quadratic(per_epoch=10_000), strategy, Budget(minibatches=minibatches), SGD(ALPHA)), world)
        return world.clock.now

    def of_a_block(strategy: Strategy) -> float:
        return (seconds(strategy, 640) - seconds(strategy, 320)) / 10

    assert of_a_block(DiLoCo(8)) == pytest.approx(0.8 + 0.6)
    assert of_a_block(StreamingDiLoCo(8, 2, 4)) == pytest.approx(0.8)
    assert of_a_block(StreamingDiLoCo(8, 2, 1)) == pytest.approx(0.8 + 0.6 - 2 * 0.1)  # a fragment takes over 0.2 s


def test_errors() -> None:
    for wrong in (
        lambda: StreamingDiLoCo(4, 5),
        lambda: StreamingDiLoCo(4, 0),
        lambda: StreamingDiLoCo(4, 2, 3),
        lambda: StreamingDiLoCo(4, 2, -1),
        lambda: StreamingDiLoCo(alpha=1.0),
        lambda: StreamingDiLoCo(rate=0.0),
        lambda: StreamingDiLoCo(mu=1.0),
    ):
        with pytest.raises(ValueError, match="StreamingDiLoCo needs"):
            wrong()
    with pytest.raises(ValueError, match="a model of 5 elements cannot be cut in 6 parts"):
        fit(experiment(StreamingDiLoCo(6, 6, 1), 20), VirtualWorld(1))
