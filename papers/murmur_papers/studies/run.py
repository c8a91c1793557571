"""Rows of the papers' experiments: found for a cell among the rows, or trained in several processes."""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from murmur.accelerator.device import name_of
from murmur.comparison.rows import Row, Rows, digest_of
from murmur.comparison.virtual import VirtualCourse, train
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.stacked import NotStackable, check_stackable
from murmur.engine.task import outputs_of, test_in
from murmur.engine.trainer import Trainer
from murmur.execution.processes import run_following
from murmur.run.folder.provenance import hardware
from murmur.run.saved_model import InitialWeights
from murmur.speech.models import Dnn
from murmur.speech.tasks.hybrid.pretrain import PretrainTask
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.strategies import SyncSGD
from murmur.worlds.virtual.world import VirtualWorld
from murmur_papers.studies.cell import COMMIT, FORMAT, STACK_RATE, StudyCell, StudyMaterial
from murmur_papers.studies.device_gradients import DeviceGradients
from murmur_papers.studies.networks import DNN, FEED_FORWARD
from murmur_papers.studies.watched import Watch
from murmur_papers.tasks.judged_frames import JudgedTask
from murmur_papers.tasks.random_frames import FrameTask

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
    """Finds the row of a cell among rows by digest; without one, or one that is not decoded, raises MissingRun."""

    known: Mapping[str, Row]

    def __call__(self, cell: StudyCell) -> Row:
        row = self.known.get(cell.digest)
        if row is None:
            raise MissingRun(cell.told)
        if cell.decoded and row["errors"] is None and not row["ended"]:
            raise MissingRun(f"{cell.told}, whose test is not decoded")
        return row


def trained(cell: StudyCell, material: StudyMaterial) -> Row:
    """Train a cell and return its row, which is not on disk yet. To decode it later is to train it again."""
    task, tested = material.task(cell), 0.0
    model, figures = _course(cell, task, material)
    errors, began = None, time.process_time()
    if cell.decoded and model is not None:
        errors = {each.utterance: (each.errors, each.words) for each in test_in(task, model, None).recognised}
        tested = round(time.process_time() - began, 1)
    spent = {"decoding_seconds": tested, "cpu_seconds": round(figures["training_seconds"] + tested, 1)}
    return {"digest": cell.digest, "cell": asdict(cell), **figures, "errors": errors, **spent}


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
    """Rows of these builds of the data (digests by network), and all rows of the other networks."""
    return {
        digest: row
        for digest, row in known.items()
        if (row.get("build") or "") == builds.get(row["cell"]["network"], row.get("build") or "")
    }


def on_newest_builds(known: Mapping[str, Row]) -> dict[str, Row]:
    """Rows on the build of each network's newest rows; of several builds of one day, on that of the most rows."""
    counts: dict[str, dict[str, tuple[str, int]]] = {}
    for row in known.values():
        own, build = counts.setdefault(row["cell"]["network"], {}), row.get("build") or ""
        date, count = own.get(build, ("", 0))
        own[build] = max(date, row["date"]), count + 1
    newest = {network: max(own, key=lambda build: own[build]) for network, own in counts.items()}
    return of_builds(known, newest)


def _course(cell: StudyCell, plain: Any, material: StudyMaterial) -> tuple[nn.Module | None, dict[str, Any]]:
    """Model and figures of a training run; a run that ended early has no model."""
    initial = None
    if cell.stack:
        stem = stack(cell.seed, material)
        content = blake2b(stem.with_suffix(".safetensors").read_bytes(), digest_size=8).hexdigest()
        initial = InitialWeights(stem, content)
    began = time.process_time(), time.monotonic()
    experiment = replace(cell.experiment(plain), initial=initial)
    together, device = gradients_and_device(experiment, cell, material.device)
    watch = Watch(cell.turns, cell.training)
    with watch.hooked():
        course = train(experiment, cell.cluster(), together, device, (watch.see,))
    figures = {
        **course.described(),
        **waiting(course, cell.training),
        **watch.told(),
        **(plain.judged(course.figures, watch.best) if isinstance(plain, JudgedTask) else {}),
        "prior": plain.loss_of_priors() if isinstance(plain, FrameTask) else None,
        "turns": course.minibatches // cell.training,
        "training_seconds": round(time.process_time() - began[0], 1),
        "real_seconds": round(time.monotonic() - began[1], 1),
        "commit": COMMIT,
        "build": build_of(material.network_task(cell.network, cell.seed)),
        **machine(device),
        "date": datetime.now(UTC).date().isoformat(),
    }
    if course.model is not None:
        course.model.to("cpu")
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


def machine(device: str) -> dict[str, str]:
    """Parts of a row: what computes gradients on a device. Rows that differ in them are not compared."""
    whole = hardware() if device == "cpu" else f"{hardware()}, {name_of(device)}"
    return {"torch": torch.__version__, "device": device, "processor": processor(device), "hardware": whole}


def processor(device: str) -> str:
    """The kind of processor that computes gradients on a device; the last bits of sums differ between kinds."""
    if device != "cpu":
        return name_of(device)
    path, found = Path("/proc/cpuinfo"), dict[str, str]()
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    kind = [f"{name} {found[name]}" for name in ("cpu family", "model") if name in found]
    return ", ".join([*kind, torch.backends.cpu.get_cpu_capability()])


def waiting(course: VirtualCourse, training: int) -> dict[str, float | None]:
    """Share of the time in which the learners that train do not compute; servers are not counted."""
    whole = training * course.seconds
    return {"waiting_share": 1 - course.compute_seconds / whole if whole > 0 else None}


def stack(seed: int, material: StudyMaterial) -> Path:
    """File, without suffix, of the machines of a seed; trained if it is missing, by one process at a time."""
    file = material.cache / "stacks" / digest_of([STACK_RATE, seed, FORMAT, repr(DNN)]) / "model.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.parent.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            experiment = stack_experiment(material.network_task("dnn", seed), STACK_RATE)
            Trainer(experiment, VirtualWorld(1), file.parent).fit()
    return file.with_suffix("")


@lru_cache(maxsize=1)  # the data of a process, read once
def _material_of(corpora: tuple[tuple[str, Path], ...], cache: Path, device: str) -> StudyMaterial:
    return StudyMaterial(dict(corpora), cache, device)


def _row_of(cell: StudyCell, corpora: tuple[tuple[str, Path], ...], cache: Path, device: str) -> Row:
    """Train a cell in a worker."""
    return trained(cell, _material_of(corpora, cache, device))


def make(
    missing: Callable[[], Sequence[StudyCell]],
    material: StudyMaterial,
    jobs: int,
    begins: Callable[[StudyCell], None] = lambda _: None,
) -> Iterator[tuple[StudyCell, Row]]:
    """Yield cells with their new rows, as they finish; the caller stores each row before it asks for the next.

    Args:
        missing: function that returns the cells that are missing and can run now, in their order.
        material: prepared data.
        jobs: number of processes.
        begins: function that is called with each cell before it runs.
    """
    begun: set[str] = set()

    def following() -> StudyCell | None:
        cell = next((cell for cell in missing() if cell.digest not in begun), None)
        if cell is not None:
            begun.add(cell.digest)
            begins(cell)
        return cell

    def job_of(cell: StudyCell) -> Callable[[], Row]:
        return partial(_row_of, cell, tuple(sorted(material.corpora.items())), material.cache, material.device)

    made: Iterator[tuple[StudyCell, Row]] = ((cell, trained(cell, material)) for cell in iter(following, None))
    if jobs > 1:
        made = run_following(following, job_of, jobs)
    for cell, row in made:
        yield cell, row
        begun.discard(cell.digest)  # it may be asked for again, to be decoded


def stack_experiment(supervised: HybridTask, rate: float) -> Experiment:
    """One learner that gives each machine of a hybrid task's network one pass, by SGD with momentum."""
    network = supervised.network
    assert isinstance(network, Dnn)
    optimizer = SGD(rate, momentum=0.9, weight_decay=2e-4)
    budget = Budget(epochs=float(network.layers))
    return Experiment(
        PretrainTask(supervised), SyncSGD(), budget, optimizer, seed=supervised.seed, averaged_checkpoints=0
    )


def diverged(row: Row) -> bool:
    """True if a run ended early, or is no better than the frequencies of the classes."""
    found, prior = row["heldout"].get("loss"), row["prior"]
    return row["ended"] is not None or found is None or (prior is not None and not found < prior)


def loss(row: Row) -> float:
    """Held-out loss, nats per frame; infinity for a run that diverged."""
    return float("inf") if diverged(row) else float(row["heldout"]["loss"])
