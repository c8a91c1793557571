"""A resumed run without lock-step has every minibatch in the model once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from murmur.core.learner import Strategy
from murmur.core.world import World
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.position import Claims, Log, Position, go_on
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, ASGD, OwnShares, SuperLearners
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.tally import BUDGET, LEARNERS, CutOff, Tally, alone, expected
from tests.support.tasks import weights_of
from tests.support.unscaled import Experiment


def train(experiment: Experiment, world: World, folder: Path, gradients: int, resume: bool) -> torch.Tensor | None:
    """Train until so many gradients were taken in this launch; the consensus where the run came to its end."""
    task = replace(experiment.task, cut={"left": gradients})
    with suppress(CutOff):
        outcome = Trainer(replace(experiment, task=task), world, folder, resume=resume).fit()
        return weights_of(outcome.model)
    return None


@pytest.mark.parametrize("world", ["virtual", "threads"])
@pytest.mark.parametrize(
    "strategy",
    [
        ADPSGD(alone),
        ASGD(),
        ASGD(servers=2),
        SuperLearners(ADPSGD(alone)),
        OwnShares(ADPSGD(alone)),
        SuperLearners(OwnShares(ADPSGD(alone))),
    ],
    ids=named,
)
def test_every_minibatch_becomes_a_step_once(strategy: Strategy, world: str) -> None:
    experiment = Experiment(Tally(), strategy, Budget(minibatches=BUDGET), SGD(1.0), evaluate_every_epochs=0.5)

    def world_of(factors: list[float]) -> World:
        if world == "threads":
            return ThreadWorld(LEARNERS, timeout_seconds=20, delay=lambda learner: 2e-4 * factors[learner])
        return VirtualWorld(Cluster(LEARNERS, ConstantSeconds(0.1, dict(enumerate(factors)))))

    @settings(
        max_examples=2 if world == "virtual" else 1,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(
        cuts=st.lists(st.integers(1, BUDGET), min_size=1, max_size=3),
        factors=st.lists(st.floats(0.2, 5.0), min_size=LEARNERS, max_size=LEARNERS),
    )
    @example(cuts=[4, 58], factors=[1.6, 2.3, 1.8, 3.2])  # the slowest share lags behind by several evaluation points
    def check(cuts: list[int], factors: list[float]) -> None:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)  # the host lives on
            for launch, gradients in enumerate(cuts):
                train(experiment, world_of(factors), Path(folder), gradients, resume=launch > 0)
            found = train(experiment, world_of(factors), Path(folder), 1000, resume=True)
        assert found is not None
        assert torch.allclose(found, expected(strategy)), found

    check()


@given(st.data())
def test_what_is_done_and_what_is_to_do_make_up_the_run(data: st.DataObject) -> None:
    """Two launches after each other, the second of which begins with what the first had moved."""
    mark, total = 0, 60
    moved: Mapping[int, int] = {}
    behind: set[int] = set()  # numbers
    for _ in range(3):
        mark = data.draw(st.integers(mark, total))
        handed_out = range(len(behind), mark)
        open_ones = data.draw(st.sets(st.sampled_from(handed_out)) if handed_out else st.just(set()))
        beyond = range(mark, min(mark + 5, total))
        early = data.draw(st.sets(st.sampled_from(beyond)) if beyond else st.just(set()))
        done = [p for p in handed_out if p not in open_ones] + sorted(early)
        told = data.draw(st.sets(st.sampled_from(done)) if done else st.just(set()))  # thought unfinished by another
        position = go_on(mark, [Claims(sorted(open_ones), done, moved), Claims(sorted(told | open_ones), (), moved)])
        behind |= {moved.get(p, p) for p in done}
        assert position.done == len(behind)
        to_do = [position.moved.get(p, p) for p in range(position.done, total)]
        assert sorted([*to_do, *behind]) == list(range(total))
        assert to_do[: len(open_ones)] == [moved.get(p, p) for p in sorted(open_ones)]
        assert Position.read(position.described()) == position
        moved, mark = position.moved, max(mark, position.done)


def test_the_log_remembers_two_marks() -> None:
    log = Log()
    for n in (3, 5, 8):
        log.begin(range(n, n + 1))
    assert log.doing == range(8, 9)
    assert log.save(mark=8) == [3, 5]
    log.begin(range(9, 10))
    assert log.save(mark=9) == [3, 5, 8]
    log.finish()
    assert not log.doing
    assert log.save(mark=4) == [5, 8, 9]
