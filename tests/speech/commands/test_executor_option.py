"""The option --executor: the commands that take it, and what it sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.commands.options import Parallel
from murmur.execution.executors import Engine
from murmur.run.configuration import resolved
from murmur.speech.recognition.trained_run import Wanted
from murmur.speech.tasks.speech_task import SpeechTask

COMMANDS = {
    "prepare": ["yesno"],
    "align": ["yesno"],
    "decode": ["yesno", "--model", "MODEL"],
    "transcribe": ["MODEL", "talk.wav"],
}


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_engine_is_refused_before_anything_else(command: str, tmp_path: Path) -> None:
    words = [tmp_path / "model" if word == "MODEL" else word for word in COMMANDS[command]]
    code, said = run(command, *words, "--executor", "ray:auto", "--out", tmp_path / "out")
    assert code == 1, said
    assert "there is no executor 'ray:auto'; there are processes, dask:ADDRESS, dask:slurm, mpi" in said
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_is_read_by_this_host(tmp_path: Path) -> None:
    code, said = run("prepare", "own", "--from", tmp_path, "--executor", "dask:tcp://a:8786", "--out", tmp_path / "x")
    assert code == 1, said
    assert "--executor is for features and experiments" in said


def test_a_setting_does_not_choose_the_executor_of_a_decoding(tmp_path: Path) -> None:
    code, said = run("decode", "yesno", "--model", tmp_path, "--set", "task.executor=mpi", "--out", tmp_path / "x")
    assert code == 1, said
    assert "--set task.executor is not for decoding: give --executor" in said


def test_the_option_sets_the_workers_of_a_task() -> None:
    for given, jobs, name in (
        (Parallel(), 1, "processes"),
        (Parallel(3), 3, "processes"),
        (Parallel(3, "dask:slurm"), 3, "dask:slurm"),
        (Parallel(None, "mpi"), 1, "mpi"),
    ):
        task = resolved("yesno", (), given.chosen).task
        assert isinstance(task, SpeechTask)
        assert task.work == Engine(name, jobs, Path(task.cache), progress=True)
    task = resolved("yesno", ["task.jobs=4"], Parallel(None, "processes").chosen).task
    assert isinstance(task, SpeechTask)
    assert task.work.count == 4
    assert Wanted(Path("model"), jobs=Parallel(None, "mpi").chosen).work(3) == Engine("mpi", 3, progress=True)
    assert Wanted(Path("model"), jobs=Parallel(2, "mpi").chosen).work(3) == Engine("mpi", 2, progress=True)
    assert [Wanted(Path("model"), jobs=jobs).work(3) for jobs in (None, 2)] == [3, 2]
    assert Parallel(4).chosen == 4
    assert Parallel().chosen is None
