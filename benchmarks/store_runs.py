"""Campaign over the store's state: simulated launches with random faults, see `store_simulation.py`.

    python benchmarks/store_runs.py [--first 0] [--count 100000] [--jobs 2]

No claim may be lost, and none may be given twice while its lease lives. Results of blocks of seeds are kept in a file
of rows, so that a campaign goes on where it ended. `--case` runs one seed again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from fuzz_runs import campaign
from measure import bar, close
from store_simulation import LOST, STUCK, TWICE, found

KIND = "long"
ROWS = Path(__file__).parents[1] / "results" / "bench" / "store_runs_rows.jsonl"
BLOCK, ENDED = 5000, "ended"


def block(first: int, count: int) -> dict[str, object]:
    """Run the launches of a block of seeds; return their counts, and the failures."""
    began, counts, failures = time.process_time(), Counter[str](), []
    for seed in range(first, first + count):
        broken = found(seed)
        counts[ENDED if broken is None else broken.kind] += 1
        if broken is not None:
            failures.append({"seed": seed, "said": str(broken)})
    seconds = round(time.process_time() - began, 1)
    return {"first": first, "count": count, "seconds": seconds, "failures": failures, "counts": dict(counts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=100_000, help="number of seeds")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of the rows")
    parser.add_argument("--case", type=int, help="run this seed alone")
    asked = parser.parse_args()
    if asked.case is not None:
        broken = found(asked.case)
        print(broken or ENDED)
        sys.exit(broken is not None)
    rows = campaign(asked.first, asked.count, asked.jobs, asked.rows, block, BLOCK)
    counts = sum((Counter(row["counts"]) for row in rows), Counter())
    minutes = round(sum(row["seconds"] for row in rows) / 60, 1)
    bars = [bar("seeds", sum(row["count"] for row in rows), 100_000, at_most=False)]
    bars += [bar(kind, counts[kind], 0) for kind in (TWICE, LOST, STUCK)]
    close("store_runs", {"launches by end": dict(counts), "processor minutes": minutes}, bars)


if __name__ == "__main__":
    main()
