"""Campaign over whole runs: random strategies, nested too, on simulated clusters with random faults.

    python benchmarks/fuzz_runs.py [--first 0] [--count 100000] [--jobs 2]

Every run trains through the trainer on the virtual clock. The oracle counts minibatches at the task. A run fails if

    - `fit` returns and a minibatch of the budget was never computed;
    - it needs more than 60 processor seconds, or its learners wait without end;
    - learners wait for each other;
    - it raises anything but the documented error of a learner that it cannot go on without.

Results of blocks of seeds are kept in a file of rows, so that a campaign goes on where it ended. `--case` runs one case
again, given as its seed or as JSON; a failure is printed as the smallest case that still fails.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from fuzz_cases import Case, drawn, shrunk
from fuzz_oracle import ENDED, ENDLESS, LOST, RAISED, STUCK, UNDONE, run
from measure import bar, close

KIND = "long"
BLOCK = 500
ROWS = Path(__file__).parents[1] / "results" / "bench" / "fuzz_runs_rows.jsonl"


def block(first: int, count: int) -> dict[str, object]:
    """Run the cases of a block of seeds; return their counts, and the failures."""
    torch.set_num_threads(1)
    logging.disable()
    began, counts, failures, undone = time.process_time(), Counter[str](), [], 0
    for seed in range(first, first + count):
        found = run(drawn(seed))
        counts[found.kind] += 1
        undone += found.undone
        if found.kind not in (ENDED, LOST):
            failures.append({"seed": seed, "kind": found.kind, "said": found.said[:400]})
    seconds = time.process_time() - began
    row = {"first": first, "count": count, "seconds": round(seconds, 1), "undone": undone, "failures": failures}
    return {**row, "counts": dict(counts)}


def smallest(case: Case, kind: str) -> Case:
    """Return the smallest case that fails in this way."""
    return shrunk(case, lambda smaller: run(smaller, 10.0).kind == kind)


def campaign(
    first: int, count: int, jobs: int, rows: Path, block: Callable[[int, int], dict[str, object]], size: int
) -> list[dict[str, object]]:
    """Run `block` on all blocks of `size` seeds of which no row is there yet; return the rows of all."""
    version = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    done = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    there = {(row["first"], row["count"]) for row in done}
    wanted = [(start, min(size, first + count - start)) for start in range(first, first + count, size)]
    with ProcessPoolExecutor(jobs) as pool, rows.open("a") as out:
        for row in pool.map(block, *zip(*[w for w in wanted if w not in there], strict=True) or ((), ())):
            row["commit"] = version.stdout.strip()
            print(json.dumps(row["counts"]), f"seeds from {row['first']}", row["failures"] or "", flush=True)
            out.write(json.dumps(row) + "\n")
            out.flush()
            done.append(row)
    return [row for row in done if (row["first"], row["count"]) in wanted]


def alone(case: Case) -> bool:
    """Run one case and print what is found; return True if it fails."""
    logging.disable()
    found = run(case)
    print(json.dumps(case.described()), found.kind, found.said, sep="\n")
    fails = found.kind not in (ENDED, LOST)
    if fails:
        print("smallest:", json.dumps(smallest(case, found.kind).described()), sep="\n")
    return fails


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=100_000, help="number of seeds")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of the rows")
    parser.add_argument("--case", help="run this case alone, given as its text, or the seed of one")
    asked = parser.parse_args()
    if asked.case is not None:
        sys.exit(alone(drawn(int(asked.case)) if asked.case.isdigit() else Case.read(json.loads(asked.case))))
    rows = campaign(asked.first, asked.count, asked.jobs, asked.rows, block, BLOCK)
    counts = sum((Counter(row["counts"]) for row in rows), Counter())
    figures = {"runs by end": dict(counts), "processor hours": round(sum(row["seconds"] for row in rows) / 3600, 2)}
    bars = [bar("seeds", sum(row["count"] for row in rows), 100_000, at_most=False)]
    bars.append(bar(UNDONE, sum(row["undone"] for row in rows), 0))
    bars += [bar(kind, counts[kind], 0) for kind in (ENDLESS, STUCK, RAISED)]
    close("fuzz_runs", figures, bars)


if __name__ == "__main__":
    main()
