"""Settings compared over folds: errors are summed, finished runs are not repeated, the test speaker decides nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import folds

    return folds


class Trained:
    """Stands for `murmur train`: errors depend on the dropout alone."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> None:
        self.commands.append(command)
        folder, text = Path(command[command.index("--out") + 1]), " ".join(command)
        fold = int(next(word for word in command if word.startswith("task.loader=")).rpartition("_")[2])
        errors = fold + (1 if "dropout=0.3" in text else 4)
        test = 0.0 if "dropout=0.1" in text else 9.0  # what may not decide
        folder.mkdir(parents=True)
        score = {"network dev errors": errors, "network dev words": 50, "monophone dev errors": 2.0}
        score |= {"monophone dev words": 50, "network test errors": test}
        (folder / "score.json").write_text(json.dumps({"heldout": {"loss": 1.0}, "test": score, "lines": []}))


def test_the_candidate_with_fewest_errors_over_all_folds_is_best(folds, tmp_path, capsys) -> None:
    train = Trained()
    told = ["--candidate", "small: task.network.dropout=0.1", "--candidate", "large: task.network.dropout=0.3 a=1"]
    arguments = ["fsdd", "--set", "task.corpus=x", "--out", str(tmp_path), *told]
    assert folds.main(arguments, train) == "large"
    shown = capsys.readouterr().out
    assert "small: %WER 14.00 [ 35 / 250 ], by fold 5, 6, 7, 8, 9 network" in shown
    assert "large: %WER 8.00 [ 20 / 250 ], by fold 2, 3, 4, 5, 6 network" in shown
    assert "%WER 4.00 [ 10 / 250 ], by fold 2, 2, 2, 2, 2 monophone" in shown
    assert "task.loader=fsdd_all" in shown.splitlines()[-1]
    assert "dropout=0.3' --set 'a=1'" in shown.splitlines()[-1]
    assert [command[3] for command in train.commands[:5]] == [f"task.loader=fsdd_fold_{n}" for n in range(1, 6)]
    assert all("--set task.corpus=x" in " ".join(command) for command in train.commands)
    (tmp_path / "large-fsdd_fold_3" / "score.json").unlink()
    (tmp_path / "large-fsdd_fold_3").rmdir()
    folds.main(arguments, train)
    assert len(train.commands) == 11


@pytest.mark.parametrize("text", ["budget.epochs=2", ": budget.epochs=2", "short: epochs"])
def test_a_candidate_without_name_or_settings_is_refused(folds, text) -> None:
    with pytest.raises(ValueError, match="is not 'NAME"):
        folds.Candidate.of(text)
