"""Experiments of papers at their size: weights, updates, memory, plans and timings; small versions that train."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.task import seed_of, seed_torch
from murmur.engine.trainer import Trainer
from murmur.run.configuration import recipe_names, resolved
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld


def lstm(inputs: int, cells: int, layers: int, directions: int = 1) -> int:
    """Weights of LSTM layers: four gates on inputs, outputs of the last frame, and two biases."""
    widths = [inputs] + [cells * directions] * (layers - 1)
    return sum(directions * 4 * cells * (width + cells + 2) for width in widths)


def linear(*widths: int) -> int:
    return sum(a * b + b for a, b in pairwise(widths))


BLSTM = lstm(260, 512, 6, 2) + linear(1024, 256, 32_000)
# weights; hours, frames a minibatch, epochs, learners; published figure in the text of a plan
PAPERS = {
    "rosciszewski2017": (lstm(40, 800, 4) + linear(800, 4001), 100, 5000, 8, 8, "54.9 % less time"),
    "su_chen2015": (linear(440, *[2048] * 7, 9000), 300, 512, 20, 16, "published 9.3x"),
    "cong2017": (BLSTM, 300, 128 * 21, 16, 20, "published 6.1x"),
    "cui2021": (BLSTM, 1975, 64 * 21, 16, 128, "published 1.98 h"),
    "zhang2019": (BLSTM, 1975, 128 * 21, 16, 64, "published 5.2 h"),
}
FEW = {"cui2021": 12, "zhang2019": 16, "cong2017": 6}  # learners of a quick test, in place of the paper's
ALL = pytest.mark.parametrize("name", PAPERS)


def run(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return done.output


def test_each_paper_is_a_recipe() -> None:
    assert set(PAPERS) <= set(recipe_names())


@ALL
def test_a_dry_run_tells_weights_memory_and_updates(name: str, tmp_path: Path) -> None:
    weights, hours, frames, epochs, learners, _ = PAPERS[name]
    said = run("train", name, "--dry-run", "--no-steps", "--threads", 1, "--out", tmp_path / "out")
    total = re.search(r"in all\W+([\d,]+)", said)
    assert total is not None
    assert int(total[1].replace(",", "")) == weights
    assert f"weights {4 * weights / 1e6:.1f}, gradients {4 * weights / 1e6:.1f}" in said
    assert f", {epochs} epochs" in said
    assert "schedule: " in said
    turns = re.search(rf"cluster of {learners} learners: (\d+) turns of all of them, each over (\d+) samples", said)
    assert turns is not None
    assert int(turns[1]) == pytest.approx(hours * 360_000 * epochs / frames / learners, rel=1e-3)
    assert int(turns[2]) == pytest.approx(frames * learners, rel=1e-3)
    assert "time: " not in said
    assert not (tmp_path / "out").exists()


@ALL
def test_plan_and_timing_agree_and_stand_beside_the_published_figures(name: str, tmp_path: Path) -> None:
    published = PAPERS[name][-1]
    planned = run("plan", name)
    assert published in planned
    minibatches = 19_200 if name == "rosciszewski2017" else 4000  # 20 rounds of a ramp of learners
    words = ["--timing-only", "--timed-minibatches", minibatches, "--threads", 1, "--out", tmp_path]
    timed = run("simulate", name, *words)
    assert published in timed
    found = [re.search(r" learners: predicted ([\d.e+-]+) h, ", said) for said in (planned, timed)]
    plan, timing = (float(match[1]) for match in found if match is not None)
    assert plan == pytest.approx(timing, rel=0.12)
    record = json.loads((tmp_path / "simulated.json").read_text())
    assert (record["minibatches"], record["learners"]) == (minibatches, PAPERS[name][4])
    assert record["budget_minibatches"] == resolved(name).budget.total(resolved(name).task)


@ALL
def test_hours_are_those_of_the_learners_work(name: str) -> None:
    """Hours of gradients divided by the learners are below every plan, and by less than a factor of two."""
    experiment = resolved(name)
    assert isinstance(experiment.cluster, Cluster)
    total = experiment.budget.total(experiment.task)
    least = total * experiment.cluster.compute.seconds / experiment.cluster.learners / 3600  # type: ignore[attr-defined]
    found = re.search(r" learners: predicted ([\d.e+-]+) h, ", run("plan", name))
    assert found is not None
    assert 0.97 * least < float(found[1]) < 2 * least


def small(name: str, turns: int) -> Experiment:
    experiment = resolved(name, ["scale=0.01"])
    assert isinstance(experiment.cluster, Cluster)
    learners = FEW.get(name, experiment.cluster.learners)
    cluster = replace(experiment.cluster, learners=learners)
    return replace(experiment, cluster=cluster, budget=Budget(minibatches=turns * learners), averaged_checkpoints=0)


@ALL
def test_a_small_version_trains_with_the_papers_strategy(name: str) -> None:
    experiment = small(name, turns=6)
    assert experiment.published is None
    assert type(experiment.strategy) is type(resolved(name).strategy)
    seed_torch(seed_of(experiment.seed, "model"), "cpu")
    before = experiment.task.evaluate(experiment.task.model())["loss"]
    outcome = Trainer(experiment, VirtualWorld(experiment.cluster)).fit()
    assert outcome.figures["loss"] < before


def test_a_scale_changes_everything_by_the_rule() -> None:
    whole, part = resolved("cui2021"), resolved("cui2021", ["scale=0.5"])
    assert (part.task.network.hidden, part.task.network.bottleneck, part.task.network.layers) == (256, 128, 6)  # type: ignore[attr-defined]
    assert (part.task.classes, part.task.inputs, part.task.chunks.size) == (16_000, 260, 32)  # type: ignore[attr-defined]
    assert part.task.hours == 1975 / 4  # type: ignore[attr-defined]
    assert part.budget.total(part.task) == pytest.approx(whole.budget.total(whole.task) / 2, rel=1e-4)
    assert (part.cluster, part.schedule) == (whole.cluster, whole.schedule)
    averaging = resolved("rosciszewski2017", ["scale=0.5"]).strategy
    assert averaging.frames_per_iteration == 150_000  # type: ignore[attr-defined]


@pytest.mark.parametrize("scale", ["0", "-1", "1.5", "nan", "much"])
def test_a_wrong_scale_is_refused(scale: str) -> None:
    with pytest.raises(SettingError, match=f"scale.*{scale}"):
        resolved("zhang2019", [f"scale={scale}"])


def test_other_settings_apply_after_the_scale() -> None:
    found = resolved("zhang2019", ["task.chunks.size=7", "scale=0.1"])
    assert found.task.chunks.size == 7  # type: ignore[attr-defined]
    assert "scale = 0.1\n    (float) size relative to the paper's" in run("settings", "zhang2019", "--set", "scale=0.1")
