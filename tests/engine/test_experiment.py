"""Description and digest of an experiment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from murmur.engine.budget import Budget
from murmur.engine.experiment import ADDED, Experiment, describe
from murmur.engine.optim.optimizer import SGD
from murmur.recipes import toy
from murmur.run.configuration import configure

BASE = toy.experiment()


@pytest.mark.parametrize(
    ("integer", "same"),
    [
        (replace(BASE, budget=Budget(epochs=12)), replace(BASE, budget=Budget(epochs=12.0))),
        (replace(BASE, budget=Budget(epochs=12)), configure(BASE, ["budget.epochs=12"])),
        (replace(BASE, budget=Budget(samples=300)), configure(BASE, ["budget.samples=3e2"])),
        (replace(BASE, max_gradient_norm=1), replace(BASE, max_gradient_norm=1.0)),
        (replace(BASE, optimizer=SGD(1)), replace(BASE, optimizer=SGD(1.0))),
    ],
)
def test_an_integer_in_a_field_of_type_float_is_that_float(integer: Experiment, same: Experiment) -> None:
    assert integer.digest() == same.digest()
    assert describe(integer) == describe(same)


def test_integers_stay_integers() -> None:
    assert type(describe(Budget(minibatches=12))["minibatches"]) is int
    assert type(describe(BASE)["seed"]) is int
    assert replace(BASE, budget=Budget(epochs=12)).digest() != replace(BASE, budget=Budget(epochs=13)).digest()


@dataclass(frozen=True)
class Settings:
    size: int = 1
    columns: str = field(default="few", repr=False, metadata=ADDED)
    sizes: list[int] = field(default_factory=list, repr=False, metadata=ADDED)
    hidden: int = field(default=0, repr=False)


def test_added_settings_are_described_where_they_are_not_the_default() -> None:
    plain = describe(Settings(hidden=3))
    assert plain.keys() == {"type", "size"}
    assert describe(Settings(columns="all")) == {**plain, "columns": "all"}
    assert describe(Settings(sizes=[2])) == {**plain, "sizes": [2]}
