"""Conformance checks of strategies: all of ours pass, and each kind of untrue declaration is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

from murmur.core.errors import IncompleteRun
from murmur.core.learner import Learner, Strategy
from murmur.strategies import ADPSGD, ALL, KAVG, ParameterAveraging
from murmur.testing.strategies import check_strategy
from tests.support.grids import few

SMALL = {"ParameterAveraging": ParameterAveraging(8)}


@pytest.mark.parametrize("name", few(list(ALL)))
def test_the_strategies_of_the_package_pass(name: str) -> None:
    check_strategy(SMALL.get(name) or ALL[name]())


@dataclass(frozen=True)
class Alone:
    """Learners that never average, but for the last consensus that the engine forms."""

    ends_equal: ClassVar[bool] = True

    async def __call__(self, me: Learner) -> None:
        async for g in me.gradients():
            me.descend(g)


@dataclass(frozen=True)
class NotThePlainLoop:
    """Steps of half the length."""

    bitwise_alone: ClassVar[bool] = True

    async def __call__(self, me: Learner) -> None:
        async for g in me.gradients(mean_over=me.group):
            me.descend(0.5 * g)


@dataclass(frozen=True)
class Stale(ADPSGD):
    """Asynchronous averaging that declares a bound which it does not keep."""

    staleness: ClassVar[int | None] = 0


@dataclass(frozen=True)
class Upward:
    """Steps in the wrong direction."""

    async def __call__(self, me: Learner) -> None:
        async for g in me.gradients(mean_over=me.group):
            me.descend(-g)


@dataclass(frozen=True)
class EndsEarly:
    """Leaves out the second half of the minibatches."""

    async def __call__(self, me: Learner) -> None:
        async for g in me.gradients(at_most=5, mean_over=me.group):
            me.descend(g)


@dataclass(frozen=True)
class Undeclared:
    """Claims minibatches without the declaration that it is asynchronous."""

    async def __call__(self, me: Learner) -> None:
        async for g in me.claimed_gradients():
            me.descend(g)


@pytest.mark.parametrize(
    ("strategy", "error", "said"),
    [
        (Alone, AssertionError, "declares ends_equal"),
        (NotThePlainLoop, AssertionError, "is not the plain loop"),
        (Stale, AssertionError, "declared is at most 0"),
        (Upward, AssertionError, "the loss does not fall"),
        (EndsEarly, IncompleteRun, "the budget had 61 left"),
        (Undeclared, RuntimeError, "lock_step = False"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_an_untrue_strategy_is_found(strategy: Callable[[], Strategy], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        check_strategy(strategy())


def test_a_plain_coroutine_function_is_a_strategy() -> None:
    async def strategy(me: Learner) -> None:
        await KAVG(4)(me)

    check_strategy(strategy)
