"""The largest minibatch and the time to a loss, on rows of nobody's runs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from murmur.comparison.rows import Row
from murmur_papers.studies import largest
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.plan import foreseen
from murmur_papers.studies.rings import by_seed
from murmur_papers.studies.run import Finder
from murmur_papers.studies.study import Outcome, found

from .made_up import row_of

EDGES = {"SyncSGD()": 1.0, "ADPSGD(randomized_ring)": 3.0, "ADPSGD(ring)": 1.1, "DelayByOne()": -2.0}


def rows_of(
    edges: dict[str, float], seconds: Callable[[StudyCell], float] = lambda _: 100.0
) -> Callable[[StudyCell], Row]:
    """Losses that reach 1.03 times one learner's at an edge, in steps of sqrt(2) over 164 windows."""

    def go(cell: StudyCell) -> Row:
        alone = 1.0 + cell.seed / 10
        if cell.learners == 1:
            return row_of(cell, alone)
        step = 2 * math.log2(cell.minibatch / 164)
        value = alone * 1.03 ** (1 + 0.5 * (step - edges[cell.strategy] - cell.seed / 100))
        spent = seconds(cell)
        curve = [[cell.budget * share, value * (2 - share), spent * share] for share in (0.25, 0.5, 1.0)]
        return {**row_of(cell, value, seconds=spent), "curve": curve}

    return go


def outcome(number: int, go: Callable[[StudyCell], Row]) -> Outcome:
    claim = largest.STUDY.claims[number]
    return claim.judge(found(largest.STUDY, go, claim.needs))


def test_the_largest_minibatch_is_where_the_loss_crosses_the_limit() -> None:
    rows = found(largest.STUDY, rows_of(EDGES), tuple(largest.GROUPS))
    one = by_seed(rows[largest.ALONE])
    for name, strategy in largest.STRATEGIES.items():
        sizes = largest.largest(rows[f"{name}: largest"], one)
        assert sizes is not None
        for seed, size in sizes.items():
            assert 2 * math.log2(size / 164) == pytest.approx(EDGES[strategy] + seed / 100, abs=0.05)  # sizes are whole
    for strategy, edge in (("SyncSGD()", -9.0), ("SyncSGD()", 9.0)):
        rows = found(largest.STUDY, rows_of(EDGES | {strategy: edge}), tuple(largest.GROUPS))
        assert largest.largest(rows["synchronous: largest"], one) is None


def test_the_plan_foresees_a_search_of_each_strategy() -> None:
    """As if each size were usable: two trials of each of three sizes, and two more seeds of the last one."""
    plan = [each.cell for each in foreseen([largest.STUDY], Finder({}))]
    for strategy in EDGES:
        own = [cell for cell in plan if cell.strategy == strategy and cell.learners > 1]
        assert [(cell.minibatch, cell.seed) for cell in own] == [(n, 0) for n in (232, 232, 656, 656, 1312, 1312)] + [
            (1312, 1),
            (1312, 2),
        ]
        assert {cell.budget for cell in own} == {20_172_000}
        assert all(cell.peak == pytest.approx(32 * cell.minibatch / 164, rel=0.01) for cell in own)


@pytest.mark.parametrize(("edge", "verdict", "told"), [
    (3.0, "agrees", "better, 2.000"), (-1.0, "differs", "worse, 0.500"), (1.01, "differs", "equal within 3 %"),
    (9.0, "undecided", "undecided"), (-9.0, "undecided", "undecided"),
])  # fmt: skip
def test_sizes_of_the_randomised_ring_decide(edge: float, verdict: str, told: str) -> None:
    found = outcome(0, rows_of(EDGES | {"ADPSGD(randomized_ring)": edge}))
    assert found.verdict == verdict
    assert told in found.ours.partition("randomised ring ")[2].partition(", delay-by-one")[0]
    assert "delay-by-one 82 windows: worse" in found.ours


@pytest.mark.parametrize(("times", "verdict"), [(0.8, "agrees"), (1.2, "differs"), (1.01, "differs")])
def test_seconds_to_a_loss_decide(times: float, verdict: str) -> None:
    go = rows_of(EDGES, lambda cell: 100.0 * (times if cell.strategy == "ADPSGD(randomized_ring)" else 1.0))
    assert outcome(1, go).verdict == verdict


def test_seeds_that_disagree_decide_nothing() -> None:
    go = rows_of(EDGES, lambda cell: 100.0 * (0.6 + 0.3 * cell.seed if cell.strategy.startswith("ADPSGD") else 1.0))
    assert outcome(1, go).verdict == "undecided"


def test_the_time_to_a_loss_lies_between_evaluation_points() -> None:
    row = row_of(StudyCell(), curve=[[1, 3.0, 10.0], [2, 2.0, 20.0], [3, None, 30.0], [4, 1.0, 40.0]])
    assert largest.seconds_to(row, 2.5) == pytest.approx(15.0)
    assert largest.seconds_to(row, 3.5) == 10.0
    assert largest.seconds_to(row, 1.5) == 40.0  # there is no loss before it
    assert largest.seconds_to(row, 0.5) == float("inf")


def test_the_clock_is_that_of_the_devices_benchmark() -> None:
    cell = largest.GROUPS["synchronous: largest"].cell(0, 0.1)  # type: ignore[attr-defined]
    cluster = cell.cluster()
    assert cluster.compute.seconds == pytest.approx(1.2)
    assert cluster.message_bytes / cluster.link.bytes_per_second / 1.2 == pytest.approx(0.0845, abs=0.001)
    assert cluster.learners_per_node == 1
