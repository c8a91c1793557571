"""Rules of the papers' verdicts on rows that nobody made: each verdict is reachable."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.comparison.rows import Row
from murmur.report.error_rate import Interval
from murmur_papers.studies import frequency, hierarchy, rings
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.page import STUDIES
from murmur_papers.studies.plan import judged
from murmur_papers.studies.run import MissingRun, diverged, loss
from murmur_papers.studies.study import FURTHER_SEEDS, ONE_SEED, SEEDS, Outcome, found
from murmur_papers.studies.verdicts import (
    below,
    equal_chance,
    not_alike,
    ratio,
    seconds,
    shown,
    speed_up,
    told_apart,
    wer,
)

from .made_up import PRIOR, alike, changed, invented, row_of

SPREAD = (0.95, 1.05, 1.0)  # of the ratio over seeds, so wide that an interval holds 1


def verdict(study: str, number: int, go: Callable[[StudyCell], Row]) -> str:
    claim = STUDIES[study].claims[number - 1]
    return claim.judge(found(STUDIES[study], go, claim.needs)).verdict


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


@pytest.mark.parametrize(("study", "number", "agreeing", "differing", "open_"), [
    ("schedules", 1, if_(SGD, 1.2), if_(SGD, 0.8), wide(SGD)),
    ("schedules", 2, if_(STACK, 0.8), if_(STACK, 1.2), wide(STACK)),
    ("schedules", 4, if_(MANY, 1.02), if_(MANY, 1.1), wide(MANY)),
    ("asgd", 1, if_(MANY, 1.02), if_(MANY, 1.1), wide(MANY)),
    ("asgd", 2, if_(SERVER, 1.2), if_(SERVER, 0.8), wide(SERVER)),
    ("asgd", 3, if_(MANY, 0.9), if_(MANY, 1.05), wide(MANY)),
    ("rings", 1, if_(DELAY, 0.8), if_(DELAY, 1.2), wide(DELAY)),
    ("hierarchy", 1, if_(MANY, 1.02), if_(MANY, 1.1), wide(MANY)),
])  # fmt: skip
def test_ratios_of_losses_reach_every_verdict(
    study: str,
    number: int,
    agreeing: Callable[[StudyCell], float],
    differing: Callable[[StudyCell], float],
    open_: Callable[[StudyCell], float],
) -> None:
    assert verdict(study, number, changed(agreeing)) == "agrees"
    assert verdict(study, number, changed(differing)) == "differs"
    assert verdict(study, number, changed(open_)) == "undecided"


def by_time(**times: float) -> Callable[[StudyCell], Row]:
    """Virtual seconds as a share of one learner's, by what a cell's strategy begins with."""

    def go(cell: StudyCell) -> Row:
        alone = MACHINES[cell.machines].alone(cell.budget) if cell.machines else 1.0
        fits = [share for name, share in times.items() if cell.strategy.startswith(name) or name == f"n{cell.learners}"]
        return row_of(cell, seconds=alone * (fits[0] if fits else 0.01))

    return go


@pytest.mark.parametrize(("study", "number", "agreeing", "differing"), [
    ("schedules", 5, by_time(n16=0.1, n32=0.05), by_time(n16=0.1, n32=0.07)),
    ("asgd", 4, by_time(ASGD=0.4, KAVG=0.3), by_time(ASGD=0.3, KAVG=0.4)),
    ("asgd", 5, by_time(AdaptiveKAVG=0.1), by_time(AdaptiveKAVG=0.2)),
    ("hierarchy", 2, by_time(SuperLearners=0.025), by_time(SuperLearners=0.016)),
    ("hierarchy", 2, by_time(SuperLearners=0.02), by_time(SuperLearners=0.05)),
    ("hierarchy", 3, by_time(SuperLearners=0.014, ADPSGD=0.03, SyncSGD=0.04), by_time(SuperLearners=0.03, ADPSGD=0.02)),
])  # fmt: skip
def test_clocks_agree_or_differ(
    study: str, number: int, agreeing: Callable[[StudyCell], Row], differing: Callable[[StudyCell], Row]
) -> None:
    assert verdict(study, number, agreeing) == "agrees"
    assert verdict(study, number, differing) == "differs"


def test_the_hierarchy_must_be_faster_than_each_reading_of_the_flat_ring() -> None:
    """It has 55x here, the ring of the runs 33x, and a ring that sends one model a step at most 64x."""
    go = by_time(SuperLearners=0.018, ADPSGD=0.03, SyncSGD=0.04)
    assert verdict("hierarchy", 3, go) == "undecided"
    assert verdict("hierarchy", 3, by_time(SuperLearners=0.018, ADPSGD=0.03, SyncSGD=0.012)) == "differs"


def test_a_better_rate_between_the_trials_of_the_hierarchy_is_told() -> None:
    study = STUDIES["hierarchy"]
    claim = study.claims[0]
    for short, whole, told in ((0.9, 0.9, True), (0.9, 1.1, False), (1.1, 1.1, False)):

        def factor(cell: StudyCell, short: float = short, whole: float = whole) -> float:
            if cell.rate != hierarchy.BETWEEN_RATE:
                return 1.0
            return whole if cell.budget == hierarchy.GROUPS[hierarchy.NODES].cell.budget else short

        outcome = claim.judge(found(study, changed(factor), (*claim.needs, *claim.beside)))
        assert "a rate between the trials, 0.000841" in outcome.why
        assert ("to be judged again" in outcome.why) == told


def test_short_runs_tell_what_slows_many_learners_down() -> None:
    """They take a part of the frames, at the rate of the judged run, and nothing else of theirs differs."""
    study = STUDIES["schedules"]
    clock, go = study.claims[4], by_time(**{"KAVG(16": 0.05, "KAVG(2)": 0.08, "KAVG(2,": 0.125})
    rows = found(study, go, (*clock.needs, *clock.because))
    assert clock.cause is not None
    assert clock.cause(rows).endswith(
        "local momenta 16: 12.5x, 32: 12.5x; averages every 16 turns 16: 20.1x, 32: 20.1x"
    )
    for n in (16, 32):
        long = rows[f"{n} learners"][0]["cell"]
        for name in ("local momenta", "averages every 16 turns"):
            short = rows[f"{n}, {name}"][0]["cell"]
            assert {k: v for k, v in short.items() if v != long[k]}.keys() <= {"strategy", "budget", "decoded"}
            assert short["budget"] < long["budget"] / 10


def test_the_schedule_matters_if_the_best_beats_the_worst() -> None:
    assert verdict("schedules", 3, changed(if_(SHAPED, 1.2))) == "agrees"
    assert verdict("schedules", 3, changed(wide(SHAPED))) == "undecided"
    assert verdict("schedules", 3, lambda cell: row_of(cell, ended="nan")) == "undecided"
    once: Callable[[StudyCell], Row] = lambda cell: row_of(  # noqa: E731
        cell, ended="nan" if cell.schedule == "ibm" and cell.seed == 2 else None
    )
    assert verdict("schedules", 3, once) == "undecided"
    constant: Callable[[StudyCell], Row] = lambda cell: row_of(cell, ended="nan" if cell.schedule == "ibm" else None)  # noqa: E731
    assert verdict("schedules", 3, constant) == "agrees"


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
    assert verdict("frequency", 1, at_frequency(RANGE)) == "agrees"
    assert verdict("frequency", 1, alike) == "undecided"
    assert verdict("frequency", 1, lambda cell: row_of(cell, ended="nan")) == "undecided"


@pytest.mark.parametrize(("fewest", "expected"), [(0, "agrees"), (3, "differs")])
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
        assert (first.verdict, again.verdict) == ("undecided", "agrees")
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
    assert verdict("frequency", 2, go) == "agrees"
    wrong[400_000], wrong[1_600_000] = 5, 1
    assert verdict("frequency", 2, go) == "differs"


@pytest.mark.parametrize(("seconds_of_a_job", "expected"), [
    ((4.0, 20.0), "agrees"), ((4.0, 14.0), "differs"), ((4.0, 60.0), "differs"), ((1.0, 9.0), "differs")
])  # fmt: skip
def test_time_saved_must_fall_with_rarer_averages_and_be_near_theirs(
    seconds_of_a_job: tuple[float, float], expected: str, tmp_path: Path
) -> None:
    def sides(*times: float) -> dict[str, dict[str, float]]:
        frames = ("25000", "600000")
        return {n: {"seconds": t, "compute": t / 2} for n, t in zip(frames, times, strict=True)}

    record = tmp_path / "record.json"
    figures = {"ours": sides(1.0, 10.0), "job per iteration, processes": sides(*seconds_of_a_job)}
    by_speed = {"60000": {"with start-up": 0.2}, "240000": {"with start-up": 0.5}}
    record.write_text(json.dumps({"figures": figures | {"at 600k": {"reductions_by_speed": by_speed}}}))
    outcome = frequency.saved({}, record)
    assert outcome.verdict == expected
    told = frequency.parts({}, record)
    assert f"ours 10.0 s, job per iteration, processes {seconds_of_a_job[1]:.1f} s, of which gradients 5.0 s" in told
    assert "20 % at 60,000, 50 % at 240,000" in told


@pytest.mark.parametrize(
    ("ring", "sync", "expected"), [(1.15, 8.0, "agrees"), (1.25, 8.0, "differs"), (1.15, 3.0, "differs")]
)
def test_stragglers_are_judged_by_the_clock(ring: float, sync: float, expected: str) -> None:
    def go(cell: StudyCell) -> Row:
        slowed = ring if cell.strategy.startswith("ADPSGD") else sync
        return row_of(cell, seconds=100.0 * (slowed if cell.slow > 1 else 1.0))

    assert verdict("stragglers", 1, go) == expected


@pytest.mark.parametrize(("distances", "expected"), [
    ((0.4, 0.4, 0.4), "agrees"), ((0.6, 0.6, 0.6), "differs"), ((0.4, 0.6, 0.4), "undecided"),
    ((0.6, None, 0.6), "undecided"),
])  # fmt: skip
def test_the_randomised_ring_must_be_closer_with_every_seed(distances: tuple[float | None, ...], expected: str) -> None:
    def go(cell: StudyCell) -> Row:
        randomised = "randomized" in cell.strategy
        return row_of(cell, consensus_distance=distances[cell.seed] if randomised else 0.5)

    assert verdict("stragglers", 2, go) == expected


def limited(**steps: int) -> Callable[[StudyCell], Row]:
    """Losses that are good up to a size, by what the strategy begins with; not usable above it."""

    def go(cell: StudyCell) -> Row:
        most = [step for name, step in steps.items() if cell.strategy.startswith(name)]
        size = rings.SGD.cell.minibatch * 2 ** ((most[0] if most else 9) / 2)
        return row_of(cell, 1.0 if cell.learners == 1 or cell.minibatch <= size + 0.5 else 1.2)

    return go


@given(st.integers(-1, max(rings.STEPS)), st.sampled_from(rings.BISECTED))
def test_bisection_finds_the_largest_minibatch_that_is_usable(limit: int, name: str) -> None:
    """A search over all sizes, if runs are usable up to one size; all seeds are tried there and at the next one."""
    strategy = rings.STRATEGIES[name]
    rows = rings.Largest(strategy)(limited(**{strategy[:6]: limit}))
    sizes = [round(rings.SGD.cell.minibatch * 2 ** (step / 2)) for step in rings.STEPS if step <= limit]
    assert rings.largest(rows, dict.fromkeys(SEEDS, 1.0)) == max(sizes, default=0)
    assert len({row["cell"]["minibatch"] for row in rows}) <= 3
    edges = bool(sizes) + (0 < len(sizes) < len(rings.STEPS))
    assert sum(row["cell"]["seed"] > 0 for row in rows) == 2 * edges


def test_each_size_has_the_best_of_its_own_rates() -> None:
    """The best rate falls by a factor of two every second size."""

    def step(cell: StudyCell) -> int:
        return round(2 * math.log2(cell.minibatch / rings.SGD.cell.minibatch))

    def go(cell: StudyCell) -> Row:
        return row_of(cell, 1.0 + abs(math.log2(cell.rate) + step(cell) // 2) / 10)  # one learner's best rate is 1

    rows = rings.Largest("SyncSGD()")(go)
    for row in rows:
        assert round(math.log2(row["cell"]["rate"])) == -(step(StudyCell(**row["cell"])) // 2)
    assert rings.largest(rows, dict.fromkeys(SEEDS, 1.0)) == 1312


@pytest.mark.parametrize(("ratios", "expected"), [
    ((0.96, 0.99, 0.97, 0.965, 0.975, 0.97), "agrees"),
    ((1.04, 1.01, 1.03, 1.035, 1.025, 1.03), "differs"),
    ((0.95, 1.05, 1.0, 1.05, 0.95, 1.0), "undecided"),
])  # fmt: skip
def test_an_undecided_claim_is_judged_again_with_further_seeds(ratios: tuple[float, ...], expected: str) -> None:
    asked = set[int]()

    def go(cell: StudyCell) -> Row:
        asked.add(cell.seed)
        return row_of(cell, ratios[cell.seed] if DELAY(cell) else 1.0)

    claim = STUDIES["rings"].claims[0]
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
    assert (first.verdict, again.verdict) == ("undecided", "differs")
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
    study = STUDIES["hierarchy"]
    claim = study.claims[0]

    def go(cell: StudyCell) -> Row:
        return row_of(cell, 1.25 if cell.strategy == hierarchy.AVERAGED else 1.0)

    outcome = claim.judge(found(study, go, (*claim.needs, *claim.beside)))
    for name, value in zip(hierarchy.BEYOND, ("1.250", "1.000"), strict=True):
        assert f"; {name} {value} ({value} to {value})" in outcome.why
    assert "beyond" not in claim.judge(found(study, go, claim.needs)).why


def test_with_twice_the_turns_a_learner_that_overfits_is_told() -> None:
    """The ratio at equal frames would flatter the hierarchy; beside it is the one over the better loss."""

    def go(cell: StudyCell) -> Row:
        twice, many = cell.budget > 20_000_000, cell.learners > 1
        row = row_of(cell, {(False, True): 1.1, (True, True): 1.02, (True, False): 1.5}.get((twice, many), 1.0))
        return {**row, "curve": [[cell.budget / 2, 1.2 * loss(row), 0.0], [cell.budget, loss(row), 0.0]]}

    def grown(cell: StudyCell) -> Row:
        row = go(cell)
        return {**row, "curve": [[cell.budget / 2, 0.9 * loss(row), 0.0], [cell.budget, loss(row), 0.0]]}

    groups = (hierarchy.ALONE, hierarchy.NODES, hierarchy.ALONE_TWICE, hierarchy.NODES_TWICE)
    told = hierarchy.longer(found(STUDIES["hierarchy"], go, groups))
    assert "turns 0.680 (one seed); but one learner overfits" in told
    assert told.endswith("the hierarchy with twice the turns has 1.020 (1.020 to 1.020): no loss")
    assert "growing" not in told
    assert "growing from" in hierarchy.longer(found(STUDIES["hierarchy"], grown, groups))
    worse = hierarchy.longer(found(STUDIES["hierarchy"], lambda cell: row_of(cell, loss(go(cell)) ** 2), groups))
    assert worse.endswith("has 1.040 (1.040 to 1.040): a loss")
    assert "overfits" not in hierarchy.longer(found(STUDIES["hierarchy"], alike, groups))


def test_figures_beside_a_verdict_may_be_missing() -> None:
    def outcome(there: bool) -> Outcome:
        def go(cell: StudyCell) -> Row:
            if cell.network == "dnn" and not there:
                raise MissingRun(cell.told)
            return row_of(cell)

        result = judged(STUDIES["asgd"], STUDIES["asgd"].claims[0], go)
        assert result is not None
        return result

    assert "sigmoid network, 2 seeds, 1.000" in outcome(True).why
    assert "sigmoid network, not run yet" in outcome(False).why
    assert outcome(False).verdict == "agrees"


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


def test_noise_does_not_make_a_larger_minibatch() -> None:
    """Three strategies that are alike, with a loss that rises by 3 % a step and a spread of 1 % over runs."""
    said = Counter[str]()
    for trial in range(60):

        def go(cell: StudyCell, trial: int = trial) -> Row:
            noise = random.Random(f"{trial} {cell.digest}").gauss(0, 0.01)
            step = 2 * math.log2(cell.minibatch / rings.SGD.cell.minibatch)
            return row_of(cell, 1.0 if cell.learners == 1 else 1 + 0.03 * step + noise)

        said[verdict("rings", 2, go)] += 1
    assert said["agrees"] <= 3


def test_one_learner_that_diverged_decides_nothing() -> None:
    def go(cell: StudyCell) -> Row:
        return row_of(cell, ended="nan" if cell.learners == 1 and cell.optimizer == "SGD" else None)

    claim = STUDIES["rings"].claims[1]
    outcome = claim.judge(found(STUDIES["rings"], go, claim.needs))
    assert (outcome.ours, outcome.verdict) == ("one learner diverged", "undecided")


def test_a_size_that_one_seed_cannot_use_is_not_the_largest() -> None:
    def go(cell: StudyCell) -> Row:
        bad = cell.seed == 2 and cell.minibatch > 500
        return row_of(cell, 1.2 if bad else 1.0)

    rows = rings.Largest("SyncSGD()")(go)
    assert rings.largest(rows, dict.fromkeys(SEEDS, 1.0)) == 464
    assert rings.largest(rows, {0: 1.0, 1: 1.0, 2: 1.1}) == 1312  # each seed has one learner of its own


@pytest.mark.parametrize(("ring", "sync", "expected"), [
    (5, 3, "agrees"), (4, 3, "undecided"), (3, 3, "differs"), (6, 6, "undecided"), (6, 5, "undecided"),
    (3, 6, "differs"), (6, -1, "undecided")
])  # fmt: skip
def test_the_largest_minibatch_is_judged_against_synchronous_sgd(ring: int, sync: int, expected: str) -> None:
    assert verdict("rings", 2, limited(ADPSGD=ring, DelayByOne=1, SyncSGD=sync)) == expected


@pytest.mark.parametrize(("low", "high", "at_one", "no_loss"), [
    (0.8, 0.9, "agrees", "agrees"),
    (0.9, 1.01, "undecided", "agrees"),
    (0.9, 1.1, "undecided", "undecided"),
    (1.01, 1.02, "differs", "agrees"),
    (1.03, 1.1, "differs", "differs"),
])  # fmt: skip
def test_verdicts_on_intervals(low: float, high: float, at_one: str, no_loss: str) -> None:
    value = Interval((low + high) / 2, low, high, 0.95)
    assert (below(value), below(value, 1.03)) == (at_one, no_loss)
    words = {"agrees": "better than", "undecided": "not told apart from", "differs": "worse than"}
    assert told_apart(value) == words[at_one]


def test_ratios_pair_common_seeds_and_one_seed_decides_nothing() -> None:
    first = [row_of(StudyCell(seed=seed), 1.0 + seed) for seed in (0, 1, 2)]
    second = [row_of(StudyCell(seed=seed, learners=2), (1.0 + seed) * 1.5) for seed in (1, 2)]
    assert ratio(first, second).low == pytest.approx(1.5)
    assert below(ratio(first, second[:1])) == "undecided"
    assert shown(ratio(first, second[:1])) == "1.500 (one seed)"
    with pytest.raises(ValueError, match="pair"):
        ratio(first[:1], second)


def test_a_run_that_diverged_is_lost_whatever_its_reason() -> None:
    cell, fine = StudyCell(), [row_of(StudyCell(seed=seed)) for seed in (0, 1)]
    for lost in (row_of(cell, PRIOR), row_of(cell, heldout={}, ended="nan"), row_of(cell, heldout={"loss": None})):
        assert diverged(lost)
        assert loss(lost) == float("inf")
        assert below(ratio(fine, [lost, fine[1]]), 1.03) == "differs"
        assert below(ratio([lost, fine[1]], fine)) == "agrees"
    assert loss(row_of(cell, 7.0, prior=None)) == 7.0


def test_speed_is_that_of_one_learner_for_the_frames_that_the_clock_was_charged() -> None:
    """Learners that never wait are as many times as fast as they are, on their own machines."""
    for name in ("cui2021", "su_chen2015"):
        cell, machines = StudyCell(learners=16, machines=name, budget=100_000), MACHINES[name]
        many = row_of(cell, turns=29, seconds=29 * machines.alone(cell.piece_frames))
        assert speed_up([many]) == pytest.approx(16.0)
        assert seconds(many, "cong2017") == many["seconds"]
    one = StudyCell(budget=100_000)
    assert seconds(row_of(one, turns=7), "cui2021") == pytest.approx(7 * MACHINES["cui2021"].alone(one.piece_frames))
    assert wer([row_of(StudyCell())]) is None


def test_a_run_that_ended_early_has_no_speed(tmp_path: Path) -> None:
    def go(cell: StudyCell) -> Row:
        flat = cell.strategy == "ADPSGD(randomized_ring)" and cell.learners == 64
        return row_of(cell, ended="nan at minibatch 3", seconds=0.0) if flat else alike(cell)

    claim = STUDIES["hierarchy"].claims[2]
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
