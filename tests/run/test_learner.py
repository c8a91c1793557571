"""Learners that the launcher starts: the request reaches them as data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.core.errors import SettingError
from murmur.recipes import toy
from murmur.run import configuration, learner
from murmur.run.folder.contents import opened
from murmur.run.folder.lock import state_of
from murmur.run.learner import one_more
from murmur.run.request import RunRequest
from murmur.worlds.process.environment import Place, child_variables
from tests.support.watched_run import BORNE, Run

SEEN = """
import json, os, sys
from dataclasses import dataclass, replace
from pathlib import Path
import murmur.recipes.toy as toy

HERE = Path(__file__).parent

@dataclass(frozen=True)
class Task(toy.ToyTask):
    note: str = ""

    def model(self):
        if "RANK" in os.environ:
            told = {"argv": sys.argv, "typer": "typer" in sys.modules, "note": self.note, "hidden": self.hidden}
            (HERE / f"seen-{os.environ['RANK']}.json").write_text(json.dumps(told))
        return super().model()

def experiment():
    with (HERE / "loaded").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    return replace(toy.experiment(), task=Task())
"""


@pytest.mark.interpreter
@pytest.mark.processes
def test_learners_read_the_request_and_parse_no_command_line(tmp_path: Path) -> None:
    """Values that a command line would have to quote arrive unchanged; each process loads the experiment once."""
    file, out, note = tmp_path / "seen.py", tmp_path / "o u t", """--out 'x' "y" $HOME"""
    file.write_text(SEEN)
    words = ["train", str(file), "--learners", "2", "--threads", "1", "--out", str(out), "--strategy", "KAVG(K=4)"]
    settings = (f"task.note={note}", "task.hidden=7", "budget.minibatches=20")
    words += [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run([sys.executable, "-m", "murmur", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        seen = json.loads((tmp_path / f"seen-{rank}.json").read_text())
        assert Path(seen["argv"][0]).name == "learner.py"
        assert seen["argv"][1:] == [str(out / "request.json")]
        assert (seen["typer"], seen["note"], seen["hidden"]) == (False, note, 7)
    loaded = (tmp_path / "loaded").read_text().split()
    assert len(loaded) == len(set(loaded)) == 3
    assert RunRequest.read(out / "request.json").settings == settings


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_one_process_loads_and_configures_the_experiment_once(
    more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def maker(source: str) -> Callable[..., object]:
        calls.append(source)
        return made(source)

    made = configuration.maker
    monkeypatch.setattr(configuration, "maker", maker)
    words = ["train", "toy", "--set", "budget.minibatches=5", "--threads", "1", "--out", str(tmp_path / "out"), *more]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert calls == ["toy"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "request.json is damaged"),
        (RunRequest(source="toy", settings=("task.hiden=3",)).to_json(), "did you mean 'hidden'"),
        (RunRequest(source="no/such.py").to_json(), "there is no file no/such.py"),
    ],
)
def test_a_user_error_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(text)
    words = [sys.executable, "-m", "murmur.run.learner", str(tmp_path / "request.json")]
    variables = child_variables(Place(0, 2, 0, "127.0.0.1", 9), 1)
    done = subprocess.run(words, env=variables, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.startswith("murmur: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.processes
def test_it_needs_a_launcher(tmp_path: Path) -> None:
    RunRequest(source=str(toy.__file__), out=tmp_path).write()
    words = [sys.executable, "-m", "murmur.run.learner", str(tmp_path / "request.json")]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "start a run with murmur train" in done.stderr


def test_an_error_of_a_learners_own_reaches_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher sees the exit status of a process, and takes the reason from the folder."""

    def breaks(*_: object) -> None:
        raise RuntimeError("the task is broken")

    monkeypatch.setattr(learner, "place_of", lambda: Place(1, 2, 1, "127.0.0.1", 0))
    monkeypatch.setattr(learner, "run_learner", breaks)
    with opened(tmp_path, "toy", resume=False, force=False) as run:
        run.begin()
        RunRequest(source="toy", learners=2, out=tmp_path).write()
        with pytest.raises(RuntimeError):
            learner.learn(tmp_path / "request.json", resume=False)
        assert run.end(1) == 1
    assert str(state_of(tmp_path)).startswith("failed (learner 1: RuntimeError: the task is broken, 20")
    with opened(tmp_path, "toy", resume=True, force=False) as run:
        run.begin()
        assert run.end(1) == 1
    assert "ended with status 1" in str(state_of(tmp_path))


pytestmark = pytest.mark.processes
SECRET = "0123456789abcdef0123456789abcdef"


def secret_in(folder: Path) -> Path:
    file = folder / "secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    return file


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", [pytest.param("KAVG(K=4)", marks=pytest.mark.slow), "ADPSGD()"])
def test_it_takes_part_to_the_end(strategy: str, tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    run = Run(tmp_path, "--secret-file", str(secret), "--strategy", strategy, "--set", "budget.epochs=1.5", *BORNE)
    run.until(40)
    words = [sys.executable, "-m", "murmur", "add", str(run.out), "--secret-file", str(secret), "--threads", "1"]
    added = subprocess.Popen(words)
    run.await_learner(3)
    assert run.end() == 0
    assert added.wait(60) == 0
    steps = [r for r in run.records() if r["kind"] == "step"]
    assert max(i for i, r in enumerate(steps) if r["learner"] == 3) > 500
    assert sum(r["learner"] == 3 for r in steps) > 25
    assert 600 <= len(steps) <= 604


def test_it_needs_a_run_that_has_begun_and_can_take_it(tmp_path: Path) -> None:
    secret = secret_in(tmp_path)
    with pytest.raises(SettingError, match=r"run\.json"):
        one_more(tmp_path, secret, None)
    launch = {"host": "127.0.0.1", "port": 9, "generation": 0, "learners": 2, "store": "murmur"}
    (tmp_path / "run.json").write_text(json.dumps({"source": "toy"}))
    RunRequest(source="toy", strategy="SyncSGD()", learners=2, out=tmp_path).write()
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    with pytest.raises(SettingError, match=r"SyncSGD\(\) accepts no new learners"):
        one_more(tmp_path, secret, None)
    (tmp_path / "launch.json").write_text(json.dumps({**launch, "store": "torchrun"}))
    with pytest.raises(SettingError, match="torchrun"):
        one_more(tmp_path, secret, None)
