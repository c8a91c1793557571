"""The losses that the planner shows are those of the records of the study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from murmur.simulation.planner.measured import LOSSES
from murmur.simulation.planner.table import shown

ROOT = Path(__file__).parents[2]


def test_the_planner_has_the_losses_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from equal_samples import ALONE, STRATEGIES

    found: dict[str, dict[int, list[float]]] = {}
    for record in (ROOT / "results" / "bench").glob("equal_samples_*.json"):
        for line, figures in json.loads(record.read_text())["figures"].items():
            name, _, learners = line.rpartition(" at ")
            if learners.isdigit() and name != ALONE and not name.startswith("AdaptiveKAVG"):
                found.setdefault(shown(STRATEGIES[name]), {}).setdefault(int(learners), []).append(figures["ratio"])
    wanted = {
        name: {learners: (round(min(ratios), 3), round(max(ratios), 3)) for learners, ratios in rows.items()}
        for name, rows in found.items()
    }
    assert wanted == LOSSES
