"""The plan of the papers' studies: fair trials, sizes, shared cells, what is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.comparison.rows import Row, Rows
from murmur.engine.scaling import Auto
from murmur.worlds.virtual.world import VirtualWorld
from murmur_papers.studies import asgd, schedules
from murmur_papers.studies.base import LEARNERS
from murmur_papers.studies.cell import StudyCell, StudyMaterial
from murmur_papers.studies.networks import SETUPS
from murmur_papers.studies.page import STUDIES
from murmur_papers.studies.plan import BASE, CAUSE, NO_LOSS, Unknown, missing, needed, whole
from murmur_papers.studies.run import Finder, MissingRun, known_rows, loss
from murmur_papers.studies.study import FURTHER_SEEDS, SEEDS, Alone, System

from .made_up import alike, changed, invented, row_of

ALL = list(STUDIES.values())


def complete(go: Callable[[StudyCell], Row]) -> dict[str, Row]:
    """Rows of all runs that the studies ask for."""
    known = dict[str, Row]()
    while cells := missing(ALL, known, list(SETUPS)):
        known |= {cell.digest: go(cell) for cell in cells}
    return known


POOR = changed(lambda cell: 1.2 if cell.learners > 1 else 1.0, seconds=lambda _: 1e9)  # so that causes are run
PLAN = whole(ALL, complete(POOR))


class Sized:
    """A task whose only property is its size."""

    samples_per_epoch, per_epoch, most_pieces = 1_400_000.0, 500, 10**6


@pytest.mark.parametrize("each", PLAN, ids=lambda each: each.cell.digest)
def test_every_cell_can_be_run(each: object) -> None:
    cell: StudyCell = each.cell  # type: ignore[attr-defined]
    experiment = cell.experiment(Sized())
    assert experiment.budget.samples == cell.budget
    assert isinstance(experiment.scaling, Auto)
    assert VirtualWorld(cell.cluster()).cluster.learners == cell.learners
    assert cell.setup.training[cell.optimizer].rates


def test_every_system_has_two_trials_or_three_alone_of_which_one_is_that_of_the_rule() -> None:
    systems = [group for study in ALL for group in study.groups.values() if isinstance(group, System)]
    assert len(systems) > 25
    for system in systems:
        shares = {factor * system.alone.cell.minibatch / system.cell.minibatch for factor in system.trials}
        assert len(set(system.trials)) == (2 if system.most > 3 else system.most)
        assert 1.0 in (shares if system.cell.grows else system.trials)
    assert {len(alone.rates) for alone in LEARNERS.values()} == {3}


def test_runs_are_long_enough() -> None:
    """At least five million frames; at least 1,500 turns but in the search for the largest minibatch."""
    for each in PLAN:
        whole_run = each.cell.budget >= 5_000_000
        assert whole_run or each.cell.seed == 0  # a trial
        assert not each.cell.decoded or whole_run
        if (
            whole_run
            and each.cell.peak == 1.0
            and each.cell.machines
            and "ParameterAveraging" not in each.cell.strategy
        ):
            turns = each.cell.turns
            assert turns >= 1_500, each.cell.told


def test_runs_on_words_or_without_loss_have_three_seeds() -> None:
    for study in ALL:
        for claim in study.claims:
            if claim.no_loss:
                for name in claim.needs[:2]:
                    assert {row["cell"]["seed"] for row in study.groups[name](alike)} == set(SEEDS)


def test_no_loss_claims_can_be_followed_by_twice_the_turns() -> None:
    for study in ALL:
        for claim in study.claims:
            if claim.no_loss:
                once = study.groups[claim.needs[1]](alike)[0]["cell"]["budget"]
                for name in claim.because[:2]:
                    assert {row["cell"]["budget"] for row in study.groups[name](alike)} == {2 * once}


def test_a_cell_of_several_studies_is_one_cell() -> None:
    digests = [each.cell.digest for each in PLAN]
    assert len(set(digests)) == len(digests)
    alone = [each for each in PLAN if each.cell.network == "blstm" and each.cell.learners == 1 and each.cell.seed == 1]
    once = next(each for each in alone if each.cell.budget == SETUPS["blstm"].budget and each.cell.minibatch == 164)
    assert {"asgd 1", "asgd 3", "rings 2"} <= set(once.serves)
    rings = {each.cell.digest for each in PLAN if "rings 2" in each.serves}
    slow = {each.cell.digest for each in PLAN if "stragglers 1" in each.serves}
    assert len(rings & slow) >= 4 * (2 + len(SEEDS))
    sigmoid = {each.cell.digest for each in PLAN if "schedules 4" in each.serves}
    assert len(sigmoid & {each.cell.digest for each in PLAN if "asgd 2: beside" in each.serves}) >= 2


def test_digests_look_at_everything_but_decoding() -> None:
    plain = StudyCell()
    assert replace(plain, decoded=True).digest == plain.digest
    changes: dict[str, object] = {
        "network": "dnn", "strategy": "KAVG(2)", "learners": 2, "rate": 2.0, "seed": 1, "minibatch": 1, "grows": True,
        "budget": 1, "optimizer": "SGD", "schedule": "ibm", "peak": 2.0, "stack": True, "machines": "cui2021",
        "slow": 2.0, "models": 2.0,
    }  # fmt: skip
    assert set(changes) | {"decoded"} == {field.name for field in fields(StudyCell)}
    found = {replace(plain, **{k: v}).digest for k, v in changes.items()}  # type: ignore[arg-type]
    assert len(found | {plain.digest}) == len(changes) + 1


def test_systems_run_at_the_rate_of_their_best_trial() -> None:
    system = STUDIES["rings"].groups["delay-by-one"]
    assert isinstance(system, System)
    for best in system.trials:

        def go(cell: StudyCell, best: float = best) -> Row:
            alone = 0.016
            target = alone if cell.learners == 1 else alone * best
            return row_of(cell, 1.0 + abs(cell.rate - target))

        rows = system(go)
        assert {row["cell"]["rate"] for row in rows} == {0.016 * best}
        assert [row["cell"]["seed"] for row in rows] == list(SEEDS)
        assert rows[0]["cell"]["budget"] == system.cell.budget


@pytest.mark.parametrize(
    ("target", "found", "trials"), [(30.0, 30.0, 3), (1.0, 1.1, 6), (90.0, 100.0, 4), (1e6, 3700.0, 6)]
)
def test_one_learner_tries_further_rates_while_the_best_is_at_an_end(target: float, found: float, trials: int) -> None:
    alone, cells = Alone("ctc", tried=(10.0, 30.0, 100.0)), list[StudyCell]()

    def go(cell: StudyCell) -> Row:
        cells.append(cell)
        return row_of(cell, abs(math.log(cell.rate / target)) / 3)

    assert alone.rate(go) == found
    assert len(cells) == len({cell.rate for cell in cells}) == trials
    assert {cell.budget for cell in cells} == {alone.cell.budget // 4}


@pytest.mark.parametrize(("target", "found", "trials"), [(0.016, 0.016, 3), (0.004, 0.004, 4), (1e-6, 0.00192, 4)])
def test_systems_try_further_factors_while_the_best_is_at_an_end(target: float, found: float, trials: int) -> None:
    """The factors 1 and 1/2 on a rate of 0.016; four trials at most."""
    system, cells = STUDIES["rings"].groups["delay-by-one"], list[StudyCell]()
    assert isinstance(system, System)

    def go(cell: StudyCell) -> Row:
        cells.append(cell)
        return row_of(cell, abs(math.log(cell.rate / (target if cell.learners > 1 else 0.016))) / 3)

    assert system.best(go).rate == pytest.approx(found)
    assert len({cell.rate for cell in cells if cell.learners > 1}) == trials


def test_trials_with_all_frames_are_runs_with_seed_0() -> None:
    system, asked = STUDIES["frequency"].groups["1,600,000 frames"], list[StudyCell]()
    assert isinstance(system, System)

    def go(cell: StudyCell) -> Row:
        asked.append(cell)
        return row_of(cell, 1.0 + cell.rate)

    rows = system(go)
    trial = next(cell for cell in asked if cell.learners > 1 and cell.rate == rows[0]["cell"]["rate"])
    assert trial.digest == rows[0]["digest"]


def test_two_trials_that_diverged_leave_the_rule() -> None:
    system = STUDIES["rings"].groups["synchronous"]
    assert isinstance(system, System)
    best = system.best(lambda cell: row_of(cell, ended="nan" if cell.learners > 1 else None))
    assert best.rate == system.alone.rates[0] * system.trials[0]


def test_missing_runs_are_made_until_no_study_asks_for_more() -> None:
    """In the order of the stages, each once; causes only where a verdict is not good."""
    known, stages = dict[str, Row](), []
    left = whole(ALL, known)
    assert missing(ALL, known, list(SETUPS)) == [each.cell for each in left if not each.known]
    while cells := [each.cell for each in left if not each.known]:
        now = [each.stage for each in left if not each.known]
        assert now == sorted(now)
        stages += now
        assert len({cell.digest for cell in cells}) == len(cells)
        for cell in cells:
            before = known.get(cell.digest)  # the best of trials with all frames is decoded afterwards
            assert before is None or (cell.decoded and before["errors"] is None)
            known[cell.digest] = invented(cell)
        left = whole(ALL, known)
    assert stages[0] == BASE
    assert NO_LOSS in stages
    assert not missing(ALL, known, list(SETUPS))
    assert all(each.known for each in left)
    assert {each.cell.digest for each in left} == set(known)


def test_cells_of_one_operating_point_are_planned() -> None:
    """K = 16 with 16 and 32 learners, and ASGD with the paper's minibatch."""
    cells = {each.cell for each in PLAN}
    for learners in (16, 32):
        whole_runs = [c for c in cells if c.strategy == schedules.RARELY and c.learners == learners and c.decoded]
        assert {c.seed for c in whole_runs} == set(SEEDS)
        assert {c.budget for c in whole_runs} == {SETUPS["dnn"].budget}
    small = {(c.strategy, c.seed) for c in cells if c.minibatch == asgd.THEIRS and c.decoded}
    assert small == {(strategy, seed) for strategy in ("SyncSGD()", "ASGD()", asgd.K_STEP) for seed in SEEDS}


def test_causes_are_run_only_if_a_verdict_is_not_good() -> None:
    def made(go: object) -> set[str]:
        known = dict[str, Row]()
        while cells := missing([STUDIES["asgd"]], known, list(SETUPS)):
            known |= {cell.digest: go(cell) for cell in cells}  # type: ignore[operator]
        return set(known)

    causes = {each.group for each in needed([STUDIES["asgd"]]) if each.stage == CAUSE}
    assert "4, twice the turns" in causes
    good = changed(lambda cell: 1.2 if cell.strategy.startswith("ASGD") else 1.0)
    poor = changed(lambda cell: 1.2 if cell.learners > 1 else 1.0)
    twice = {row["digest"] for row in STUDIES["asgd"].groups["4, twice the turns"](good)}
    assert not twice & made(good)
    assert twice - {each.cell.digest for each in PLAN if each.cell.budget < 10_000_000} <= made(poor)


def test_further_seeds_are_run_only_if_three_leave_a_claim_undecided() -> None:
    def made(times: Callable[[StudyCell], float]) -> set[int]:
        known = dict[str, Row]()
        while cells := missing([STUDIES["rings"]], known, list(SETUPS)):
            known |= {cell.digest: row_of(cell, times(cell)) for cell in cells}
        left = whole([STUDIES["rings"]], known)
        assert {each.cell.digest for each in left} == set(known)
        return {each.cell.seed for each in left}

    def delayed(factor: float, spread: float) -> Callable[[StudyCell], float]:
        return lambda cell: factor + spread * (cell.seed % 3 - 1) if cell.strategy == "DelayByOne()" else 1.0

    for factor in (0.9, 1.1):
        assert made(delayed(factor, 0.0)) == set(SEEDS)
    assert made(delayed(1.0, 0.05)) == {*SEEDS, *FURTHER_SEEDS}


def test_further_seeds_serve_each_of_the_claims_that_are_undecided() -> None:
    """Two claims share one learner's further seeds; one of them is undecided, whichever it is."""
    for strategy, learners in ((asgd.K_STEP, 4), (asgd.ADAPTIVE, 20)):

        def times(cell: StudyCell, strategy: str = strategy) -> float:
            if cell.network == "dnn" or cell.learners == 1 or cell.strategy.startswith("ASGD"):
                return 1.0 if cell.learners == 1 else 1.2
            return 1.0 + 0.05 * (cell.seed % 3 - 1) if cell.strategy == strategy else 1.0

        known = dict[str, Row]()
        while cells := missing([STUDIES["asgd"]], known, list(SETUPS)):
            known |= {cell.digest: row_of(cell, times(cell)) for cell in cells}
        further = {row["cell"]["learners"] for row in known.values() if row["cell"]["seed"] in FURTHER_SEEDS}
        assert further == {1, learners}


def test_networks_without_speech_are_left_out() -> None:
    assert {cell.network for cell in missing(ALL, {}, ["ctc"])} == {"ctc"}
    assert not missing([STUDIES["rings"]], {}, ["ctc"])


def test_a_row_must_be_decoded_if_its_cell_is() -> None:
    cell = StudyCell(seed=5, decoded=True)
    plain = row_of(replace(cell, decoded=False))
    with pytest.raises(MissingRun, match="seed 5"):
        Finder({})(cell)
    with pytest.raises(MissingRun, match="not decoded"):
        Finder({cell.digest: plain})(cell)
    assert Finder({cell.digest: plain})(replace(cell, decoded=False))["digest"] == cell.digest
    assert Finder({cell.digest: row_of(cell)})(cell)["errors"]
    assert Finder({cell.digest: plain | {"ended": "nan"}})(cell)["ended"] == "nan"


def test_a_row_that_is_not_there_cannot_be_read() -> None:
    for look in (lambda row: row["ended"], lambda row: row.get("heldout"), loss):
        with pytest.raises(MissingRun, match="seed 3"):
            look(Unknown(StudyCell(seed=3)))  # type: ignore[no-untyped-call, operator]


def test_the_command_tells_the_plan(tmp_path: Path) -> None:
    words = ["papers", "stragglers", "--estimate", "--rows", str(tmp_path / "rows.jsonl")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert re.search(r"blstm, SyncSGD\(\), 1 learner.*: about \d+ min; stragglers 1", done.output)
    assert re.search(
        r"ADPSGD\(ring\), 16 learners.*: later, with the best rate: about \d+ min; stragglers 1", done.output
    )
    assert re.search(r"\d+ runs can run now: about \d+\.\d processor hours", done.output)
    assert re.search(r"in all, \d+ runs with \d+ M frames are left: about \d+ processor hours", done.output)
    assert list(tmp_path.iterdir()) == []


def test_material_reads_the_sets_that_are_there(tmp_path: Path) -> None:
    material = StudyMaterial({"an4": tmp_path}, tmp_path)
    assert material.networks == ["ctc"]
    assert material.network_task("ctc", 3).seed == 3
    both = StudyMaterial({"an4": tmp_path, "librispeech": tmp_path}, tmp_path)
    assert both.networks == list(SETUPS)
    assert both.task(StudyCell(minibatch=12)).chunks.size == 12
    assert both.task(StudyCell(network="dnn", minibatch=99, seed=2)).frames == 99
    assert both.task(StudyCell(network="ctc", minibatch=5)).minibatch_size == 5


def test_trials_have_a_quarter_of_the_frames_and_those_of_the_sigmoid_network_all() -> None:
    short = {(each.cell.network, each.cell.budget) for each in PLAN if each.cell.budget < 5_000_000}
    clocks = ("dnn", 325_000)
    assert short == {("ctc", 1_300_000), ("blstm", 1_300_000), ("blstm", 3_225_000), clocks}
    assert SETUPS["dnn"].part == 1


def test_the_committed_rows_are_of_the_present_format() -> None:
    committed = Rows(Path("results/papers.jsonl"))
    assert committed.read().keys() == known_rows(committed).keys() != set()


def test_rows_that_another_version_has_described_are_left_out(tmp_path: Path) -> None:
    rows, cell = Rows(tmp_path / "rows.jsonl"), StudyCell()
    whole = row_of(cell)
    for row in (
        whole,
        {**whole, "digest": "other", "cell": whole["cell"] | {"removed": 1}},
        {**whole, "digest": "unknown", "cell": whole["cell"] | {"network": "another"}},
        {**whole, "digest": "0123456789abcdef"},
    ):
        rows.append(row)
    assert set(known_rows(rows)) == {cell.digest}
