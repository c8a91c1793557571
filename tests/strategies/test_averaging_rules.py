"""Rules of parameter averaging in isolation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from murmur.strategies.averaging_rules import (
    Jobs,
    MaxChange,
    ProportionalShrink,
    RunningMean,
    SaturationShrink,
    WeightedMean,
    shares,
)


@pytest.mark.parametrize(("first", "last"), [(1, 8), (3, 15), (2, 2), (1, 4)])
def test_the_ramp_is_kaldis(first: int, last: int) -> None:
    """J(i) = int(1/2 + J_0 + (J_1 - J_0) i / iterations); an iteration uses J(i) archives."""
    archives, used, i = 60 * 8, 0, 0
    iterations = 2 * archives // (first + last)
    while used < archives:
        kaldi = min(last, int(0.5 + first + (last - first) * i / iterations))
        assert abs(Jobs(first, last)(used / archives, 100) - kaldi) <= (1 if first < last else 0)
        used, i = used + kaldi, i + 1
    assert abs(i - iterations) <= 1
    widths = [Jobs(first, last)(f / 1000, 100) for f in range(1001)]
    assert (widths[0], widths[-1]) == (first, last)
    assert widths == sorted(widths)


@pytest.mark.parametrize(("first", "last"), [(1, 8), (2, 8), (1, 32)])
def test_full_width_after_half_of_the_iterations(first: int, last: int) -> None:
    """The ramp of kaldi-mpi: J(i) = int(1/2 + J_0 + (J_1 - J_0) i / (iterations / 2)), in frames in place of i."""
    reach = (first + last) / (first + 3 * last)
    iterations, used, at = 4000, 0, []
    widths = [min(last, int(0.5 + first + (last - first) * 2 * i / iterations)) for i in range(iterations)]
    for width in widths:
        at.append(used / sum(widths))
        used += width
    ours = [Jobs(first, last, reach)(f, last) for f in at]
    for width in range(first + 1, last + 1):  # each width begins at the same part of the budget
        assert at[ours.index(width)] == pytest.approx(at[widths.index(width)], abs=0.02)


def test_width_follows_the_learners_there_are() -> None:
    assert [Jobs()(f, 4) for f in (0.0, 1.0)] == [1, 4]
    assert [Jobs(3, 8)(f, 2) for f in (0.0, 1.0)] == [2, 2]
    assert Jobs(1, 8, reach=0.5)(0.5, 8) == 8
    assert Jobs(1, 8, reach=0.5)(0.25, 8) == Jobs(1, 8)(0.5, 8) < 8
    assert Jobs(1, 8)(3.0, 8) == 8  # the last iteration may reach past the end


def bounded(step: Tensor, sizes: list[int], each: float | None, whole: float | None) -> list[float]:
    parts = [part.clone() for part in step.split(sizes)]
    for part in parts:
        if each is not None and part.norm() > each:
            part.mul_(each / part.norm())
    flat = torch.cat(parts)
    if whole is not None and flat.norm() > whole:
        flat.mul_(whole / flat.norm())
    return flat.tolist()


@pytest.mark.parametrize("each", [None, 0.5, 2.0, 1e9])
@pytest.mark.parametrize("whole", [None, 0.3, 3.0, 1e9])
def test_steps_are_bounded(each: float | None, whole: float | None) -> None:
    sizes = [3, 1, 10]
    step = torch.randn(14, generator=torch.Generator().manual_seed(1)).double() * 2
    before = step.clone()
    limited = MaxChange(each, whole)(step, list(step.split(sizes)))
    assert limited is not None
    assert limited.tolist() == pytest.approx(bounded(step, sizes, each, whole), rel=1e-12)
    assert torch.equal(step, before)
    assert (limited is step) == (each in (None, 1e9) and whole in (None, 1e9))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_an_infinite_step_is_discarded(bad: float) -> None:
    step = torch.tensor([1.0, bad, 0.0])
    assert MaxChange(None, None)(step, list(step.split([2, 1]))) is None


def test_a_step_of_nothing_stays() -> None:
    step = torch.zeros(4)
    assert MaxChange()(step, list(step.split([2, 2]))) is step


def test_weights_of_learners() -> None:
    losses, samples = [2.0, 1.5, 2.6, 9.0], [10.0, 20.0, 30.0, 0.0]
    assert shares(losses, samples, 1.0, first=False) == [10.0, 20.0, 0.0, 0.0]
    assert shares(losses, samples, 2.0, first=False) == [10.0, 20.0, 30.0, 0.0]
    assert shares(losses, samples, 1.0, first=True) == [0.0, 20.0, 0.0, 0.0]
    assert shares([math.nan, 3.0], [5.0, 5.0], 1.0, first=False) == [0.0, 5.0]
    assert shares([math.nan, 3.0], [5.0, 5.0], 1.0, first=True) == [0.0, 5.0]
    assert shares([0.0, 5.0], [0.0, 7.0], 1.0, first=True) == [0.0, 7.0]  # without samples a learner cannot be the best
    assert shares([0.0, 0.0], [0.0, 0.0], 1.0, first=True) == [0.0, 0.0]


def test_shrinks() -> None:
    assert ProportionalShrink(2.0)(0.1, dict) == pytest.approx(0.8)
    assert ProportionalShrink()(0.1, dict) == 1.0
    assert SaturationShrink()(0.1, lambda: {"saturation": 0.5}) == 0.99
    assert SaturationShrink()(0.1, lambda: {"saturation": 0.3}) == 1.0
    with pytest.raises(ValueError, match="gives no 'saturation', only loss"):
        SaturationShrink()(0.1, lambda: {"loss": 0.5})


def test_the_output_layer_has_a_bound_of_its_own() -> None:
    step = torch.tensor([3.0, 4.0, 0.0, 6.0, 8.0])
    parts = [step[:2], step[2:3], step[3:]]
    limited = MaxChange(1.0, None, output=2.0, output_tensors=1)(step, parts)
    assert torch.allclose(limited, torch.tensor([0.6, 0.8, 0.0, 1.2, 1.6]))
    limited = MaxChange(None, 5.0, output=2.0, output_tensors=1)(step, parts)
    scale = 5.0 / (25.0 + 4.0) ** 0.5
    assert torch.allclose(limited, scale * torch.tensor([3.0, 4.0, 0.0, 1.2, 1.6]))


def distance(target: Tensor) -> object:
    return lambda w: float((w - target).norm())


MODELS = [torch.tensor(m).double() for m in ([1.0, 0.0], [-1.0, 0.2], [0.0, 3.0], [5.0, 5.0])]


@pytest.mark.parametrize(("target", "n"), [([1.0, 0.0], 1), ([0.0, 0.0], 2), ([0.0, 1.1], 3), ([1.3, 2.1], 4)])
def test_the_running_mean_stops_where_it_is_best(target: list[float], n: int) -> None:
    best = RunningMean()(MODELS, distance(torch.tensor(target).double()))  # type: ignore[arg-type]
    assert torch.allclose(best, torch.stack(MODELS[:n]).mean(0))


def test_of_equally_good_means_that_of_fewest_models_counts() -> None:
    assert torch.equal(RunningMean()(MODELS, lambda _: 1.0), MODELS[0])


def test_weights_are_found_inside_the_hull() -> None:
    for target in ([0.0, 0.1], [0.5, 0.05], [0.0, 1.0], [2.0, 2.0]):
        loss = distance(torch.tensor(target).double())
        best = WeightedMean(halvings=6)(MODELS, loss)  # type: ignore[arg-type]
        solved = torch.linalg.lstsq(torch.stack([torch.cat([m, torch.ones(1).double()]) for m in MODELS]).T,
                                    torch.cat([best, torch.ones(1).double()])).solution  # fmt: skip
        assert loss(best) < 0.9 * min(loss(m) for m in MODELS)  # type: ignore[operator]
        assert solved.sum() == pytest.approx(1.0)
    assert torch.equal(WeightedMean()(MODELS, distance(MODELS[0])), MODELS[0])  # type: ignore[arg-type]


def test_errors() -> None:
    with pytest.raises(ValueError, match="1 <= initial <= final"):
        Jobs(4, 2)
