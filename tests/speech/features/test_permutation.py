"""The computed order: one to one, the same on all machines, statistically equal to a random one."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.features.permutation import Permutation


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 2**31))
@settings(max_examples=200, deadline=None)
def test_every_value_stands_in_one_place(size, seed, epoch):
    assert sorted(Permutation(size, (seed, epoch))(range(size)).tolist()) == list(range(size))


@given(st.integers(2, 2**45), st.data())
@settings(max_examples=50, deadline=None)
def test_places_can_be_asked_one_by_one_in_any_order(size, data):
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20))
    order = Permutation(size, (3, 1))
    together = order(places)
    assert [int(order([place])[0]) for place in places] == together.tolist()
    assert together.max() < size
    assert len(set(together.tolist())) == len(set(places))


def test_names_tell_orders_apart_and_equal_names_give_the_same_numbers():
    assert Permutation(10, (7, 0))(range(10)).tolist() == [5, 8, 3, 2, 1, 7, 4, 9, 0, 6]  # on every machine
    orders = {tuple(Permutation(50, (seed, epoch))(range(50))) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


def test_it_looks_like_a_draw():
    """Chi-square of values by place, of successors, and the correlation of place and value."""
    size, draws = 12, 6000
    orders = np.stack([Permutation(size, (1, epoch))(range(size)) for epoch in range(draws)])
    wanted = draws / size
    stands = np.stack([np.bincount(orders[:, place], minlength=size) for place in range(size)])
    assert ((stands - wanted) ** 2 / wanted).sum() < 121 + 5 * np.sqrt(2 * 121)
    follows = np.bincount((orders[:, :-1] * size + orders[:, 1:]).ravel(), minlength=size * size)
    pairs = follows.reshape(size, size)[~np.eye(size, dtype=bool)]
    expected = draws * (size - 1) / (size * (size - 1))
    assert ((pairs - expected) ** 2 / expected).sum() < 131 + 5 * np.sqrt(2 * 131)
    long = Permutation(100_000, (5,))(range(100_000))
    assert abs(np.corrcoef(np.arange(100_000), long)[0, 1]) < 0.015
    assert abs(np.corrcoef(long[:-1], long[1:])[0, 1]) < 0.015


def test_no_memory_however_long():
    order = Permutation(10**12, (0, 0))
    order(range(64))
    tracemalloc.start()
    order(range(64))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000


def test_places_outside_and_empty_orders_are_refused():
    for place in (-1, 5):
        with pytest.raises(IndexError, match="an order of 5 values"):
            Permutation(5)([place])
    with pytest.raises(ValueError, match="size 0"):
        Permutation(0)
