"""Several optimizers of one joined model take their steps together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, BMUF, KAVG, SyncSGD
from murmur.user_loop.joined import Joined, Plan
from murmur.user_loop.optimizer_list import OptimizerList
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Net, Words, loss_of, moved, net, state

STEPS = 6


def split(model: Net) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    return [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() < 2]


def two(model: Net) -> list[torch.optim.Optimizer]:
    matrices, rest = split(model)
    return [torch.optim.SGD(matrices, 0.05, momentum=0.9), torch.optim.AdamW(rest, 0.01)]


def together(model: Net) -> torch.optim.Optimizer:
    """Return one optimizer whose groups have the settings of two."""
    matrices, rest = split(model)
    return torch.optim.AdamW([{"params": matrices, "lr": 0.02, "weight_decay": 0.1}, {"params": rest}], 0.01)


def two_as_together(model: Net) -> list[torch.optim.Optimizer]:
    matrices, rest = split(model)
    return [torch.optim.AdamW(matrices, 0.02, weight_decay=0.1), torch.optim.AdamW(rest, 0.01)]


def ran(body: Callable[[Seat], object], size: int = 2) -> list[Any]:
    return ThreadWorld(size, 20.0).run(Words(body))


def trained(me: Joined, model: Net, steps: range) -> None:
    for n in steps:
        loss_of(model, me.size * n + me.rank).backward()
        me.step(clip=0.5)


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2, moments="averaged"), BMUF(2, moments="at_outer")], ids=named)
def test_the_run_is_that_of_one_optimizer_with_groups(strategy: Strategy) -> None:
    def body_of(make: Callable[[Net], Any]) -> Callable[[Seat], Tensor]:
        def body(seat: Seat) -> Tensor:
            model = net(0)
            plan = Plan(2 * STEPS, scaling=murmur.scaling(strategy))
            with murmur.join(strategy, model, make(model), plan, seat) as me:
                trained(me, model, range(STEPS))
            assert model.unused.weight not in me.optimizer.state  # it has had no step
            assert len(me.optimizer.state) == len(split(model)[0] + split(model)[1]) - 2
            return state(model)

        return body

    one, several = ran(body_of(together)), ran(body_of(two_as_together))
    assert moved(one[0])
    assert all(torch.equal(a, b) for a, b in zip(one, several, strict=True))


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4), ADPSGD()], ids=named)
def test_different_optimizers_train_with_schedulers_and_resume(strategy: Strategy) -> None:
    def body(saved: Any, seat: Seat) -> tuple[Tensor, Any]:
        model, kept = net(0), None
        optimizers = two(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizers[1], 100)
        with murmur.join(strategy, model, optimizers, seat=seat) as me:
            if saved is not None:
                me.load_state_dict(saved[me.rank][1])
            for n in range(0 if saved is None else 3, STEPS):
                if n == 3 and saved is None:
                    kept = me.state_dict()
                trained(me, model, range(n, n + 1))
                scheduler.step()
        return state(model), kept

    whole = ran(lambda seat: body(None, seat))
    again = ran(lambda seat: body(whole, seat))
    assert moved(whole[0][0])
    assert torch.equal(whole[0][0], whole[1][0])
    if not isinstance(strategy, ADPSGD):
        assert all(torch.equal(end, whole[0][0]) for end, _ in again)


def test_they_are_refused_where_they_do_not_divide_the_parameters() -> None:
    model = net(0)
    matrices, rest = two(model)
    with pytest.raises(ValueError, match=r"does not hold .* or join a list of all optimizers"):
        murmur.join(SyncSGD(), model, matrices)
    with pytest.raises(ValueError, match="a parameter is in two of the optimizers"):
        murmur.join(SyncSGD(), model, [matrices, rest, torch.optim.SGD([model.outer.weight], 0.1)])
    with pytest.raises(ValueError, match="the list of optimizers is empty"):
        murmur.join(SyncSGD(), model, [])
    with pytest.raises(ValueError, match="LBFGS calls the model by itself"):
        murmur.join(SyncSGD(), model, [matrices, torch.optim.LBFGS(split(model)[1])])
    with murmur.join(SyncSGD(), model, [matrices, rest]) as me:
        loss_of(model, 0).backward()
        for optimizer in (matrices, rest):
            with pytest.raises(RuntimeError, match="stepped without the strategy"):
                optimizer.step()
        me.step()


@pytest.mark.parametrize("scales", [False, True], ids=["plain", "scaled"])
def test_routed_steps_of_all_are_one_step(scales: bool) -> None:
    def body_of(routes: bool) -> Callable[[Seat], Tensor]:
        def body(seat: Seat) -> Tensor:
            model = net(0)
            optimizers = two(model)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scales)
            with murmur.join(KAVG(2), model, optimizers, seat=seat) as me:
                for n in range(STEPS):
                    scaler.scale(loss_of(model, 2 * n + me.rank)).backward()
                    if routes:
                        with murmur.routed(me):
                            for optimizer in optimizers:
                                scaler.step(optimizer)
                            for optimizer in optimizers:
                                optimizer.zero_grad()
                    else:
                        scaler.step(me)  # type: ignore[arg-type]
                    scaler.update()
            assert me.progress.minibatches == 2 * STEPS
            return state(model)

        return body

    routed, stepped = ran(body_of(True)), ran(body_of(False))
    assert moved(routed[0])
    assert all(torch.equal(a, b) for a, b in zip(routed, stepped, strict=True))


@pytest.mark.parametrize("count", [1, 2])
def test_a_routed_step_of_their_list_takes_a_closure(count: int) -> None:
    model = net(0)
    optimizers = two(model) if count == 2 else [together(model)]
    with murmur.join(SyncSGD(), model, OptimizerList(optimizers)) as me, murmur.routed(me):
        for n in range(STEPS):
            loss_of(model, n).backward()
            me.optimizer.step(lambda: 1.5)  # type: ignore[arg-type, return-value]
    assert (me.progress.minibatches, me.progress.loss) == (STEPS, 1.5)
    assert moved(state(model))


def test_routed_steps_keep_the_gradients_of_all() -> None:
    model = net(0)
    optimizers = two(model)
    with murmur.join(SyncSGD(), model, optimizers) as me, murmur.routed(me):
        loss_of(model, 0).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        with pytest.raises(RuntimeError, match=r"gradients were cleared before .*: step all of them first"):
            optimizers[1].step()
        loss_of(model, 0).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert me.progress.minibatches == 1


def test_optimizers_that_unscale_by_themselves_are_refused_together() -> None:
    model = net(0)
    matrices, rest = split(model)
    optimizers = [torch.optim.SGD(matrices, 0.1), torch.optim.SGD(rest, 0.1, fused=True)]
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with murmur.join(SyncSGD(), model, optimizers) as me, murmur.routed(me):
        scaler.scale(loss_of(model, 0)).backward()
        scaler.step(optimizers[0])
        with pytest.raises(RuntimeError, match=r"SGD unscales gradients by itself, .*: make it with fused=False"):
            scaler.step(optimizers[1])


def test_settings_of_routed_steps_may_be_functions() -> None:
    """Learners have minibatches of different sizes: the run is that of `me.step(samples, clip=...)`."""

    def body_of(routes: bool) -> Callable[[Seat], Tensor]:
        def body(seat: Seat) -> Tensor:
            model, rank = net(0), seat.group.rank
            optimizer, now = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1), 0
            with (
                murmur.join(SyncSGD(), model, optimizer, seat=seat) as me,
                murmur.routed(me, samples=lambda: 1.0 + now * rank, clip=lambda: 0.1 * (now + 1)),
            ):
                for now in range(STEPS):
                    loss_of(model, 2 * now + rank).backward()
                    optimizer.step() if routes else me.step(1.0 + now * rank, clip=0.1 * (now + 1))
            return state(model)

        return body

    routed, stepped = ran(body_of(True)), ran(body_of(False))
    assert moved(routed[0])
    assert torch.equal(routed[0], stepped[0])
