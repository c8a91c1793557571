"""A lost store, or a run that went on without a stopped learner, ends a loop with the one documented error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import murmur
from murmur.core.learner import Learner
from murmur.core.membership import RunOver
from murmur.strategies import SyncSGD
from murmur.user_loop.consensus import Answers


def gone() -> Exception:
    return ConnectionError("the store at 10.0.0.1:4000 is gone: [Errno 104] Connection reset by peer")


def reset() -> Exception:
    return ConnectionResetError(104, "Connection reset by peer")


@dataclass(frozen=True)
class Loses(SyncSGD):
    """Synchronous SGD whose membership raises an error at a step, or at the end."""

    error: Callable[[], Exception] = gone
    at: int = 1

    async def __call__(self, me: Learner) -> None:
        step = 0
        async for g in me.gradients(mean_over=me.group):
            me.descend(g)
            step += 1
            if step == self.at:
                raise self.error()
        raise self.error()


def loop(strategy: SyncSGD, steps: int = 3) -> None:
    model = nn.Linear(2, 1)
    with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.1)) as me:
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()
            me.step()


@pytest.mark.parametrize("at", [1, 2, 9])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (gone, r"learner 0: the store at 10\.0\.0\.1:4000 is gone: .*: without the store this learner cannot go on"),
        (reset, r"learner 0: \[Errno 104\] Connection reset by peer: without the store"),
        (
            RunOver,
            r"learner 0: the other learners had finished the run.*: it was stopped, or could not be reached, for",
        ),
    ],
)
def test_the_loss_of_the_store_or_of_this_learner_is_one_error(
    error: Callable[[], Exception], told: str, at: int
) -> None:
    with pytest.raises(murmur.PeerLost, match=told) as lost:
        loop(Loses(error=error, at=at))
    assert "\n" not in str(lost.value)
    assert isinstance(lost.value.__cause__, error if isinstance(error, type) else ConnectionError)


def test_a_store_lost_in_consensus_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise gone()

    model = nn.Linear(2, 1)
    with murmur.join(SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.1)) as me:
        monkeypatch.setattr(Answers, "in_place", fails)
        with pytest.raises(murmur.PeerLost, match="without the store"), me.consensus():
            pass


def test_errors_of_the_users_own_connections_stay() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ConnectionResetError), murmur.join(SyncSGD(), model, optimizer):
        raise ConnectionResetError("the user's own data server")
    with pytest.raises(BrokenPipeError), murmur.join(SyncSGD(), model, optimizer) as me, me.consensus():
        raise BrokenPipeError("the user's own pipe")
