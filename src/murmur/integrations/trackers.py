"""Observers of records for Weights & Biases, trackio, MLflow and TensorBoard.

    with murmur.join(KAVG(8), model, optimizer) as me:
        me.observe(wandb_run(wandb.init(project="x", group="run 1", name=f"learner {me.rank}")))

The trackers are imported by the program, not here. Each learner has its own run, or only learner 0 observes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from murmur.engine.record import Observer, Record

FIGURES = ("loss", "rate", "epoch", "seconds", "staleness", "skipped", "consensus_distance")
PARTS = ("compute_seconds", "data_seconds", "waiting_seconds", "communicating_seconds")
Log = Callable[[Mapping[str, float], int], object]


def figures_of(record: Record) -> dict[str, float]:
    """Return the finite figures of a record: `train/loss`, `heldout/loss`, and those of its other kinds."""
    kind = {"step": "train", "evaluation": "heldout"}.get(record.kind, record.kind)
    names = (*FIGURES, *PARTS) if record.kind == "step" else FIGURES
    found = {name: getattr(record, name) for name in names} | {"samples": record.samples, **record.figures}
    return {f"{kind}/{name}": float(x) for name, x in found.items() if x is not None and math.isfinite(x)}


@dataclass
class Tracker:
    """Observer that passes figures to `log`, with the samples so far as their step.

    Attributes:
        log: Called with the figures and the step.
        every: Steps of the learner between two logged ones; records of other kinds are all logged.
    """

    log: Log
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")

    def __call__(self, record: Record) -> None:
        if record.kind != "step" or record.step % self.every == 0:
            self.log(figures_of(record), int(record.samples))


def wandb_run(run: Any, every: int = 1) -> Observer:
    """Log to a run of Weights & Biases (`wandb.init()`), over the axis `samples`."""
    run.define_metric("samples")
    run.define_metric("*", step_metric="samples")
    return Tracker(lambda figures, step: run.log({**figures, "samples": step}), every)


def trackio_run(run: Any, every: int = 1) -> Observer:
    """Log to a run of trackio (`trackio.init()`); its axis can be set to `samples`."""
    return Tracker(lambda figures, step: run.log({**figures, "samples": step}), every)


def mlflow_run(client: Any, run_id: str, every: int = 1) -> Observer:
    """Log to a run of MLflow by an `MlflowClient`, with samples as the step."""

    def log(figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            client.log_metric(run_id, name, value, step=step)

    return Tracker(log, every)


def tensorboard_writer(writer: Any, every: int = 1) -> Observer:
    """Log to a `torch.utils.tensorboard.SummaryWriter`, with samples as the step."""

    def log(figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return Tracker(log, every)
