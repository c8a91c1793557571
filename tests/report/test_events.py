"""Event files hold the records, according to TensorBoard's own reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorboard", reason="tensorboard is not installed (pip install murmur-asr[viz])")
pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install murmur-asr[viz])")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from murmur.report.events import write_events
from murmur.report.read import ReportError

EXPERIMENT = {"type": "E", "seed": 7, "strategy": {"type": "x.KAVG", "K": 4}, "optimizer": {"type": "SGD", "lr": 0.5}}


def make_run(folder: Path, lines: list[str]) -> Path:
    folder.mkdir()
    facts = {"learners": 2, "command": ["murmur", "train"], "started": "2026-11-22T00:00:00+00:00"}
    (folder / "run.json").write_text(json.dumps(facts | {"experiment": EXPERIMENT}))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def rows() -> list[dict[str, object]]:
    steps = [
        {"kind": "step", "learner": n % 2, "samples": 10.0 * n, "seconds": 0.5 * n, "rate": 0.1,
         "loss": None if n == 3 else 1 / (1 + n), "staleness": n % 3, "compute_seconds": 0.25, "epoch": 0.0}
        for n in range(8)
    ]  # fmt: skip
    mark = {"kind": "evaluation", "samples": 80.0, "seconds": 4.0, "epoch": 1.0, "figures": {"loss": 0.75}}
    return [*steps, mark | {"consensus_distance": 0.125}]


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def test_scalars_are_those_of_the_records(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [*map(json.dumps, rows()), '{"kind": "st'])
    (folder,) = write_events([run], tmp_path / "events")
    for learner in (0, 1):
        found = read(folder / f"learner-{learner}")
        mine = [row for row in rows() if row.get("learner") == learner]
        for tag, key in (
            ("training/loss", "loss"),
            ("training/staleness", "staleness"),
            ("seconds of a step/compute", "compute_seconds"),
        ):
            expected = [(row["samples"], pytest.approx(row[key])) for row in mine if row[key] is not None]
            assert [(e.step, e.value) for e in found.Scalars(tag)] == expected
        assert [e.wall_time - found.Scalars("training/rate")[0].wall_time for e in found.Scalars("training/rate")] == [
            0.0, 1.0, 2.0, 3.0,
        ]  # fmt: skip
    found = read(folder)
    assert [(e.step, e.value) for e in found.Scalars("held-out/loss")] == [(80, 0.75)]
    assert [(e.step, e.value) for e in found.Scalars("averaging/consensus distance")] == [(80, 0.125)]
    text = found.Tensors("experiment/text_summary")[0].tensor_proto.string_val[0].decode()
    assert json.loads(text.strip("`\n")) == EXPERIMENT


def test_hyperparameters_are_dotted_names(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [json.dumps(row) for row in rows()])
    (folder,) = write_events([run], tmp_path / "events")
    summary = read(folder).SummaryMetadata(metadata.SESSION_START_INFO_TAG)
    told = metadata.parse_session_start_info_plugin_data(summary.plugin_data.content).hparams
    found = {name: value.number_value or value.string_value for name, value in told.items()}
    assert found == {"learners": 2.0, "strategy": "KAVG(K=4)", "seed": 7.0, "optimizer.lr": 0.5}
    assert [e.value for e in read(folder).Scalars("final/loss")] == [0.75]


def test_only_folders_of_its_own_are_replaced(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [json.dumps(row) for row in rows()])
    write_events([run], tmp_path / "events")
    (folder,) = write_events([run], tmp_path / "events")
    assert len(read(folder / "learner-0").Scalars("training/loss")) == 4
    with pytest.raises(ReportError, match="name another folder"):
        write_events([run], tmp_path)
    assert (run / "records.jsonl").is_file()


def test_a_run_without_records_leaves_its_experiment(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [])
    (folder,) = write_events([run], tmp_path / "events")
    assert "experiment/text_summary" in read(folder).Tags()["tensors"]


def test_a_comparison_gives_the_events_of_its_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("a", "b"):
        make_run(tmp_path / "runs" / name, [json.dumps(row) for row in rows()])
    cells = [{"digest": name, "name": name, "status": "finished", "seconds": 4.0} for name in ("a", "b", "lost")]
    (tmp_path / "cells.jsonl").write_text("".join(json.dumps(cell) + "\n" for cell in cells[:2]))
    written = write_events([tmp_path], tmp_path / "events")
    assert [folder.name for folder in written] == ["a", "b"]
    (tmp_path / "cells.jsonl").write_text(json.dumps(cells[2]) + "\n")
    with pytest.raises(ReportError, match="no cell of the comparison has left a run yet"):
        write_events([tmp_path], tmp_path / "none")
