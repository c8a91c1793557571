"""`me.step(clip=...)`: the gradient with which the strategy steps has a bounded norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.errors import SettingError
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, ASGD, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.worlds.threads import ThreadSeat, ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words, loss_of, moved, net, optimizer_of, state

STEPS, CLIP = 6, 0.2


@pytest.fixture(params=[False, True], ids=["after", "beside"])
def _sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadSeat, "overlaps", request.param)


def ran(size: int, body: Callable[[Seat], object]) -> list[object]:
    return ThreadWorld(size, 20.0).run(Words(body))


def by_hand(size: int) -> tuple[Tensor, list[float]]:
    """Return weights and norms of the plain loop that clips the mean gradient of all learners, as DDP's does."""
    model, norms = net(0), []
    copies = [net(0) for _ in range(size)]
    optimizer = optimizer_of(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    for n in range(STEPS):
        for rank, copied in enumerate(copies):
            for mine, p in zip(copied.parameters(), model.parameters(), strict=True):
                mine.data.copy_(p.data)
            copied.zero_grad()
            loss_of(copied, size * n + rank).backward()
        grads = [[p.grad for p in copied.parameters() if p.requires_grad] for copied in copies]
        for p, *given in zip(trained, *grads, strict=True):
            p.grad = None if given[0] is None else sum(given[1:], given[0]) / size  # type: ignore[arg-type]
        norms.append(float(nn.utils.clip_grad_norm_(trained, CLIP)))
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in trained]), norms


@pytest.mark.usefixtures("_sums")
@pytest.mark.parametrize("strategy", [SyncSGD(), SuperLearners(SyncSGD(), 2)], ids=named)
@pytest.mark.parametrize("announces", [False, True], ids=["plain", "last_backward"])
def test_the_mean_gradient_is_clipped(strategy: Strategy, announces: bool) -> None:
    def body(seat: Seat) -> tuple[Tensor, list[float]]:
        model, norms = net(0), []
        with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
            for n in range(STEPS):
                loss = loss_of(model, me.size * n + me.rank)
                if announces:
                    with me.last_backward():
                        loss.backward()
                else:
                    loss.backward()
                norms.append(float(me.step(clip=CLIP)))  # type: ignore[arg-type]
        return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad]), norms

    wanted, norms = by_hand(2)
    assert min(norms) > CLIP  # every step is clipped
    for end, told in ran(2, body):  # type: ignore[misc]
        assert torch.equal(end, wanted)
        assert told == norms


@pytest.mark.parametrize("strategy", [KAVG(2), ADPSGD(), DelayByOne()], ids=named)
def test_a_local_step_has_a_bounded_norm(strategy: Strategy) -> None:
    """Plain SGD with rate 1 moves by the clipped gradient: no step is longer than the limit."""

    def body(seat: Seat) -> list[float]:
        model = net(0)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
        lengths = []

        def before(*_: object) -> None:
            grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            lengths.append(float(torch.cat(grads).norm()))

        with murmur.join(strategy, model, optimizer, seat=seat) as me:
            optimizer.register_step_pre_hook(before)
            for n in range(STEPS):
                loss_of(model, me.size * n + me.rank).backward()
                me.step(clip=CLIP)
        return lengths

    for lengths in ran(2, body):
        assert len(lengths) >= STEPS - 1  # type: ignore[arg-type]
        assert lengths == pytest.approx([CLIP] * len(lengths), rel=1e-4)  # type: ignore[arg-type]


def test_a_server_clips_the_gradients_of_the_others() -> None:
    def body(seat: Seat) -> list[float]:
        model = net(0)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
        lengths: list[float] = []
        with murmur.join(ASGD(), model, optimizer, seat=seat) as me:
            optimizer.register_step_pre_hook(
                lambda *_: lengths.append(
                    float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm())
                )
            )
            for n in range(STEPS):
                loss_of(model, me.size * n + me.rank).backward()
                me.step(clip=CLIP)
        return lengths

    served, *others = ran(3, body)
    assert served == pytest.approx([CLIP] * 2 * STEPS, rel=1e-4)
    assert others == [[], []]


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), SuperLearners(KAVG(2), 2)], ids=named)
def test_clipping_acts_on_unscaled_gradients(strategy: Strategy) -> None:
    """A step that overflows on one learner is left out there; the run is that without a scaler."""
    size = 4 if isinstance(strategy, SuperLearners) else 2

    def body_of(scales: bool) -> Callable[[Seat], Tensor]:
        def body(seat: Seat) -> Tensor:
            model, rank = net(0), seat.group.rank
            scaler = torch.amp.GradScaler("cpu", init_scale=16.0 * 4**rank, enabled=scales)
            with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
                for n in range(STEPS):
                    bad = torch.inf if n == 2 and rank == 1 else 1.0
                    scaler.scale(loss_of(model, size * n + rank) * bad).backward()
                    scaler.step(me, clip=CLIP)  # type: ignore[arg-type]
                    scaler.update()
            return state(model)

        return body

    scaled, plain = ran(size, body_of(True)), ran(size, body_of(False))
    assert moved(scaled[0])  # type: ignore[arg-type]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(scaled, plain, strict=True))  # type: ignore[arg-type]


def test_the_norm_before_clipping_is_returned() -> None:
    model = net(0)
    with murmur.join(SyncSGD(), model, optimizer_of(model)) as me:
        loss_of(model, 0).backward()
        assert me.step() is None
        loss_of(model, 0).backward()
        assert float(me.step(clip=math.inf)) > 0  # type: ignore[arg-type]
        (loss_of(model, 0) * math.nan).backward()
        assert me.step(clip=1.0) == 0.0
        loss_of(model, 0).backward()
        for clip in (0.0, -1.0, math.nan):
            with pytest.raises(ValueError, match="clip is the largest norm of a gradient and must be positive"):
                me.step(clip=clip)


def test_a_learner_that_serves_clips_as_before() -> None:
    """The loop of learner 1 is over after two steps: it takes the steps of learner 0 with its latest limit."""

    def body(seat: Seat) -> Tensor:
        model = net(0)
        with murmur.join(SyncSGD(), model, optimizer_of(model), seat=seat) as me:
            for n in range(STEPS if me.rank == 0 else 2):
                loss_of(model, me.size * n + me.rank).backward()
                me.step(clip=CLIP)
            before = [p.detach().clone() for p in model.parameters()]
        assert me.rank == 1 or all(torch.equal(p, kept) for p, kept in zip(model.parameters(), before, strict=True))
        return state(model)

    first, second = ran(2, body)
    assert torch.equal(first, second)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [SyncSGD(), DelayByOne(), KAVG(2)], ids=named)
@pytest.mark.parametrize("clips", [(1.0, 2.0), (None, 1.0), (1, 1.0)])
def test_learners_in_lock_step_clip_alike(strategy: Strategy, clips: tuple[float | None, float]) -> None:
    def body(seat: Seat) -> Tensor:
        model = net(0)
        with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
            for n in range(STEPS):
                loss_of(model, n).backward()
                me.step(clip=clips[me.rank])
        return state(model)

    if clips[0] == clips[1]:
        first, other = ran(2, body)
        assert torch.equal(first, other)  # type: ignore[arg-type]
    else:
        with pytest.raises(SettingError, match=r"learner \d has clip=.* in its first step, and another learner a diff"):
            ran(2, body)
