"""Cells of `sixteen_devices.py`: measurements, runs of learners on hosts of their own, and decoding."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from forked_hosts import apart, on_hosts
from murmur.core.flat import Layout
from murmur.engine.record import Record
from murmur.engine.task import test_in
from murmur.engine.trainer import Outcome, Trainer
from murmur.worlds.process.environment import Place
from murmur.worlds.process.world import ProcessWorld
from murmur.worlds.virtual.world import VirtualWorld
from murmur_papers.studies.cell import StudyMaterial
from murmur_papers.studies.run import build_of
from namespaces import exchanges
from paced import cpu_seconds
from sixteen_study import Cell, Scale, bits_per_second, experiment_of, generated_task, study_cell
from stretched import Stretched

TIMEOUT_SECONDS = 600.0  # of a collective
SPARE, SPARE_SECONDS = 3.0, 300.0  # times the predicted seconds, and more, before learners count as hung
FIRST_STEPS = 2  # which are left out of the pace: they fill caches
KINDS = ("compute", "data", "waiting", "communicating")
MEMORY = ("Rss", "Pss", "Private_Dirty")
MODEL, BESIDE = "model.safetensors", "beside"


@dataclass
class Watched:
    """Steps of one learner: their times, and the seconds of each kind of work."""

    times: list[float] = field(default_factory=list)
    stale: int = 0
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def note(self, record: Record) -> None:
        if record.kind == "step":
            self.times.append(time.monotonic())
            self.stale += record.staleness
            for kind in KINDS:
                self.spent[kind] += getattr(record, f"{kind}_seconds")

    @property
    def steps(self) -> list[float]:
        """Seconds of each step but the first ones."""
        kept = self.times[FIRST_STEPS:]
        return [after - before for before, after in pairwise(kept)]


@dataclass(frozen=True)
class Material:
    """The task of the study: speech, or generated frames.

    Attributes:
        speech: the corpus and its prepared data; None: generated frames.
    """

    scale: Scale
    speech: StudyMaterial | None

    def task(self, cell: Cell) -> Any:
        if self.speech is None:
            return generated_task(self.scale, cell.seed)
        return self.speech.task(study_cell(cell, self.scale))

    def build(self, cell: Cell) -> str:
        """Digest of what the network learns; "" for generated frames."""
        return "" if self.speech is None else build_of(self.speech.network_task("blstm", cell.seed))


def memory() -> dict[str, float]:
    """MB of this process by kind: resident, its share of what several processes map, written by itself alone."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    found = {line.partition(":")[0]: float(line.split()[1]) / 1e3 for line in lines[1:]}
    return {name: found[name] for name in MEMORY}


def train(cell: Cell, scale: Scale, task: Any, folder: Path, place: Place) -> dict[str, Any]:
    """Run one learner; the one that leads leaves the model in the folder."""
    slow = cell.slow if place.rank == place.size - 1 else 1.0
    stretched, watched = Stretched(task, scale.pace, slow), Watched()
    experiment, before = experiment_of(cell, scale, stretched), cpu_seconds()
    world = ProcessWorld(place, timeout_seconds=TIMEOUT_SECONDS)
    outcome = Trainer(experiment, world, observers=lambda _: (watched.note,)).fit()
    if outcome.leads:
        keep(outcome, folder)
    return {
        "first": stretched.watch.first,
        "last": max(watched.times, default=0.0),
        "steps": len(watched.times),
        "stale": watched.stale,
        "spent": dict(watched.spent),
        "watch": stretched.watch.told(),
        "cpu_seconds": cpu_seconds() - before,
        "memory": memory(),
        "largest_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "heldout": outcome.figures if outcome.leads else None,
        "pace": pace_of(watched.steps) if cell.kind == "measured" else None,
        "minibatches": experiment.scaled(place.size).total,
    }


def keep(outcome: Outcome, folder: Path) -> None:
    save_file({name: x.contiguous() for name, x in outcome.model.state_dict().items()}, folder / MODEL)


def pace_of(steps: list[float]) -> dict[str, float]:
    logarithms = [math.log(seconds) for seconds in steps]
    return {"seconds": statistics.fmean(steps), "sigma": statistics.pstdev(logarithms)}


def measured(cell: Cell, material: Material, folder: Path) -> dict[str, Any]:
    """Pace of one learner, and seconds of messages between two hosts and inside one."""
    scale, task = material.scale, material.task(cell)
    numel = Layout.trainable(task.model()).numel
    bits, bound = bits_per_second(4.0 * numel, scale), SPARE * scale.alone * scale.pace + SPARE_SECONDS
    (alone,) = on_hosts([0], bits, partial(train, cell, scale, task, folder), folder, bound).found
    pair = partial(exchanges, numel=numel)
    between, inside = (on_hosts(where, bits, pair, folder, SPARE_SECONDS).found[0] for where in ([0, 1], [0, 0]))
    watch = alone["watch"]
    return {
        "numel": numel,
        "bits_per_second": bits,
        **alone["pace"],
        "hidden": watch["behind"] / watch["seconds"],
        "between": between,
        "inside": inside,
        "processor_seconds": watch["processor_seconds"] / watch["gradients"],
        "cpu_seconds": alone["cpu_seconds"] / watch["gradients"],
        "late": watch["late"],
        "gradients": watch["gradients"],
        "memory_mb": alone["memory"],
    }


def devices(cell: Cell, material: Material, folder: Path, bits: float, bound: float) -> dict[str, Any]:
    """Run learners on hosts of their own, and one learner of that pace beside them, mostly asleep.

    Args:
        bits: speed of the links.
        bound: seconds after which they count as hung.
    """
    scale, task = material.scale, material.task(cell)
    warm(task)
    where, began = cell.where(scale), time.monotonic()
    (folder / BESIDE).mkdir(exist_ok=True)
    lone = partial(train, Cell("measured"), scale, task, folder / BESIDE)
    ran = on_hosts(where, bits, partial(train, cell, scale, task, folder), folder, bound, lone)
    found = ran.found
    trained = [each for each in found if each["watch"]["gradients"] > 0]
    gradients = sum(each["watch"]["gradients"] for each in trained)
    seconds = max(each["last"] for each in found) - min(each["first"] for each in trained)
    return {
        "seconds": seconds,
        "whole_seconds": time.monotonic() - began,
        "minibatches": found[0]["minibatches"],
        "gradients": [each["watch"]["gradients"] for each in found],
        "late": sum(each["watch"]["late"] for each in found),
        "spent": [each["spent"] for each in found],
        "staleness": sum(each["stale"] for each in found) / max(1, sum(each["steps"] for each in found)),
        "processor_seconds": sum(each["watch"]["processor_seconds"] for each in trained) / gradients,
        "cpu_seconds": sum(each["cpu_seconds"] for each in found) / gradients,
        "memory_mb": {name: statistics.fmean(each["memory"][name] for each in found) for name in MEMORY},
        "largest_mb": max(each["largest_mb"] for each in found),
        "heldout": next(each["heldout"] for each in found if each["heldout"] is not None),
        "beside": {**ran.beside["pace"], "late": ran.beside["watch"]["late"]},
        "others_cores": ran.others_cores,
    }


def warm(task: Any) -> None:
    """Load what all learners read, before they are forked."""
    task.piece(0, 0, task.most_pieces)
    task.model()


def words(cell: Cell, material: Material, folder: Path) -> dict[str, Any]:
    """Train one learner without a pace, on whole minibatches."""
    task = material.task(cell)

    def work() -> dict[str, Any]:
        experiment, began = experiment_of(cell, material.scale, task), time.process_time()
        outcome = Trainer(experiment, VirtualWorld(1)).fit()
        keep(outcome, folder)
        spent, total = time.process_time() - began, experiment.scaled(1).total
        return {"cpu_seconds": spent, "heldout": outcome.figures, "minibatches": total}

    found: dict[str, Any] = apart(folder, "words", work)
    return found


def decoded(cell: Cell, material: Material, folder: Path) -> dict[str, Any]:
    """Figures of dev and test, and the errors of each test utterance; lists of errors of both stay in the folder."""
    task = material.task(cell)

    def work() -> dict[str, Any]:
        torch.set_num_threads(1)
        model, began = task.model(), time.process_time()
        model.load_state_dict(load_file(folder / MODEL))
        score = test_in(task, model, folder / "decoded")
        errors = {each.utterance: (each.errors, each.words) for each in score.recognised}
        spent = time.process_time() - began
        return {"test": dict(score.figures), "errors": errors, "decoding_seconds": spent}

    found: Mapping[str, Any] = apart(folder, "decoding", work)
    return dict(found)
