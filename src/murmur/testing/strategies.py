"""Conformance checks of strategies: run `check_strategy(MyStrategy())` before any training with a new one.

The checks train a small quadratic problem on simulated clusters. Each compares a fact that the strategy declares
(`murmur.core.facts.Facts`) with what happened. They use no test framework.

    loss of minibatch n:  1/2 |w - c_n|^2 per sample,  c_n normal around 0,  so that g_n(w) = w - c_n
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from murmur.core.facts import Facts, FactsOfInner
from murmur.core.flat import Layout
from murmur.core.learner import Learner, Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss, Score, seed_of
from murmur.engine.trainer import Trainer
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld

MINIBATCHES, RATE, KILL_SECONDS = 61, 0.1, 0.55
SIZES = (1, 2, 3, 4)


class Point(nn.Module):
    """A vector of weights w, at (3, ..., 3) in the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((4,), 3.0))


@dataclass(frozen=True)
class Centres:
    """The quadratic problem as a task."""

    per_epoch: int = 40
    samples: float = 2.0

    @property
    def samples_per_epoch(self) -> float:
        return self.per_epoch * self.samples

    def prepare(self) -> None:
        """Do nothing: centres are drawn on request."""

    def model(self) -> nn.Module:
        return Point()

    def minibatch(self, n: int) -> Tensor:
        return 0.1 * torch.randn(4, generator=torch.Generator().manual_seed(seed_of("centre", n)))

    def loss(self, model: nn.Module, minibatch: Tensor) -> Loss:
        assert isinstance(model, Point)
        return Loss(self.samples * 0.5 * (model.w - minibatch).square().sum(), self.samples)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Point)
        return {"loss": float(0.5 * model.w.square().sum())}

    def test(self, model: nn.Module) -> Score:
        return Score(self.evaluate(model))


@dataclass(frozen=True)
class Observed(FactsOfInner):
    """A strategy that keeps the weights with which each learner ends, and has the facts of the one inside."""

    strategy: Strategy
    ends: list[Tensor] = field(default_factory=list, repr=False)

    async def __call__(self, me: Learner) -> None:
        await self.strategy(me)
        self.ends.append(me.weights.snapshot())

    @property
    def inner(self) -> Strategy:
        return self.strategy

    @property
    def tolerates_loss(self) -> bool:
        return Facts.of(self.strategy).tolerates_loss


@dataclass(frozen=True)
class Ran:
    """Outcome of a run: the model's weights, the weights of every learner at its end, and all records."""

    weights: Tensor
    ends: list[Tensor]
    records: list[Record]


def check_strategy(strategy: Strategy, sizes: Sequence[int] = SIZES) -> None:
    """Train with a strategy on simulated clusters, and compare what happens with the facts that it declares.

    Args:
        strategy: The strategy, an `async def strategy(me)` or an instance whose class declares facts.
        sizes: Numbers of learners; those below the strategy's `least_learners` are left out.

    Raises:
        AssertionError: A check failed; names the check, the number of learners and the fact.
        IncompleteRun: A minibatch of the budget was computed not once.
    """
    facts = Facts.of(strategy)
    for size in (size for size in sizes if size >= facts.least_learners):
        uneven = Cluster(learners=size, compute=ConstantSeconds(0.01, {i: 1.0 + i for i in range(size)}))
        _check_end(strategy, facts, size, _run(strategy, uneven))
        random = Cluster(learners=size, compute=LognormalSeconds(sigma=1.0, seed=size))
        first, second = _run(strategy, random), _run(strategy, random)
        _expect(torch.equal(first.weights, second.weights), size, "two equal runs end with other bits")
        if size > max(facts.least_learners, 2) and facts.tolerates_loss:  # a server and a worker at least go on
            faults = (Kill(size - 1, KILL_SECONDS),)
            _run(strategy, Cluster(learners=size, compute=ConstantSeconds(0.1), faults=faults))
    if facts.bitwise_alone and min(sizes) == 1:
        alone = _run(strategy, Cluster(learners=1))
        _expect(
            torch.equal(alone.weights, plain_loop(_experiment(strategy))),
            1,
            "bitwise_alone, but one learner is not the plain loop",
        )


def _check_end(strategy: Strategy, facts: Facts, size: int, ran: Ran) -> None:
    loss = float(0.5 * ran.weights.square().sum())
    _expect(loss < 0.5 * 4 * 3.0**2, size, f"the loss does not fall: {loss:.3g}")
    if facts.ends_equal:
        same = all(torch.equal(end, ran.ends[0]) for end in ran.ends)
        _expect(same, size, f"{strategy} declares ends_equal, but learners end with different weights")
    if facts.staleness is not None:
        worst = max(record.staleness for record in ran.records if record.kind == "step")
        _expect(worst <= facts.staleness, size, f"staleness is {worst}, declared is at most {facts.staleness}")


def _run(strategy: Strategy, cluster: Cluster) -> Ran:
    observed, records = Observed(strategy), list[Record]()
    trainer = Trainer(_experiment(observed), VirtualWorld(cluster), observers=lambda _: (records.append,))
    return Ran(Layout.trainable(trainer.fit().model).gather(), observed.ends, records)


def _experiment(strategy: Strategy) -> Experiment:
    return Experiment(Centres(), strategy, Budget(minibatches=MINIBATCHES), SGD(RATE), scaling=Fixed())


def plain_loop(experiment: Experiment) -> Tensor:
    """Weights (P,) that a plain PyTorch loop of one learner ends with: the reference of `bitwise_alone`."""
    task = experiment.task
    torch.manual_seed(seed_of(experiment.seed, "model"))
    model = experiment.model()
    optimizer = experiment.optimizer(model)
    for n in range(experiment.budget.total(task)):
        minibatch = task.minibatch(n)
        torch.manual_seed(seed_of(experiment.seed, "minibatch", n))  # names the dropout of minibatch n
        optimizer.zero_grad()
        loss = task.loss(model, minibatch)
        torch.autograd.backward(loss.total / loss.samples)
        optimizer.step()
    return Layout.trainable(model).gather()


def _expect(holds: bool, size: int, complaint: str) -> None:
    if not holds:
        raise AssertionError(f"with {size} learners: {complaint}")
