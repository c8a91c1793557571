"""The first lines of the page: sixteen processes at the pace of devices, from rows of `benchmarks/sixteen_devices.py`.

Their gradients are those of the BLSTM of `rings`, on real clocks and slowed links. One learner runs without a pace.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from murmur.comparison.rows import Row, Rows
from murmur_papers.studies.study import against
from murmur_papers.studies.verdicts import holds

RECORD = Path("results/sixteen_devices.jsonl")
COMMAND = "python benchmarks/sixteen_devices.py"
SLOW, COPES = 10.0, 1.2  # as in `stragglers`
CUI, ZHANG = "Cui et al. 2021", "Zhang et al. 2019"
RANDOMISED, FIXED = "ADPSGD(randomized_ring, moments='averaged')", "ADPSGD(ring, moments='averaged')"
DELAYED, NODES = "DelayByOne(moments='averaged')", f"SuperLearners({RANDOMISED}, 4)"
COMPETITIVE, COPE = '"competitive word error rates"', '"cope well with slow learners"'
SYSTEMS = (  # paper, claim, system, strategy, slowness of the last learner
    (CUI, COMPETITIVE, "delay-by-one", DELAYED, 1.0),
    (CUI, COMPETITIVE, "randomised ring", RANDOMISED, 1.0),
    (CUI, COMPETITIVE, "fixed ring", FIXED, 1.0),
    (CUI, COPE, f"randomised ring, one {SLOW:g} times slower", RANDOMISED, SLOW),
    (CUI, COPE, f"fixed ring, one {SLOW:g} times slower", FIXED, SLOW),
    (
        ZHANG,
        '"super learners deploy ADPSGD algorithm among themselves"',
        "nodes of four on a randomised ring (theirs is fixed)",
        NODES,
        1.0,
    ),
)


def lines(record: Path = RECORD) -> list[tuple[str, str, str, str]]:
    """Paper, claim, our numbers and verdict of each system; "" for numbers and verdict without its rows."""
    rows = [_compared(row) for row in Rows(record).read().values() if row["cell"]["turns"] is None]
    alone = [row for row in rows if row["cell"]["kind"] == "words"]
    return [
        (paper, f"{claim}: 16 processes at the pace of devices, {system}", *_line(rows, alone, strategy, slow))
        for paper, claim, system, strategy, slow in SYSTEMS
    ]


def _compared(row: Row) -> Row:
    """The row with what comparisons read: this benchmark runs on processors, and all whole runs have equal frames."""
    plain = {"ended": None, "prior": None, "errors": None, "device": "cpu"}
    return {**plain, **row, "cell": {**row["cell"], "budget": 0}}


def _line(rows: Sequence[Row], alone: Sequence[Row], strategy: str, slow: float) -> tuple[str, str]:
    every = [row for row in rows if row["cell"]["kind"] == "devices" and row["cell"]["strategy"] == strategy]
    mine, equal = ([row for row in every if row["cell"]["slow"] == s] for s in (slow, 1.0))
    if not alone or not mine or not equal:
        return "", ""
    found, usual = _speed(mine), _speed(equal)
    cope = holds(usual / found <= COPES) if slow != 1 else ""
    learners = mine[0]["scale"]["learners"]
    speed = f"{found:.1f} times as fast" + (f" ({usual:.1f} without a slow one)" if slow != 1 else "")
    outcome = against(alone, mine, f"{learners} learners", speed, cope)
    return outcome.ours, outcome.told


def _speed(rows: Sequence[Row]) -> float:
    """Seconds of one learner of the same pace for the minibatches of a run, over those of the run: mean of seeds."""
    return statistics.fmean(row["alone"] * row["minibatches"] / row["seconds"] for row in rows)
