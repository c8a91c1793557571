"""Losses that a loop gives to a strategy, or does not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import KAVG, AdaptiveKAVG
from murmur.strategies.adaptive_kavg import AdaComm, Geometric, PostLocal, Rule, Stages
from murmur.user_loop.joined import Plan
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words, loss_of, moved, net, optimizer_of, state


def ran(strategy: Strategy, known: bool, size: int = 2) -> list[Tensor]:
    """Return the ends of loops of unequal length; their losses are given if `known`."""

    def body(seat: Seat) -> Tensor:
        model, rank = net(0), seat.group.rank
        with murmur.join(strategy, model, optimizer_of(model), Plan(total_steps=10 * size), seat) as me:
            for n in range(9 + rank):
                loss = loss_of(model, 2 * n + rank)
                loss.backward()
                me.step(samples=4.0 + rank, **{"loss": float(loss.detach())} if known else {})
        return state(model)

    return ThreadWorld(size, 20.0).run(Words(body))  # type: ignore[arg-type]


@pytest.mark.parametrize("K", [Stages((3,)), Stages((2, 4), (0.4,)), Geometric(4, 1), PostLocal(4, 0.5)], ids=named)
@pytest.mark.parametrize("size", [1, 2])
def test_rules_of_other_figures_need_no_losses(K: Rule, size: int) -> None:
    ends, wanted = (ran(AdaptiveKAVG(K), known, size) for known in (False, True))
    assert moved(ends[0])
    assert all(torch.equal(end, other) for end, other in zip(ends, wanted, strict=True))


def test_a_fixed_K_without_losses_is_the_plain_mean() -> None:
    ends, wanted = ran(AdaptiveKAVG(Stages((3,))), known=False), ran(KAVG(3), known=False)
    assert torch.allclose(ends[0], wanted[0], atol=2e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_adacomm_asks_for_losses_at_the_first_step(size: int) -> None:
    with pytest.raises(ValueError, match=r"AdaComm.* follows the training loss.*me.step\(loss=...\)"):
        ran(AdaptiveKAVG(AdaComm(4)), known=False, size=size)


@pytest.mark.parametrize("gives", [lambda loss: loss, lambda loss: float(loss.detach())], ids=["tensor", "number"])
def test_the_loss_of_a_closure_reaches_the_strategy(gives: object) -> None:
    def run(routed: bool) -> Tensor:
        model = net(0)
        optimizer = optimizer_of(model)
        with murmur.join(AdaptiveKAVG(AdaComm(3)), model, optimizer, Plan(total_steps=12)) as me:
            for n in range(12):
                loss = loss_of(model, n)
                loss.backward()
                if not routed:
                    me.step(loss=float(loss.detach()))
                    continue
                with murmur.routed(me):
                    optimizer.step(lambda loss=loss: gives(loss))  # type: ignore[misc, operator]
            assert math.isfinite(me.progress.loss)
        return state(model)

    assert torch.equal(run(routed=True), run(routed=False))


def test_a_closure_without_a_loss_steps_all_the_same() -> None:
    model = net(0)
    optimizer = optimizer_of(model)
    with murmur.join(KAVG(3), model, optimizer) as me, murmur.routed(me):
        assert optimizer.step(lambda: loss_of(model, 0).backward()) is None  # type: ignore[arg-type, func-returns-value]
    assert moved(state(model))


@pytest.mark.filterwarnings("error")
def test_a_loss_may_be_the_tensor_itself() -> None:
    model = net(0)
    with murmur.join(KAVG(2), model, optimizer_of(model)) as me:
        loss = loss_of(model, 0)
        loss.backward()
        me.step(loss=loss)
        assert me.progress.loss == loss.item()
