"""Shares assigned before the run: every minibatch once and by its owner, in every world; nothing else changes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch

from murmur.core.compression import COMPRESSIONS, CompressedGroup
from murmur.core.errors import IncompleteRun
from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.core.membership import Preparation
from murmur.core.world import Seat, World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.trainer import Trainer
from murmur.recipes.toy import ToyTask
from murmur.strategies import ADPSGD, ASGD, OwnShares, SuperLearners
from murmur.strategies.own_shares import SharesGroup
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, LognormalSeconds, Rejoin
from murmur.worlds.virtual.world import VirtualWorld
from tasks import fit
from unscaled import Experiment

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


@pytest.mark.parametrize(
    ("strategy", "learners"),
    [(OwnShares(), 3), (SuperLearners(OwnShares(), 2), 6), (OwnShares(SuperLearners(ADPSGD(), 2)), 5)],
    ids=["learners", "nodes", "around nodes"],
)
def test_a_share_that_a_lost_learner_has_left_is_told_and_done_after_a_resume(
    strategy: Strategy, learners: int, tmp_path: Path
) -> None:
    """The checkpoints after the loss are those of the others, who must know what is left of its share."""
    taken: list[int] = []
    run = Experiment(Noted(4, 16, per_epoch=60), strategy, Budget(epochs=1), SGD(0.05), evaluate_every_epochs=0.2)
    object.__setattr__(run.task, "taken", taken)
    world = VirtualWorld(Cluster(learners, ConstantSeconds(0.1), faults=(Kill(2, 0.35),), lease_seconds=0.3))
    with pytest.raises(IncompleteRun, match=r"\d+ of 60 minibatches were not computed: a learner was lost") as found:
        Trainer(run, world, tmp_path).fit()
    undone = set(range(60)) - set(taken)
    assert found.value.lost
    assert len(undone) <= int(str(found.value).split()[0]) <= len(undone) + 2  # it was killed in the middle of a claim
    assert 10 < len(undone) < 20
    assert len(taken) == len(set(taken))
    Trainer(run, VirtualWorld(learners), tmp_path, resume=True).fit()
    assert set(taken) == set(range(60))


def test_a_learner_that_is_started_again_repeats_the_claim_in_which_it_was_killed() -> None:
    faults = (Kill(2, 0.55), Rejoin(2, 0.8))
    _, taken = taken_by(OwnShares(), VirtualWorld(Cluster(3, ConstantSeconds(0.1), faults=faults)), 60)
    assert set(taken) == set(range(60))
    assert len(taken) == 61


def test_shares_do_not_tolerate_a_loss() -> None:
    assert not Facts.of(OwnShares()).tolerates_loss
    assert not Facts.of(SuperLearners(OwnShares(), 2)).tolerates_loss


async def claimed_and_prepared(seat: Seat) -> list[tuple[range | None, list[range]]]:
    membership, found = SharesGroup(seat.group, range(1, 4), 4).membership, []
    for size in ((), (3,), (3,), (3,)):
        prepared: list[range] = []
        claim = membership.claim(10, 20, *size)
        membership.expect(0.1, Preparation(begin=prepared.append))
        found.append((claim, prepared))
    return found


def test_the_next_share_is_prepared() -> None:
    """Place 1 of 4, numbers 10 to 19: one number, then up to three at a time."""
    assert VirtualWorld(Cluster(1)).run(claimed_and_prepared) == [
        [(range(11, 12), [range(15, 16)]), (range(15, 18), [range(19, 20)]), (range(19, 20), []), (None, [])]
    ]


def test_a_server_that_claims_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="its servers would leave theirs undone"):
        OwnShares(ASGD())


async def in_a_format(seat: Seat) -> tuple[bool, bool]:
    group, x = SharesGroup(CompressedGroup(seat.group, COMPRESSIONS["bfloat16"]), range(1), 1), torch.tensor([1.001])
    return torch.equal(group.as_sent(x), x.bfloat16().float()), group.plain is seat.group


def test_shares_in_a_format_know_what_the_others_get() -> None:
    assert VirtualWorld(Cluster(1)).run(in_a_format) == [(True, True)]
