"""Phone n-gram models: relative frequencies, back-off of long histories, and paths of training."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.speech.sequence.denominator import BEGIN, OUTSIDE, PhoneModel, PhoneNgrams

SEQUENCES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), min_size=1, max_size=6)


def walked(model: PhoneModel, phones: list[int]) -> list[float]:
    """Probability of each phone and of the end."""
    history, found = BEGIN, []
    for phone in (*phones, OUTSIDE):
        found.append(model.following[history][phone])
        if phone != OUTSIDE:
            history = model.after(history, phone)
    return found


def test_relative_frequencies_by_hand() -> None:
    model = PhoneNgrams(order=3).train([[1, 2], [1, 2], [1, 1]])
    assert model.following[BEGIN] == {1: 1.0}
    assert model.following[0, 1] == {1: 1 / 3, 2: 2 / 3}
    assert model.following[1, 2] == {OUTSIDE: 1.0}
    assert walked(model, [1, 2]) == [1.0, 2 / 3, 1.0]


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, st.integers(3, 5), st.integers(0, 4))
def test_every_history_sums_to_one_and_training_stays_possible(sequences, order, longest) -> None:
    model = PhoneNgrams(order, longest).train(sequences)
    assert all(abs(sum(p.values()) - 1) < 1e-12 for p in model.following.values())
    assert all(p > 0 for phones in sequences for p in walked(model, phones))
    assert sum(len(history) == order - 1 for history in model.following) <= longest


@settings(max_examples=40, deadline=None)
@given(SEQUENCES, st.integers(4, 5))
def test_without_long_histories_the_model_is_one_order_shorter(sequences, order) -> None:
    assert PhoneNgrams(order, 0).train(sequences).following == PhoneNgrams(order - 1).train(sequences).following


def test_the_history_that_changes_most_stays() -> None:
    # After 1 4 3 comes 1 and after 2 4 3 comes 2; the phone before 5 3 says nothing about the next one.
    sequences = [[1, 4, 3, 1]] * 10 + [[2, 4, 3, 2]] * 9 + [[a, 5, 3, b] for a in (1, 2) for b in (1, 2)]
    model = PhoneNgrams(order=4, longest=2).train(sequences)
    assert {h for h in model.following if len(h) == 3} == {(1, 4, 3), (2, 4, 3)}
    assert model.following[1, 4, 3] == {1: 1.0}
    assert model.following[5, 3] == {1: 0.5, 2: 0.5}


@pytest.mark.parametrize("sequences", [[], [[]], [[1, 0, 2]]])
def test_unusable_sequences_are_refused(sequences) -> None:
    with pytest.raises(ValueError, match="phone sequence"):
        PhoneNgrams().train(sequences)


def test_orders_without_neighbours_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        PhoneNgrams(order=2)
