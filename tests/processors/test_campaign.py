"""Variants of the processor: each limits what a new interpreter uses, and only what this processor has is asked for."""

from __future__ import annotations

import dataclasses

import pytest

from tests.processors.campaign import LEVELS, Variant, limited, lookup, missing, not_limited, variants

BASELINE = "NPY_DISABLE_CPU_FEATURES"


@pytest.mark.parametrize("level", LEVELS)
def test_instructions_that_this_processor_lacks_are_named(level: str) -> None:
    given = limited(level, "SSE41", "SSE4_2", "Nehalem")
    for have in LEVELS:
        why = missing(given, {"torch": have, "numpy": []})
        assert why == (f"this processor has no {level}" if LEVELS.index(have) < LEVELS.index(level) else None)


def test_only_features_that_numpy_has_found_are_disabled() -> None:
    assert variants(["X86_V3", "AVX512_ICL"])["numpy-baseline"].variables == {BASELINE: "X86_V3 AVX512_ICL"}


def test_every_level_and_number_of_threads_has_a_variant() -> None:
    every = variants([])
    assert [each.capability for each in every.values() if each.capability] == list(LEVELS)
    assert {each.threads for each in every.values()} == {1, 2, 4}


@pytest.mark.slow
def test_a_limit_without_effect_is_a_failure() -> None:
    here = lookup({})
    assert isinstance(here["numpy"], list)
    every = variants(here["numpy"])
    assert {not_limited(each) for each in every.values() if missing(each, here) is None} == {None}
    without = dataclasses.replace(every["default"], variables={})
    assert (not_limited(without) is None) == (here["torch"] == "DEFAULT")
    assert (not_limited(Variant({BASELINE: ""})) is None) == (not here["numpy"])
