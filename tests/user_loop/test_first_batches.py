"""Learners that read the same data in their first steps are told so."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.errors import SettingError
from murmur.core.group import PeerLost
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, ASGD, KAVG, SuperLearners, SyncSGD
from murmur.user_loop.joined import Joined
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words, loss_of, net, optimizer_of, state

Numbers = Callable[[Joined, int], int]  # of the minibatch of a learner in a step


def same(me: Joined, step: int) -> int:
    return step


def own(me: Joined, step: int) -> int:
    return me.size * step + me.rank


def two_of_three(me: Joined, step: int) -> int:
    return 3 * step + min(me.rank, 1)


def in_another_order(me: Joined, step: int) -> int:
    return (step + me.rank) % 3 + 3 * (step // 3)


def trained(strategy: Strategy, numbers: Numbers, steps: int = 5, **settings: Any) -> Callable[[Seat], Tensor]:
    def body(seat: Seat) -> Tensor:
        model = net(0)
        with murmur.join(strategy, model, optimizer_of(model), seat=seat, **settings) as me:
            for step in range(steps):
                loss_of(model, numbers(me, step)).backward()
                me.step()
        return state(model)

    return body


def ran(size: int, body: Callable[[Seat], object]) -> list[Any]:
    return ThreadWorld(size, 20.0).run(Words(body))


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(8), ADPSGD(), SuperLearners(KAVG(2), 2)], ids=named)
def test_the_same_data_are_told_once(strategy: Strategy, caplog: pytest.LogCaptureFixture) -> None:
    ran(2, trained(strategy, same))
    (message,) = [message for message in caplog.messages if "same data" in message]
    assert "learner 0" in message
    assert "learner 1" in message
    assert "sampler=me.sampler(dataset), or rank=me.split.rank, world_size=me.split.world_size; if that is" in message


def test_the_learners_are_named(caplog: pytest.LogCaptureFixture) -> None:
    ran(3, trained(KAVG(2), two_of_three))
    (message,) = [message for message in caplog.messages if "same data" in message]
    assert {"learner 1", "learner 2"} == {word for word in ("learner 0", "learner 1", "learner 2") if word in message}


@pytest.mark.parametrize(
    ("strategy", "numbers", "size"),
    [(SyncSGD(), own, 2), (ADPSGD(), own, 3), (KAVG(2), in_another_order, 2), (KAVG(2), same, 1), (ASGD(), own, 3)],
    ids=["SyncSGD", "ADPSGD", "another order", "alone", "server"],
)
def test_different_data_are_not_told(
    strategy: Strategy, numbers: Numbers, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A minibatch may come again in another step: a small corpus is read several times."""
    ran(size, trained(strategy, numbers))
    assert not [message for message in caplog.messages if "same data" in message]


def test_a_server_reads_the_data_of_another_learner(caplog: pytest.LogCaptureFixture) -> None:
    """Its loop is not used, and has the split of a learner that trains."""

    def by_split(me: Joined, step: int) -> int:
        return me.split.world_size * step + me.split.rank

    ran(3, trained(ASGD(), by_split, data="disjoint"))
    assert not [message for message in caplog.messages if "same data" in message]


def test_data_that_must_be_disjoint_end_the_run() -> None:
    failed = list[BaseException]()

    def body(seat: Seat) -> None:
        try:
            trained(SyncSGD(), same, data="disjoint")(seat)
        except (SettingError, PeerLost) as error:
            failed.append(error)

    ran(2, body)
    assert sorted(type(error).__name__ for error in failed) == ["PeerLost", "SettingError"]
    (message,) = [str(error) for error in failed if isinstance(error, SettingError)]
    assert "has read the same data as learner" in message
    assert message.endswith("or join with data='same'")


def test_intended_equality_is_not_told_and_changes_no_bits(caplog: pytest.LogCaptureFixture) -> None:
    told = ran(2, trained(SyncSGD(), same))
    caplog.clear()
    intended = ran(2, trained(SyncSGD(), same, data="same"))
    assert not caplog.messages
    assert torch.equal(told[0], intended[0])
    with pytest.raises(SettingError, match="data='dijoint' is not known; did you mean 'disjoint'"):
        ran(1, trained(SyncSGD(), same, data="dijoint"))


@pytest.mark.parametrize("equal_from", [0, 3])
def test_only_the_first_steps_in_training_mode_are_looked_at(equal_from: int, caplog: pytest.LogCaptureFixture) -> None:
    """A learner that evaluates on data of its own hides nothing."""

    def body(seat: Seat) -> None:
        model = net(0)
        with murmur.join(KAVG(2), model, optimizer_of(model), seat=seat) as me:
            for step in range(6):
                model.eval()
                loss_of(model, 100 + own(me, step))
                model.train()
                loss_of(model, same(me, step) if step >= equal_from else own(me, step)).backward()
                me.step()

    ran(2, body)
    assert len([message for message in caplog.messages if "same data" in message]) == (equal_from == 0)


class Parts(nn.Module):
    """Model with an input in nested containers; its parts can be called alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, batch: Any, *, lengths: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(batch["x"][0]))) / lengths[:, None]  # type: ignore[no-any-return]


def nested(model: nn.Module, x: Tensor) -> Tensor:
    given = {"x": (x, ["text"]), "y": None, "sparse": torch.eye(2).to_sparse(), "meta": torch.ones(2, device="meta")}
    return model(given, lengths=torch.full((len(x),), 2.0))  # type: ignore[no-any-return]


def in_parts(model: nn.Module, x: Tensor) -> Tensor:
    return model[1](torch.relu(model[0](x)))  # type: ignore[index,no-any-return]


def mapped(model: nn.Module, x: Tensor) -> Tensor:
    """Return outputs by transforms, inside which tensors have no values to be read."""
    torch.func.vmap(model)(x)
    torch.func.grad(lambda y: model(y).sum())(x)
    return model(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (Parts, nested),
        (lambda: nn.ModuleList(Parts().children()), in_parts),
        (lambda: nn.Sequential(*Parts().children()), mapped),
        (lambda: torch.compile(nn.Sequential(*Parts().children()), backend="eager"), lambda model, x: model(x)),
        (lambda: nn.Linear(6, 3, dtype=torch.float64), lambda model, x: model(x.double())),
        (lambda: nn.Linear(6, 3), lambda model, x: model(x.t().contiguous().t().requires_grad_())),
    ],
    ids=["nested", "container", "transforms", "compiled", "double", "strided"],
)
@pytest.mark.parametrize("equal", [True, False])
def test_all_kinds_of_calls_are_compared(make: Any, call: Any, equal: bool, caplog: pytest.LogCaptureFixture) -> None:
    def body(seat: Seat) -> None:
        torch.manual_seed(0)
        model = make()
        with murmur.join(KAVG(2), model, torch.optim.SGD(model.parameters(), 0.1), seat=seat) as me:
            for step in range(2):
                draw = torch.Generator().manual_seed(step if equal else own(me, step))
                call(model, torch.randn(4, 6, generator=draw)).sum().backward()
                me.step()

    ran(2, body)
    assert len([message for message in caplog.messages if "same data" in message]) == equal


def test_large_inputs_are_compared_by_a_sample(caplog: pytest.LogCaptureFixture) -> None:
    def body(seat: Seat) -> None:
        model = nn.Linear(2, 1)
        with murmur.join(KAVG(2), model, torch.optim.SGD(model.parameters(), 1e-9), seat=seat) as me:
            x = torch.randn(1 << 20, 2, generator=torch.Generator().manual_seed(me.rank))
            model(x).sum().backward()
            me.step()

    ran(2, body)
    assert not [message for message in caplog.messages if "same data" in message]


def test_a_copy_of_the_model_does_not_look() -> None:
    """Averaged models are copies made in the block; a saved one holds nothing of the run."""

    def body(seat: Seat) -> None:
        model = net(0)
        with murmur.join(KAVG(2), model, optimizer_of(model), seat=seat):
            copied = deepcopy(model)
            torch.save(model, io.BytesIO())
            loss_of(copied, 0)
            loss_of(torch.optim.swa_utils.AveragedModel(model), 0)
        assert not model._forward_pre_hooks

    ran(2, body)
