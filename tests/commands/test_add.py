"""`murmur add` reports a folder without a run, or with a damaged one, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from murmur.run.configuration import SettingError
from murmur.run.learner import one_more
from murmur.run.request import RunRequest

FACTS = {"source": "toy", "strategy": "KAVG(K=2)"}
REQUEST = RunRequest(source="toy", strategy="KAVG(K=2)", learners=2).to_json()
LAUNCH = {"store": "murmur", "learners": 2, "host": "127.0.0.1", "port": 9, "generation": 0}


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("run.json", "{", "run.json is damaged"),
        ("run.json", "[]", "run.json does not say source"),
        ("request.json", "{", "request.json is damaged"),
        ("request.json", REQUEST.replace("[]", "3"), "request.json is damaged.*'settings' must be of type"),
        ("launch.json", "[" * 50_000, "launch.json is damaged"),
        ("launch.json", json.dumps({**LAUNCH, "port": "9"}), "launch.json does not say port"),
        ("launch.json", json.dumps({**LAUNCH, "store": "torchrun"}), "torchrun fixes"),
    ],
)
def test_damaged_runs_are_told(file: str, text: str, says: str, tmp_path: Path) -> None:
    whole = {"run.json": json.dumps(FACTS), "request.json": REQUEST, "launch.json": json.dumps(LAUNCH)}
    for name, content in {**whole, file: text}.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(SettingError, match=says):
        one_more(tmp_path, tmp_path / "secret", None)


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is not a run of several learners"):
        one_more(tmp_path, tmp_path / "secret", None)
