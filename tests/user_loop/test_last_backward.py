"""Gradients sent during the last backward pass of a step give the same result as gradients sent after it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core import mean_gradient as overlap
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, KAVG, SuperLearners, SyncSGD
from murmur.worlds.threads import ThreadSeat, ThreadWorld
from tests.support.named import named
from tests.support.pool import LearnerFailed, Pool, PooledWorld
from tests.support.user_loops import ForeignLoop, Words, loss_of, moved, net, optimizer_of

COUNTS = (17, 19, 18, 11)  # the last step of most learners is made of fewer minibatches
STRATEGIES = [SyncSGD(), SuperLearners(SyncSGD(), 2), SuperLearners(KAVG(2), 2), KAVG(3)]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads whose sums overlap the gradients, with buckets so small that some are sent before the step."""
    monkeypatch.setattr(ThreadSeat, "overlaps", True)
    monkeypatch.setattr(overlap, "FIRST_BUCKET_BYTES", 64)


def ends(strategy: Strategy, behind: tuple[bool, ...]) -> list[Any]:
    return ThreadWorld(4, 20.0).run(ForeignLoop(strategy, COUNTS, behind=behind))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_the_result_is_that_of_steps_without(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ends(strategy, (False,) * 4)
    monkeypatch.setattr(ThreadSeat, "overlaps", True)
    monkeypatch.setattr(overlap, "FIRST_BUCKET_BYTES", 64)
    never = ends(strategy, (False,) * 4)
    assert moved(never[0][0])
    assert torch.allclose(never[0][0], plain[0][0], atol=2e-6)
    for behind in ((True,) * 4, (True, False, False, True)):
        for (end, unused), (wanted, _) in zip(ends(strategy, behind), never, strict=True):
            assert torch.equal(end, wanted)
            assert not unused


def test_asynchronous_strategies_are_left_alone(beside: None) -> None:
    first, *others = ends(ADPSGD(), (True,) * 4)
    assert moved(first[0])
    assert all(torch.equal(first[0], end) for end, _ in others)


def test_processes_agree_with_threads(pool: Pool) -> None:
    program = ForeignLoop(SyncSGD(), (17, 19), behind=(True, True))
    found = PooledWorld(pool, 2).run(program)
    wanted = ThreadWorld(2, 20.0).run(ForeignLoop(SyncSGD(), (17, 19)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.allclose(found[0][0], wanted[0][0], atol=2e-6)


class Parts(nn.Module):
    """Four scalars; a loss names those that take part."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
        self.never = nn.Parameter(torch.ones(()))
        self.narrow = nn.Parameter(torch.ones((), dtype=torch.bfloat16))


def test_early_and_absent_gradients(beside: None) -> None:
    """`early` has a gradient in the first pass only, `late` on learner 1 only, `never` none at all."""

    def body(seat: Seat) -> tuple[list[float], list[bool]]:
        model = Parts()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5)
        seen: list[bool] = []
        optimizer.register_step_pre_hook(lambda *_: seen.extend(p.grad is not None for p in model.parameters()))
        with murmur.join(SyncSGD(), model, optimizer, seat=seat) as me:
            (model.early * (2.0 + me.rank)).backward()
            with me.last_backward(samples=1.0 + 2 * me.rank):
                ((model.late if me.rank else 0.0) + model.narrow * 1.0078125).backward()
            me.step()
        return [p.item() for p in model.parameters()], seen

    for values, seen in ThreadWorld(2, 20.0).run(Words(body)):
        assert seen == [True, True, False, True]
        early, late = (1 * 2.0 + 3 * 3.0) / 4, 3 * 1.0 / 4
        narrow = float(torch.tensor(1 - 1.0078125 - 0.5, dtype=torch.bfloat16))
        assert values == pytest.approx([1 - early - 0.5, 1 - late - 0.5, 1.0, narrow])


def test_a_gradient_without_a_step_is_in_no_mean(beside: None) -> None:
    """Learner 0 ends with a gradient without a step, while learner 1 goes on."""

    def body(seat: Seat) -> tuple[float, float]:
        model = Parts()
        with murmur.join(SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.5, weight_decay=0.5), seat=seat) as me:
            for _ in range(1 + me.rank):
                model.early.backward()
                me.step()
            if me.rank == 0:
                model.never.backward()
        return model.early.item(), model.never.item()

    once = 1 - 0.5 * (1 + 0.5)
    assert ThreadWorld(2, 20.0).run(Words(body)) == [(once - 0.5 * (1 + 0.5 * once), 1.0)] * 2


def test_gradients_leave_before_the_step(beside: None) -> None:
    def body(seat: Seat) -> list[int]:
        model = net(0)
        group: Any = seat.group
        started: list[Tensor] = []
        plain = group.start_sum

        def counted(x: Tensor) -> Any:
            started.append(x)
            return plain(x)

        group.start_sum = counted
        counts = []
        with murmur.join(SyncSGD(), model, optimizer_of(model), seat=seat) as me:
            for n in range(2):
                loss_of(model, 3 * n).backward()
                counts.append(len(started))
                with me.last_backward():
                    loss_of(model, 3 * n + 1).backward()
                counts.append(len(started))
                me.step()
                counts.append(len(started))
        return counts

    assert ThreadWorld(2, 20.0).run(Words(body)) == [[0, 1, 2, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("misuse", "said"),
    [
        ("clips", "changed after last_backward"),
        ("goes on", "two gradients in one backward pass"),
        ("starts again", "changed after last_backward"),
        ("twice", "used twice in one step"),
        ("scaler", "do not use last_backward with a GradScaler"),
        ("two passes", "two gradients in one backward pass"),
    ],
)
def test_sent_gradients_must_not_change(misuse: str, said: str, beside: None) -> None:
    def body(seat: Seat) -> None:
        model = net(0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        with murmur.join(SyncSGD(), model, optimizer_of(model), seat=seat) as me:
            with me.last_backward():
                loss_of(model, 0).backward()
                if misuse == "two passes":
                    loss_of(model, 1).backward()
            if misuse == "clips":
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            if misuse == "starts again":
                model.zero_grad()
            if misuse == "goes on":
                loss_of(model, 1).backward()
            if misuse == "twice":
                with me.last_backward():
                    pass
            if misuse == "scaler":
                scaler.scale(torch.zeros(()))
                scaler.step(me)
            me.step()

    with pytest.raises(RuntimeError, match=said):
        ThreadWorld(2, 20.0).run(Words(body))


def test_samples_are_told_once() -> None:
    model = net(0)
    with murmur.join(SyncSGD(), model, optimizer_of(model)) as me:
        for samples in (None, 3.0):
            with me.last_backward(samples=3):
                loss_of(model, 0).backward()
            me.step(samples)
        with pytest.raises(ValueError, match="samples must be positive and finite, got 0"), me.last_backward(samples=0):
            pass
        with me.last_backward(samples=3):
            loss_of(model, 0).backward()
        with pytest.raises(ValueError, match="last_backward got 3 samples, step 4"):
            me.step(4)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # a single learner sends nothing
        me.step()


@dataclass(frozen=True)
class Failing:
    """Loop in which learner 1 fails with gradients on their way."""

    async def __call__(self, seat: Seat) -> None:
        model = nn.Sequential(*(nn.Linear(400, 400) for _ in range(4)))  # more than one bucket
        with murmur.join(SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.1), seat=seat) as me:
            for n in range(3):
                with me.last_backward():
                    model(torch.ones(2, 400)).sum().backward()
                if n == 1 and me.rank == 1:
                    raise ArithmeticError("planted")
                me.step()


def test_a_failure_with_gradients_on_their_way_aborts_the_group(pool: Pool) -> None:
    for _ in range(2):  # the first time, a process takes seconds to load parts of PyTorch
        began = time.monotonic()
        with pytest.raises(LearnerFailed, match="planted"):
            PooledWorld(pool, 2).run(Failing())
    assert time.monotonic() - began < 10
