"""What a loop that comes late takes over from another one."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import murmur
from murmur.core.group import PeerLost
from murmur.strategies import KAVG
from murmur.user_loop.handover import handover
from murmur.user_loop.joined import Joined
from murmur.user_loop.last_words import LastWords
from tests.support.user_loops import Net, loss_of, net, state

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
}


def stepped(me: Joined, model: nn.Module, steps: int) -> None:
    for n in range(steps):
        loss_of(model, n).backward()
        me.step()


def parts(model: Net, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the frozen parameters, the buffers, and the tensors of the optimizer's state."""
    kept = [x for p in optimizer.param_groups[0]["params"] for x in optimizer.state[p].values()]
    return [*model.frozen.parameters(), *model.buffers(), *map(torch.as_tensor, kept)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_late_loop_has_the_state_of_the_other(name: str) -> None:
    first, late = net(0), net(1)
    optimizers = [OPTIMIZERS[name]([p for p in m.parameters() if p.requires_grad]) for m in (first, late)]
    with murmur.join(KAVG(4), first, optimizers[0]) as me, murmur.join(KAVG(4), late, optimizers[1]) as other:
        stepped(me, first, 5)
        stepped(other, late, 2)
        optimizers[1].param_groups[0]["lr"] = 0.5
        other._layout.scatter(me._layout.gather())
        handover(other._source, other._answers).take(handover(me._source, me._answers).give())
        assert optimizers[1].param_groups[0]["lr"] == 0.5
        for mine, theirs in zip(parts(first, optimizers[0]), parts(late, optimizers[1]), strict=True):
            assert torch.equal(mine, theirs)
        for both in ((me, first), (other, late)):
            loss_of(both[1], 7).backward()
            optimizers[1].param_groups[0]["lr"] = optimizers[0].param_groups[0]["lr"]
            both[0].step()
        assert torch.equal(state(first), state(late))


def test_an_optimizer_of_a_kind_of_its_own_begins_anew() -> None:
    model = net(0)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, momentum=0.9)
    with murmur.join(KAVG(4), model, optimizer) as me:
        stepped(me, model, 1)
        p = optimizer.param_groups[0]["params"][0]
        optimizer.state[p]["more"] = {"of": "another kind"}
        own = handover(me._source, me._answers)
        own.take(own.give())
        assert not optimizer.state


def test_only_lost_learners_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    seen = list[BaseException]()
    hook = LastWords(lambda _, error, __: seen.append(error))
    hook(ValueError, ValueError("an error"), None)
    assert [type(error) for error in seen] == [ValueError]
    assert capsys.readouterr().err == ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("murmur.user_loop.last_words.end_process", lambda status: seen.append(SystemExit(status)))
        hook(PeerLost, PeerLost("learner 1 is lost"), None)
    assert isinstance(seen[1], SystemExit)
    assert seen[1].code == 75
    assert capsys.readouterr().err.splitlines() == [
        "murmur: learner 1 is lost; start all learners again; me.load_state_dict() goes on from a saved state"
    ]
    assert not isinstance(sys.excepthook, LastWords)
