"""The start of a user loop: all learners begin with learner 0's model, whatever its types."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import murmur
from murmur.core.world import Seat
from murmur.strategies import KAVG
from murmur.worlds.threads import ThreadWorld
from tests.support.user_loops import Words


class Frozen(nn.Module):
    """Model with frozen tensors of all kinds, whose values are those of a learner's rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.outer = nn.Linear(2, 1)
        for name, values in (("phases", [rank + 2j, 3.0]), ("codes", [rank, 5]), ("mask", [rank > 0]), ("x", [rank])):
            values = torch.tensor(values, dtype=torch.bfloat16 if name == "x" else None)
            self.register_parameter(name, nn.Parameter(values, requires_grad=False))
            self.register_buffer(f"{name}_buffer", values.clone())


def test_frozen_tensors_of_all_types_are_learner_0s() -> None:
    def body(seat: Seat) -> list[Tensor]:
        model = Frozen(seat.group.rank)
        with murmur.join(KAVG(2), model, torch.optim.SGD(model.outer.parameters(), 0.1), seat=seat) as me:
            model.outer(torch.ones(3, 2)).sum().backward()
            me.step()
        return list(model.state_dict().values())

    first, second = ThreadWorld(2, 20.0).run(Words(body))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))  # type: ignore[call-overload]
    assert all(torch.equal(a, b) for a, b in zip(first[:8], Frozen(0).state_dict().values(), strict=False))  # type: ignore[index]
