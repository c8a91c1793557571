"""State of a loop in checkpoints of `torch.distributed.checkpoint`: a folder for each learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import BMUF, KAVG, GossipPGA
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words, loss_of, net, state

STEPS, SAVED = 9, 5


def trained(strategy: Strategy, folder: Path, begin: int, seat: Seat) -> torch.Tensor:
    """Train from a step on, from a checkpoint unless it is the first; save one in the middle."""
    model = net(0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
    with murmur.join(strategy, model, optimizer, seat=seat) as me:
        place = folder / f"learner-{me.rank}"
        if begin:
            saved: dict[str, Any] = {"murmur": me.state_dict()}
            dcp.load(saved, checkpoint_id=place, no_dist=True)
            me.load_state_dict(saved["murmur"])
            assert me.steps == begin
        for n in range(begin, STEPS):
            if n == SAVED and not begin:
                dcp.save({"murmur": me.state_dict()}, checkpoint_id=place, no_dist=True)
            loss_of(model, n * me.size + me.rank).backward()
            me.step()
    return state(model)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("strategy", [KAVG(4), BMUF(3, moments="averaged"), GossipPGA(4)], ids=named)
def test_a_loop_resumes_to_the_bit(strategy: Strategy, tmp_path: Path) -> None:
    def run(begin: int) -> list[torch.Tensor]:
        return ThreadWorld(2, 20.0).run(Words(lambda seat: trained(strategy, tmp_path, begin, seat)))  # type: ignore[return-value]

    whole, again = run(0), run(SAVED)
    assert torch.equal(whole[0], again[0])
    assert torch.equal(whole[1], again[1])
