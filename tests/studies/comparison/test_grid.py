"""The grid of a comparison: its cells, their content, and the inputs of their digests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.errors import SettingError
from murmur.simulation.scenario import Scenario
from murmur.studies.comparison.grid import ALONE, Cell, Grid, numbers, split_strategies

SCENARIO = Scenario(step_seconds=0.1)
NAMES = ("KAVG(8)", "ADPSGD", "SuperLearners(ADPSGD(), 4)", "KAVG(K=[1, 2])", "f('a,(b', {1: (2, 3)})", "BMUF()")


def grid(*strategies: str, **more: object) -> Grid:
    return Grid("toy", (), strategies, scenario=SCENARIO, **{"learners": (1, 2), **more})  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(NAMES), min_size=1), st.sampled_from([",", ", ", " ,"]))
def test_commas_in_brackets_do_not_part_strategies(names: list[str], comma: str) -> None:
    assert split_strategies(comma.join(names)) == tuple(names)


@pytest.mark.parametrize("text", ["", "KAVG(8),", "KAVG(8", "KAVG(8))", "),(", "f('a)"])
def test_what_is_no_list_of_strategies_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="brackets closed"):
        split_strategies(text)


def test_numbers() -> None:
    assert numbers("1, 2,16", "--learners") == (1, 2, 16)
    assert numbers("", "--virtual") == ()
    with pytest.raises(SettingError, match="--seeds '1,x'"):
        numbers("1,x", "--seeds")


def test_one_learner_is_run_once_a_kind_and_seed_and_cells_that_do_not_apply_are_left_out() -> None:
    cells = grid("KAVG(8)", "SuperLearners(ADPSGD(), 4)", "BMUF(8)", virtual=(4,), seeds=(0, 1)).cells()
    assert len(cells) == len(set(cells))
    first = [(c.kind, c.strategy, c.learners) for c in cells if c.seed == 0]
    assert first == [
        ("processes", ALONE, 1),
        ("processes", "BMUF(8)", 1),  # with one learner it is not the plain loop
        ("processes", "KAVG(8)", 2),
        ("processes", "BMUF(8)", 2),
        ("virtual", ALONE, 1),
        ("virtual", "KAVG(8)", 4),
        ("virtual", "SuperLearners(ADPSGD(), 4)", 4),
        ("virtual", "BMUF(8)", 4),
    ]
    assert [replace(c, seed=1) for c in cells if c.seed == 0] == [c for c in cells if c.seed == 1]
    assert len({c.name for c in cells}) == len(cells)


def test_digests_tell_apart_what_differs_and_nothing_else() -> None:
    plain = grid("KAVG(8)", learners=(2, 4), virtual=(4, 8))
    cells = plain.cells()
    assert len({plain.digest(cell) for cell in cells}) == len(cells)
    more = grid("ADPSGD()", "KAVG(8)", learners=(4, 2), virtual=(8, 4), seeds=(1, 0))
    assert {plain.digest(c) for c in cells if c.strategy != ALONE} <= {more.digest(c) for c in more.cells()}
    cell = Cell("virtual", "KAVG(8)", 4, 0)
    changed = [
        replace(plain, settings=("optimizer.lr=0.3",)),
        replace(plain, scenario=replace(SCENARIO, stragglers=("0=2x",))),
        replace(plain, scenario=replace(SCENARIO, step_seconds=0.2)),
    ]
    assert len({each.digest(cell) for each in [plain, *changed]}) == 4
    slow = Cell("processes", "KAVG(8)", 2, 0)
    assert changed[1].digest(slow) == plain.digest(slow)  # real learners are as fast as they are


def test_a_seed_reaches_experiment_and_task() -> None:
    seven = grid("KAVG(8)").experiment(Cell("processes", "KAVG(8)", 2, 7))
    assert seven.seed == seven.task.seed == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: grid("KAVG(8)", learners=()), "--learners or --virtual"),
        (lambda: grid("KAVG(8)", learners=(0,)), "--learners 0"),
        (lambda: grid("KAVG(8)", seeds=(1, 1)), "--seeds 1,1"),
        (lambda: grid("KAVG(8)", seeds=()), "needs --seeds"),
        (lambda: grid("KAVG(8)", "KAVG(K=8)"), "are the same"),
        (lambda: grid("KAVK(8)"), "KAVG"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(made, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        made()
