"""Lock-step averaging in the virtual world while learners are killed, stopped and started again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.core.facts import Facts
from murmur.core.group import PeerLost
from murmur.core.learner import Learner
from murmur.core.membership import RunOver
from murmur.core.world import Seat
from murmur.elastic.elastic_group import ElasticGroup
from murmur.elastic.regrouping import regroups
from murmur.elastic.rendezvous import LeftBehind, Named
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.task_source import TaskSource
from murmur.engine.trainer import Outcome, Trainer
from murmur.strategies import (
    ADPSGD,
    ASGD,
    BMUF,
    KAVG,
    AdaptiveKAVG,
    Compressed,
    DelayByOne,
    DiLoCo,
    ParameterAveraging,
    SlowMo,
    SuperLearners,
    SyncSGD,
)
from murmur.strategies.parameter_averaging import Jobs
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, LognormalSeconds, Rejoin, Stop
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.unscaled import Experiment

Fault = Kill | Rejoin | Stop
TOTAL, LEASE = 96, 2.0
OUTLIVING = [
    KAVG(4),
    KAVG(4, moments="averaged"),
    BMUF(4),
    SlowMo(4),
    DiLoCo(4),
    AdaptiveKAVG(),
    ParameterAveraging(frames_per_iteration=100),
    ParameterAveraging(frames_per_iteration=100, jobs=Jobs(1)),
]


@dataclass(frozen=True)
class Logged(ToyTask):
    """Task that records the minibatches drawn."""

    drawn: list[int] = field(default_factory=list, hash=False, compare=False)

    def minibatch(self, n: int) -> Any:
        self.drawn.append(n)
        return super().minibatch(n)


def train(strategy: Any, faults: Sequence[Fault], learners: int = 4, jitter: bool = True) -> tuple[Outcome, list[int]]:
    compute = LognormalSeconds(0.1, 0.2) if jitter else ConstantSeconds(0.1)
    cluster = Cluster(learners=learners, compute=compute, faults=tuple(faults), lease_seconds=LEASE)
    task = Logged(hidden=4, per_epoch=TOTAL)
    experiment = Experiment(task, strategy, Budget(epochs=1), SGD(0.05), evaluate_every_epochs=0.3)
    # With a possible stop request, learners ask each other at boundaries, which all must count alike.
    return Trainer(experiment, VirtualWorld(cluster), asked=lambda: False).fit(), task.drawn


def weights_of(outcome: Outcome) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in outcome.model.parameters()])


@pytest.mark.parametrize("strategy", OUTLIVING, ids=named)
def test_a_kill_costs_only_unfinished_minibatches(strategy: Any) -> None:
    for faults in ([Kill(2, 0.73)], [Kill(0, 0.31)], [Kill(0, 0.5), Kill(1, 1.1)], [Kill(1, 0.4), Kill(3, 0.4001)]):
        outcome, drawn = train(strategy, faults)
        assert outcome.leads
        times = Counter(drawn)
        assert sorted(times) == list(range(TOTAL))
        assert sum(times.values()) - TOTAL <= len(faults) * 16  # at most the work of the lost in one round
        assert torch.isfinite(weights_of(outcome)).all()


@pytest.mark.parametrize("strategy", OUTLIVING, ids=named)
def test_a_learner_that_comes_late_takes_part(strategy: Any) -> None:
    outcome, drawn = train(strategy, [Kill(1, 0.3), Rejoin(1, 0.5)])
    assert sorted(set(drawn)) == list(range(TOTAL))
    assert outcome.leads
    back, _ = train(strategy, [Kill(1, 0.3), Rejoin(1, 0.5)])
    assert torch.equal(weights_of(back), weights_of(outcome))


@pytest.mark.parametrize("strategy", OUTLIVING[:3], ids=named)
def test_a_late_learner_takes_over_work(strategy: Any) -> None:
    """Three learners would need 3.2 s for the gradients alone."""
    faults = (Kill(1, 0.3), Rejoin(1, 0.5))
    world = VirtualWorld(Cluster(learners=4, compute=ConstantSeconds(0.1), faults=faults, lease_seconds=LEASE))
    Trainer(Experiment(ToyTask(hidden=4, per_epoch=TOTAL), strategy, Budget(epochs=1), SGD(0.05)), world).fit()
    assert world.clock.now < TOTAL / 3 * 0.1


def test_a_learner_wrongly_considered_dead_comes_back() -> None:
    outcome, drawn = train(KAVG(2), [Stop(1, 0.35, LEASE + 0.5)])
    assert sorted(set(drawn)) == list(range(TOTAL))
    assert outcome.leads


@pytest.mark.parametrize("strategy", OUTLIVING, ids=named)
@pytest.mark.parametrize("at", [0.35, *(pytest.param(at, marks=pytest.mark.slow) for at in (0.05, 0.9))])
def test_learners_that_considered_each_other_lost_form_a_group(strategy: Any, at: float) -> None:
    """All stand still for longer than the lease, at once or in succession."""
    for apart in (0.0, 0.02, LEASE / 2):
        faults = [Stop(rank, at + rank * apart, LEASE + 0.5 + 0.1 * (rank % 2)) for rank in range(4)]
        outcome, drawn = train(strategy, faults)
        times = Counter(drawn)
        assert sorted(times) == list(range(TOTAL))
        assert sum(times.values()) - TOTAL <= 4 * 16  # at most the work of all in one round
        assert outcome.leads
        assert torch.isfinite(weights_of(outcome)).all()


@pytest.mark.parametrize("strategy", OUTLIVING[:3], ids=named)
@pytest.mark.timeout(60)
def test_a_learner_considered_lost_does_not_wait_for_lost_members(strategy: Any) -> None:
    """All members of its group are dead, or considered so, when one of them is started again before it goes on."""
    faults = [Kill(0, 0.5), Stop(2, 3.5, 5.8), Kill(1, 3.9), Rejoin(1, 7.6)]
    outcome, drawn = train(strategy, faults, 3)
    assert sorted(set(drawn)) == list(range(TOTAL))
    assert outcome.leads


@pytest.mark.parametrize("strategy", [*OUTLIVING[:2], ADPSGD()], ids=named)
def test_the_end_is_written_whenever_the_leader_is_killed(strategy: Any, tmp_path: Path) -> None:
    """Kill the leader at moments around the last mean, the evaluation and the writing after it."""
    task = Logged(hidden=4, per_epoch=24)
    experiment = Experiment(task, strategy, Budget(epochs=1), SGD(0.05))
    ends = []
    for step in range(0, 40, 2):
        cluster = Cluster(
            learners=3, compute=ConstantSeconds(0.1), faults=(Kill(0, 0.75 + 0.01 * step),), lease_seconds=LEASE
        )
        out = tmp_path / str(step)
        outcome = Trainer(experiment, VirtualWorld(cluster), out).fit()
        assert outcome.leads
        assert outcome.figures["loss"] == json.loads((out / "model.json").read_text())["figures"]["loss"]
        kinds = [json.loads(line)["kind"] for line in (out / "records.jsonl").read_text().splitlines()]
        assert "evaluation" in kinds
        ends.append(outcome.learner)
    assert set(ends) == {0, 1}


@pytest.mark.parametrize("end", [RunOver(), LeftBehind(Named({0: 0}, "again"))], ids=["over", "behind"])
def test_a_learner_ends_if_others_have_ended_at_the_last_barrier(
    end: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet = ElasticGroup.meet

    async def late(self: ElasticGroup, barrier: str) -> None:
        if self.rank == 2:
            raise end
        await meet(self, barrier)

    monkeypatch.setattr(ElasticGroup, "meet", late)
    outcome, _ = train(KAVG(4), [], 3)
    assert outcome.leads


def test_the_mean_after_a_loss_is_that_of_those_that_are_left() -> None:
    """By hand: K = 2, three learners; 1 dies in the second round; its minibatches 7 and 10 are done next."""
    outcome, _ = train(KAVG(2), [Kill(1, 0.25)], learners=3, jitter=False)
    task = Logged(hidden=4, per_epoch=TOTAL)
    experiment = Experiment(task, KAVG(2), Budget(epochs=1), SGD(0.05))
    steps = Steps(experiment)
    w = steps.round(steps.start, [[0, 3], [1, 4], [2, 5]])
    w = steps.round(w, [[6, 9], [8, 11]])
    order = [7, 10, *range(12, TOTAL)]
    for i in range(0, len(order), 4):
        w = steps.round(w, [order[i : i + 4 : 2], order[i + 1 : i + 4 : 2]])
    assert torch.allclose(weights_of(outcome), w, atol=1e-6)


class Steps:
    """Rounds of K-step averaging by one learner, which also takes the others' steps."""

    def __init__(self, experiment: Experiment) -> None:
        found: list[TaskSource] = []

        async def program(seat: Seat) -> None:
            found.append(TaskSource(experiment, seat, ()))

        VirtualWorld(1).run(program)
        self.source = found[0]
        self.start = self.source.layout.gather().clone()

    def round(self, w: torch.Tensor, numbers: Sequence[Sequence[int]]) -> torch.Tensor:
        ended = []
        for mine in numbers:
            self.source.layout.scatter(w)
            for n in mine:
                gradient = self.source.draw(n, None)
                self.source.layout.scatter(self.source.layout.gather() - 0.05 * gradient.g)
            ended.append(self.source.layout.gather().clone())
        return torch.stack(ended).mean(0)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_schedules_end_with_every_minibatch_done(data: st.DataObject) -> None:
    strategy = data.draw(st.sampled_from(OUTLIVING), "strategy")
    learners = data.draw(st.integers(2, 5), "learners")
    moment = st.floats(0.01, 6.0)
    faults: list[Fault] = []
    for place, learner in enumerate(data.draw(st.permutations(range(learners)))):
        kinds = ["none", "stop"] + (["kill", "kill", "back"] if place > 0 else [])  # one is never killed
        kind = data.draw(st.sampled_from(kinds), "fault")
        at = data.draw(moment, "at")
        if kind in ("kill", "back"):
            faults.append(Kill(learner, at))
        if kind == "back":
            faults.append(Rejoin(learner, at + data.draw(moment, "away")))
        if kind == "stop":
            faults.append(Stop(learner, at, data.draw(st.floats(0.1, 3 * LEASE), "for")))
    outcome, drawn = train(strategy, faults, learners)
    assert sorted(set(drawn)) == list(range(TOTAL))
    assert outcome.leads
    assert torch.isfinite(weights_of(outcome)).all()


def test_a_restarted_first_learner_takes_no_messages_to_its_earlier_life() -> None:
    """Learner 0 is killed and comes back. Two losses later it forms groups again, with the others' old messages to it.

    It named a group whose second member still waited for the news of a loss, and all learners waited for ever.
    """
    faults = [
        Stop(3, 2.545339300099233, 4.7156388050544695),
        Kill(1, 0.29290368055617144),
        Kill(0, 1.7558894334558268),
        Rejoin(0, 2.3558894334558267),
        Kill(2, 5.073053112447507),
        Rejoin(2, 10.097423918896869),
    ]
    outcome, drawn = train(KAVG(K=4), faults, 5)
    assert sorted(set(drawn)) == list(range(TOTAL))
    assert torch.isfinite(weights_of(outcome)).all()


@pytest.mark.parametrize("strategy", [SyncSGD(), DelayByOne()], ids=named)
def test_strategies_that_need_all_learners_in_every_step_end(strategy: Any) -> None:
    with pytest.raises(PeerLost, match="learner 2"):
        train(strategy, [Kill(2, 0.73)])


def test_lock_step_strategies_that_tolerate_a_loss_regroup() -> None:
    assert all(regroups(strategy) for strategy in OUTLIVING)
    for strategy in (SyncSGD(), DelayByOne(), ADPSGD(), ASGD(), Compressed(KAVG()), SuperLearners(KAVG(), 2)):
        assert not regroups(strategy)


def test_lock_step_leaders_do_not_go_on_without_another() -> None:
    assert Facts.of(SuperLearners(ADPSGD(), 2)).tolerates_loss
    assert not Facts.of(SuperLearners(KAVG(), 2)).tolerates_loss


@pytest.mark.parametrize("strategy", OUTLIVING, ids=named)
def test_without_a_loss_nothing_is_different(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it, _ = train(strategy, [])
    monkeypatch.setattr("murmur.elastic.regrouping.regroups", lambda _: False)
    without, _ = train(strategy, [])
    assert torch.equal(weights_of(with_it), weights_of(without))


@dataclass(frozen=True)
class Momenta(BMUF):
    """BMUF that records the block momentum with which each learner ends."""

    found: dict[int, torch.Tensor] = field(default_factory=dict, hash=False, compare=False)

    async def __call__(self, me: Learner) -> None:
        await super().__call__(me)
        self.found[me.group.rank] = me.outer["Delta"]


def test_a_late_learner_takes_over_the_vectors_of_the_strategy() -> None:
    """With another momentum than the others' it would leave each round with a different model."""
    strategy = Momenta(4, eta=0.9)
    train(strategy, [Kill(1, 0.3), Rejoin(1, 0.5)])
    assert sorted(strategy.found) == [0, 1, 2, 3]
    for delta in strategy.found.values():
        assert torch.equal(delta, strategy.found[0])
