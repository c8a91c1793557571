"""Evaluator: held-out figures of a consensus, and the lowest loss so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import nn

from murmur.core.world import Seat
from murmur.engine.evaluation_points import Consensus, Evaluator
from murmur.engine.task_source import TaskSource
from murmur.strategies import SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.unscaled import Experiment


class Losses(ToyTask):
    """A task with the held-out losses that it is given."""

    def __init__(self, losses: Sequence[float]) -> None:
        super().__init__(samples=4, hidden=4)
        object.__setattr__(self, "losses", iter(losses))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"loss": next(self.losses)}  # type: ignore[attr-defined]


def test_an_evaluation_improves_where_its_loss_is_the_lowest_so_far() -> None:
    losses = (0.5, math.nan, 0.6, 0.4, 0.4)
    found = []

    async def main(seat: Seat) -> None:
        source = TaskSource(Experiment(Losses(losses), SyncSGD()), seat, ())
        evaluator = Evaluator(source)
        consensus = Consensus(source.layout.gather(), source.buffers.gather())
        found.extend(evaluator.evaluate(consensus, n).improves for n in range(len(losses)))
        assert evaluator.lowest == 0.4
        source.close()

    VirtualWorld(1).run(main)
    assert found == [True, False, False, True, False]
