"""RESULTS.md is made of records alone: every record is in it, nothing else is, and twice is the same as once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results

    return results


def kept(folder: Path, name: str, value: float) -> None:
    bars = [{"what": f"what of {name}", "value": value, "bar": 1.0, "holds": value <= 1.0}]
    about = {"command": f"python {name}.py", "commit": "abc", "hardware": "a machine", "date": "2026-11-22"}
    (folder / "bench").mkdir(parents=True, exist_ok=True)
    (folder / "bench" / f"{name}.json").write_text(json.dumps({"benchmark": name, "bars": bars, **about}))


def test_figures_come_and_go_with_their_records(results: ModuleType, tmp_path: Path) -> None:
    assert not re.findall(r"\d", results.page(tmp_path).replace("make results", ""))
    kept(tmp_path, "first", 0.1234)
    kept(tmp_path, "second", 5.678)
    page = results.page(tmp_path)
    assert page == results.page(tmp_path)
    assert "| first | 2026-11-22 | 1 of 1 |  |" in page
    assert "| second | 2026-11-22 | 0 of 1 | what of second: 5.678 (1) |" in page
    (tmp_path / "bench" / "second.json").unlink()
    assert "5.678" not in results.page(tmp_path)


def test_every_record_of_this_repository_is_told_on_150_lines(results: ModuleType) -> None:
    page = results.page(ROOT / "results")
    for file in (ROOT / "results" / "bench").glob("*.json"):
        assert f"| {json.loads(file.read_text())['benchmark']} | " in page
    for line in (ROOT / "results" / "speech.jsonl").read_text().splitlines():
        row = json.loads(line)
        shown = (
            f"{row['wer']:.2f} ({row['errors']} / {row['words']})" if row["split"] == "test" else f"{row['wer']:.2f}"
        )
        [told] = [
            t for t in page.splitlines() if t.startswith(f"| {row['set']} | {row['system']} | ") and row["run"] in t
        ]
        assert shown in told
    assert len(page.splitlines()) <= 150
    assert (ROOT / "RESULTS.md").read_text() == page
