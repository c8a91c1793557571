"""The gap over turns: the plan, ratios and their intervals, verdicts, the picture; rows of nobody's runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from murmur.comparison.rows import Row
from murmur_papers.studies import turns
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.heldout import END, LogRatio, interval
from murmur_papers.studies.plan import foreseen, missing
from murmur_papers.studies.run import Finder
from murmur_papers.studies.study import Groups, found

from .made_up import changed, row_of

ALONE = {1_500: 1.4, 3_000: 1.3, 6_000: 1.2, 12_000: 1.15, 24_000: 1.12}
Gap = Callable[[StudyCell, int], float]


def of(cell: StudyCell) -> int:
    return round(cell.budget / turns.frames(1))


def rows_of(gap: Gap, alone: dict[int, float] = ALONE) -> Callable[[StudyCell], Row]:
    """Losses of one learner by turns, and of systems `gap` times as much; seeds differ by 0.1 %."""

    def times(cell: StudyCell) -> float:
        return (
            alone[of(cell)]
            / (1 + cell.seed / 10)
            * (1 + cell.seed / 1000 if cell.learners > 1 else 1.0)
            * (gap(cell, of(cell)) if cell.learners > 1 else 1.0)
        )

    return changed(times)


def judged(number: int, gap: Gap, alone: dict[int, float] = ALONE) -> str:
    claim = turns.STUDY.claims[number - 1]
    assert claim.judge is not None
    return claim.judge(found(turns.STUDY, rows_of(gap, alone), claim.needs)).verdict


def test_two_strategies_with_seed_0_come_first_and_each_number_of_turns_has_three_rates() -> None:
    plan = [each.cell for each in foreseen([turns.STUDY], Finder({}))]
    # Three rates and another seed up to 6,000 turns, whose trials are those of 12,000; then two seeds. Two systems have
    # two more trials with 12,000 turns, for 24,000. The centre tries a further rate.
    assert len(plan) == 6 * (3 * 4 + 2) + 2 * (2 + 2) + 1
    first = [cell for cell in plan if cell.strategy in ("SyncSGD()", "ADPSGD(randomized_ring)")]
    assert plan[: len(first)] == first
    assert [cell.seed for cell in first] == sorted(cell.seed for cell in first)
    for name in turns.CHANGES:
        for number in turns.numbers(name):
            own = turns.system(name, number, (0,)).cell
            tried = {
                c.rate for c in plan if (c.strategy, c.learners, c.budget) == (own.strategy, own.learners, own.budget)
            }
            whole = number <= 6_000 or (name in (turns.ALONE, turns.RANDOMISED) and number == 12_000)
            assert len(tried) == (4 if (name, number) == (turns.ALONE, 1_500) else 3 if whole else 1)
            assert own.turns == number
    assert {cell.peak for cell in plan} == {32.0}
    assert missing([turns.STUDY], {}, ["augmented"]) == plan[:3]  # the centre


def test_rates_are_chosen_on_the_part_of_dev_that_does_not_judge() -> None:
    def go(cell: StudyCell) -> Row:
        row = row_of(cell, 1.0 + cell.rate)
        return {**row, "heldout": {"loss": 1 + cell.rate, "trial loss": 2 - cell.rate}}

    tried = turns.CENTRE.rate(go)
    assert tried > 1.0 / turns.IBM_PEAK
    assert turns.system("delay-by-one", 3_000, (0,)).best(go).rate == 2 * tried


def test_the_reference_is_the_lowest_loss_with_no_more_frames() -> None:
    alone = {**ALONE, 12_000: 1.3}  # one learner overfits there
    rows = found(turns.STUDY, rows_of(lambda *_: 1.0, alone), tuple(turns.GROUPS))
    for number, wanted in ((3_000, 1.3), (6_000, 1.2), (12_000, 1.2), (24_000, 1.12)):
        run = turns.runs(rows, turns.RANDOMISED, number)[0]
        first = turns.reference(rows, run)
        assert first is not None
        assert first["best_loss"] == pytest.approx(wanted)
        assert turns.at(rows, turns.RANDOMISED, number).value == pytest.approx(
            alone[number] / wanted * math.sqrt(1.001), rel=1e-3
        )


def made(rng: np.random.Generator, seed: int, times: np.ndarray) -> Row:
    nats = rng.uniform(1, 3, len(times)) * times
    return row_of(StudyCell(seed=seed), utterances={f"u{i:03}": [100 + i, x, x] for i, x in enumerate(nats)})


def test_intervals_are_those_of_other_utterances_and_of_other_seeds() -> None:
    """Against a bootstrap over utterances, with equal seeds; then against Student's interval, with equal utterances."""
    rng = np.random.default_rng(1)
    alone = made(rng, 0, np.ones(60))
    noise = {name: each[1] * rng.lognormal(0.1, 0.2) for name, each in alone["utterances"].items()}
    many = {**alone, "utterances": {name: [each[0], noise[name], 0.0] for name, each in alone["utterances"].items()}}
    ratio = LogRatio.of([(alone, many)] * 2)
    ours = interval([(1.0, ratio)], [ratio] * 20)
    frames, a, b = (
        np.array([row["utterances"][name][k] for name in sorted(noise)])
        for row, k in ((alone, 0), (alone, 1), (many, END))
    )
    draws = rng.integers(60, size=(20_000, 60))
    logs = np.log((frames * b)[draws].sum(1) / (frames * a)[draws].sum(1))
    assert math.log(ours.value) == pytest.approx(np.log((frames * b).sum() / (frames * a).sum()))
    assert math.log(ours.high / ours.low) / 2 == pytest.approx(2.12 * logs.std(), rel=0.05)
    flat = [LogRatio(np.array(x), np.zeros(9)) for x in ([0.1, 0.3], [0.2, 0.2], [0.0, 0.2])]
    found = interval([(1.0, flat[0])], flat)
    assert math.log(found.value) == pytest.approx(0.2)
    assert math.log(found.high / found.value) == pytest.approx(3.182 * math.sqrt((0.02 + 0.0 + 0.02) / 3 / 2))
    fall = interval([(1.0, flat[2]), (-1.0, flat[0])], flat)
    assert math.log(fall.high / fall.value) == pytest.approx(math.sqrt(2) * math.log(found.high / found.value))
    alone_seed = LogRatio(np.array([0.1]), np.zeros(9))
    assert interval([(1.0, alone_seed)], [alone_seed]).high == float("inf")
    other = {**many, "utterances": {"u": [1, 1.0, 1.0]}}
    with pytest.raises(ValueError, match="different utterances"):
        LogRatio.of([(alone, other)])


@pytest.mark.parametrize(("number", "reaching", "failing"), [
    (1, lambda c, n: 1 + 30 / n, lambda c, n: 1 + 600 / n),
    (2, lambda c, n: 1 + 300 / n, lambda c, n: 1 + n / 1e5),
])  # fmt: skip
def test_limits_are_reached_or_not(number: int, reaching: Gap, failing: Gap) -> None:
    assert judged(number, reaching) == "reached"
    assert judged(number, failing) == "not reached"


def test_a_wide_interval_or_a_reference_that_stands_still_decides_nothing() -> None:
    wide: Gap = lambda cell, n: 1.005 + (0.1 if cell.seed else -0.1) * (1 if n % 2_000 else -1)  # noqa: E731
    assert judged(1, wide) == "undecided"
    assert judged(2, lambda c, n: 1 + 300 / n, {**ALONE, 6_000: 1.4}) == "undecided"
    assert judged(2, lambda c, n: 1.0) == "undecided"
    assert judged(3, wide) == "reached"
    assert judged(3, wide, {**ALONE, 24_000: 1.2}) == "not reached"


def test_the_best_asynchronous_strategy_is_chosen_on_the_trial_part() -> None:
    def go(cell: StudyCell) -> Row:
        row = rows_of(lambda c, n: 1.0 if c.strategy == "DelayByOne()" else 1.2)(cell)
        trial = 0.5 if cell.strategy == "ADPSGD(ring)" else 1.0
        return {**row, "heldout": {**row["heldout"], "trial loss": trial}}

    outcome = turns.near(found(turns.STUDY, go, tuple(turns.GROUPS)))
    assert "fixed ring, 12,000 turns" in outcome.ours
    assert outcome.verdict == "not reached"


def with_one(rows: Groups, name: str, **change: object) -> dict[str, list[Row]]:
    return {key: [{**row, **(change if key == name else {})} for row in each] for key, each in rows.items()}


def test_rows_of_two_processors_are_not_compared_nor_drawn(tmp_path: Path) -> None:
    rows = found(turns.STUDY, rows_of(lambda c, n: 1.0), tuple(turns.GROUPS))
    mixed = with_one(rows, turns.group(turns.RANDOMISED, 3_000, 1), processor="another")
    for claim in turns.STUDY.claims[:2]:
        assert claim.judge is not None
        assert claim.judge(mixed).told == "undecided: different devices"

    def go(cell: StudyCell) -> Row:
        return {**rows_of(lambda c, n: 1.0)(cell), "processor": f"processor {cell.seed}"}

    assert turns.picture(go, tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverged_is_worse_than_any_ratio() -> None:
    rows = found(turns.STUDY, rows_of(lambda c, n: 1.0), tuple(turns.GROUPS))
    lost = with_one(rows, turns.group(turns.RANDOMISED, 24_000, 0), ended="nan")
    assert turns.at(lost, turns.RANDOMISED, 24_000).low == math.inf
    assert turns.at(lost, turns.RANDOMISED, 12_000).value == turns.at(rows, turns.RANDOMISED, 12_000).value
    alone = with_one(rows, turns.group(turns.ALONE, 1_500, 0), ended="nan")
    assert turns.near(alone).ours == "one learner diverged"


def test_the_cause_tells_distance_staleness_and_momenta() -> None:
    rows = found(turns.STUDY, rows_of(lambda c, n: 1.2), tuple(turns.GROUPS))
    told = turns.causes(rows)
    assert (
        "randomised ring distance 5.00 of a step, staleness 1.00 (at most 4), common part of the momenta 0.25" in told
    )


def test_the_picture_is_made_of_the_rows_that_are_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra viz is not installed")
    known = {cell.digest: rows_of(lambda c, n: 1 + 300 / n)(cell) for cell in _first()}
    line = turns.picture(Finder(known), tmp_path / "a")
    assert "(papers_turns.svg)" in line
    text = (tmp_path / "a" / "papers_turns.svg").read_text()
    assert "randomised ring" in text
    assert "24,000" in text
    turns.picture(Finder(known), tmp_path / "b")
    assert (tmp_path / "b" / "papers_turns.svg").read_text() == text
    assert turns.picture(Finder({}), tmp_path / "c") == ""


def _first() -> list[StudyCell]:
    """The cells of the two strategies that come first, with seed 0."""
    cells: list[StudyCell] = []

    def go(cell: StudyCell) -> Row:
        cells.append(cell)
        return rows_of(lambda c, n: 1.0)(cell)

    for name in turns.FIRST:
        for number in turns.numbers(name):
            turns.system(name, number, (0,))(go)
    return cells
