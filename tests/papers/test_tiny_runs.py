"""Cells of every kind trained for real, on a tiny set in place of the speech, and the command that resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from rich.console import Console

from murmur.comparison.rows import Row, Rows
from murmur.core.errors import SettingError
from murmur.engine.optim.optimizer import NaturalGradientSGD
from murmur.run.configuration import resolved
from murmur.speech.hmm.frame_classifier import frame_figures
from murmur.speech.models import Blstm, Dnn
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur_papers import command as papers
from murmur_papers.studies import asgd, cell, hierarchy, largest, rings, run, schedules, turns
from murmur_papers.studies.base import BLSTM, DNN
from murmur_papers.studies.cell import StudyCell, StudyMaterial
from murmur_papers.studies.device_gradients import DeviceGradients
from murmur_papers.studies.heldout import LogRatio
from murmur_papers.studies.networks import WINDOWS
from murmur_papers.studies.plan import judged
from murmur_papers.studies.run import (
    Finder,
    MissingRun,
    build_of,
    diverged,
    known_rows,
    loss,
    make,
    of_builds,
    on_newest_builds,
    trained,
)
from murmur_papers.studies.study import DELAY, SUPER, Claim, Go, Outcome, Study, System
from murmur_papers.studies.verdicts import place
from murmur_papers.studies.watched import POINTS, PROBED
from murmur_papers.tasks.judged_frames import TRIAL, JudgedTask
from tests.support.plateaus import make_experiment

SMALL = Blstm(hidden=8, layers=1, bottleneck=6)
NETWORKS = {"dnn": Dnn(hidden=16, layers=2, context=2), "blstm": SMALL, "augmented": SMALL}
FRAMES, UNTRAINED = 3_000, 2.9  # frames of a run; a loss below that of networks before their first step
SIZES, RATES = {"dnn": 160, "blstm": 20, "augmented": 20}, {"dnn": 1.0, "blstm": 0.01, "augmented": 0.003}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyMaterial]:
    """The tiny set as LibriSpeech."""
    file = make_experiment(tmp_path_factory.mktemp("tiny"))
    plain = resolved(str(file)).task
    assert isinstance(plain, HybridTask)

    def tiny(name: Any) -> HybridTask:
        found = replace(plain, network=NETWORKS[name], chunks=WINDOWS)
        return JudgedTask.of(found, 0.4) if name == "augmented" else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell, "hybrid", tiny)
        yield StudyMaterial({"librispeech": file.parent / "set"}, file.parent / "cache")


def small(big: StudyCell, **change: Any) -> StudyCell:
    """The cell with few frames and learners."""
    times = SIZES[big.network] / big.setup.minibatch
    learners = {64: 16, 32: 8, 20: 8, 16: 8}.get(big.learners, big.learners)
    fewer = {"budget": FRAMES, "learners": learners, "minibatch": max(1, round(big.minibatch * times))}
    return replace(big, **(fewer | {"rate": RATES[big.network]} | change))


def system(study: Study, name: str) -> StudyCell:
    group = study.groups[name]
    assert isinstance(group, System)
    return group.cell


CELLS = {
    "one learner": BLSTM.cell,
    "one sigmoid learner": DNN.cell,
    "K-step": system(asgd.STUDY, asgd.FOUR),
    "server": system(asgd.STUDY, asgd.SERVER),
    "adaptive": system(asgd.STUDY, asgd.TWENTY),
    "sigmoid": system(schedules.STUDY, "16 learners"),
    "sigmoid, SGD, stack": system(schedules.STUDY, "16, SGD, stack"),
    "sigmoid, super-learners": replace(system(schedules.STUDY, "16 learners"), strategy=SUPER),
    "sigmoid, delay": replace(system(schedules.STUDY, "16 learners"), strategy=DELAY),
    "fixed ring": system(rings.STUDY, "fixed ring"),
    "delay": system(rings.STUDY, "delay-by-one"),
    "slow": replace(system(rings.STUDY, "randomised ring"), slow=10.0),
    "nodes": system(hierarchy.STUDY, hierarchy.NODES),
    "flat": system(hierarchy.STUDY, hierarchy.FLAT),
    **{f"turns, {name}": turns.system(name, 1_500, (0,)).cell for name in turns.CHANGES},
    "largest": largest.Largest("ADPSGD(ring)").cell(2, 0.003),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_train(name: str, material: StudyMaterial) -> None:
    row = trained(small(CELLS[name], decoded=name == "nodes"), material)
    assert row["ended"] is None
    assert 0 < row["heldout"]["loss"] < UNTRAINED
    assert not diverged(row) or row["prior"] is not None  # a few steps do not beat the frequencies of the classes
    assert row["turns"] >= 1
    assert (row["errors"] is not None) == (name == "nodes")
    assert row["cell"]["strategy"] == CELLS[name].strategy
    assert "unknown" not in place(row).values()
    assert row["torch"] == torch.__version__


def test_rows_hold_what_shows_why_learners_lose(material: StudyMaterial) -> None:
    """The distance of learners in steps, their staleness, what their momenta have in common; and each utterance."""
    rows = {
        name: trained(small(CELLS[f"turns, {name}"], budget=12_000), material)
        for name in ("one learner", "synchronous", "randomised ring", "delay-by-one")
    }
    probes = {name: [dict(zip(PROBED, each, strict=True)) for each in row["probes"]] for name, row in rows.items()}
    for name, found in probes.items():
        assert POINTS <= len(found) <= 2 * POINTS
        assert all(0 < each["update"] < each["momentum"] for each in found)
        alike = name in ("one learner", "synchronous")
        assert all((each["distance"] < 1e-3 * each["update"]) == alike for each in found)
        assert all((each["common momentum"] > 0.999 * each["momentum"]) == alike for each in found)
    assert [rows[name]["stalest"] for name in ("one learner", "synchronous", "delay-by-one")] == [0, 0, 1]
    ring = rows["randomised ring"]
    assert ring["stalest"] > ring["staleness"] > 0
    task = material.network_task("augmented")
    frames = task.frames_of()
    judging = {name: each[0] for name, each in ring["utterances"].items()}
    assert judging == {name: n for place, (name, n) in enumerate(frames.items()) if place % 3}
    ends = sum(n * end for n, end, _ in ring["utterances"].values()) / sum(judging.values())
    assert ring["heldout"]["loss"] == pytest.approx(ends)
    assert ring["heldout"].keys() == {"loss", TRIAL}
    assert ring["best_loss"] == min(value for _, value, _ in ring["curve"])


def test_real_rows_are_compared_and_drawn(material: StudyMaterial, tmp_path: Path) -> None:
    """Of one learner and a ring with two numbers of turns and two seeds; the others are not there."""
    made: dict[str, Row] = {}

    def go(wanted: StudyCell) -> Row:
        if wanted.turns > 3_000 or wanted.strategy not in ("SyncSGD()", "ADPSGD(randomized_ring)"):
            raise MissingRun(wanted.told)
        dry = small(wanted, budget=wanted.budget // 3_000)  # all trials are one run
        made[dry.digest] = made.get(dry.digest) or trained(dry, material)
        return {**made[dry.digest], "cell": asdict(wanted), "digest": wanted.digest}

    assert "papers_turns.svg" in turns.picture(go, tmp_path)
    assert len(made) == 12
    rows = {
        name: group(go)
        for name, group in turns.GROUPS.items()
        if name.startswith((turns.ALONE, turns.RANDOMISED))
        and any(f", {n}," in name for n in ("1,500 turns", "3,000 turns"))
    }
    for number in (1_500, 3_000):
        found = turns.at(rows, turns.RANDOMISED, number)
        assert 0 < found.low < found.value < found.high < float("inf")
        first, row = turns.pairs(rows, turns.RANDOMISED, number)[0]
        assert math.exp(LogRatio.of([(first, row)]).values[0]) == pytest.approx(loss(row) / first["best_loss"])


def test_the_volume_of_chunks_varies_and_trials_do_not_judge(material: StudyMaterial) -> None:
    task = material.network_task("augmented")
    plain, loud = replace(task, volume=0.0).minibatch(3).feats, task.minibatch(3).feats
    shifts = (loud - plain)[:, 0, 0]
    assert torch.allclose(loud - plain, shifts[:, None, None].expand_as(plain), atol=1e-5)
    assert 0.2 < shifts.abs().max() <= 0.4
    assert shifts.min() < 0 < shifts.max()
    model, data = task.model(), task.data
    figures, names = task.evaluate(model), sorted(data.dev_targets)
    for name, part in ((TRIAL, names[::3]), ("loss", [each for each in names if each not in names[::3]])):
        found = frame_figures(model, data.dev_feats, {each: data.dev_targets[each] for each in part})
        assert figures[name] == pytest.approx(found["loss"])


def test_equal_cells_have_equal_figures(material: StudyMaterial, tmp_path: Path) -> None:
    other = StudyMaterial(material.corpora, tmp_path)
    first, again = (trained(small(CELLS["slow"]), each) for each in (material, other))
    for name in ("heldout", "seconds", "waiting_share", "staleness", "curve", "consensus_distance"):
        assert json.loads(json.dumps(first[name])) == json.loads(json.dumps(again[name]))


def test_rows_are_made_for_their_cells(material: StudyMaterial, tmp_path: Path) -> None:
    cells = [small(CELLS[name], seed=7) for name in ("one learner", "delay")]
    made: dict[StudyCell, str] = {}
    for each, row in make(lambda: [left for left in cells if left not in made], material, 1):
        made[each] = row["digest"]
    assert made == {each: each.digest for each in cells}


def test_a_study_is_made_stage_by_stage_and_goes_on_where_it_stopped(
    material: StudyMaterial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[StudyCell] = []

    def counted(missing: Any, *others: Any) -> Iterator[tuple[StudyCell, Row]]:
        for each, row in make(missing, *others):
            made.append(each)
            yield each, row

    monkeypatch.setattr(papers, "make", counted)
    first, second = small(CELLS["one learner"]), small(CELLS["delay"])

    def best(go: Go) -> list[Row]:
        rates = (0.01, 0.001)
        found = {rate: loss(go(replace(first, rate=rate))) for rate in rates}
        return [go(replace(second, rate=min(rates, key=lambda rate: found[rate])))]

    claim = Claim("told", "", "", ("many",), lambda groups: Outcome(f"{loss(groups['many'][0]):.3f}", "better"))
    study = Study("tiny", "them", "a paper", "runs", {"many": best}, (claim,), "cui2021")
    rows, told = Rows(tmp_path / "rows.jsonl"), StringIO()
    console = Console(file=told, width=200)
    rows.append(trained(replace(first, rate=0.001), material))  # an earlier launch stopped here
    papers.run_missing(console, [study], material, rows, 1)
    assert [each.learners for each in made] == [1, 8]
    assert made[0].rate == 0.01
    for each in made:
        assert f"{each.told}: about 0 min" in told.getvalue()
    papers.run_missing(console, [study], material, rows, 1)
    assert len(made) == 2
    assert len(rows.read()) == 3


def test_gradients_together_make_the_same_run_but_for_rounding(
    material: StudyMaterial, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = small(CELLS["delay"], seed=9)
    alone = trained(each, material)
    monkeypatch.setattr(run, "gradients_and_device", lambda *_: (DeviceGradients("cpu"), "cpu"))
    together = trained(each, material)
    assert together["heldout"]["loss"] == pytest.approx(alone["heldout"]["loss"], rel=1e-4)
    assert together["seconds"] == alone["seconds"]


def test_gradients_of_an_lstm_with_natural_gradient_stay_on_the_host(material: StudyMaterial) -> None:
    stacked, sigmoid = small(CELLS["delay"]), small(CELLS["sigmoid"])
    experiment = stacked.experiment(material.task(stacked))
    assert run.gradients_and_device(experiment, stacked, "cpu") == (None, "cpu")
    together, device = run.gradients_and_device(experiment, stacked, "cuda")
    assert isinstance(together, DeviceGradients)
    assert device == "cuda"
    assert run.gradients_and_device(replace(experiment, optimizer=NaturalGradientSGD(1.0)), stacked, "cuda") == (
        None,
        "cpu",
    )
    assert run.gradients_and_device(sigmoid.experiment(material.task(sigmoid)), sigmoid, "cuda") == (None, "cuda")


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert papers.checked_device("cpu") == "cpu"
    with pytest.raises(SettingError, match="--device cuda: this host has no such device"):
        papers.checked_device("cuda")


def test_rows_of_another_kind_of_processor_are_refused(material: StudyMaterial, tmp_path: Path) -> None:
    first, second = (small(CELLS["turns, one learner"], seed=seed) for seed in (21, 22))
    group = {"one": lambda go: [go(first), go(second)]}
    study = Study("tiny", "them", "a paper", "runs", group, (), "cui2021")
    rows, console = Rows(tmp_path / "rows.jsonl"), Console(quiet=True)
    row = trained(first, material)
    assert row["processor"] == run.processor("cpu")
    rows.append({**row, "processor": "another processor"})
    with pytest.raises(SettingError, match=r"made on .* \(another processor\).*not compared"):
        papers.run_missing(console, [study], material, rows, 1)
    rows.append(row)
    papers.run_missing(console, [study], material, rows, 1)
    assert len(rows.read()) == 2


def test_rows_of_another_build_of_the_data_are_made_again_and_not_compared(
    material: StudyMaterial, tmp_path: Path
) -> None:
    """States depend on the machine that made them; a claim is judged on rows of the newest build."""
    first, second = small(CELLS["one learner"], seed=11), small(CELLS["delay"], seed=11)
    claim = Claim("told", "", "", ("one", "many"), lambda _: Outcome("", "better"))
    groups = {"one": lambda go: [go(first)], "many": lambda go: [go(second)]}
    study = Study("tiny", "them", "a paper", "runs", groups, (claim,), "cui2021")
    rows, console = Rows(tmp_path / "rows.jsonl"), Console(quiet=True)
    here = build_of(material.network_task("blstm"))
    one, many = trained(first, material), trained(second, material)
    assert one["build"] == many["build"] == here
    rows.append({**one, "build": "elsewhere"})
    rows.append(many)
    assert judged(study, claim, Finder(of_builds(known_rows(rows), {"blstm": here}))) is None
    papers.run_missing(console, [study], material, rows, 1)
    assert [row["build"] for row in rows.read().values()] == [here, here]
    whole = judged(study, claim, Finder(on_newest_builds(known_rows(rows))))
    assert whole is not None
    assert whole.verdict == "better"
