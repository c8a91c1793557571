"""A source of gradients calls all that was added to it, in the order in which it was added."""

from __future__ import annotations

from typing import Any

from murmur.core.learner import Learner
from murmur.core.weights import Weights
from murmur.core.world import Seat
from murmur.engine.budget import Budget
from murmur.engine.task_source import TaskSource
from murmur.strategies import KAVG
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.tasks import Quadratic
from tests.support.unscaled import Experiment


def test_boundaries_and_observers_are_called_in_order() -> None:
    calls: list[Any] = []

    async def program(seat: Seat) -> None:
        experiment = Experiment(Quadratic(per_epoch=6), KAVG(1), Budget(minibatches=2))
        source = TaskSource(experiment, seat, [lambda record: calls.append(("given", record.step))])

        async def first(me: Learner) -> None:
            calls.append(("first", me.steps))

        async def second(me: Learner) -> None:
            calls.append(("second", me.steps))

        source.at_boundary(first)
        source.at_boundary(second)
        source.recorder.add(lambda record: calls.append(("added", record.step)))
        await KAVG(1)(Learner(seat, Weights(source.layout), source))
        source.close()

    VirtualWorld(1).run(program)
    steps = [call for call in calls if call[0] in ("given", "added")]
    assert [name for name, _ in steps] == ["given", "added"] * 2
    boundaries = [call for call in calls if call not in steps]
    assert [name for name, _ in boundaries] == ["first", "second"] * (len(boundaries) // 2)
    assert boundaries[::2] == [("first", n) for _, n in boundaries[1::2]]
    assert len(boundaries) >= 4
