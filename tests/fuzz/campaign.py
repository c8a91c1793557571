"""Thousands of cases in separate processes: a crash, a hang or excessive memory costs one case and is counted.

    python -m tests.fuzz.campaign --count 600                     # of every target, from seed 0
    python -m tests.fuzz.campaign --first 600 --count 600         # continues after these
    python -m tests.fuzz.campaign --target arpa --first 1234 --count 1 --keep case   # one case again, and its files

Ends with one line a target and status 1 if there was a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO

from tests.fuzz.worker import targets

ROOT = Path(__file__).resolve().parents[2]
WORKER = (sys.executable, "-m", "tests.fuzz.worker")
SILENT_SECONDS = 60.0  # a worker silent for this long hangs in native code, where no alarm works
START_SECONDS = 300.0


@dataclass
class Tally:
    """Results of the cases of all targets.

    Attributes:
        counts: {(target, kind of verdict): cases}.
        faults: one line a case, by target and seed.
        done: targets and seeds of all cases.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: dict[tuple[str, int], str] = field(default_factory=dict)
    done: set[tuple[str, int]] = field(default_factory=set)

    def add(self, target: str, seed: int, kind: str, what: str) -> None:
        """Add a verdict."""
        self.done.add((target, seed))
        if kind == "fault":
            self.faults[target, seed] = what
        if seed >= 0:
            self.counts[target, kind] += 1

    def lines(self) -> list[str]:
        """The counts, one line per target."""
        names = sorted({target for target, _ in self.counts})
        rows = [(n, *(self.counts[n, kind] for kind in ("read", "refused", "fault"))) for n in names]
        rows.append(("all", *(sum(row[i] for row in rows) for i in (1, 2, 3))))
        return [f"{n:20} {a + b + c:6} cases: {a:6} read, {b:6} refused, {c:4} faults" for n, a, b, c in rows]


def run(wanted: Sequence[tuple[str, Sequence[int]]], keep: Path | None = None) -> Tally:
    """Try seeds of targets, in as many successive processes as needed."""
    tally, left = Tally(), [(name, list(seeds)) for name, seeds in wanted]
    while any(seeds for _, seeds in left):
        before = sum(len(seeds) for _, seeds in left)
        said = _one_process([(name, seeds) for name, seeds in left if seeds], tally, keep)
        left = [(n, [s for s in seeds if (n, s) not in tally.done]) for n, seeds in left]
        if sum(len(seeds) for _, seeds in left) == before:
            raise RuntimeError(f"a worker ended before its first case:\n{said}")
    return tally


def _one_process(groups: Sequence[tuple[str, Sequence[int]]], tally: Tally, keep: Path | None) -> str:
    """Try cases until the process ends or must be ended; return its output."""
    words = [w for name, seeds in groups for w in ("--", name, *_ranges(seeds))][1:]
    kept = [] if keep is None else ["--keep", str(keep)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*WORKER, *kept, *words]
    pipe = subprocess.PIPE
    worker = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace"
    )
    lines: SimpleQueue[str | None] = SimpleQueue()
    said: list[str] = []
    assert worker.stdout is not None
    assert worker.stderr is not None
    readers = [
        Thread(target=_pass_on, args=(worker.stdout, lines), daemon=True),
        Thread(target=said.extend, args=(worker.stderr,), daemon=True),
    ]
    for reader in readers:
        reader.start()
    under_way = _follow(worker, lines, tally)
    worker.kill()
    status = worker.wait()
    readers[1].join(5)
    if under_way is not None:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        tally.add(*under_way, "fault", f"the process ended ({how}): {''.join(said)[-600:]!r}")
    return "".join(said)[-3000:]


def _pass_on(output: IO[str], lines: SimpleQueue[str | None]) -> None:
    """Every line on arrival, then None."""
    for line in output:
        lines.put(line)
    lines.put(None)


def _follow(worker: subprocess.Popen[str], lines: SimpleQueue[str | None], tally: Tally) -> tuple[str, int] | None:
    """Read verdicts until the worker ends or falls silent; return the case that it did not finish, if any."""
    under_way, patience = None, START_SECONDS
    while True:
        try:
            line = lines.get(timeout=patience)
        except Empty:
            return under_way
        if line is None:
            worker.wait()
            return under_way
        patience = SILENT_SECONDS
        told = json.loads(line)
        if "begin" in told:
            under_way = (told["target"], told["begin"])
        else:
            tally.add(told["target"], told["seed"], told["kind"], told["what"])
            under_way = None


def _ranges(seeds: Sequence[int]) -> list[str]:
    """Command-line words for these seeds, with adjacent ones as ranges."""
    words, first = [], 0
    for at in range(1, len(seeds) + 1):
        if at == len(seeds) or seeds[at] != seeds[at - 1] + 1:
            words.append(str(seeds[first]) if at - first == 1 else f"{seeds[first]}-{seeds[at - 1]}")
            first = at
    return words


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", choices=sorted(targets()), help="only this one; repeatable")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--count", type=int, default=600, help="cases of every target")
    parser.add_argument("--keep", type=Path, help="leave the files of the last case in this folder")
    given = parser.parse_args()
    began, seeds = time.monotonic(), range(given.first, given.first + given.count)
    tally = run([(name, seeds) for name in given.target or sorted(targets())], given.keep)
    for (target, seed), what in sorted(tally.faults.items()):
        print(f"  {target} {seed}: {what}")
    print("\n".join([*tally.lines(), f"{time.monotonic() - began:.0f} s"]))
    return int(bool(tally.faults))


if __name__ == "__main__":
    raise SystemExit(main())
