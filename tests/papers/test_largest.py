"""The largest minibatch and the time to a loss, on rows of nobody's runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.comparison.rows import Row
from murmur_papers.studies import largest
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.largest import SEEDS, STEPS, STRATEGIES, Largest, by_seed, usable
from murmur_papers.studies.plan import foreseen
from murmur_papers.studies.run import Finder
from murmur_papers.studies.study import Outcome, found

from .made_up import row_of

EDGES = {"SyncSGD()": 1.0, "ADPSGD(randomized_ring)": 3.0, "ADPSGD(ring)": 1.1, "DelayByOne()": -2.0}
RING, DELAY = "ADPSGD(randomized_ring)", "DelayByOne()"
SUPERIOR, FASTEST, LARGER = range(3)
ALIKE = dict.fromkeys(SEEDS, 1.0)
Go = Callable[[StudyCell], Row]


def step_of(cell: StudyCell) -> float:
    return 2 * math.log2(cell.minibatch / 164)


def rows_of(
    edges: Mapping[str, float], seconds: Callable[[StudyCell], float] = lambda _: 100.0, spread: float = 0.0
) -> Go:
    """Losses that reach 1.03 times one learner's at an edge, in steps of sqrt(2) over 164 windows.

    `spread`: that of the randomised ring's edge over seeds.
    """

    def go(cell: StudyCell) -> Row:
        alone = 1.0 + cell.seed / 10
        if cell.learners == 1:
            return row_of(cell, alone)
        edge = edges[cell.strategy] + cell.seed / 100 + spread * (cell.strategy == RING) * (cell.seed - 1)
        value = alone * 1.03 ** (1 + 0.5 * (step_of(cell) - edge))
        spent = seconds(cell)
        curve = [[cell.budget * share, value * (2 - share), spent * share] for share in (0.25, 0.5, 1.0)]
        return {**row_of(cell, value, seconds=spent), "curve": curve}

    return go


def outcome(number: int, go: Go) -> Outcome:
    claim = largest.STUDY.claims[number]
    assert claim.judge is not None
    return claim.judge(found(largest.STUDY, go, claim.needs))


def test_the_largest_minibatch_is_where_the_loss_crosses_the_limit() -> None:
    rows = found(largest.STUDY, rows_of(EDGES), tuple(largest.GROUPS))
    one = by_seed(rows[largest.ALONE])
    for name, strategy in STRATEGIES.items():
        sizes = largest.largest(rows[f"{name}: largest"], one)
        assert sizes is not None
        for seed, size in sizes.items():
            assert 2 * math.log2(size / 164) == pytest.approx(EDGES[strategy] + seed / 100, abs=0.05)  # sizes are whole
    for strategy, edge in (("SyncSGD()", -9.0), ("SyncSGD()", 9.0)):
        rows = found(largest.STUDY, rows_of(EDGES | {strategy: edge}), tuple(largest.GROUPS))
        assert largest.largest(rows["synchronous: largest"], one) is None


@given(st.integers(STEPS[0] - 1, STEPS[-1]), st.sampled_from(list(STRATEGIES.values())))
def test_bisection_finds_the_largest_minibatch_that_is_usable(limit: int, strategy: str) -> None:
    """A search over all sizes, if runs are usable up to one size; all seeds are tried there and at the next one."""
    rows = Largest(strategy)(lambda cell: row_of(cell, 1.0 if cell.learners == 1 or step_of(cell) < limit + 0.5 else 2))
    sizes = [round(164 * 2 ** (step / 2)) for step in STEPS if step <= limit]
    assert {row["cell"]["minibatch"] for row in usable(rows, ALIKE).values()} == set(sizes[-1:])
    assert len({row["cell"]["minibatch"] for row in rows}) <= 4
    edges = bool(sizes) + (0 < len(sizes) < len(STEPS))
    assert sum(row["cell"]["seed"] > 0 for row in rows) == 2 * edges


def test_each_size_has_the_best_of_its_own_rates() -> None:
    """The best rate falls by a factor of two every second size."""

    def best(cell: StudyCell) -> int:
        return -(round(step_of(cell)) // 2)

    def go(cell: StudyCell) -> Row:
        return row_of(cell, 1.0 + abs(math.log2(cell.rate * 32 / 0.4) - best(cell)) / 10)

    rows = Largest("SyncSGD()")(go)
    for row in rows:
        assert round(math.log2(row["cell"]["rate"] * 32 / 0.4)) == best(StudyCell(**row["cell"]))
    assert usable(rows, ALIKE)[0]["cell"]["minibatch"] == 1312


def test_a_size_that_one_seed_cannot_use_is_not_the_largest() -> None:
    rows = Largest("SyncSGD()")(lambda cell: row_of(cell, 1.2 if cell.seed == 2 and cell.minibatch > 500 else 1.0))
    assert usable(rows, ALIKE)[0]["cell"]["minibatch"] == 464
    assert usable(rows, ALIKE | {2: 1.2})[0]["cell"]["minibatch"] == 1312  # each seed has one learner of its own


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


@pytest.mark.parametrize(("edge", "spread", "verdict", "told"), [
    (5.0, 0.0, "reached", ", 4.0"), (4.0, 0.0, "not reached", ", 2.8"), (-1.0, 0.0, "not reached", ", 0.5"),
    (4.2, 0.5, "undecided", "times as large"), (9.0, 0.0, "undecided", "none"), (-9.0, 0.0, "undecided", "none"),
])  # fmt: skip
def test_three_times_the_size_must_lie_below_the_whole_interval(
    edge: float, spread: float, verdict: str, told: str
) -> None:
    found = outcome(LARGER, rows_of(EDGES | {RING: edge}, spread=spread))
    assert found.verdict == verdict
    assert told in found.ours.partition("randomised ring ")[2].partition("; delay-by-one")[0]
    assert "delay-by-one 82 windows, 0.355" in found.ours


@pytest.mark.parametrize(("times", "verdict"), [(0.8, "better"), (1.2, "worse"), (1.01, "equal within 3 %")])
@pytest.mark.parametrize(("number", "strategy"), [(SUPERIOR, RING), (FASTEST, DELAY)])
def test_seconds_to_a_loss_decide(number: int, strategy: str, times: float, verdict: str) -> None:
    go = rows_of(EDGES | {"ADPSGD(ring)": 1.0}, lambda cell: 100.0 * (times if cell.strategy == strategy else 1.0))
    assert outcome(number, go).verdict == verdict


def test_delay_by_one_must_be_faster_than_each_ring() -> None:
    go = rows_of(EDGES, lambda cell: {DELAY: 80.0, RING: 60.0}.get(cell.strategy, 100.0))
    assert outcome(FASTEST, go).verdict == "worse"
    assert outcome(FASTEST, rows_of(EDGES | {RING: -9.0})).told == "undecided: no usable size"


def test_seeds_that_disagree_decide_nothing() -> None:
    go = rows_of(EDGES, lambda cell: 100.0 * (0.6 + 0.3 * cell.seed if cell.strategy.startswith("ADPSGD") else 1.0))
    assert outcome(SUPERIOR, go).verdict == "undecided"


@pytest.mark.parametrize("number", [SUPERIOR, FASTEST, LARGER])
def test_rows_of_several_devices_and_one_learner_that_diverged_decide_nothing(number: int) -> None:
    plain = rows_of(EDGES)
    gpu = {"device": "cuda", "hardware": "a machine, a card"}
    mixed: Go = lambda cell: plain(cell) | (gpu if cell.learners > 1 and cell.seed == 0 else {})  # noqa: E731
    assert outcome(number, mixed).told == "undecided: different devices"
    lost: Go = lambda cell: plain(cell) | ({"ended": "nan"} if cell.learners == 1 and cell.seed == 1 else {})  # noqa: E731
    assert outcome(number, lost).told == "undecided: one learner diverged"


def test_the_time_to_a_loss_lies_between_evaluation_points() -> None:
    row = row_of(StudyCell(), curve=[[1, 3.0, 10.0], [2, 2.0, 20.0], [3, None, 30.0], [4, 1.0, 40.0]])
    assert largest.seconds_to(row, 2.5) == pytest.approx(15.0)
    assert largest.seconds_to(row, 3.5) == 10.0
    assert largest.seconds_to(row, 1.5) == 40.0  # there is no loss before it
    assert largest.seconds_to(row, 0.5) == float("inf")


def test_the_clock_is_that_of_the_devices_benchmark() -> None:
    cluster = Largest("SyncSGD()").cell(0, 0.1).cluster()
    assert cluster.compute.seconds == pytest.approx(1.2)  # type: ignore[attr-defined]
    assert cluster.message_bytes / cluster.link.bytes_per_second / 1.2 == pytest.approx(0.0845, abs=0.001)
    assert cluster.learners_per_node == 1
