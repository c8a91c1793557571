"""`murmur add` reports a folder without a run, or with a damaged one, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from murmur.run.add_learner import one_more
from murmur.run.configuration import SettingError

FACTS = {"source": "toy", "settings": [], "strategy": "KAVG(K=2)", "learners": 2, "init": None}
LAUNCH = {"store": "murmur", "learners": 2, "host": "127.0.0.1", "port": 9, "generation": 0, "lease_seconds": None}


@pytest.mark.parametrize(
    ("run", "launch", "says"),
    [
        (b"{", json.dumps(LAUNCH).encode(), "run.json is damaged"),
        (b"[]", json.dumps(LAUNCH).encode(), "run.json does not say source"),
        (json.dumps(FACTS).encode(), b"[" * 50_000, "launch.json is damaged"),
        (json.dumps(FACTS).encode(), json.dumps({**LAUNCH, "port": "9"}).encode(), "launch.json does not say port"),
        (json.dumps({**FACTS, "settings": 3}).encode(), json.dumps(LAUNCH).encode(), "run.json does not say settings"),
        (json.dumps(FACTS).encode(), json.dumps({**LAUNCH, "store": "torchrun"}).encode(), "torchrun fixes"),
    ],
)
def test_damaged_runs_are_told(run: bytes, launch: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(run)
    (tmp_path / "launch.json").write_bytes(launch)
    with pytest.raises(SettingError, match=says):
        one_more(tmp_path, tmp_path / "secret", None)


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is not a run of several learners"):
        one_more(tmp_path, tmp_path / "secret", None)
