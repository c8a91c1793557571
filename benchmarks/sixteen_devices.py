"""Sixteen devices on two cores: real learners with real speech gradients, at the pace and on the links of devices.

    python benchmarks/sixteen_devices.py --plan
    python benchmarks/sixteen_devices.py --librispeech FOLDER [--cache FOLDER] [--minutes 90]   (as root)

Each learner is a process on a host of its own, a network namespace (`forked_hosts.py`). It computes the gradients of
the BLSTM of `murmur papers rings`, a sixteenth of each minibatch, and each gradient is stretched by sleep to 1.2 s
(`stretched.py`), so that two cores carry sixteen learners. The links are slowed until our model takes as much of a
gradient's seconds as the papers' model took through a node's card: 0.085 for the machines of Cui et al. 2021 and of
Zhang et al. 2019. Learners of a super-learner share a host. Wall time takes the place of virtual time.

Speed-up: seconds of one learner of the same pace for all minibatches, over those of the run from its first gradient to
its last step. The seconds of that learner follow from 300 gradients of its own, since all of them would take eight
hours; its words come from a run without a pace. The only evaluation comes after the last step. Synchronous SGD beside
a slow learner is timed for 100 turns, and its seconds are in proportion. Every run is predicted by the simulator and
by the planner before it is made (`sixteen_predicted.py`); the prediction is a row of its own.

Rows are appended to results/sixteen_devices.jsonl as they come, and the same command continues after the last one;
`--minutes` starts no cell after that time. A run of all minibatches takes half an hour, the study about ten hours.
A run with more than 2 % of late gradients was disturbed by others; `--again` makes such rows again.
`--dry` runs a few gradients on generated frames, with rows in its folder. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forked_hosts import Failed, apart
from measure import close
from murmur.comparison.rows import Row, Rows
from murmur.run.folder.provenance import hardware
from murmur.run.preparation import task_to_do
from murmur_papers.studies.cell import COMMIT, StudyMaterial
from namespaces import refusal
from sixteen_bars import bars_of, figures
from sixteen_predicted import Told, predicted
from sixteen_runs import SPARE, SPARE_SECONDS, Material, decoded, devices, measured, words
from sixteen_study import DRY, FULL, Cell, Scale, cells, experiment_of, named, pieces

KIND = "long"
KEPT = Path(__file__).parents[1] / "results" / "sixteen_devices.jsonl"
MOST_LATE = 0.02  # share of the gradients of a run
DECODING_SECONDS, WORDS_SECONDS, MEASURED_SECONDS = 100.0, 300.0, 60.0  # about; beside the paced gradients


class Disturbed(RuntimeError):
    """Gradients of one learner were late, so that their pace is not that of a device."""

    def __init__(self, late: int) -> None:
        super().__init__(
            f"{late} gradients of one learner were late, as other processes use the cores: run it again later"
        )


def disturbed(row: Row) -> bool:
    """True if too many gradients of a row took longer than the pace."""
    gradients = row.get("gradients", 0)
    return bool(row.get("late", 0) > MOST_LATE * (gradients if isinstance(gradients, int) else sum(gradients)))


def lacks_words(cell: Cell, row: Row) -> bool:
    return cell.decoded and "errors" not in row


@dataclass(frozen=True)
class Study:
    """The study with its rows.

    Attributes:
        out: folder of models, logs and lists of errors.
        again: make disturbed rows again.
    """

    scale: Scale
    material: Material
    rows: Rows
    out: Path
    again: bool = False

    def digest(self, cell: Cell) -> str:
        return cell.digest(self.scale, self.material.speech is None, hardware())

    def known(self, cell: Cell) -> Row | None:
        return self.rows.read().get(self.digest(cell))

    def due(self, cell: Cell) -> bool:
        row = self.known(cell)
        return row is None or lacks_words(cell, row) or (self.again and disturbed(row))

    def make(self, cell: Cell) -> Row:
        """Run a cell and append its row, then once more with its words; a row that only lacks these is not run again.

        Raises:
            Disturbed: other processes kept the cores busy while one learner's pace was measured.
        """
        folder, row = self.out / self.digest(cell), self.known(cell)
        folder.mkdir(parents=True, exist_ok=True)
        if row is None or (self.again and disturbed(row)):
            row = self._append(self.digest(cell), cell, self._run(cell, folder))
        if lacks_words(cell, row):
            row = {**row, **decoded(cell, self.material, folder)}
            self.rows.append(row)
        return row

    def _run(self, cell: Cell, folder: Path) -> dict[str, Any]:
        if cell.kind == "measured":
            found = measured(cell, self.material, folder)
            if self.material.speech is not None and disturbed(found):
                raise Disturbed(found["late"])
        elif cell.kind == "words":
            found = words(cell, self.material, folder)
        else:
            found = self._devices(cell, folder)
        return {**found, "build": self.material.build(cell), "folder": folder.name}

    def _devices(self, cell: Cell, folder: Path) -> dict[str, Any]:
        told = self._prediction(cell)
        bound = SPARE * told["predicted"]["simulate"] + SPARE_SECONDS
        bits = self.measured["bits_per_second"]
        known = {"predicted": told["predicted"], "alone": self.measured["seconds"]}
        return {**devices(cell, self.material, folder, bits, bound), **known}

    def _prediction(self, cell: Cell) -> Row:
        """The row of a prediction, which is on disk before the run begins."""
        digest = f"{self.digest(cell)} {self.digest(cells(self.scale)[0])}"
        known = self.rows.read().get(digest)
        if known is not None:
            return known
        task = self.material.task(cell)
        total = experiment_of(cell, self.scale, task).scaled(cell.learners(self.scale)).total
        seconds = predicted(cell, self.scale, Told.of(self.measured), total)
        return self._append(digest, cell, {"predicted": seconds, "minibatches": total}, "predicted: ")

    @property
    def measured(self) -> Row:
        """The row of the measurements on this kind of machine."""
        found = self.known(cells(self.scale)[0])
        assert found is not None  # it is the first cell of every call
        return found

    def _append(self, digest: str, cell: Cell, found: dict[str, Any], prefix: str = "") -> Row:
        kind = {"kind": "predicted"} if prefix else {}
        about = {"name": f"{prefix}{cell.name}", "cell": {**asdict(cell), **kind}, "scale": asdict(self.scale)}
        where = {"commit": COMMIT, "hardware": hardware(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        row = {"digest": digest, **about, **found, **where}
        self.rows.append(row)
        return row


def seconds_of(cell: Cell, scale: Scale) -> float:
    """Estimated seconds of a cell, by the planner on the links that are aimed at."""
    if cell.kind == "words":
        return WORDS_SECONDS + DECODING_SECONDS
    if cell.kind == "measured":
        return scale.alone * scale.pace + MEASURED_SECONDS
    planned = predicted(cell, scale, Told.nominal(scale), pieces(cell, scale))["plan"]
    return planned + (DECODING_SECONDS if cell.decoded else 0.0)


def show_plan(scale: Scale, chosen: Sequence[Cell], done: Callable[[Cell], bool]) -> None:
    """Print the cells in their order, with gradients, minutes and bars."""
    left = 0.0
    for number, cell in enumerate(chosen, 1):
        seconds, there = seconds_of(cell, scale), done(cell)
        left += 0.0 if there else seconds
        state = "there" if there else f"about {seconds / 60:.0f} min"
        print(f"{number:2} {cell.name}: {pieces(cell, scale):,} gradients, {state}; {', '.join(cell.serves)}")
    print(f"{len(chosen)} cells; about {left / 3600:.1f} hours left")


def perform(study: Study, chosen: Sequence[Cell], minutes: float) -> list[str]:
    """Make the rows that are missing, until no cell may begin any more; return the names of the cells that failed.

    Raises:
        Failed: the measurements failed, on which all other cells rest.
    """
    began, failed = time.monotonic(), list[str]()
    for cell in chosen:
        if not study.due(cell):
            continue
        if time.monotonic() - began > 60 * minutes:
            print(f"{minutes:g} minutes are over before {cell.name}; the same command continues")
            break
        told = time.monotonic()
        try:
            row = study.make(cell)
        except Failed as error:
            if cell.kind == "measured":
                raise
            failed.append(cell.name)
            print(f"{cell.name} failed after {time.monotonic() - told:.0f} s: {error}", flush=True)
            continue
        shown = {name: row[name] for name in ("seconds", "predicted", "cpu_seconds", "late", "heldout") if name in row}
        print(f"{cell.name}: {time.monotonic() - told:.0f} s; {json.dumps(shown)}", flush=True)
    return failed


def report(study: Study, dry: bool) -> None:
    """Print figures and bars of the rows that are there; without `dry` they are kept for RESULTS.md."""
    rows = [row for row in (study.known(cell) for cell in cells(study.scale)) if row is not None]
    found, bars = figures(rows), bars_of(rows, study.scale)
    if dry:
        print(json.dumps({"benchmark": "sixteen_devices", "figures": found, "bars": bars}))
    else:
        close("sixteen_devices", found, bars)


def options() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--plan", action="store_true", help="print the cells and their hours, and end")
    asked.add_argument("--librispeech", type=Path, help="folder of the part of LibriSpeech")
    asked.add_argument("--cache", type=Path, default=Path("runs/cache"), help="folder of features and alignments")
    asked.add_argument("--out", type=Path, default=Path("runs/sixteen_devices"), help="folder of models and logs")
    asked.add_argument("--cells", nargs="*", default=[], help="parts of the names of cells; all by default")
    asked.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this time")
    asked.add_argument("--again", action="store_true", help="make rows again that were disturbed by other processes")
    asked.add_argument("--dry", action="store_true", help="a few gradients on generated frames")
    return asked.parse_args()


def main() -> None:
    given = options()
    torch.set_num_threads(1)
    scale, out = (DRY if given.dry else FULL), given.out.resolve()
    speech = (
        None
        if given.dry or given.librispeech is None
        else StudyMaterial({"librispeech": given.librispeech}, given.cache)
    )
    rows = Rows(out / "dry.jsonl" if given.dry else KEPT)
    study, chosen = (
        Study(scale, Material(scale, speech), rows, out, given.again),
        list(named(cells(scale), given.cells)),
    )
    if given.plan:
        show_plan(scale, chosen, lambda cell: not study.due(cell))
        return
    if speech is None and not given.dry:
        sys.exit("give --librispeech FOLDER, or --dry for generated frames")
    reason = refusal()
    if reason is not None:
        print(f"sixteen_devices cannot run: {reason}")
        print(json.dumps({"benchmark": "sixteen_devices", "figures": {}, "bars": [], "cannot_run": reason}))
        return
    prepare(study, chosen)
    try:
        failed = perform(study, chosen, given.minutes)
    except (Disturbed, Failed) as error:
        sys.exit(str(error))
    report(study, given.dry)
    if failed:
        sys.exit(f"{len(failed)} failed: {'; '.join(failed)}: the same command runs them again")


def prepare(study: Study, chosen: Sequence[Cell]) -> None:
    """Make the data that is missing, in a process of its own: it has threads, and this one is forked later."""
    task = study.material.task(chosen[0])
    task_to_do(task)
    apart(study.out, "preparation", partial(_prepared, task))


def _prepared(task: Any) -> None:
    task.prepare()


if __name__ == "__main__":
    main()
