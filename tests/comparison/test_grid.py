"""The grid of a comparison: its cells, their content, and the inputs of their digests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.commands.options import numbers
from murmur.comparison.grid import ALONE, Cell, Grid, split_strategies
from murmur.core.errors import SettingError
from murmur.simulation.scenario import Scenario

SCENARIO = Scenario(step_seconds=0.1)
NAMES = ("KAVG(8)", "ADPSGD", "SuperLearners(ADPSGD(), 4)", "KAVG(K=[1, 2])", "f('a,(b', {1: (2, 3)})", "BMUF()")


def grid(*strategies: str, **more: object) -> Grid:
    scenario = SCENARIO if more.get("virtual") else Scenario()
    return Grid("toy", (), strategies, **{"learners": (1, 2), "scenario": scenario, **more})  # type: ignore[arg-type]


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


OWN = """
from murmur.recipes import toy
from dataclasses import replace
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds

def experiment():
    return replace(toy.experiment(), cluster=Cluster(4, ConstantSeconds(2.0, {0: 5.0, 1: 3.0})))
"""


@given(st.integers(1, 8), st.integers(0, 7), st.sampled_from(["SyncSGD()", "BMUF(2)"]))
def test_the_baseline_of_one_learner_is_no_straggler(learners: int, slow: int, strategy: str) -> None:
    """Its time is that of a learner without a factor, whichever learner is slow; the other cells keep the factor."""
    made = grid(strategy, virtual=(1, 8), scenario=replace(SCENARIO, stragglers=(f"{slow}=10x",)))
    cell = Cell("virtual", strategy, learners, 0)
    compute = made.scenario_of(cell).cluster(made.base).compute
    factors = [10.0 if learner == slow and learners > 1 else 1.0 for learner in range(learners)]
    assert [compute(learner, 0) for learner in range(learners)] == pytest.approx([0.1 * f for f in factors])


def test_a_baseline_on_a_cluster_of_the_experiments_own_is_no_straggler(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    made = Grid(str(file), (), ("SyncSGD()",), virtual=(2,))
    alone, both = (
        made.scenario_of(Cell("virtual", "SyncSGD()", learners, 0)).cluster(made.base).compute for learners in (1, 2)
    )
    assert [alone(0, 0), both(0, 0), both(1, 0)] == [2.0, 10.0, 6.0]


@pytest.mark.parametrize(
    ("scenario", "virtual", "says"),
    [
        (Scenario(stragglers=("7=10x",)), (2, 4), r"--straggler '7=10x': there are learners 0\.\.3"),
        (Scenario(stragglers=("slow",)), (2,), "--straggler 'slow': write LEARNER=FACTORx"),
        (Scenario(stragglers=("0=10x",)), (1,), "add a larger number to --virtual"),
        (Scenario(kind="nope"), (), "--cluster would change nothing without virtual learners: add --virtual"),
        (Scenario(step_seconds=3.0, jitter=0.1), (), "--step-seconds, --jitter would change nothing"),
        (Scenario(stragglers=("0=10x",)), (), "--straggler would change nothing"),
    ],
)
def test_an_option_of_the_cluster_without_effect_is_refused(
    scenario: Scenario, virtual: tuple[int, ...], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        grid("KAVG(8)", virtual=virtual, scenario=scenario)


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
