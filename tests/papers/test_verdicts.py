"""Rules of the papers' verdicts on rows that nobody made: each verdict is reachable."""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.comparison.rows import Row
from murmur.report.error_rate import Interval
from murmur_papers.studies import asgd, frequency, hierarchy
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.page import STUDIES
from murmur_papers.studies.plan import judged
from murmur_papers.studies.run import MissingRun, diverged, loss
from murmur_papers.studies.study import FURTHER_SEEDS, ONE_SEED, SEEDS, Outcome, found
from murmur_papers.studies.verdicts import (
    LAB_TORCH,
    Compared,
    apart,
    equal_chance,
    not_alike,
    place,
    ratio,
    shown,
    speed_up,
    verdict_of,
    wer,
    wer_difference,
)

from .made_up import PRIOR, alike, changed, invented, row_of

SPREAD = (0.95, 1.05, 1.0)  # of the ratio over seeds, so wide that an interval holds 1


def verdict(study: str, number: int, go: Callable[[StudyCell], Row]) -> str:
    return outcome_of(study, number, go).verdict


def outcome_of(study: str, number: int, go: Callable[[StudyCell], Row], beside: bool = False) -> Outcome:
    claim = STUDIES[study].claims[number - 1]
    assert claim.judge is not None
    return claim.judge(found(STUDIES[study], go, (*claim.needs, *(claim.beside if beside else ()))))


def if_(condition: Callable[[StudyCell], bool], factor: float) -> Callable[[StudyCell], float]:
    return lambda cell: factor if condition(cell) else 1.0


def wide(condition: Callable[[StudyCell], bool]) -> Callable[[StudyCell], float]:
    return lambda cell: SPREAD[cell.seed] if condition(cell) else 1.0


SGD: Callable[[StudyCell], bool] = lambda cell: cell.optimizer == "SGD"  # noqa: E731
STACK: Callable[[StudyCell], bool] = lambda cell: cell.stack  # noqa: E731
MANY: Callable[[StudyCell], bool] = lambda cell: cell.learners > 1  # noqa: E731
SERVER: Callable[[StudyCell], bool] = lambda cell: cell.strategy.startswith("ASGD")  # noqa: E731
DELAY: Callable[[StudyCell], bool] = lambda cell: cell.strategy.startswith("DelayByOne")  # noqa: E731
SHAPED: Callable[[StudyCell], bool] = lambda cell: cell.schedule != "kaldi"  # noqa: E731


@pytest.mark.parametrize(("study", "number", "good", "expected", "bad", "open_"), [
    ("schedules", 1, if_(SGD, 1.2), "better", if_(SGD, 0.8), wide(SGD)),
    ("schedules", 2, if_(STACK, 0.8), "better", if_(STACK, 1.2), wide(STACK)),
    ("asgd", 2, if_(MANY, 1.02), "equal within 3 %", if_(MANY, 1.1), wide(MANY)),
    ("asgd", 3, if_(MANY, 0.9), "better", if_(MANY, 1.05), wide(MANY)),
    ("rings", 2, if_(DELAY, 0.8), "better", if_(DELAY, 1.2), wide(DELAY)),
    ("hierarchy", 1, if_(MANY, 1.02), "equal within 3 %", if_(MANY, 1.1), wide(MANY)),
])  # fmt: skip
def test_ratios_of_losses_reach_every_verdict(
    study: str,
    number: int,
    good: Callable[[StudyCell], float],
    expected: str,
    bad: Callable[[StudyCell], float],
    open_: Callable[[StudyCell], float],
) -> None:
    assert verdict(study, number, changed(good)) == expected
    assert verdict(study, number, changed(bad)) == "worse"
    assert verdict(study, number, changed(open_)) == "undecided"


def by_time(**times: float) -> Callable[[StudyCell], Row]:
    """Virtual seconds as a share of one learner's, by what a cell's strategy begins with."""

    def go(cell: StudyCell) -> Row:
        alone = MACHINES[cell.machines].alone(cell.budget) if cell.machines else 1.0
        fits = [share for name, share in times.items() if cell.strategy.startswith(name) or name == f"n{cell.learners}"]
        return row_of(cell, seconds=alone * (fits[0] if fits else 0.01))

    return go


@pytest.mark.parametrize(("study", "number", "share", "told"), [
    ("asgd", 3, {"AdaptiveKAVG": 0.1}, "speed reached, 1.64 times theirs"),
    ("asgd", 3, {"AdaptiveKAVG": 0.2}, "speed not reached, 0.82 times theirs"),
    ("hierarchy", 1, {"SuperLearners": 0.025}, "speed reached, 1.08 times theirs"),
    ("hierarchy", 1, {"SuperLearners": 0.05}, "speed not reached, 0.54 times theirs"),
])  # fmt: skip
def test_speeds_stand_beside_the_published_ones(study: str, number: int, share: dict[str, float], told: str) -> None:
    outcome = outcome_of(study, number, by_time(**share))
    assert outcome.told.endswith(told)
    assert f"{1 / next(iter(share.values())):.1f} times as fast, loss 1.000" in outcome.ours


def test_the_hierarchy_must_be_faster_than_each_reading_of_the_flat_ring() -> None:
    """It has 55x here, the ring of the runs 33x, and a ring that sends one model a step at most 64x."""
    for shares, expected in (
        ({"SuperLearners": 0.014, "ADPSGD": 0.03, "SyncSGD": 0.04}, "reached"),
        ({"SuperLearners": 0.03, "ADPSGD": 0.02}, "not reached"),
        ({"SuperLearners": 0.018, "ADPSGD": 0.03, "SyncSGD": 0.04}, "undecided"),
        ({"SuperLearners": 0.018, "ADPSGD": 0.03, "SyncSGD": 0.012}, "not reached"),
    ):
        assert verdict("hierarchy", 2, by_time(**shares)) == expected


@pytest.mark.parametrize(("number", "n", "share", "told"), [
    (4, 16, 0.08, "speed reached, 1.34"), (5, 32, 0.05, "speed reached, 1.18"),
    (5, 32, 0.07, "speed not reached, 0.84"),
])  # fmt: skip
def test_speed_and_accuracy_of_averaging_are_of_one_operating_point(
    number: int, n: int, share: float, told: str
) -> None:
    """Until runs with K = 16 have all frames, losses are known at K = 2 and speeds of short runs at K = 16."""

    def go(cell: StudyCell) -> Row:
        row = by_time(**{"KAVG(16": share, "KAVG(2": 0.3})(cell)
        return {**row, "heldout": {"loss": 1.5 if "KAVG(16" in cell.strategy else 1.0}}

    before, after = outcome_of("schedules", number, go), outcome_of("schedules", number, go, beside=True)
    assert before.told == "undecided: different operating points"
    (short_speed,) = re.findall(r": ([\d.]+) times as fast at K = 16 \(a short run\)", before.ours)
    assert float(short_speed) == pytest.approx(1 / share, rel=0.01)
    assert "loss 1.000 (1.000 to 1.000) at K = 2 (3.3 times as fast there)" in before.ours
    assert after.told.startswith("loss worse; words ")
    assert told in after.told
    assert f"{n} learners: {1 / share:.1f} times as fast at K = 16, loss 1.500" in after.ours
    rows = found(STUDIES["schedules"], go, (f"{n}, averages every 16 turns", f"{n}, K = 16"))
    (short,), whole = rows.values()
    assert short["cell"]["strategy"] == whole[0]["cell"]["strategy"]
    assert short["cell"]["budget"] < whole[0]["cell"]["budget"] / 10
    assert {row["cell"]["seed"] for row in whole if row["cell"]["decoded"]} == set(SEEDS)


def test_asgd_is_judged_at_the_minibatch_of_its_speed() -> None:
    def go(cell: StudyCell) -> Row:
        row = by_time(ASGD=0.4, KAVG=0.3)(cell)
        return {**row, "heldout": {"loss": 1.3 if SERVER(cell) and cell.minibatch == asgd.THEIRS else 1.0}}

    before, after = outcome_of("asgd", 1, go), outcome_of("asgd", 1, go, beside=True)
    assert before.told == "undecided: different operating points"
    assert (
        "2.5 times as fast (K-step averaging 3.3) with their minibatch; loss over K-step averaging's 1.000"
        in before.ours
    )
    assert after.told.startswith("loss worse; words ")
    assert after.told.endswith("speed below that of K-step averaging: reached")
    rows = found(STUDIES["asgd"], go, STUDIES["asgd"].claims[0].beside)
    assert {row["cell"]["minibatch"] for each in rows.values() for row in each} == {asgd.THEIRS}


def test_the_schedule_matters_if_the_best_beats_the_worst() -> None:
    assert verdict("schedules", 3, changed(if_(SHAPED, 1.2))) == "better"
    assert verdict("schedules", 3, changed(wide(SHAPED))) == "undecided"
    assert verdict("schedules", 3, lambda cell: row_of(cell, ended="nan")) == "undecided"
    once: Callable[[StudyCell], Row] = lambda cell: row_of(  # noqa: E731
        cell, ended="nan" if cell.schedule == "ibm" and cell.seed == 2 else None
    )
    assert verdict("schedules", 3, once) == "undecided"
    constant: Callable[[StudyCell], Row] = lambda cell: row_of(cell, ended="nan" if cell.schedule == "ibm" else None)  # noqa: E731
    assert verdict("schedules", 3, constant) == "better"


def at_frequency(values: Mapping[int, tuple[float, float, float]]) -> Callable[[StudyCell], Row]:
    by_strategy = {f"ParameterAveraging({n / frequency.LEARNERS}, ": each for n, each in values.items()}

    def go(cell: StudyCell) -> Row:
        fits = [each[cell.seed] for begin, each in by_strategy.items() if cell.strategy.startswith(begin)]
        return row_of(cell, fits[0] if fits and cell.learners > 1 else 1.0)

    return go


NEAR, FAR = (1.01, 1.09, 1.21), (1.3, 1.43, 1.56)
RANGE = dict(zip(frequency.FREQUENCIES, ((1.0, 1.1, 1.2), NEAR, FAR, (2.0, 2.2, 2.4)), strict=True))


def test_the_best_range_of_frequencies_takes_the_best_and_what_cannot_be_told_from_it() -> None:
    rows = found(STUDIES["frequency"], at_frequency(RANGE), tuple(frequency.NAMES))
    assert frequency.best_range(rows) == ["25,000 frames", "100,000 frames"]
    assert verdict("frequency", 1, at_frequency(RANGE)) == "better"
    assert verdict("frequency", 1, alike) == "undecided"
    assert verdict("frequency", 1, lambda cell: row_of(cell, ended="nan")) == "undecided"


@pytest.mark.parametrize(("fewest", "expected"), [(0, "reached"), (3, "not reached")])
def test_word_errors_must_be_fewest_in_the_best_range(fewest: int, expected: str) -> None:
    place = f"ParameterAveraging({frequency.FREQUENCIES[fewest] / frequency.LEARNERS}, "

    def go(cell: StudyCell) -> Row:
        row = at_frequency(RANGE)(cell)
        if cell.decoded:
            wrong = 0 if cell.strategy.startswith(place) else 2
            row["errors"] = {f"u{i}": [wrong, 5] for i in range(9)}
        return row

    assert verdict("frequency", 2, go) == expected


def test_a_best_range_of_all_frequencies_decides_nothing_on_words() -> None:
    """The fewest errors cannot lie outside of it."""
    values = dict.fromkeys(frequency.FREQUENCIES, NEAR)
    place = f"ParameterAveraging({frequency.FREQUENCIES[1] / frequency.LEARNERS}, "

    def go(cell: StudyCell) -> Row:
        row = at_frequency(values)(cell)
        few = place in cell.strategy
        return {**row, "errors": {f"u{n}": [n % 2 if few else n % 2 + 1, 10] for n in range(40)}}

    assert len(frequency.best_range(found(STUDIES["frequency"], go, tuple(frequency.NAMES)))) == len(frequency.NAMES)
    assert verdict("frequency", 2, go) == "undecided"


def test_further_seeds_of_frequencies_are_decoded_and_narrow_the_best_range() -> None:
    near, wide = (1.0, 1.1, 1.2, 1.0, 1.1, 1.2), (1.1, 1.8, 1.3, 1.5, 1.65, 1.8)
    values = dict(zip(frequency.FREQUENCIES, (near, near, wide, wide), strict=True))
    decoded = dict[int, set[bool]]()

    def go(cell: StudyCell) -> Row:
        decoded.setdefault(cell.seed, set()).add(cell.decoded)
        few = any(f"({n / frequency.LEARNERS}, " in cell.strategy for n in frequency.FREQUENCIES[:2])
        return {**at_frequency(values)(cell), "errors": {f"u{n}": [1 if few else 5, 10] for n in range(40)}}

    for number in (1, 2):
        claim = STUDIES["frequency"].claims[number - 1]
        first, again = (judged(STUDIES["frequency"], claim, go, further=each) for each in (False, True))
        assert first is not None
        assert again is not None
        assert (first.verdict, again.verdict) == ("undecided", ("better", "reached")[number - 1])
    assert all(decoded[seed] == {True} for seed in FURTHER_SEEDS)


def test_the_second_look_at_frequencies_is_stricter() -> None:
    """The chance of three seeds is below 5 %, and so is that of six, but not below 2.5 %."""
    draw = random.Random(1)
    while True:
        losses = [[math.exp(draw.gauss(0, 0.1) + 0.075 * group) for _ in range(6)] for group in range(4)]
        chance = equal_chance([[math.log(x) for x in group] for group in losses])
        if 0.03 < chance < 0.045:
            break
    groups = [[row_of(StudyCell("ctc", seed=seed), x) for seed, x in enumerate(group)] for group in losses]
    assert not_alike(groups) == "undecided"


def test_word_errors_are_compared_with_the_best_of_the_range() -> None:
    """The best frequency is not the first of its range, and the fewest errors are outside, close to the best."""
    losses = {25_000: NEAR, 100_000: (2.0, 2.2, 2.4), 400_000: (1.0, 1.1, 1.2), 1_600_000: (1.9, 2.1, 2.3)}
    wrong = {25_000: 3, 100_000: 3, 400_000: 1, 1_600_000: 1}

    def go(cell: StudyCell) -> Row:
        row = at_frequency(losses)(cell)
        if cell.decoded and cell.learners > 1:
            frames = next(n for n in wrong if f"({n / frequency.LEARNERS}, " in cell.strategy)
            row["errors"] = {f"u{i}": [wrong[frames] - (i == 4 and frames == 1_600_000), 5] for i in range(9)}
        return row

    assert frequency.best_range(found(STUDIES["frequency"], go, tuple(frequency.NAMES))) == [
        "400,000 frames",
        "25,000 frames",
    ]
    assert verdict("frequency", 2, go) == "undecided"
    wrong[400_000], wrong[1_600_000] = 0, 2
    assert verdict("frequency", 2, go) == "reached"
    wrong[400_000], wrong[1_600_000] = 5, 1
    assert verdict("frequency", 2, go) == "not reached"


@pytest.mark.parametrize(("seconds_of_a_job", "falls", "factor"), [
    ((4.0, 25.0), "reached", "reached, 1.13"), ((4.0, 14.0), "reached", "not reached, 0.63"),
    ((1.0, 9.0), "not reached", "not reached, 0.41"),
])  # fmt: skip
def test_time_saved_must_fall_with_rarer_averages_and_be_as_much_as_theirs(
    seconds_of_a_job: tuple[float, float], falls: str, factor: str, tmp_path: Path
) -> None:
    def sides(*times: float) -> dict[str, dict[str, float]]:
        frames = ("25000", "600000")
        return {n: {"seconds": t, "compute": t / 2} for n, t in zip(frames, times, strict=True)}

    record = tmp_path / "record.json"
    figures = {"ours": sides(1.0, 10.0), "job per iteration, processes": sides(*seconds_of_a_job)}
    by_speed = {"60000": {"with start-up": 0.2}, "240000": {"with start-up": 0.5}}
    record.write_text(json.dumps({"figures": figures | {"at 600k": {"reductions_by_speed": by_speed}}}))
    assert frequency.greater({}, record).verdict == falls
    assert frequency.saved({}, record).told == f"{factor} times theirs"
    told = frequency.parts({}, record)
    assert f"ours 10.0 s, job per iteration, processes {seconds_of_a_job[1]:.1f} s, of which gradients 5.0 s" in told
    assert "20 % at 60,000, 50 % at 240,000" in told


@pytest.mark.parametrize(
    ("ring", "sync", "expected"), [(1.15, 8.0, "reached"), (1.25, 8.0, "not reached"), (1.15, 3.0, "not reached")]
)
def test_stragglers_are_judged_by_the_clock(ring: float, sync: float, expected: str) -> None:
    def go(cell: StudyCell) -> Row:
        slowed = ring if cell.strategy.startswith("ADPSGD") else sync
        return row_of(cell, seconds=100.0 * (slowed if cell.slow > 1 else 1.0))

    assert verdict("stragglers", 1, go) == expected


@pytest.mark.parametrize(("distances", "expected"), [
    ((0.4, 0.4, 0.4), "better"), ((0.6, 0.6, 0.6), "worse"), ((0.4, 0.6, 0.4), "undecided"),
    ((0.6, None, 0.6), "undecided"),
])  # fmt: skip
def test_the_randomised_ring_must_be_closer(distances: tuple[float | None, ...], expected: str) -> None:
    def go(cell: StudyCell) -> Row:
        randomised = "randomized" in cell.strategy
        return row_of(cell, consensus_distance=distances[cell.seed] if randomised else 0.5)

    assert verdict("stragglers", 2, go) == expected


@pytest.mark.parametrize(("ratios", "expected"), [
    ((0.96, 0.99, 0.97, 0.965, 0.975, 0.97), "better"),
    ((1.0, 1.03, 0.985, 1.0, 1.0, 1.0), "equal within 3 %"),
    ((1.10, 1.03, 1.08, 1.08, 1.08, 1.08), "worse"),
    ((0.95, 1.05, 1.0, 1.05, 0.95, 1.0), "undecided"),
])  # fmt: skip
def test_an_undecided_claim_is_judged_again_with_further_seeds(ratios: tuple[float, ...], expected: str) -> None:
    asked = set[int]()

    def go(cell: StudyCell) -> Row:
        asked.add(cell.seed)
        return row_of(cell, ratios[cell.seed] if DELAY(cell) else 1.0)

    claim = STUDIES["rings"].claims[1]
    first = judged(STUDIES["rings"], claim, go, further=False)
    assert first is not None
    assert first.verdict == "undecided"
    assert asked == set(SEEDS)
    again = judged(STUDIES["rings"], claim, go)
    assert again is not None
    assert again.verdict == expected
    assert asked == {*SEEDS, *FURTHER_SEEDS}


def test_the_loss_of_a_hierarchy_is_judged_again_with_further_seeds() -> None:
    """Three seeds leave the limit of 1.03 inside their interval, six do not."""
    ratios = (1.06, 1.02, 1.07, 1.06, 1.055, 1.06)

    def go(cell: StudyCell) -> Row:
        return row_of(cell, ratios[cell.seed] if cell.strategy.startswith("SuperLearners") else 1.0)

    claim = STUDIES["hierarchy"].claims[0]
    first, again = (judged(STUDIES["hierarchy"], claim, go, further=each) for each in (False, True))
    assert first is not None
    assert again is not None
    assert (first.verdict, again.verdict) == ("undecided", "worse")
    assert "97.5 %" in again.ours


def test_the_cause_of_a_speed_up_divides_it_by_the_longer_time_of_a_sequence(tmp_path: Path) -> None:
    record = tmp_path / "small.json"
    sides = {"float32": {"of_a_sequence": {"128": 1.25}}, "TF32": {"of_a_sequence": {"128": 2.0}}}
    record.write_text(json.dumps({"figures": {"device": "card", **sides}}))
    rows = found(STUDIES["hierarchy"], alike, (hierarchy.NODES,))
    whole = speed_up(rows[hierarchy.NODES])
    told = hierarchy.small(rows, record)
    assert "1.25 times in float32 and 2.00 times in TF32" in told
    assert f"at least {whole / 1.25:.1f}x and {whole / 2:.1f}x" in told


def test_systems_beyond_stand_beside_the_loss_of_the_hierarchy() -> None:
    def go(cell: StudyCell) -> Row:
        return row_of(cell, 1.25 if cell.strategy == hierarchy.AVERAGED else 1.0)

    outcome = outcome_of("hierarchy", 1, go, beside=True)
    for name, value in zip(hierarchy.BEYOND, ("1.250", "1.000"), strict=True):
        assert f"; {name} {value} ({value} to {value})" in outcome.why
    assert "beyond" not in outcome_of("hierarchy", 1, go).why


def test_with_twice_the_turns_a_learner_that_overfits_is_told() -> None:
    def curve(half: float) -> Callable[[StudyCell], Row]:
        def go(cell: StudyCell) -> Row:
            row = row_of(cell, 1.02 if cell.learners > 1 else 1.5)
            return {**row, "curve": [[cell.budget / 2, half, 0.0], [cell.budget, loss(row), 0.0]]}

        return go

    groups = (hierarchy.NODES, hierarchy.ALONE_TWICE, hierarchy.NODES_TWICE)
    told = [hierarchy.longer(found(STUDIES["hierarchy"], curve(half), groups)) for half in (1.6, 1.4)]
    assert "turns 0.680 (one seed); with their network" in told[0]
    assert "turns 0.680 (one seed), where one learner's loss grows from 1.4000 half way to 1.5000; with" in told[1]


def test_figures_beside_a_verdict_may_be_missing() -> None:
    def outcome(there: bool) -> Outcome:
        def go(cell: StudyCell) -> Row:
            if cell.network == "dnn" and not there:
                raise MissingRun(cell.told)
            return row_of(cell)

        result = judged(STUDIES["asgd"], STUDIES["asgd"].claims[1], go)
        assert result is not None
        return result

    assert "sigmoid network 1.000 (" in outcome(True).why
    assert "sigmoid network not run yet" in outcome(False).why
    assert outcome(False).verdict == "equal within 3 %"


def test_a_second_look_has_a_wider_interval() -> None:
    """The t interval by its definition: 97.5 % of four seeds, 95 % of three."""
    ratios, spread = (0.9, 1.0, 1.1, 1.2), {3: (4.303, 0.95), 4: (4.177, 0.975)}
    for number, (t, level) in spread.items():
        logs = [math.log(each) for each in ratios[:number]]
        reach = t * statistics.stdev(logs) / math.sqrt(number)
        first = [row_of(StudyCell(seed=seed)) for seed in range(number)]
        second = [row_of(StudyCell(seed=seed, learners=2), ratios[seed]) for seed in range(number)]
        value = ratio(first, second)
        assert (value.low, value.coverage) == (pytest.approx(math.exp(statistics.mean(logs) - reach)), level)


@given(st.floats(0.5, 2.0), st.floats(0.0, 1.0), st.sampled_from([None, 0.0, 10.0, 40.0]))
def test_each_interval_has_one_class(low: float, width: float, reference: float | None) -> None:
    """Differences of error rates are ratios less 1 times the reference; classes by their definitions, each alone."""
    high = low + width
    whole = Interval(low, low, high, 0.95)
    if reference is not None:
        whole = Interval(*(reference * (end - 1) for end in (low, low, high)), 0.95)
        low, high = (1 + end / reference if reference else 1.0 for end in (whole.low, whole.high))
    classes = {
        "better": high < 1,
        "worse": low > 1.03,
        "equal within 3 %": low >= 1 / 1.03 and 1 <= high <= 1.03,
    }
    fits = [name for name, holds in classes.items() if holds]
    assert len(fits) <= 1
    near = min(abs(end - limit) for end in (low, high) for limit in (1 / 1.03, 1, 1.03)) < 1e-9
    assert near or verdict_of(whole, reference) == (fits or ["undecided"])[0]


@pytest.mark.parametrize(("low", "high", "expected"), [
    (0.8, 0.99, "better"), (0.975, 0.999, "better"),
    (0.975, 1.0, "equal within 3 %"), (1.004, 1.03, "equal within 3 %"),
    (0.95, 1.0, "undecided"), (1.01, 1.04, "undecided"), (1.03, 1.1, "undecided"), (1.031, 1.1, "worse"),
    (0.0, math.inf, "undecided"), (math.inf, math.inf, "worse"), (0.0, 0.0, "better"),
])  # fmt: skip
def test_classes_of_ratios(low: float, high: float, expected: str) -> None:
    assert verdict_of(Interval((low + high) / 2, low, high, 0.95)) == expected


GPU = {"device": "cuda", "hardware": "a machine, a card"}


@pytest.mark.parametrize(("change", "reason"), [
    (GPU, "different devices"), ({"hardware": "another"}, "different devices"), ({"device": None}, "unknown device"),
    ({"hardware": None}, "unknown device"), ({"build": "others"}, "different builds"),
    ({"torch": "3.0"}, "different builds"), ({"build": None}, "unknown build"),
    ({"processor": "another"}, "different devices"), ({"processor": None}, ""),
    ({"cell": {"budget": 7}}, "different numbers of frames"), ({"torch": LAB_TORCH}, ""), ({}, ""),
])  # fmt: skip
def test_rows_that_differ_in_more_than_their_system_are_not_compared(change: dict[str, object], reason: str) -> None:
    """A planted pair at seed 2; and at all seeds, which leaves nothing to judge."""

    def planted(row: Row) -> Row:
        more = change.get("cell", {})
        return {**row, **change, "cell": {**row["cell"], **more}}  # type: ignore[dict-item]

    first = [row_of(StudyCell(seed=seed, decoded=True)) for seed in SEEDS]
    second = [row_of(StudyCell(seed=seed, learners=2, decoded=True), 1.1) for seed in SEEDS]
    assert apart(first[0], planted(second[0])) == apart(planted(second[0]), first[0]) == reason
    some, none = ratio(first, [*second[:2], planted(second[2])]), ratio(first, [planted(row) for row in second])
    words = wer_difference(first, [planted(row) for row in second])
    if not reason:
        assert (some.seeds, none.seeds, words.seeds) == (3, 3, 3)
        return
    assert (some.seeds, some.apart, some.verdict) == (2, {reason: [2]}, "worse")
    assert shown(some) == f"1.100 (1.100 to 1.100) [{reason} at seed 2]"
    assert (none.told, words.told) == (f"undecided: {reason}", f"undecided: {reason}")
    assert shown(none) == f"not compared [{reason} at seeds 0, 1, 2]"
    assert not_alike([first, [planted(row) for row in second]]) == "undecided"


def test_rows_of_a_gpu_that_do_not_tell_its_torch_are_compared_with_each_other_alone() -> None:
    first, second = (row_of(StudyCell(learners=n)) | GPU for n in (1, 2))
    assert place(first)["torch"] == "unknown"
    assert apart(first, second) == ""
    assert apart(first, second | {"torch": LAB_TORCH}) == "unknown build"


def test_a_claim_is_not_judged_between_a_gpu_and_a_processor() -> None:
    """The loss of 20 learners, of which those with further seeds ran elsewhere than one learner."""

    def go(cell: StudyCell) -> Row:
        row = row_of(cell, (1.0, 1.03, 0.99, 0.8, 0.8, 0.8)[cell.seed] if cell.learners == 20 else 1.0)
        return row | GPU if cell.learners == 20 and cell.seed in FURTHER_SEEDS else row

    outcome = judged(STUDIES["asgd"], STUDIES["asgd"].claims[2], go)
    assert outcome is not None
    assert "[different devices at seeds 3, 4, 5]" in outcome.ours
    assert outcome.verdict == "undecided"
    everywhere = judged(STUDIES["asgd"], STUDIES["asgd"].claims[2], lambda cell: {**go(cell), **GPU})
    assert everywhere is not None
    assert "different" not in everywhere.ours


def test_words_of_one_seed_are_undecided() -> None:
    def rows(learners: int, wrong: Sequence[int], seeds: Sequence[int]) -> list[Row]:
        cells = [StudyCell(learners=learners, seed=seed, decoded=True) for seed in seeds]
        return [row_of(cell, errors={f"u{i}": [w, 10] for i, w in enumerate(wrong)}) for cell in cells]

    worse = wer_difference(rows(1, (1, 2, 3), (0,)), rows(2, (6, 6, 6), (0, 1)))
    assert (worse.value, worse.told) == (pytest.approx(40.0), "undecided: one seed")
    assert shown(worse) == "+40.0 points (one seed)"
    three = wer_difference(rows(1, (1, 2, 3), SEEDS), rows(2, (6, 6, 6), SEEDS))
    assert (three.verdict, three.reference) == ("worse", pytest.approx(20.0))
    assert isinstance(three, Compared)
    assert wer_difference(rows(1, (1,), SEEDS), [row_of(StudyCell())]).told == "undecided: not decoded"


def test_ratios_pair_common_seeds_and_one_seed_decides_nothing() -> None:
    first = [row_of(StudyCell(seed=seed), 1.0 + seed) for seed in (0, 1, 2)]
    second = [row_of(StudyCell(seed=seed, learners=2), (1.0 + seed) * 1.5) for seed in (1, 2)]
    assert ratio(first, second).low == pytest.approx(1.5)
    assert ratio(first, second[:1]).told == "undecided: one seed"
    assert shown(ratio(first, second[:1])) == "1.500 (one seed)"
    assert shown(ratio(first[:1], second)) == "not compared"


def test_a_run_that_diverged_is_lost_whatever_its_reason() -> None:
    cell, fine = StudyCell(), [row_of(StudyCell(seed=seed)) for seed in (0, 1)]
    for lost in (row_of(cell, PRIOR), row_of(cell, heldout={}, ended="nan"), row_of(cell, heldout={"loss": None})):
        assert diverged(lost)
        assert loss(lost) == float("inf")
        assert ratio(fine, [lost, fine[1]]).verdict == "worse"
        assert ratio([lost, fine[1]], fine).verdict == "better"
    assert loss(row_of(cell, 7.0, prior=None)) == 7.0


def test_speed_is_that_of_one_learner_for_the_frames_that_the_clock_was_charged() -> None:
    """Learners that never wait are as many times as fast as they are, on their own machines."""
    for name in ("cui2021", "su_chen2015"):
        cell, machines = StudyCell(learners=16, machines=name, budget=100_000), MACHINES[name]
        many = row_of(cell, turns=29, seconds=29 * machines.alone(cell.piece_frames))
        assert speed_up([many]) == pytest.approx(16.0)
    assert wer([row_of(StudyCell())]) is None


def test_a_run_that_ended_early_has_no_speed(tmp_path: Path) -> None:
    def go(cell: StudyCell) -> Row:
        flat = cell.strategy == "ADPSGD(randomized_ring)" and cell.learners == 64
        return row_of(cell, ended="nan at minibatch 3", seconds=0.0) if flat else alike(cell)

    claim = STUDIES["hierarchy"].claims[1]
    outcome = judged(STUDIES["hierarchy"], claim, go)
    assert outcome is not None
    assert outcome.verdict == "undecided"
    assert "ended early: nan at minibatch 3" in outcome.why
    assert judged(STUDIES["stragglers"], STUDIES["stragglers"].claims[0], lambda cell: row_of(cell, ended="nan"))


def test_the_flat_ring_waits_for_its_models_on_the_card_of_its_node() -> None:
    machines = MACHINES["zhang2019"]
    charged = machines.virtual(64, 123.0, 1.0, 2.0)
    assert charged.compute.seconds == pytest.approx(16 * machines.cluster.message_bytes / 12.5e9)  # type: ignore[attr-defined]
    assert machines.virtual(64, 123.0, 1.0, 0.0).compute.seconds < charged.compute.seconds  # type: ignore[attr-defined]
    flat = hierarchy.GROUPS[hierarchy.FLAT]
    assert {row["cell"]["models"] for row in flat(invented)} == {2.0}
    assert {row["cell"]["seed"] for row in flat(invented)} == set(ONE_SEED)
