"""The program `murmur`: help without the speech libraries, mistakes in one line, unknown commands."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.plugins import TRAINER, commands


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "toyy"], "did you mean 'toy'?"),
        (["train", "toy", "--set", "task.hiden=3"], "did you mean 'hidden'?"),
        (["train", "toy", "--strategy", "KAVGG(K=3)"], "did you mean 'KAVG'?"),
        (["train", "toy", "--strategy", "KAVG(k=3)"], "did you mean 'K'?"),
        (["train", "toy", "--init", "nowhere"], "nowhere is neither a .safetensors file nor a run's folder"),
        (["train", "nowhere.py"], "there is no file nowhere.py"),
    ],
)
def test_mistakes_are_one_line_and_status_1(words: list[str], says: str, tmp_path: Path) -> None:
    code, said = run(*words, "--out", tmp_path / "x")
    assert code == 1
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_what_places_refuse_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place, says in (
        (tmp_path / ("long" * 100), "is too long for the file system"),
        (tmp_path / "file", "is a file, not a folder: choose another --out"),
        (tmp_path / "file" / "below", "is a file, not a folder: choose another --out"),
    ):
        code, said = run("train", "toy", "--set", "budget.minibatches=1", "--out", place)
        assert code == 1, said
        assert said.count("\n") == 1
        assert said.startswith("murmur: --out")
        assert says in said


def test_home_is_known_where_the_shell_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    _, said = run("train", "toy", "--init=~/nowhere")
    assert f"murmur: {tmp_path}/nowhere is neither" in said


def test_traceback_on_request() -> None:
    done = CliRunner().invoke(app, ["--traceback", "train", "toyy"])
    assert "did you mean" in str(done.exception)


def test_unknown_commands_get_the_nearest() -> None:
    code, said = run("trian")
    assert code == 2
    assert "there is no command 'trian'; did you mean 'train'?" in said


@pytest.mark.parametrize("command", commands())
def test_every_command_shows_an_example(command: str) -> None:
    if command not in TRAINER.commands and find_spec("kaldi_hmm_gmm") is None:
        pytest.skip("the speech libraries are not installed (pip install murmur-asr[speech])")
    code, said = run(command, "--help")
    assert code == 0, said
    assert f"Example: murmur {command}" in said
    assert command in run("--help")[1]


@pytest.mark.interpreter
@pytest.mark.parametrize("words", [["--help"], ["watch", "--help"], ["trian"], ["watch", "nowhere"]], ids=" ".join)
def test_what_trains_nothing_loads_no_torch(words: list[str]) -> None:
    program = (
        "import sys; from murmur.cli import app\n"
        "try:\n    app(sys.argv[1:])\n"
        "finally:\n    print({'torch', 'matplotlib', 'lhotse'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], timeout=60, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "set()", done.stderr


@pytest.mark.interpreter
def test_core_commands_work_without_the_speech_libraries() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from murmur.cli import app\n"
        "sys.modules['kaldialign'] = None\n"
        "for words in (['--help'], ['train', '--help'], ['doctor', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "heavy = {'lhotse', 'kaldifst', 'kaldi_hmm_gmm', 'soundfile', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "app(['score', 'a', 'b'])"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("murmur: score needs kaldialign, which is not installed: pip install")
    assert len(done.stderr.splitlines()) == 1
