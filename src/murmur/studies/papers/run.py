"""Rows of the papers' experiments: found for a cell among the rows, or trained."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from murmur.core.errors import DamagedCheckpoint, SettingError
from murmur.core.flat import Layout
from murmur.engine.checkpoints.checkpoint import layout_of, write_pair
from murmur.engine.experiment import Experiment
from murmur.engine.stacked import NotStackable, check_stackable
from murmur.engine.stacked_device import DeviceGradients
from murmur.engine.task import outputs_of, test_in
from murmur.engine.trainer import Trainer
from murmur.recipes.pretrain import stack_experiment
from murmur.run.saved_model import Initialised, read_into
from murmur.studies.comparison.rows import Row, Rows, digest_of
from murmur.studies.comparison.virtual import VirtualCourse, train
from murmur.studies.papers.cell import FORMAT, STACK_RATE, StudyCell, StudyMaterial
from murmur.studies.papers.networks import DNN, FEED_FORWARD
from murmur.studies.recipe_records import hardware
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.random_frames import FrameTask
from murmur.worlds.virtual.world import VirtualWorld

log = logging.getLogger(__name__)


class MissingRun(LookupError):
    """A required run is not among the rows."""


def known_rows(rows: Rows) -> dict[str, Row]:
    """The rows of a file by digest, without those of cells that another version has described."""
    return {digest: row for digest, row in rows.read().items() if _is_ours(row)}


def _is_ours(row: Row) -> bool:
    try:
        return StudyCell(**row["cell"]).digest == row["digest"]
    except (TypeError, KeyError):
        return False


@dataclass(frozen=True)
class Finder:
    """Finds the rows of cells.

    Attributes:
        known: rows by digest.
    """

    known: dict[str, Row]

    @classmethod
    def of(cls, rows: Rows) -> Finder:
        """Read the rows of a file."""
        return cls(known_rows(rows))

    def __call__(self, cell: StudyCell) -> Row:
        """The row of a cell.

        Raises:
            MissingRun: there is none, or its test was not decoded.
        """
        row = self.known.get(cell.digest)
        if row is None:
            raise MissingRun(cell.told)
        if cell.decoded and row["errors"] is None and not row["ended"]:
            raise MissingRun(f"{cell.told}, whose test is not decoded")
        return row


def trained(cell: StudyCell, material: StudyMaterial) -> Row:
    """Train a cell and return its row, which is not on disk yet.

    The model stays in the cache: a cell that was trained without decoding is decoded later without training. Commit,
    hardware and date are those of the training.
    """
    task, tested = material.task(cell), 0.0
    model, figures = kept_model(cell, task, material) or _course(cell, task, material)
    errors, began = None, time.process_time()
    if cell.decoded and model is not None:
        errors = {each.utterance: (each.errors, each.words) for each in test_in(task, model, None).recognised}
        tested = round(time.process_time() - began, 1)
    spent = {"decoding_seconds": tested, "cpu_seconds": round(figures["training_seconds"] + tested, 1)}
    return {"digest": cell.digest, "cell": asdict(cell), **figures, "errors": errors, **spent}


def kept_model(cell: StudyCell, task: Any, material: StudyMaterial) -> tuple[nn.Module, dict[str, Any]] | None:
    """Model and figures of an earlier run of the cell on the same data; None if there is none."""
    stem = _stem(cell, material)
    if not stem.with_suffix(".json").exists():
        return None
    model = task.model()
    try:
        facts = read_into(model, stem)
    except (DamagedCheckpoint, SettingError) as error:
        log.warning("%s: the run is made again", error)
        return None
    if facts["data"] != data_of(cell, material):
        return None
    present = build_of(material.network_task(cell.network, cell.seed))  # alignments may differ where outputs do not
    return (model, facts["figures"]) if facts["figures"]["build"] == present else None


def data_of(cell: StudyCell, material: StudyMaterial) -> list[str]:
    """Digests of the outputs and of the utterances of a cell's data."""
    task = material.network_task(cell.network, cell.seed)
    return [outputs_of(task), *(task.utterances(part).digest() for part in ("train", "dev", "test"))]


def build_of(task: Any) -> str:
    """Digest of what a task's network learns: transcripts, or the states of all frames.

    States depend on the machine that trained the Gaussian systems: the last bits of sums differ between processors, and
    with them trees and alignments. Losses on states of two builds differ by more than losses of two systems.
    """
    content = blake2b(outputs_of(task).encode(), digest_size=8)
    if isinstance(task, HybridTask):
        for part in (task.targets.train, task.targets.dev):
            for name in sorted(part):
                content.update(name.encode() + np.ascontiguousarray(part[name]).tobytes())
    else:
        for name in ("train", "dev"):
            content.update(repr(sorted(task.utterances(name).texts.items())).encode())
    return content.hexdigest()


def of_builds(known: Mapping[str, Row], builds: Mapping[str, str]) -> dict[str, Row]:
    """Rows of the present builds of the data, and all rows of networks that have none.

    Args:
        known: rows by digest.
        builds: digest of a network's present build, by network.
    """
    return {
        digest: row
        for digest, row in known.items()
        if (row.get("build") or "") == builds.get(row["cell"]["network"], row.get("build") or "")
    }


def newest_builds(known: Mapping[str, Row]) -> dict[str, str]:
    """The build of each network's newest rows; of several of one day, that of the most rows."""
    counts: dict[str, dict[str, tuple[str, int]]] = {}
    for row in known.values():
        own, build = counts.setdefault(row["cell"]["network"], {}), row.get("build") or ""
        date, count = own.get(build, ("", 0))
        own[build] = max(date, row["date"]), count + 1
    return {network: max(own, key=lambda build: own[build]) for network, own in counts.items()}


def _stem(cell: StudyCell, material: StudyMaterial) -> Path:
    return material.cache / "models" / cell.digest


def _course(cell: StudyCell, plain: Any, material: StudyMaterial) -> tuple[nn.Module | None, dict[str, Any]]:
    """Model and figures of a training run; a run that ended early has no model. The others are kept."""
    task: Any = plain
    if cell.stack:
        stem = stack(cell.seed, material)
        content = blake2b(stem.with_suffix(".safetensors").read_bytes(), digest_size=8).hexdigest()
        task = Initialised(plain, stem, content)
    began = time.process_time(), time.monotonic()
    experiment = cell.experiment(task)
    together, device = gradients_and_device(experiment, cell, material.device)
    course = train(experiment, cell.cluster(), together, device)
    figures = {
        **course.described(),
        **waiting(course, cell.training),
        "prior": plain.loss_of_priors() if isinstance(plain, FrameTask) else None,
        "turns": course.minibatches // cell.training,
        "training_seconds": round(time.process_time() - began[0], 1),
        "real_seconds": round(time.monotonic() - began[1], 1),
        "commit": material.commit,
        "build": build_of(material.network_task(cell.network, cell.seed)),
        "device": device,
        "hardware": hardware() if device == "cpu" else f"{hardware()}, {torch.cuda.get_device_name(device)}",
        "date": datetime.now(UTC).date().isoformat(),
    }
    if course.model is not None:
        course.model.to("cpu")
        _keep(cell, course.model, figures, material)
    return course.model, figures


def gradients_and_device(experiment: Experiment, cell: StudyCell, device: str) -> tuple[DeviceGradients | None, str]:
    """Function that computes the gradients of several learners, and the device of the models.

    An experiment that cannot be stacked has no such function: its gradients are computed one after another, on the
    device for a feed-forward network, and on the host for natural gradients of an LSTM, whose steps in time are short.
    """
    if device == "cpu":
        return None, device
    try:
        check_stackable(experiment)
    except NotStackable as reason:
        there = device if cell.network in FEED_FORWARD else "cpu"
        log.info("gradients are computed one after another, on %s: %s", there, reason)
        return None, there
    return DeviceGradients(device), device


def _keep(cell: StudyCell, model: nn.Module, figures: Mapping[str, Any], material: StudyMaterial) -> None:
    stem = _stem(cell, material)
    stem.parent.mkdir(parents=True, exist_ok=True)
    vectors = {"weights": Layout.trainable(model).gather(), "buffers": Layout.buffers(model).gather()}
    facts = {"tensors": layout_of(model), "figures": figures, "data": data_of(cell, material)}
    write_pair(stem, vectors, facts)


def waiting(course: VirtualCourse, training: int) -> dict[str, float | None]:
    """Share of the time in which the learners that train do not compute; servers are not counted."""
    whole = training * course.seconds
    return {"waiting_share": 1 - course.compute_seconds / whole if whole > 0 else None}


def stack_file(seed: int, material: StudyMaterial) -> Path:
    """File of the machines of a seed."""
    return material.cache / "stacks" / digest_of([STACK_RATE, seed, FORMAT, repr(DNN)]) / "model.json"


def stack(seed: int, material: StudyMaterial) -> Path:
    """File, without suffix, of the machines of a seed; trained if it is missing."""
    file = stack_file(seed, material)
    if not file.exists():
        experiment = stack_experiment(material.network_task("dnn", seed), STACK_RATE)
        Trainer(experiment, VirtualWorld(1), file.parent).fit()
    return file.with_suffix("")


def diverged(row: Row) -> bool:
    """True if a run ended early, or is no better than the frequencies of the classes."""
    found, prior = row["heldout"].get("loss"), row["prior"]
    return row["ended"] is not None or found is None or (prior is not None and not found < prior)


def loss(row: Row) -> float:
    """Held-out loss, nats per frame; infinity for a run that diverged."""
    return float("inf") if diverged(row) else float(row["heldout"]["loss"])
