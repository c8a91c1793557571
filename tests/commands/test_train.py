from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

ONE = ["--threads", "1"]


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_a_trained_model_is_tested_and_told(tmp_path: Path) -> None:
    code, said = run("train", "toy", "--set", "budget.epochs=1", "--out", tmp_path / "a", *ONE)
    assert code == 0, said
    score = json.loads((tmp_path / "a" / "score.json").read_text())
    losses = {n: json.loads((tmp_path / "a" / f"{n}.json").read_text()) for n in ("model", "best", "averaged")}
    assert score["heldout"]["loss"] == min(f["figures"]["loss"] for f in losses.values())
    assert score["model"]["name"] == "last"  # a single evaluation point: all three are the same
    assert score["lines"][0] in said
    assert said.endswith(f"next:\n  murmur report {tmp_path / 'a'}\n")  # it has recognised no speech

    code, said = run(
        "train", "toy", "--set", "budget.epochs=0.1", "--init", tmp_path / "a", "--out", tmp_path / "b", *ONE
    )
    assert code == 0, said
    assert json.loads((tmp_path / "b" / "run.json").read_text())["init"] == str(tmp_path / "a")
    started = json.loads((tmp_path / "b" / "score.json").read_text())["heldout"]["loss"]
    assert started == pytest.approx(score["heldout"]["loss"], rel=0.2)

    code, said = run("train", "toy", "--set", "task.hidden=9", "--init", tmp_path / "a", "--out", tmp_path / "c", *ONE)
    assert code == 1
    assert "tensor '0.weight' has shape (128, 64), the model's has (9, 64)" in said
    assert "Traceback" not in said
    assert not (tmp_path / "c").exists()


def test_a_task_that_continues_another_ones_training_warns_of_random_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "fine_tuning.py"
    file.write_text("""
from dataclasses import dataclass, replace
from murmur.recipes import toy

@dataclass(frozen=True)
class FineTuning(toy.ToyTask):
    continues: str | None = "the network of a first run"

def loaded(model):
    pass

def experiment(begun: bool = False):
    return replace(toy.experiment(), task=FineTuning(), initial=loaded if begun else None)
""")
    warning = "training begins with random weights: give --init the network of a first run"
    short = ["--set", "budget.minibatches=5", *ONE]
    out, init = ("--out", tmp_path / "a"), ("--init", tmp_path / "a")
    for words in (("train", file, "--dry-run"), ("train", file, *out)):
        assert run(*words, *short)[0] == 0
        assert warning in caplog.text
        caplog.clear()
    others = (init, ("--set", "task.continues=None"), ("--set", "begun=True"))
    for words in (*(("train", file, *other, "--dry-run") for other in others), ("train", "toy", "--dry-run")):
        assert run(*words, *short)[0] == 0
        assert warning not in caplog.text


@pytest.mark.parametrize("choice", ["last", "best", "averaged"])
def test_the_model_asked_for_is_tested(choice: str, tmp_path: Path) -> None:
    words = ["--set", "budget.epochs=2", "--set", "optimizer.lr=0.5", "--weights", choice]
    assert run("train", "toy", *words, "--out", tmp_path, *ONE)[0] == 0
    score = json.loads((tmp_path / "score.json").read_text())
    file = {"last": "model"}.get(choice, choice)
    assert score["model"]["name"] == choice
    assert f"weights: {choice} (--weights, held-out loss" in score["lines"][0]
    assert score["heldout"] == json.loads((tmp_path / f"{file}.json").read_text())["figures"]


def test_dry_run_shows_the_first_step_and_writes_nothing(tmp_path: Path) -> None:
    options = ["--set", "budget.minibatches=50", "--set", "task.dropout=0.2", "--strategy", "SyncSGD()"]
    code, said = run("train", "toy", *options, "--learners", 4, "--out", tmp_path / "dry", "--dry-run", *ONE)
    assert code == 0, said
    assert not (tmp_path / "dry").exists()
    assert re.search(r"0\.weight\s+│\s+128 x 64", said)
    assert "9,610" in said
    assert "budget: 50 minibatches = 0.50 epochs; 13 steps for each of 4 learners" in said
    assert run("train", "toy", *options, "--out", tmp_path / "real", *ONE)[0] == 0
    first = json.loads((tmp_path / "real" / "records.jsonl").read_text().splitlines()[0])
    shown = float(re.findall(r"first loss ([0-9.]+) per sample", said)[0])
    assert shown == pytest.approx(first["loss"], abs=1e-5)


@pytest.mark.parametrize("strategy", ["ASGD(servers=2)", "Downpour(servers=2)", "SuperLearners(ASGD(), 2)"])
def test_dry_run_counts_the_learners_that_train(strategy: str, tmp_path: Path) -> None:
    options = ["--set", "budget.minibatches=50", "--strategy", strategy, "--out", tmp_path / "dry", "--dry-run", *ONE]
    code, said = run("train", "toy", *options, "--learners", 6)
    assert code == 0, said
    assert "6 learners (4 train, 2 only serve), 50 minibatches" in said
    assert "13 steps for each of 4 learners that train" in said


def test_servers_alone_are_refused_before_a_learner_starts(tmp_path: Path) -> None:
    code, said = run("train", "toy", "--strategy", "ASGD(servers=2)", "--learners", 2, "--out", tmp_path / "a", *ONE)
    assert code != 0
    assert "servers=2 needs at least 3 learners, so that one of them trains, got 2" in said


def test_dry_run_fails_where_training_would(tmp_path: Path) -> None:
    file = tmp_path / "explodes.py"
    file.write_text(
        "from dataclasses import replace\n"
        "import murmur.recipes.toy as toy\n"
        "from murmur.engine.task import Loss\n"
        "class Explodes(toy.ToyTask):\n"
        "    def loss(self, model, minibatch):\n"
        "        loss = super().loss(model, minibatch)\n"
        "        return Loss(loss.total * float('inf'), loss.samples)\n"
        "def experiment():\n"
        "    return replace(toy.experiment(), task=Explodes())\n"
    )
    code, said = run("train", file, "--dry-run", *ONE)
    assert code == 1
    assert "first loss inf" in said
