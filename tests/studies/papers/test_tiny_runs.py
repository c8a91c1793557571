"""Cells of every kind trained for real, on a tiny set in place of the speech, and the command that resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur[speech])")

from rich.console import Console

from murmur.commands import papers
from murmur.core.errors import SettingError
from murmur.engine.checkpoints.checkpoint import read_facts
from murmur.engine.optim.optimizer import NaturalGradientSGD
from murmur.engine.stacked_device import DeviceGradients
from murmur.run.configuration import load
from murmur.speech.models import Blstm, Dnn
from murmur.studies.comparison.rows import Row, Rows
from murmur.studies.papers import asgd, cell, hierarchy, rings, run, schedules
from murmur.studies.papers.base import BLSTM, DNN
from murmur.studies.papers.cell import StudyCell, StudyMaterial
from murmur.studies.papers.missing import Queue, make
from murmur.studies.papers.networks import WINDOWS
from murmur.studies.papers.plan import judged
from murmur.studies.papers.run import Finder, build_of, diverged, kept_model, loss, stack_file, trained
from murmur.studies.papers.study import DELAY, SUPER, Claim, Go, Outcome, Study, System
from murmur.tasks.hybrid.task import HybridTask
from plateaus import make_experiment

NETWORKS = {"dnn": Dnn(hidden=16, layers=2, context=2), "blstm": Blstm(hidden=8, layers=1, bottleneck=6)}
FRAMES, UNTRAINED = 3_000, 2.9  # frames of a run; a loss below that of networks before their first step
SIZES, RATES = {"dnn": 160, "blstm": 20}, {"dnn": 1.0, "blstm": 0.01}


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyMaterial]:
    """The tiny set as LibriSpeech."""
    file = make_experiment(tmp_path_factory.mktemp("tiny"))
    plain = load(str(file)).task
    assert isinstance(plain, HybridTask)

    def tiny(name: Any) -> HybridTask:
        return replace(plain, network=NETWORKS[name], chunks=WINDOWS)

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
    "large": rings.Largest("SyncSGD()").cell(2, 0.1),
    "nodes": system(hierarchy.STUDY, hierarchy.NODES),
    "flat": system(hierarchy.STUDY, hierarchy.FLAT),
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


def test_equal_cells_have_equal_figures(material: StudyMaterial, tmp_path: Path) -> None:
    other = StudyMaterial(material.corpora, tmp_path)  # where no model is kept
    first, again = (trained(small(CELLS["slow"]), each) for each in (material, other))
    for name in ("heldout", "seconds", "waiting_share", "staleness", "curve", "consensus_distance"):
        assert json.loads(json.dumps(first[name])) == json.loads(json.dumps(again[name]))


def test_a_run_is_decoded_later_without_training(material: StudyMaterial, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = small(CELLS["K-step"], seed=5)
    first = trained(cell, material)
    both = trained(replace(small(CELLS["K-step"], seed=6), decoded=True), material)
    monkeypatch.setattr(run, "train", None)
    later, again = (trained(replace(cell, decoded=True, seed=seed), material) for seed in (5, 6))
    assert later["digest"] == first["digest"]
    assert first["errors"] is None
    for name in ("heldout", "seconds", "turns", "curve", "training_seconds"):
        assert later[name] == json.loads(json.dumps(first[name]))
    assert again["errors"] == both["errors"]
    assert later["cpu_seconds"] == pytest.approx(later["training_seconds"] + later["decoding_seconds"])
    assert kept_model(cell, material.task(cell), material) is not None
    monkeypatch.setattr(run, "build_of", lambda _: "other alignments of the same states")
    assert kept_model(cell, material.task(cell), material) is None  # it would have the row of another build for ever


def test_rows_are_made_for_their_cells(material: StudyMaterial, tmp_path: Path) -> None:
    cells = [small(CELLS[name], seed=7) for name in ("one learner", "delay")]
    made: dict[StudyCell, str] = {}
    for each, row in make(lambda: [left for left in cells if left not in made], material, 1):
        made[each] = row["digest"]
    assert made == {each: each.digest for each in cells}


def test_a_queue_names_each_run_once_and_machines_before_the_runs_that_need_them(tmp_path: Path) -> None:
    """A run without them goes first if another process trains them; a run that has ended may be asked for again."""
    plain, stacked = StudyCell(network="dnn", seed=3), StudyCell(network="dnn", seed=4, stack=True)
    other = replace(stacked, rate=2.0)
    empty = StudyMaterial({}, tmp_path)
    begun: list[StudyCell] = []
    queue = Queue(lambda: [stacked, other, plain], empty, begun.append)
    assert [queue.following() for _ in range(3)] == [4, plain, None]
    file = stack_file(4, empty)
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert [queue.following() for _ in range(3)] == [stacked, other, None]
    queue.ended(plain)
    assert queue.following() == plain
    assert begun == [plain, stacked, other, plain]


def test_models_of_other_data_and_damaged_ones_are_not_taken(
    material: StudyMaterial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    each = small(CELLS["one learner"], seed=8)
    first, stem = trained(each, material), material.cache / "models" / each.digest
    with monkeypatch.context() as patch:
        patch.setattr(run, "data_of", lambda *_: ["other"])
        trained(each, material)
        assert read_facts(stem)["data"] == ["other"]
    trained(each, material)  # with the data of this set again
    stem.with_suffix(".safetensors").write_bytes(b"cut off")
    again = trained(each, material)
    assert "the run is made again" in caplog.text
    assert again["heldout"] == json.loads(json.dumps(first["heldout"]))


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

    claim = Claim("told", "", "", ("many",), lambda groups: Outcome(f"{loss(groups['many'][0]):.3f}", "agrees"))
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
    monkeypatch.setattr(run, "kept_model", lambda *_: None)
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
    monkeypatch.setattr(papers.torch.cuda, "is_available", lambda: False)
    assert papers.checked_device("cpu") == "cpu"
    with pytest.raises(SettingError, match="--device cuda: this host has no such device"):
        papers.checked_device("cuda")


def test_rows_of_another_build_of_the_data_are_made_again_and_not_compared(
    material: StudyMaterial, tmp_path: Path
) -> None:
    """States depend on the machine that made them; a claim is judged on rows of one build."""
    first, second = small(CELLS["one learner"], seed=11), small(CELLS["delay"], seed=11)
    claim = Claim("told", "", "", ("one", "many"), lambda _: Outcome("", "agrees"))
    groups = {"one": lambda go: [go(first)], "many": lambda go: [go(second)]}
    study = Study("tiny", "them", "a paper", "runs", groups, (claim,), "cui2021")
    rows, console = Rows(tmp_path / "rows.jsonl"), Console(quiet=True)
    here = build_of(material.network_task("blstm"))
    one, many = trained(first, material), trained(second, material)
    assert one["build"] == many["build"] == here
    rows.append({**one, "build": "elsewhere"})
    rows.append(many)
    mixed = judged(study, claim, Finder.of(rows))
    assert mixed is not None
    assert mixed.verdict == "undecided"
    assert "blstm" in mixed.why
    papers.run_missing(console, [study], material, rows, 1)
    assert [row["build"] for row in rows.read().values()] == [here, here]
    whole = judged(study, claim, Finder.of(rows))
    assert whole is not None
    assert whole.verdict == "agrees"
