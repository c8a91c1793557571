"""One cell as a separate process, and its row from the files that the run left."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from murmur.comparison.grid import Cell, Grid, Kind
from murmur.comparison.rows import Row
from murmur.comparison.virtual import LATE
from murmur.core.plain_files import making_sense, plain_file, read_plain
from murmur.core.stop_signals import Stopped
from murmur.core.whole_files import FinishedLines, write_whole
from murmur.report.read import read_run
from murmur.report.records import KINDS, Records
from murmur.run.folder import lock as folder_lock
from murmur.run.folder.provenance import commit, hardware
from murmur.worlds.process.signals import STOPPED_STATUS, StopSignals

FORMAT = 1
MOST_ERROR = 600  # characters of an error
LAST_FILE: Mapping[Kind, str] = {"processes": "score.json", "virtual": "simulated.json"}  # written last by a run
EMPTY: Mapping[str, Any] = dict.fromkeys(
    (
        "samples",
        "minibatches",
        "seconds",
        "heldout",
        "model",
        "test",
        "wer",
        *(f"{kind}_seconds" for kind in KINDS),
        "waiting_share",
        "sent_bytes",
        "staleness",
        "consensus_distance",
    )
)

ANEW = "remove the folder of this run, and the comparison makes it again"


@dataclass(frozen=True)
class CellPlace:
    """Location of a comparison: cells.jsonl and one folder per run.

    Attributes:
        out: folder of the comparison.
        lock: descriptor of a locked file; runs inherit it, so that a run still holds it after its comparison has died.
    """

    out: Path
    lock: int | None = None

    @property
    def cells(self) -> Path:
        return self.out / "cells.jsonl"

    def run(self, cell: Cell) -> Path:
        return self.out / "runs" / cell.name

    def digest(self, cell: Cell) -> Path:
        """The file with the digest of the cell whose run the folder holds."""
        return self.out / "runs" / f"{cell.name}.digest"

    def log(self, cell: Cell) -> Path:
        return self.out / "runs" / f"{cell.name}.log"


def command(grid: Grid, cell: Cell, place: CellPlace, threads: int | None) -> list[str]:
    out, experiment = place.run(cell), grid.experiment(cell)
    words = ["train" if cell.kind == "processes" else "simulate", grid.source, "--strategy", cell.strategy]
    words += ["--learners", str(cell.learners), "--out", str(out)]
    for setting in grid.settings_of(cell):
        words += ["--set", setting]
    if threads is not None:
        words += ["--threads", str(threads)]
    if cell.kind == "virtual":
        words += scenario_words(grid, cell)
    if _digest_in(out) == experiment.digest() and _same_cluster(grid, cell, place):
        return [*words, "--resume"]
    return [*words, "--force"]  # an empty folder, or a run of this comparison that cannot continue


def scenario_words(grid: Grid, cell: Cell) -> list[str]:
    where, words = grid.scenario_of(cell), list[str]()
    for option, value in (("--cluster", where.kind), ("--nodes", where.nodes), ("--step-seconds", where.step_seconds)):
        words += [] if value is None else [option, str(value)]
    words += ["--jitter", str(where.jitter)] if where.jitter else []
    for straggler in where.stragglers:
        words += ["--straggler", straggler]
    return words


def run(grid: Grid, cell: Cell, place: CellPlace, threads: int | None) -> Row:
    """Run a cell to its end, with or without success; a run that ended but lost its row is only read.

    Raises:
        Stopped: this program or the run was asked to stop; the run continues when the comparison is run again.
    """
    words = command(grid, cell, place, threads)
    status, seconds = 0, None
    last = place.run(cell) / LAST_FILE[cell.kind]
    if "--resume" not in words or not last.is_file():
        began = time.monotonic()
        last.unlink(missing_ok=True)  # exists again only if the run reaches its end
        write_whole(place.digest(cell), grid.digest(cell).encode())
        status = launch(words, place.log(cell), () if place.lock is None else (place.lock,))
        seconds = time.monotonic() - began
    if status == STOPPED_STATUS:
        raise Stopped(signal.SIGTERM)  # the signal that stopped the run is unknown
    about = {
        "format": FORMAT,
        "digest": grid.digest(cell),
        "name": cell.name,
        "status": "finished" if status == 0 else "failed",
        "error": None if status == 0 else f"status {status}: {last_words(place.log(cell))}",
        "kind": cell.kind,
        "strategy": cell.strategy,
        "learners": cell.learners,
        "seed": cell.seed,
        "experiment": grid.experiment(cell).digest(),
    }
    found = figures(place.run(cell), cell) if status == 0 else EMPTY
    return {**about, **found, **_origin(words, seconds)}


@contextmanager
def locked(out: Path) -> Iterator[CellPlace]:
    """A place in which this program alone runs cells."""
    with folder_lock.locked(out / folder_lock.LOCK) as lock:
        yield CellPlace(out, lock.descriptor)


def _origin(words: list[str], seconds: float | None) -> Row:
    return {
        "real_seconds": seconds,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "command": ["murmur", *words],
    }


def figures(out: Path, cell: Cell) -> Row:
    """The figures of a finished run, from its records; see docs/compare.md."""
    read = read_run(out)
    records, score = read.records, read.score
    last = records.evaluations[-1]
    whole = cell.learners * records.last_seconds
    computed = sum(spent["compute"] for spent in records.seconds_of.values())
    steps = sum(records.steps_of.values())
    stale = sum(age * count for ages in records.staleness.values() for age, count in ages.items())
    before = [e.consensus_distance for e in records.evaluations if e.samples <= LATE * last.samples]
    apart = [distance for distance in before if distance is not None]
    return {
        "samples": last.samples,
        "minibatches": _fact(out / "model.json", "minibatches"),
        "seconds": records.last_seconds,
        "heldout": dict(score.get("heldout") or last.figures),
        "model": (score.get("model") or {}).get("name"),
        "test": dict(score.get("test") or {}),
        "wer": _wer(out, score),
        **_spent(records, cell.learners),
        "waiting_share": 1 - computed / whole if whole > 0 else None,
        "sent_bytes": _sent(out) if cell.kind == "virtual" else None,
        "staleness": stale / steps if steps else None,
        "consensus_distance": apart[-1] if apart else None,
    }


def _spent(records: Records, learners: int) -> dict[str, list[float]]:
    return {
        f"{kind}_seconds": [records.seconds_of.get(i, {}).get(kind, 0.0) for i in range(learners)] for kind in KINDS
    }


def _wer(out: Path, score: Mapping[str, Any]) -> Row | None:
    """The word error rate on test, with its counts."""
    lines = recognised(out)
    if not lines:
        return None
    with making_sense(out / "recognised.jsonl", ANEW):
        errors, words = (sum(int(line[name]) for line in lines) for name in ("errors", "words"))
    test = score.get("test") or {}
    name = next((n for n in reversed(test) if n.endswith("test wer")), "wer")
    stem = name.removesuffix("wer")
    percent = 100 * errors / words if words else None
    about = {"low": test.get(f"{stem}low"), "high": test.get(f"{stem}high")}
    return {"name": name, "percent": percent, **about, "errors": errors, "words": words}


def recognised(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's recognised.jsonl; empty if nothing was recognised."""
    path = out / "recognised.jsonl"
    if not path.is_file():
        return []
    with making_sense(path, ANEW):
        return [json.loads(line) for line in FinishedLines(path)]


def _sent(out: Path) -> float:
    return float(sum(_fact(out / "simulated.json", "sent_bytes")))


def _digest_in(out: Path) -> str | None:
    """Digest of the experiment of a run begun in this folder."""
    path = out / "run.json"
    if not path.is_file() or not (out / "checkpoints").is_dir():
        return None
    return str(_fact(path, "digest"))


def _fact(path: Path, name: str) -> Any:
    """A fact in the JSON file of a run."""
    with making_sense(path, ANEW):
        return json.loads(read_plain(path))[name]


def _same_cluster(grid: Grid, cell: Cell, place: CellPlace) -> bool:
    """True unless the run in a cell's folder has, or may have, another virtual cluster than the cell."""
    noted = place.digest(cell)
    return cell.kind != "virtual" or (noted.is_file() and noted.read_text(encoding="utf-8") == grid.digest(cell))


def last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-MOST_ERROR:]


def launch(words: list[str], printed: Path, inherited: Sequence[int] = ()) -> int:
    """Run a command of murmur as a separate process, which inherits some open files.

    Returns:
        Its exit status.

    Raises:
        Stopped: a signal came; the command has received it too, and has ended.
    """
    printed.parent.mkdir(parents=True, exist_ok=True)
    with plain_file(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as log:
        log.write(f"$ murmur {shlex.join(words)}\n".encode())
        command = [sys.executable, "-m", "murmur", *words]
        with Asked() as asked:
            status = asked.begun(subprocess.Popen(command, stdout=log, stderr=log, pass_fds=inherited)).wait()
        asked.stop()
        return status


class Asked(StopSignals):
    """Context that passes stop signals on to the run, which saves and ends (a simulated one ends at once)."""

    def __init__(self) -> None:
        super().__init__()
        self.signals: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None

    def begun(self, child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Note that the run has begun, and pass on signals that came before."""
        self._child = child
        for number in self.signals:
            child.send_signal(number)
        return child

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)
        if self._child is not None:
            self._child.send_signal(number)
        super()._take(number, frame)
