"""Numbers that are not finite in a user loop: they are left out, as in the engine, and learners go on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import (
    ADPSGD,
    BMUF,
    EASGD,
    KAVG,
    Compressed,
    DecoupledDiLoCo,
    DelayByOne,
    DiLoCo,
    NoLoCo,
    SlowMo,
    SuperLearners,
    SyncSGD,
)
from murmur.user_loop.joined import Joined, Plan
from murmur.worlds.threads import ThreadSeat, ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Net, Words, batch, moved, net, optimizer_of, state

BAD = 4
STRATEGIES = [
    SyncSGD(),
    KAVG(3),
    KAVG(3, moments="averaged"),
    BMUF(3),
    SlowMo(3),
    DiLoCo(3),
    DelayByOne(),
    ADPSGD(),
    EASGD(),
    NoLoCo(3),
    DecoupledDiLoCo(3, 3),
    Compressed(KAVG(3), "int8"),
    SuperLearners(KAVG(2), 2),
]


@pytest.fixture(params=[False, True], ids=["after", "beside"])
def sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums after the steps, and overlapping them as in processes."""
    monkeypatch.setattr(ThreadSeat, "overlaps", request.param)


def loss_at(model: nn.Module, n: int, factor: float) -> Tensor:
    """Return the loss of minibatch n with its input times a factor."""
    x, y = batch(n)
    return nn.functional.cross_entropy(model(x * factor), y)


def ran(size: int, body: object) -> list[object]:
    return ThreadWorld(size, 20.0).run(Words(body))  # type: ignore[arg-type]


def finite(*parts: Tensor) -> bool:
    return all(bool(part.isfinite().all()) for part in parts)


def gradient(model: Net) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def in_optimizer(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [v for kept in optimizer.state.values() for v in kept.values() if isinstance(v, Tensor)]


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize("known", [True, False], ids=["loss", "no loss"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_a_learner_goes_on_after_a_bad_minibatch(strategy: Strategy, known: bool) -> None:
    def body(seat: Seat) -> tuple[Tensor, bool]:
        model = net(0)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.01)
        later = []
        with murmur.join(strategy, model, optimizer, seat=seat) as me:
            for n in range(20):
                bad = me.rank == 1 and n == BAD
                loss = loss_at(model, 2 * n + me.rank, math.nan if bad else 1.0)
                loss.backward()
                later += [finite(gradient(model))] if n > BAD else []
                me.step(4.0, loss=float(loss.detach()) if known else None)
        return state(model), all(later) and finite(*in_optimizer(optimizer))

    for end, good in ran(2, body):  # type: ignore[misc]
        assert finite(end)
        assert moved(end)
        assert good


@pytest.mark.parametrize("known", [True, False], ids=["loss", "no loss"])
@pytest.mark.parametrize("first", [0, BAD])
def test_alone_it_is_the_loop_without_that_minibatch(known: bool, first: int) -> None:
    """The running statistics of BatchNorm are those before it, too."""
    model, plain = net(3), net(3)
    optimizer, other = optimizer_of(model), optimizer_of(plain)
    with murmur.join(KAVG(4), model, optimizer) as me:
        for n in range(10):
            loss = loss_at(model, n, math.inf if n in (first, BAD + 2) else 1.0)
            loss.backward()
            me.step(loss=float(loss.detach()) if known else None)
            if n not in (first, BAD + 2):
                loss_at(plain, n, 1.0).backward()
                other.step()
                other.zero_grad()
            assert torch.equal(state(model), state(plain))


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(3)], ids=named)
def test_a_bad_minibatch_has_no_weight(strategy: Strategy) -> None:
    """Its samples, however many, count as none: the others' mean is theirs alone."""

    def end(bad: bool) -> Tensor:
        def body(seat: Seat) -> Tensor:
            model = net(0)
            with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
                for n in range(6):
                    out = me.rank == 1 and n == BAD
                    if not (out and not bad):
                        loss_at(model, 2 * n + me.rank, math.nan if out else 1.0).backward()
                    me.step((1e9 if bad else 1e-9) if out else 4.0)
            return torch.cat([p.detach().flatten() for p in model.parameters()])

        return ran(2, body)[0]  # type: ignore[return-value]

    assert torch.allclose(end(bad=True), end(bad=False), atol=2e-6)


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(3)], ids=named)
@pytest.mark.usefixtures("sums")
def test_bad_weights_are_replaced_and_the_optimizer_restarts(
    strategy: Strategy, caplog: pytest.LogCaptureFixture
) -> None:
    def body(seat: Seat) -> tuple[Tensor, bool]:
        model = net(0)
        optimizer = optimizer_of(model)
        with murmur.join(strategy, model, optimizer, seat=seat) as me:
            for n in range(12):
                if me.rank == 1 and n == BAD:
                    with torch.no_grad():
                        model.inner.weight.fill_(math.nan)
                loss_at(model, 2 * n + me.rank, 1.0).backward()
                me.step(4.0)
        return state(model), finite(*in_optimizer(optimizer))

    ends = ran(2, body)
    assert torch.equal(ends[0][0], ends[1][0])  # type: ignore[index]
    assert all(finite(end) and good for end, good in ends)  # type: ignore[misc]
    assert sum("are replaced by the others' (replacement 1)" in message for message in caplog.messages) == 1


def diverge(me: Joined, model: Net, first: float) -> None:
    for n in range(20):
        loss_at(model, n, math.nan if n >= first else 1.0).backward()
        me.step()


@pytest.mark.parametrize("size", [1, 2])
def test_bad_gradients_that_go_on_end_the_run_with_advice(size: int) -> None:
    def body(seat: Seat) -> None:
        model = net(0)
        with murmur.join(KAVG(2), model, optimizer_of(model), Plan(most_skipped=4), seat) as me:
            diverge(me, model, 3)

    with pytest.raises(FloatingPointError, match=r"the gradient is not finite.* of the 3 minibatches before.*warm it"):
        ran(size, body)


def test_the_limit_is_checked() -> None:
    with pytest.raises(ValueError, match="most_skipped must be at least 1"):
        Plan(most_skipped=0)
