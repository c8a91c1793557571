"""Executors of the virtual world: gradients are computed in batches, at the weights of their start."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging_only import Still
from murmur.core.flat import Layout
from murmur.core.pending_gradient import PendingGradient
from murmur.core.source import Gradient
from murmur.core.weights import Weights
from murmur.worlds.virtual.executor import BatchedExecutor
from tasks import Point


def pending(n: int) -> tuple[PendingGradient, Weights, Layout]:
    layout = Layout.trainable(Point(2))
    weights = Weights(layout)
    return PendingGradient(Still(layout, 10), n, weights, None), weights, layout


def test_all_that_have_begun_are_computed_when_the_first_is_needed() -> None:
    seen: list[list[tuple[int, float]]] = []
    layouts: dict[int, Layout] = {}

    def together(drawings: Sequence[PendingGradient]) -> list[Gradient]:
        seen.append([(d.n, float(layouts[d.n].gather()[0])) for d in drawings])
        return [Gradient(torch.tensor([float(d.n)]), [True], 1.0, 0.0) for d in drawings]

    executor = BatchedExecutor(together)
    jobs, results = {}, {}
    for n in range(4):
        jobs[n], weights, layouts[n] = pending(n)
        results[n] = executor.begin(jobs[n])
        weights.add_(torch.full((2,), 10.0 + n, dtype=torch.float64))  # lands while the gradient is under way
    assert executor.begin(lambda: "other work is done at once")() == "other work is done at once"
    executor.forget(jobs[3])  # its learner was killed
    assert not seen
    assert float(results[1]().g) == 1.0
    assert seen == [[(0, 0.0), (1, 0.0), (2, 0.0)]], "at the weights of the start"
    assert float(layouts[0].gather()[0]) == 0.0, "the next step takes over what has landed"
    executor.forget(jobs[1])
    jobs[4], _, layouts[4] = pending(4)
    executor.begin(jobs[4])
    assert [float(results[n]().g) for n in (0, 2)] == [0.0, 2.0]
    assert len(seen) == 1, "they were there already"
