from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.engine.budget import Budget
from murmur.engine.schedule import Constant, Cosine, Exponential, WarmUpAnneal
from murmur.engine.seeds import seed_of
from murmur.learner import Progress
from murmur.recipes.toy import ToyTask


def at(epoch: float, fraction: float = 0.0) -> Progress:
    return Progress(0, 0.0, epoch, fraction, math.nan, math.nan)


def test_budgets_in_any_unit() -> None:
    task = ToyTask(samples=10, per_epoch=30)
    assert Budget().total(task) == 30
    assert Budget(epochs=2.5).total(task) == 75
    assert Budget(samples=101).total(task) == 11
    assert Budget(minibatches=7).total(task) == 7
    with pytest.raises(ValueError, match="epochs=1 and minibatches=2"):
        Budget(epochs=1, minibatches=2)
    with pytest.raises(ValueError, match="finite and not negative"):
        Budget(epochs=math.inf)


def test_schedules() -> None:
    assert Constant(3.0)(at(5)) == 3.0
    assert Exponential(0.1, times=4.0)(at(0, 0.0)) == 4.0
    assert Exponential(0.1, times=4.0)(at(9, 1.0)) == pytest.approx(0.4)
    warm = WarmUpAnneal(peak=10.0, warm_epochs=10.0)
    assert [warm(at(e)) for e in (0, 5, 10)] == pytest.approx([1.0, 5.5, 10.0])
    assert warm(at(12)) == pytest.approx(5.0)  # two epochs of 1 / sqrt 2
    assert Cosine()(at(0, 1.0)) == pytest.approx(0.0, abs=1e-9)


@given(st.floats(0, 1), st.floats(0, 1))
def test_annealing_never_rises(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert Exponential(0.2)(at(0, high)) <= Exponential(0.2)(at(0, low))
    cosine = Cosine(warm=0.0)
    assert cosine(at(0, high)) <= cosine(at(0, low)) + 1e-12


@given(st.integers(), st.integers(), st.text(), st.text())
def test_seeds_are_named(a: int, b: int, p: str, q: str) -> None:
    assert (seed_of(a, p) == seed_of(b, q)) == ((a, p) == (b, q))
    assert 0 <= seed_of(a, p) < 2**63
