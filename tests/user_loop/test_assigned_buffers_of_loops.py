"""Buffers that a model of a user loop assigns anew: the run is that with buffers changed in place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import BMUF, KAVG, ParameterAveraging, SuperLearners, SyncSGD
from murmur.user_loop.joined import Plan
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.running_means import Assigned, InPlace
from tests.support.user_loops import Words, batch, loss_of


def ran(strategy: Strategy, kind: type[InPlace], size: int) -> list[list[Tensor]]:
    """Return each learner's state at the end, and its buffers and held-out figures in the middle."""

    def body(seat: Seat) -> list[Tensor]:
        rank, seen = seat.group.rank, []
        model = kind(6, 3)
        with torch.no_grad():
            model.outer.weight.fill_(0.1 + rank)
            model.outer.bias.zero_()
        evaluated: list[Tensor] = []

        def evaluate(probe: torch.nn.Module) -> dict[str, float]:
            with torch.no_grad():
                evaluated.append(probe(torch.ones(1, 6)))
            return {"loss": 1.0}

        plan = Plan(total_steps=8 * size, samples_per_step=4.0, evaluate=evaluate)
        with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.1), plan, seat) as me:
            for n in range(8):
                x, y = batch(size * n + rank)
                torch.nn.functional.cross_entropy(model(x + rank), y).backward()
                me.step(4.0)
                if n == 5 and me.size == 1:
                    with me.consensus() as mean:
                        assert torch.isfinite(loss_of(mean, 0))
                    seen.append(model.m.clone())
        return [*model.state_dict().values(), *seen, *evaluated]

    return ThreadWorld(size, 20.0).run(Words(body))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "strategy", [SyncSGD(), KAVG(3), BMUF(2), SuperLearners(KAVG(2), 2), ParameterAveraging(8)], ids=named
)
def test_the_run_is_that_with_buffers_in_place(strategy: Strategy, size: int) -> None:
    ends, wanted = ran(strategy, Assigned, size), ran(strategy, InPlace, size)
    for end, other in zip(ends, wanted, strict=True):
        assert len(end) == len(other)
        assert all(torch.equal(a, b) for a, b in zip(end, other, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ends[0][:4], ends[-1][:4], strict=True))


def test_a_consensus_shows_the_mean_buffers() -> None:
    def body(seat: Seat) -> tuple[Tensor, Tensor]:
        model = Assigned(2, 1)
        with murmur.join(KAVG(100), model, torch.optim.SGD(model.parameters(), 0.0), seat=seat) as me:
            model(torch.full((4, 2), float(me.rank))).sum().backward()
            me.step()
            own = model.m.clone()
            seat.group.count("stepped", 1)
            while seat.group.count("stepped") < 2:
                pass
            with me.consensus():
                mean = model.m.clone()
            assert torch.equal(model.m, own)
        return own, mean

    (own, mean), (other, same) = ThreadWorld(2, 20.0).run(Words(body))  # type: ignore[misc, arg-type]
    assert torch.equal(mean, (own + other) / 2)
    assert torch.equal(mean, same)
