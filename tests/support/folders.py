"""Run folders of random records for the tests of the report, and the contents of a page, parsed from its HTML."""

from __future__ import annotations

import html
import json
import random
import re
from pathlib import Path
from typing import Any

KINDS = ("compute", "data", "waiting", "communicating")


def random_rows(seed: int, learners: int, steps: int) -> list[dict[str, Any]]:
    """Return steps of learners of unequal speed, and occasional evaluations."""
    draw = random.Random(seed)
    clocks = [draw.uniform(0.5, 2.0) for _ in range(learners)]
    rows: list[dict[str, Any]] = []
    for n in range(steps):
        learner = draw.randrange(learners)
        spent = {f"{kind}_seconds": draw.uniform(0, 0.4) for kind in KINDS}
        clocks[learner] += sum(spent.values()) + draw.choice((0.0, 0.05))
        at = {"samples": 32.0 * (n + 1), "minibatches": n + 1, "epoch": (n + 1) / 50, "seconds": clocks[learner]}
        loss = None if draw.random() < 0.05 else draw.uniform(0, 3)
        rows.append(
            {"kind": "step", "learner": learner, "loss": loss, "rate": 0.1 / (1 + n), "staleness": draw.randrange(4)}
            | at
            | spent
        )
        if n % 20 == 19:
            figures = {"loss": draw.uniform(0, 3), "accuracy": draw.random()}
            mark = {"kind": "evaluation", "learner": 0, "figures": figures, "consensus_distance": draw.random()}
            rows.append(mark | at | {"seconds": max(clocks)})
    return rows


def write_run(folder: Path, rows: list[dict[str, Any]], learners: int, **facts: Any) -> Path:
    """Write a run folder with these records."""
    folder.mkdir(parents=True)
    strategy = {"type": "murmur.strategies.adpsgd.ADPSGD", "mixing": "murmur.core.mixing.ring"}
    described = {"learners": learners, "experiment": {"seed": 1, "strategy": strategy}, "command": ["murmur", "train"]}
    (folder / "run.json").write_text(json.dumps(described | facts))
    (folder / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def tables(page: str) -> dict[str, list[list[str]]]:
    """Return {label: rows of cells, column names first} of all tables of a page."""
    found = {}
    for label, table in re.findall(r'role="region" aria-label="([^"]*)">\s*<table>(.*?)</table>', page, re.DOTALL):
        rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)
        found[html.unescape(label)] = [
            [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows
        ]
    return found


def charts(page: str) -> list[dict[str, Any]]:
    """Return the data of the page's curves."""
    data = re.search(r'<script type="application/json" id="curves">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    found: list[dict[str, Any]] = json.loads(data[1])
    return found
