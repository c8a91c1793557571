"""Shares assigned before the run: every minibatch once and by its owner, in every world; nothing else changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from murmur.core.group import PeerLost
from murmur.core.learner import Strategy
from murmur.core.membership import MembershipTable, Shares
from murmur.core.world import Seat, World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, ASGD, KAVG, Downpour, OwnShares, SuperLearners, SyncSGD
from murmur.strategies.compressed import COMPRESSIONS, CompressedGroup
from murmur.strategies.own_shares import SharesGroup
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, LognormalSeconds, Rejoin
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.tasks import fit
from tests.support.unscaled import Experiment

TOY = ToyTask(samples=4, hidden=16, per_epoch=30)


class Noted(ToyTask):
    """Task that records minibatches as their gradients are taken; the world seats learners in one process."""

    taken: list[int]

    def loss(self, model, minibatch):  # type: ignore[no-untyped-def]
        self.taken.append(minibatch[2])
        return super().loss(model, minibatch[:2])

    def minibatch(self, n):  # type: ignore[no-untyped-def]
        return (*super().minibatch(n), n)


def taken_by(strategy: Strategy, world: World, minibatches: int) -> tuple[dict[int, int], list[int]]:
    """Return the steps of each learner, and the minibatches in the order in which they were taken."""
    task, steps = Noted(samples=4, hidden=16, per_epoch=30), defaultdict[int, int](int)
    object.__setattr__(task, "taken", [])

    def record_step(record: Record) -> None:
        steps[record.learner] += record.kind == "step"

    run = Experiment(task, strategy, Budget(minibatches=minibatches), SGD(0.05))
    Trainer(run, world, observers=lambda _: (record_step,)).fit()
    return dict(steps), task.taken


@pytest.mark.parametrize(
    "world", [VirtualWorld(Cluster(4, LognormalSeconds(0.1, 0.5))), ThreadWorld(3)], ids=["virtual", "threads"]
)
def test_every_minibatch_once_and_as_many_for_each(world: World) -> None:
    steps, taken = taken_by(OwnShares(), world, 62)
    assert sorted(taken) == list(range(62))
    assert [steps[i] for i in range(world.size)] == [len(range(i, 62, world.size)) for i in range(world.size)]


def test_a_straggler_keeps_its_share_and_all_wait() -> None:
    worlds = [VirtualWorld(Cluster(4, ConstantSeconds(0.1, {1: 5.0}))) for _ in range(2)]
    shares, claims = (taken_by(s, w, 80)[0] for s, w in zip((OwnShares(), ADPSGD()), worlds, strict=True))
    assert shares == dict.fromkeys(range(4), 20)
    assert claims[1] < 8
    assert worlds[0].clock.now == pytest.approx(20 * 0.5, rel=0.1)
    assert 2.5 <= worlds[1].clock.now <= 2.5 + 0.5 + 0.1  # the straggler may have begun its last one late


def test_one_learner_is_the_plain_loop() -> None:
    run = Experiment(TOY, OwnShares(), Budget(minibatches=40), SGD(0.1))
    assert torch.equal(fit(run, VirtualWorld(1)), plain_loop(run))


def test_what_a_lost_learner_had_left_is_taken_over() -> None:
    world = VirtualWorld(Cluster(3, ConstantSeconds(0.1), faults=(Kill(2, 0.55),), lease_seconds=1.0))
    _, taken = taken_by(OwnShares(), world, 60)
    assert world.killed == [2]
    assert set(taken) == set(range(60))
    assert 2.0 < world.clock.now < 2.0 + 0.1 * 14  # their own first, then about half of the rest each


def test_a_learner_that_comes_back_goes_on_behind_its_earlier_minibatches() -> None:
    faults = (Kill(2, 0.55), Rejoin(2, 1.2))
    world = VirtualWorld(Cluster(3, ConstantSeconds(0.1), faults=faults, lease_seconds=0.1))
    steps, taken = taken_by(OwnShares(), world, 60)
    assert sorted(set(taken)) == list(range(60))
    assert len(taken) <= 61  # the one that it was computing when it was lost
    assert steps[2] == len(range(2, 60, 3)) - 1


@pytest.mark.parametrize(
    ("strategy", "learners"),
    [(OwnShares(), 3), (SuperLearners(OwnShares(), 2), 6), (OwnShares(SuperLearners(ADPSGD(), 2)), 5)],
    ids=["learners", "nodes", "around nodes"],
)
def test_a_run_that_is_resumed_does_what_a_lost_learner_had_left(
    strategy: Strategy, learners: int, tmp_path: Path
) -> None:
    """The checkpoints after the loss are those of the others, who must know what is left of its share."""
    taken: list[int] = []
    run = Experiment(Noted(4, 16, per_epoch=60), strategy, Budget(epochs=1), SGD(0.05), evaluate_every_epochs=0.2)
    object.__setattr__(run.task, "taken", taken)
    faults = (Kill(2, 0.35), *(Kill(i, 0.95 if learners > 3 else 1.65) for i in range(learners)))
    world = VirtualWorld(Cluster(learners, ConstantSeconds(0.1), faults=faults, lease_seconds=0.3))
    with pytest.raises(PeerLost):
        Trainer(run, world, tmp_path).fit()
    before = set(taken)
    assert 10 < len(set(range(60)) - before) < 30
    Trainer(run, VirtualWorld(learners), tmp_path, resume=True).fit()
    assert set(taken) == set(range(60))
    assert len(taken) < 60 + len(before)  # it goes on from a checkpoint


def claims(table: MembershipTable, rank: int, size: int, most: int = 99) -> list[range]:
    return list(islice(iter(lambda: table.claim(rank, 10, 20, size), None), most))


def test_the_table_hands_out_own_shares_then_those_of_lost_learners() -> None:
    """Numbers 10 to 19 in turns of 4: one number for rank 0, three for rank 1, the last turn is cut."""
    table = MembershipTable.of(2)
    table.divide(Shares((0, 1), 4))
    assert claims(table, 1, 3, most=2) == [range(11, 14), range(15, 18)]
    assert table.unfinished() == [10, 14, 15, 16, 17]
    table.lose(1)
    assert claims(table, 0, 1) == [range(n, n + 1) for n in (10, 14, 18, 15, 16, 17, 19)]
    assert table.spent


def test_shares_are_the_same_for_all_and_made_before_the_first_claim() -> None:
    table = MembershipTable.of(2)
    table.divide(Shares((0, 1), 2))
    table.divide(Shares((0, 1), 2))
    with pytest.raises(ValueError, match="cannot be divided"):
        table.divide(Shares((0, 2), 3))
    claimed = MembershipTable.of(2)
    claimed.claim(0, 0, 9)
    with pytest.raises(ValueError, match="cannot be divided"):
        claimed.divide(Shares((0, 1), 2))


@pytest.mark.parametrize("made", [ASGD, lambda: SuperLearners(ASGD(), 2), lambda: Downpour(servers=1)])
def test_a_server_that_claims_nothing_is_refused(made: Callable[[], Strategy]) -> None:
    with pytest.raises(ValueError, match="its servers would leave theirs undone"):
        OwnShares(made())


@pytest.mark.parametrize("inner", [KAVG(4), SuperLearners(SyncSGD(), 2), OwnShares(), SuperLearners(OwnShares(), 2)])
def test_shares_of_strategies_that_have_them_are_refused(inner: Strategy) -> None:
    with pytest.raises(ValueError, match=r"lock-step|twice"):
        OwnShares(inner)


async def in_a_format(seat: Seat) -> tuple[bool, bool]:
    group, x = SharesGroup(CompressedGroup(seat.group, COMPRESSIONS["bfloat16"]), range(1), 1), torch.tensor([1.001])
    return torch.equal(group.as_sent(x), x.bfloat16().float()), group.plain is seat.group


def test_shares_in_a_format_know_what_the_others_get() -> None:
    assert VirtualWorld(Cluster(1)).run(in_a_format) == [(True, True)]
