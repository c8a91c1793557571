"""`make gpu-check`: its parts at tiny size on the processor, its report, and a machine without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gpu_check


@pytest.mark.parametrize(
    ("parts", "by", "share"),
    [
        ([(0.0, 4.0)], [(1.0, 2.0), (1.5, 3.0)], 0.5),  # the two overlap each other
        ([(0.0, 1.0), (4.0, 7.0)], [(4.0, 6.0)], 0.5),
        ([(0.0, 1.0)], [(0.0, 1.0)], 1.0),
        ([(0.0, 1.0)], [], 0.0),
    ],
)
def test_the_covered_share_of_intervals(
    parts: list[gpu_check.Interval], by: list[gpu_check.Interval], share: float
) -> None:
    assert gpu_check.covered(parts, by) == share
    assert gpu_check.covered([], by) == 0.0


def test_without_a_gpu_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--out", str(tmp_path)]) == gpu_check.NO_GPU_STATUS == 77
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_all_parts_run_at_tiny_size(tmp_path: Path) -> None:
    gpu_check.main(["--dry", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    figures = found["figures"]
    assert figures.keys() == {"device", *gpu_check.PARTS}
    assert not [name for name in gpu_check.PARTS if "error" in figures[name]]
    assert (figures["tests"]["tests"], figures["tests"]["failures"]) == (1, 0)
    assert figures["overlap"]["kernels"] > 0
    assert len(figures["adpsgd"]["two_learners"]) == 2
    assert min(figures["snapshot"][name] for name in ("gradient_seconds", "snapshot_seconds")) > 0
    page = (tmp_path / "gpu_check.md").read_text()
    assert all(f"## {name}" in page for name in gpu_check.PARTS)
    assert page.count("\n|") == 2 + len(found["bars"])


def test_a_part_that_fails_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(size: gpu_check.Size) -> gpu_check.Found:
        raise RuntimeError("out of memory")

    monkeypatch.setitem(gpu_check.PARTS, "lstm", fails)
    assert gpu_check.main(["--dry", "--out", str(tmp_path), "--parts", "lstm", "snapshot"]) == 1
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert found["figures"]["lstm"]["error"] == "RuntimeError: out of memory"
    assert "error" not in found["figures"]["snapshot"]
    assert [b["holds"] for b in found["bars"]] == [False]
