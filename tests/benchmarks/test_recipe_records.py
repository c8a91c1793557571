"""Records of finished runs: every error rate once, no path of this machine."""

import json

import pytest

from recipe_records import main, rows


@pytest.fixture
def run(tmp_path):
    words = [
        "murmur",
        "train",
        "yesno",
        "--set",
        "task.corpus=/some/where/yesno",
        "--out",
        "/tmp/out",
        "--threads",
        "1",
    ]
    facts = {"command": words, "commit": "abc", "started": "2026-11-20T16:00:00+00:00", "experiment": {"seed": 3}}
    figures = {}
    for n, name in enumerate(("monophone dev", "network test")):
        figures |= {f"{name} wer": 1.25 + n, f"{name} errors": 5.0 + n, f"{name} words": 400.0, f"{name} low": 0.5}
        figures |= {f"{name} high": 2.0, f"{name} acoustic scale": 0.1, f"{name} real-time factor": 0.02}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    (tmp_path / "score.json").write_text(json.dumps({"test": figures, "heldout": {}, "lines": []}))
    return tmp_path


def test_one_row_for_each_error_rate(run):
    first, second = rows("yesno", run)
    assert (first["system"], first["split"], first["wer"], first["errors"]) == ("monophone", "dev", 1.25, 5)
    assert (second["system"], second["split"], second["words"], second["interval"]) == (
        "network",
        "test",
        400,
        [0.5, 2],
    )
    assert first["command"] == "murmur train yesno --set task.corpus=yesno --out out --threads 1"
    assert first["seed"] == 3
    assert "cores of" in first["hardware"]


def test_a_ctc_recipe_has_one_rate_of_test(run):
    figures = {"wer": 12.5, "cer": 4.0, "greedy wer": 20.0, "greedy cer": 5.0, "low": 10.0, "high": 15.0}
    (run / "score.json").write_text(json.dumps({"test": figures}))
    (run / "recognised.jsonl").write_text('{"errors": 1, "words": 5}\n{"errors": 0, "words": 3}\n')
    [row] = rows("an4_ctc", run)
    assert (row["system"], row["split"], row["wer"], row["interval"]) == ("network", "test", 12.5, [10.0, 15.0])
    assert (row["errors"], row["words"], row["seed"]) == (1, 8, 3)


def test_lines_of_json(run, capsys):
    main(["yesno", str(run)])
    assert [json.loads(line)["set"] for line in capsys.readouterr().out.splitlines()] == ["yesno", "yesno"]
    with pytest.raises(SystemExit, match="usage"):
        main(["yesno"])
    with pytest.raises(FileNotFoundError):
        rows("yesno", run / "nothing")
