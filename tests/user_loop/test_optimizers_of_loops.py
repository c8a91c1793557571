"""Optimizers that can be joined: they hold all trainable parameters of the model, and no others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ASGD, EASGD, KAVG, SyncSGD
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words, loss_of, net, optimizer_of


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def test_an_optimizer_of_a_part_is_refused() -> None:
    model = two_layers()
    part = torch.optim.SGD(model[0].parameters(), 0.1)
    with pytest.raises(ValueError, match=r"does not hold 2 trainable parameters of the model, 1\.weight for one"):
        murmur.join(SyncSGD(), model, part)
    model[1].requires_grad_(False)
    murmur.join(SyncSGD(), model, part)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_part_with_a_group_of_its_own_trains_as_in_the_plain_loop(frozen: bool) -> None:
    model, plain = two_layers(), two_layers()
    plain.load_state_dict(model.state_dict())
    optimizers = []
    for each in (model, plain):
        each[1].requires_grad_(not frozen)
        groups = [{"params": each[0].parameters()}, {"params": each[1].parameters(), "lr": 0.01}]
        optimizers.append(torch.optim.SGD(groups[: 1 if frozen else 2], 0.1))
    with murmur.join(KAVG(2), model, optimizers[0]) as me:
        for n in range(4):
            for each in (model, plain):
                each(torch.full((4, 2), 1.0 + n)).square().mean().backward()
            me.step()
            optimizers[1].step()
            optimizers[1].zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize(("strategy", "serves"), [(ASGD(), True), (SyncSGD(), False), (EASGD(), False)], ids=named)
def test_a_server_tells_that_its_scheduler_has_no_effect(
    strategy: Strategy, serves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def body(seat: Seat) -> None:
        model = net(0)
        optimizer = optimizer_of(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with murmur.join(strategy, model, optimizer, seat=seat) as me:
            for n in range(3):
                loss_of(model, n).backward()
                me.step()
                scheduler.step()

    ThreadWorld(2, 20.0).run(Words(body))
    told = [record.getMessage() for record in caplog.records if "scheduler" in record.getMessage()]
    wanted = "learner 0 serves until the end of the run: a scheduler in its loop does not change the rate 0.05"
    assert told == [wanted] * serves
