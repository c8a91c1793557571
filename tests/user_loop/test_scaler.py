"""Loss scalers in a user loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, ALL, BMUF, KAVG, SuperLearners, SyncSGD
from murmur.user_loop.joined import Plan
from murmur.worlds.threads import ThreadSeat, ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words, evaluate, loss_of, moved, net, optimizer_of, state


@pytest.fixture(params=[False, True], ids=["after", "beside"])
def sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if sums overlap the steps, as in processes."""
    monkeypatch.setattr(ThreadSeat, "overlaps", request.param)
    return bool(request.param)


def ran(body: object) -> list[object]:
    return ThreadWorld(2, 20.0).run(Words(body))  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), BMUF(2), ADPSGD()], ids=named)
def test_an_overflow_skips_the_step_and_takes_part(strategy: Strategy, sums: bool) -> None:
    """At first all learners overflow, as loss scalers cause it; later a single learner does."""

    def body(seat: Seat) -> Tensor:
        model = net(0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
            for n in range(20):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = loss_of(model, n)
                overflows = n < 5 or (n == 8 and me.rank == 1)
                scaler.scale(loss * torch.inf if overflows else loss).backward()
                scaler.unscale_(me)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(me)
                scaler.update()
                if n < 5 and not isinstance(strategy, ADPSGD):
                    assert torch.equal(model.inner.weight, net(0).inner.weight)
        assert scaler.get_scale() == 1024.0 / 2 ** (5 + me.rank)
        return state(model)

    first, second = ran(body)
    assert torch.equal(first, second)  # type: ignore[arg-type]
    assert torch.isfinite(first).all()  # type: ignore[arg-type]
    assert moved(first)  # type: ignore[arg-type]


@pytest.mark.parametrize("clips", [False, True], ids=["as they are", "clipped"])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2)], ids=named)
def test_scaling_changes_nothing(strategy: Strategy, clips: bool, sums: bool) -> None:
    """Gradients are unscaled once: by the loop if it clips, else by the step."""

    def scaled(seat: Seat) -> Tensor:
        model = net(0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
            for n in range(5):
                scaler.scale(loss_of(model, 2 * n + me.rank)).backward()
                if clips:
                    scaler.unscale_(me)
                    assert float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)) < 10.0
                    with pytest.raises(RuntimeError, match="already been called"):
                        scaler.unscale_(me)
                scaler.step(me)
                scaler.update()
        assert scaler.get_scale() == 1024.0
        return state(model)

    def plain(seat: Seat) -> Tensor:
        model = net(0)
        with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
            for n in range(5):
                loss_of(model, 2 * n + me.rank).backward()
                if clips:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                me.step()
        return state(model)

    end = ran(scaled)[0]
    assert moved(end)  # type: ignore[arg-type]
    assert torch.allclose(end, ran(plain)[0], atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2)], ids=named)
def test_routed_steps_under_a_scaler(strategy: Strategy, fused: bool) -> None:
    """Learners have scales of their own, and one overflows once: the run is that of `scaler.step(me)`."""

    def body_of(routes: bool) -> Callable[[Seat], Tensor]:
        def body(seat: Seat) -> Tensor:
            model, rank = net(0), seat.group.rank
            optimizer = torch.optim.Adam(model.parameters(), 0.05, fused=fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=16.0 * 64**rank)
            with (
                murmur.join(strategy, model, optimizer, seat=seat) as me,
                murmur.routed(me) if routes else nullcontext(),
            ):
                for n in range(6):
                    scaler.scale(loss_of(model, 2 * n + rank) * (torch.inf if n == 3 and rank == 1 else 1)).backward()
                    scaler.step(optimizer if routes else me)
                    scaler.update()
            assert scaler.get_scale() == (512.0 if rank == 1 else 16.0)
            assert getattr(optimizer, "_step_supports_amp_scaling", False) is fused
            return state(model)

        return body

    routed, stepped = ran(body_of(True)), ran(body_of(False))
    assert moved(routed[0])  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(routed, stepped, strict=True))  # type: ignore[arg-type]


ALL_IN_LOOPS = {
    name: (make(), 4 if name == "SuperLearners" else 3) for name, make in ALL.items() if name != "OwnShares"
} | {"nodes": (SuperLearners(KAVG(2), 2), 4)}


@pytest.mark.parametrize(("strategy", "size"), ALL_IN_LOOPS.values(), ids=ALL_IN_LOOPS)
def test_overflows_of_one_learner_spoil_no_strategy(strategy: Strategy, size: int) -> None:
    """The last learner overflows in a third of its steps: learners end equal, with weights that have moved."""
    plan = Plan(total_steps=12 * size, evaluate=evaluate, timeout_seconds=20.0)

    def body(seat: Seat) -> Tensor:
        model, rank = net(0), seat.group.rank
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        with murmur.join(strategy, model, optimizer_of(model), plan, seat) as me:
            for n in range(12):
                overflows = n % 3 == 1 and rank == size - 1
                scaler.scale(loss_of(model, size * n + rank) * (torch.inf if overflows else 1.0)).backward()
                scaler.step(me, samples=4.0, loss=1.0)  # type: ignore[arg-type]
                scaler.update()
        assert scaler.get_scale() == (4.0 if rank == size - 1 else 64.0)
        return state(model)

    first, *others = ThreadWorld(size, 20.0).run(Words(body))
    assert all(torch.equal(first, other) for other in others)
    assert torch.isfinite(first).all()
    assert moved(first)


def test_a_skipped_step_leaves_the_mean_to_the_others() -> None:
    """The steps are those of a plain loop with the mean gradient of the learners that have one."""
    bad = {(1, 0), (2, 1), (4, 0)}  # step, rank

    def body(seat: Seat) -> Tensor:
        model, rank = net(0), seat.group.rank
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        with murmur.join(SyncSGD(), model, optimizer_of(model), seat=seat) as me:
            for n in range(6):
                factor = torch.inf if (n, rank) in bad else 1.0
                scaler.scale(loss_of(model, 2 * n + rank) * factor).backward()
                scaler.step(me)  # type: ignore[arg-type]
                scaler.update()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    model = net(0)
    optimizer = optimizer_of(model)
    for n in range(6):
        good = [rank for rank in range(2) if (n, rank) not in bad]
        (sum(loss_of(model, 2 * n + rank) for rank in good) / len(good)).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
    wanted = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert all(torch.allclose(end, wanted, atol=1e-6) for end in ran(body))  # type: ignore[arg-type]
