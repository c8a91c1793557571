"""The check at the end of a run finds minibatches that were missed or computed twice, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.errors import IncompleteRun
from murmur.core.learner import Learner, Strategy
from murmur.core.source import Computed
from murmur.core.world import World
from murmur.engine.budget import Budget
from murmur.engine.cover import wanted, with_one
from murmur.engine.optim.optimizer import SGD
from murmur.strategies import ADPSGD, KAVG, SuperLearners
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Rejoin
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.tasks import Quadratic, fit
from tests.support.unscaled import Experiment


@dataclass(frozen=True)
class Skips:
    """Claims minibatches, and does not compute number 7."""

    async def __call__(self, me: Learner) -> None:
        while (claim := me.group.membership.claim(*me.local.source.span)) is not None:
            if claim.start != 7:
                me.descend((await me.local.compute(claim.start, None)).g)
        me.weights.set_(await me.consensus())


@dataclass(frozen=True)
class TakesTheNext:
    """Lock-step, but minibatch 8 is computed in the place of 7: as many as the budget has."""

    async def __call__(self, me: Learner) -> None:
        while (n := me.local.source.next_index(me.steps)) is not None:
            me.local.steps += 1
            me.descend((await me.local.compute(8 if n == 7 else n, None)).g)


@dataclass(frozen=True)
class Forgets:
    """Averages in rounds, without the minibatch after the round in which a learner was lost."""

    lock_step: ClassVar[bool] = True
    tolerates_loss: ClassVar[bool] = True
    twice: bool = False

    async def __call__(self, me: Learner) -> None:
        live = len(me.group.live)
        while me.training:
            async for g in me.gradients(at_most=2):
                me.descend(g)
            me.weights.set_(await me.group.mean(me.weights.snapshot(), me.fresh_samples))
            if len(me.group.live) < live:
                live, assignment = len(me.group.live), me.local.source.turns.assignment
                done, shift = assignment.reached(me.steps), -1 if self.twice else 1
                me.local.assign(done + shift, me.group.live)


@dataclass(frozen=True)
class Assigned:
    """Without lock-step and without claims: each learner takes the minibatches of its turns."""

    lock_step: ClassVar[bool] = False

    async def __call__(self, me: Learner) -> None:
        answers = me.spawn(me.averager.answer(), "answers")
        while (n := me.local.source.next_index(me.steps)) is not None:
            me.local.steps += 1
            me.descend((await me.local.compute(n, None)).g)
        me.averager.done()
        await answers
        me.weights.set_(await me.consensus())


WORLDS = [pytest.param(lambda: VirtualWorld(3), id="virtual"), pytest.param(lambda: ThreadWorld(3), id="threads")]


def experiment(strategy: Strategy, minibatches: int = 31) -> Experiment:
    return Experiment(Quadratic(), strategy, Budget(minibatches=minibatches), SGD(0.1))


@pytest.mark.parametrize("world", WORLDS)
def test_a_minibatch_that_is_never_computed_ends_the_run_with_an_error(world: type[World]) -> None:
    with pytest.raises(IncompleteRun, match="30 minibatches were computed where the budget had 31 left"):
        fit(experiment(Skips()), world())


@pytest.mark.parametrize("world", WORLDS)
def test_a_minibatch_that_takes_the_place_of_another_is_found(world: type[World]) -> None:
    with pytest.raises(IncompleteRun, match=r"31 minibatches were computed, .* some of them twice and others never"):
        fit(experiment(TakesTheNext()), world())


@pytest.mark.parametrize("strategy", [ADPSGD(), SuperLearners(ADPSGD(), 2)], ids=["learners", "nodes"])
def test_what_is_computed_again_after_a_loss_is_no_error(strategy: Strategy) -> None:
    faults = (Kill(2, 0.55), Kill(3, 0.55), Rejoin(2, 1.5), Rejoin(3, 1.5))
    for some in (faults[:2], faults):
        fit(experiment(strategy, 90), VirtualWorld(Cluster(5, ConstantSeconds(0.1), faults=some, lease_seconds=0.3)))


def test_a_learner_that_is_lost_from_lock_step_is_no_error() -> None:
    cluster = Cluster(4, ConstantSeconds(0.1), faults=(Kill(2, 0.75),), lease_seconds=0.3)
    fit(experiment(KAVG(3), 90), VirtualWorld(cluster))


@pytest.mark.parametrize(
    ("twice", "said"), [(False, r"88 minibatches .* 90 left|89 minibatches .* 90 left"), (True, "91 minibatches .* 90")]
)
def test_minibatches_are_counted_after_a_loss_in_lock_step(twice: bool, said: str) -> None:
    cluster = Cluster(4, ConstantSeconds(0.1), faults=(Kill(2, 0.75),), lease_seconds=0.3)
    with pytest.raises(IncompleteRun, match=said):
        fit(experiment(Forgets(twice), 90), VirtualWorld(cluster))


def test_minibatches_are_counted_after_a_loss_without_claims() -> None:
    cluster = Cluster(3, ConstantSeconds(0.1), faults=(Kill(2, 0.75),), lease_seconds=0.3)
    with pytest.raises(IncompleteRun, match=r"\d+ of 60 minibatches were not computed: a learner was lost"):
        fit(experiment(Assigned(), 60), VirtualWorld(cluster))


@given(
    total=st.integers(0, 60),
    first=st.integers(0, 60),
    moved=st.dictionaries(st.integers(0, 80), st.integers(0, 60)),
    learners=st.integers(1, 4),
)
def test_the_fingerprint_of_the_parts_is_that_of_the_whole(
    total: int, first: int, moved: Mapping[int, int], learners: int
) -> None:
    first = min(first, total)
    parts = [Computed() for _ in range(learners)]
    for position in range(first, total):
        part = position % learners
        parts[part] = with_one(parts[part], moved.get(position, position))
    assert sum(part.count for part in parts) == total - first
    left = sum(part.fingerprint for part in parts) - wanted(first, total, moved)
    assert left % (2**44 - 17) == 0


@given(st.lists(st.integers(0, 40), min_size=1, max_size=40))
def test_only_the_same_minibatches_have_the_same_fingerprint(numbers: list[int]) -> None:
    part = reduce(with_one, numbers, Computed())
    assert (part.fingerprint == wanted(0, len(numbers), {})) == (sorted(numbers) == list(range(len(numbers))))
