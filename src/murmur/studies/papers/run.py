"""Rows of the papers' experiments: found for a cell among the rows, or trained and appended."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from murmur.engine.stacked import draw_together
from murmur.engine.trainer import Trainer
from murmur.recipes.pretrain import stack_experiment
from murmur.run.saved_model import Initialised
from murmur.run.training import commit
from murmur.studies.comparison.rows import Row, Rows, digest_of
from murmur.studies.comparison.virtual import train
from murmur.studies.papers.cell import FIXED, STACK_RATE, StudyCell, StudyMaterial
from murmur.studies.recipe_records import hardware
from murmur.worlds.virtual.world import VirtualWorld

MANY = 64  # above so many learners, gradients computed in one call save time


class MissingRun(LookupError):
    """A required run is not among the rows, and may not be made."""


@dataclass(frozen=True)
class Runner:
    """Makes rows, or only finds them.

    Attributes:
        rows: file of the rows.
        material: data to train cells on; None trains nothing.
    """

    rows: Rows
    material: StudyMaterial | None = None

    def __call__(self, cell: StudyCell) -> Row:
        """The row of a cell.

        Raises:
            MissingRun: there is no row, and training is off.
        """
        known = self.rows.read().get(cell.digest)
        if known is not None and (not cell.decoded or known["errors"] is not None or known["ended"]):
            return known
        if self.material is None:
            raise MissingRun(f"{cell.told} is not in {self.rows.path}")
        row = self.trained(cell)
        self.rows.append(row)
        return row

    def trained(self, cell: StudyCell) -> Row:
        """Train a cell and return its row, which is not on disk yet."""
        assert self.material is not None
        began = time.process_time(), time.monotonic()
        row = {"digest": cell.digest, "cell": asdict(cell), **self._figures(cell, self.material)}
        return row | {
            "cpu_seconds": round(time.process_time() - began[0], 1),
            "real_seconds": round(time.monotonic() - began[1], 1),
            "commit": (commit() or "unknown")[:7],
            "hardware": hardware(),
            "date": datetime.now(UTC).date().isoformat(),
        }

    def _figures(self, cell: StudyCell, material: StudyMaterial) -> dict[str, Any]:
        plain = material.frame_task(cell)
        task: Any = plain
        if cell.stack:
            stem = self.stack(cell.seed, material)
            content = blake2b(stem.with_suffix(".safetensors").read_bytes(), digest_size=8).hexdigest()
            task = Initialised(plain, stem, content)
        together = draw_together if cell.learners > MANY else None
        course = train(cell.experiment(task, plain.per_epoch), cell.cluster(), together)
        errors = None
        if cell.decoded and course.model is not None:
            score = task.test(course.model)
            errors = {each.utterance: (each.errors, each.words) for each in score.recognised}
        return {"prior": plain.loss_of_priors(), **course.described(), "errors": errors}

    def stack(self, seed: int, material: StudyMaterial) -> Path:
        """File, without suffix, of the machines of a seed; trained if it is missing."""
        out = material.cache / "stacks" / digest_of([STACK_RATE, seed, FIXED])
        if not (out / "model.json").exists():
            Trainer(stack_experiment(material.network_task(seed), STACK_RATE), VirtualWorld(1), out).fit()
        return out / "model"


def loss(row: Row) -> float:
    """Held-out loss, nats per frame, at most that of the class frequencies, used for runs that ended early."""
    found = row["heldout"].get("loss")
    return float(row["prior"]) if found is None or not found < row["prior"] else float(found)
