"""Observers of records for experiment trackers, in their offline modes where they are installed."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from torch.profiler import profile

import murmur
from murmur.core.world import Seat
from murmur.engine.record import Record
from murmur.integrations.trackers import Tracker, figures_of, tensorboard_writer
from murmur.strategies import KAVG
from murmur.user_loop.joined import Plan
from murmur.worlds.threads import ThreadWorld
from tests.support.framework_programs import PYTHON, ROOT, has
from tests.support.user_loops import Words, loss_of, net, optimizer_of

STEPS = 6
PROGRAM = """
import json, sys, torch, murmur
from murmur.integrations import trackers
from murmur.strategies import KAVG
{begin}
net = torch.nn.Linear(2, 1)
with murmur.join(KAVG(2), net, torch.optim.SGD(net.parameters(), 0.1)) as me:
    me.observe(observer)
    for n in range(6):
        loss = net(torch.ones(1, 2)).square().mean()
        loss.backward()
        me.step(samples=3, loss=loss)
    me.record({{"loss": 0.25}})
{end}
"""
BEGIN = {
    "wandb": "import wandb; run = wandb.init(project='p', mode='offline', dir=sys.argv[1]);"
    " observer = trackers.wandb_run(run)",
    "trackio": "import os; os.environ['TRACKIO_DIR'] = sys.argv[1]; import trackio;"
    " run = trackio.init(project='p'); observer = trackers.trackio_run(run)",
    "mlflow": "import mlflow; client = mlflow.MlflowClient('file:' + sys.argv[1] + '/m');"
    " run = client.create_run(client.create_experiment('p')).info.run_id; observer = trackers.mlflow_run(client, run)",
}
END = {
    "wandb": "print(json.dumps({k: run.summary[k] for k in ('train/loss', 'heldout/loss')})); run.finish()",
    "trackio": "run.finish(); import sqlite3; file = sqlite3.connect(sys.argv[1] + '/p.db');"
    " found = [json.loads(text) for text, in file.execute('select metrics from metrics')];"
    " print(json.dumps({k: x for row in found for k, x in row.items() if k in ('train/loss', 'heldout/loss')}))",
    "mlflow": "found = client.get_run(run).data.metrics;"
    " print(json.dumps({k: found[k] for k in ('train/loss', 'heldout/loss')}))",
}


def joined(log: Any, every: int) -> None:
    def body(seat: Any) -> None:
        model = net()
        with murmur.join(KAVG(2), model, optimizer_of(model), Plan(timeout_seconds=20.0), seat) as me:
            if me.rank == 0:
                me.observe(Tracker(log, every))
            for n in range(STEPS):
                loss = loss_of(model, 2 * n + me.rank)
                loss.backward()
                me.step(samples=4, loss=loss)
            if me.rank == 0:
                me.record({"loss": 0.5, "wer": 7.0})

    ThreadWorld(2, 20.0).run(Words(body))


@pytest.mark.parametrize(("every", "steps"), [(1, STEPS), (2, STEPS // 2)])
def test_observers_get_the_records_of_their_learner(every: int, steps: int) -> None:
    found: list[tuple[dict[str, float], int]] = []
    joined(lambda figures, step: found.append((dict(figures), step)), every)
    trained = [(figures, step) for figures, step in found if "train/loss" in figures]
    assert len(trained) == steps
    assert all(figures["train/rate"] == 0.05 and figures["train/samples"] == step for figures, step in trained)
    (held,) = [figures for figures, _ in found if "heldout/loss" in figures]
    assert (held["heldout/loss"], held["heldout/wer"]) == (0.5, 7.0)


def test_figures_that_are_unknown_or_not_finite_are_left_out() -> None:
    record = Record("step", 0, 1, 2, 8.0, 0.5, 0.1, float("nan"), rate=float("inf"))
    assert "train/loss" not in figures_of(record)
    assert "train/rate" not in figures_of(record)
    assert figures_of(record)["train/samples"] == 8.0
    with pytest.raises(ValueError, match="every must be at least 1"):
        Tracker(print, 0)


def test_tensorboard_has_the_curve(tmp_path: Path) -> None:
    board = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with board.SummaryWriter(str(tmp_path)) as writer:
        log = tensorboard_writer(writer)
        joined(log.log, 1)  # type: ignore[attr-defined]
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert len(events.Scalars("train/loss")) == STEPS
    assert events.Scalars("heldout/wer")[0].value == 7.0


@pytest.mark.parametrize("package", ["wandb", "trackio", "mlflow"])
def test_trackers_offline(package: str, tmp_path: Path) -> None:
    if not has(package):
        pytest.skip(f"{package} is not in .venv-integrations: run make integrations")
    program = PROGRAM.format(begin=BEGIN[package], end=END[package])
    quiet = {"WANDB_SILENT": "true", "GIT_PYTHON_REFRESH": "quiet", "MLFLOW_ALLOW_FILE_STORE": "true"}
    variables = {"PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **quiet}
    words = [str(PYTHON), "-c", program, str(tmp_path)]
    run = subprocess.run(words, check=False, capture_output=True, text=True, timeout=110, env=variables)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(next(line for line in run.stdout.splitlines() if line.startswith("{")))
    assert found["heldout/loss"] == 0.25
    assert found["train/loss"] > 0


def test_exchanges_are_spans_of_the_profiler() -> None:
    names = set[str]()

    def body(seat: Seat) -> None:
        model = net()
        with (
            profile() if seat.group.rank == 0 else nullcontext() as profiled,
            murmur.join(KAVG(2), model, optimizer_of(model), Plan(timeout_seconds=20.0), seat) as me,
        ):
            for n in range(STEPS):
                loss_of(model, 2 * n + me.rank).backward()
                me.step(samples=4)
        if profiled is not None:
            names.update(event.name for event in profiled.events() or ())

    ThreadWorld(2, 20.0).run(Words(body))
    assert any(name.startswith("murmur communicating: mean of") for name in names), sorted(names)[:20]
