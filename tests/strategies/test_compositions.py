"""Strategies that nest: each pair and triple is refused when it is built, or computes its whole budget."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from fuzz_oracle import Counted
from murmur.core.facts import Facts, FactsOfInner, layers
from murmur.core.learner import Strategy
from murmur.core.world import World
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ALL,
    EASGD,
    KAVG,
    DecoupledDiLoCo,
    Downpour,
    NoLoCo,
    OwnShares,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld

PLAIN = [made() for made in ALL.values() if not isinstance(made(), FactsOfInner)]
SHORT = [NoLoCo(2), DecoupledDiLoCo(2, 2, 2), DecoupledDiLoCo(2, 1, servers=1)]  # with exchanges before the end
INNERMOST = [*PLAIN, Downpour(servers=1), EASGD(servers=2), *SHORT]
WRAPPERS: list[Callable[[Strategy], Strategy]] = [made for made in ALL.values() if isinstance(made(), FactsOfInner)]


def compositions(depth: int) -> Iterator[Strategy]:
    """All that can be built with at most `depth` strategies around a plain one."""
    level = list(INNERMOST)
    for _ in range(depth):
        level = [built for inner in level for wrapper in WRAPPERS if (built := _built(wrapper, inner)) is not None]
        yield from level


def _built(wrapper: Callable[[Strategy], Strategy], inner: Strategy) -> Strategy | None:
    try:
        return wrapper(inner)
    except ValueError:
        return None


BUILT = list(compositions(2))


def computed(strategy: Strategy, world: World, minibatches: int = 21) -> set[int]:
    """Train with a strategy; return the minibatches that were computed."""
    task = Counted()
    run = Experiment(task, strategy, Budget(minibatches=minibatches), SGD(0.01), scaling=Fixed())
    Trainer(run, world).fit()
    return set(task.taken)


def test_enough_compositions_are_built() -> None:
    assert len(BUILT) > 60
    assert {type(strategy) for strategy in BUILT} == set(WRAPPERS)


def test_each_pair_and_triple_computes_its_budget_on_the_virtual_clock() -> None:
    failed = []
    for strategy in BUILT:
        for learners in (1, 5, 6):
            if learners < Facts.of(strategy).least_learners:
                continue
            try:
                done = computed(strategy, VirtualWorld(Cluster(learners, LognormalSeconds(0.1, 0.5))))
            except ValueError:  # with so few learners all would serve
                continue
            if done != set(range(21)):
                failed.append((strategy, learners))
    assert failed == []


def names_of(strategy: object) -> str:
    return " ".join(type(layer).__name__ for layer in layers(strategy))


@pytest.mark.parametrize("strategy", random.Random(1).sample(BUILT, 8), ids=names_of)
def test_a_sample_computes_its_budget_in_threads(strategy: Strategy) -> None:
    assert computed(strategy, ThreadWorld(6)) == set(range(21))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: SuperLearners(SuperLearners(KAVG(4), 2), 2), "the product of both"),
        (lambda: SuperLearners(OwnShares(SuperLearners()), 2), "the product of both"),
        (lambda: ALL["Compressed"](ALL["Compressed"]()), "stands twice"),
        (lambda: OwnShares(SuperLearners(SyncSGD(), 2)), "lock-step"),
        (lambda: OwnShares(StreamingDiLoCo()), "lock-step"),
        (lambda: OwnShares(NoLoCo()), "lock-step"),
        (lambda: OwnShares(DecoupledDiLoCo(servers=1)), "servers would leave theirs undone"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(build: Callable[[], Strategy], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build()
