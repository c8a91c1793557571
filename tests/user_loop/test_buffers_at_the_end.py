"""Buffers at the end of a user loop in which some learners have no data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, ASGD, EASGD, KAVG, DecoupledDiLoCo, DelayByOne, Downpour, SuperLearners, SyncSGD
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words


def ends(strategy: Strategy, steps: tuple[int, ...]) -> list[Tensor]:
    """Return the statistics with which each learner ends, after so many steps of each."""

    def body(seat: Seat) -> Tensor:
        model, rank = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)), seat.group.rank
        with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.01), seat=seat) as me:
            for n in range(steps[rank]):
                draw = torch.Generator().manual_seed(10 * rank + n)
                model(torch.randn(8, 2, generator=draw) + 3).square().mean().backward()
                me.step(8)
        return torch.cat([b.flatten().double() for b in model.buffers()])

    return ThreadWorld(len(steps), 20.0).run(Words(body))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "strategy", [SyncSGD(), KAVG(2), DelayByOne(), ADPSGD(), EASGD(), SuperLearners(KAVG(2), 1)], ids=named
)
def test_learners_without_steps_do_not_count(strategy: Strategy) -> None:
    alone, *_ = ends(SyncSGD(), (6,))
    for end in ends(strategy, (6, 0, 0)):
        assert torch.allclose(end, alone, atol=1e-6)


@pytest.mark.parametrize(
    "strategy", [EASGD(), Downpour(), DecoupledDiLoCo(2, 2), ASGD(), SuperLearners(ADPSGD(), 2)], ids=named
)
@pytest.mark.parametrize("steps", [(0, 5), (5, 0)])
def test_learners_end_equal_where_the_first_or_the_others_have_no_data(
    strategy: Strategy, steps: tuple[int, ...]
) -> None:
    first, *others = ends(strategy, steps * (2 if isinstance(strategy, SuperLearners) else 1))
    assert all(torch.equal(end, first) for end in others)


def test_a_forward_pass_without_a_step_leaves_nothing_behind() -> None:
    """Learner 1 has changed its statistics, but the statistics of learners without steps do not count."""

    def body(seat: Seat) -> Tensor:
        model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
        with murmur.join(KAVG(2), model, torch.optim.SGD(model.parameters(), 0.01), seat=seat) as me:
            if me.rank == 1:
                model(torch.randn(8, 2) + 3)
            else:
                model[0].eval()
                model(torch.ones(8, 2)).square().mean().backward()
                me.step(8)
        return torch.cat([b.flatten().double() for b in model.buffers()])

    first, other = ThreadWorld(2, 20.0).run(Words(body))  # type: ignore[arg-type]
    assert torch.equal(first, other)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
def test_all_end_equal_if_nobody_has_data(strategy: Strategy) -> None:
    start = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    assert all(torch.equal(end, start) for end in ends(strategy, (0, 0)))
