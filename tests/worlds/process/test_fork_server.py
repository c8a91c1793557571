"""Learners that are forked: children of the launcher, with all that a new interpreter would have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from murmur.worlds.process.fork_server import ForkedProcess, forks_here
from murmur.worlds.process.launcher import Launch
from murmur.worlds.process.signals import STOPPED_STATUS

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not forks_here(), reason="only Linux lets a process adopt orphans"),
]
MODULE = "tests.support.forked_learner"


def launched(*words: str, learners: int = 2) -> Launch:
    def command(*_: object) -> list[str]:
        return [sys.executable, "-m", MODULE, *words]

    return Launch(command, learners, threads=1, stop_signal=signal.SIGUSR1, forked=(MODULE, "wave", "no_such_module"))


def eventually(what: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    return what()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[int, dict[str, Any]]]:
    monkeypatch.setenv("TOLD", str(tmp_path))
    return lambda: {int(p.stem): json.loads(p.read_text()) for p in tmp_path.glob("*.json")}


def imports(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "imports").read_text().splitlines()]


def test_learners_are_forks_and_children_of_the_launcher(told: Callable[[], Any], tmp_path: Path) -> None:
    assert launched("word", "7", learners=3).run() == 7
    found = told()
    assert len(imports(tmp_path)) == 1
    assert not {facts["pid"] for facts in found.values()} & set(imports(tmp_path))
    for rank, facts in found.items():
        assert (facts["parent"], facts["group"]) == (os.getpid(), os.getpgrp())
        assert (facts["rank"], facts["threads"], facts["ignored"]) == (str(rank), "1", True)
        assert (facts["words"], facts["shown"]) == (["word", "7"], [f"RANK={rank}"])
        assert facts["command"] == ["-m", MODULE, "word", "7"]
        assert len(facts["files"]) == 1, "that of the secret"
    assert len({facts["drawn"] for facts in found.values()}) == 3


@pytest.mark.parametrize("what", ["thread", "device"])
def test_a_library_with_a_thread_or_a_device_is_not_forked(
    what: str, told: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AT_IMPORT", what)
    assert launched("7").run() == 7
    assert {facts["pid"] for facts in told().values()} < set(imports(tmp_path))


def test_a_request_to_stop_ends_learners_before_they_are_forked(
    told: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    asking.start()
    assert launched("wait", "0").run() == STOPPED_STATUS


@pytest.mark.interpreter
def test_forks_die_with_the_launcher(told: Callable[[], Any], tmp_path: Path) -> None:
    launch = "import sys; from tests.worlds.process.test_fork_server import launched; launched('wait', '0').run()"
    launcher = subprocess.Popen([sys.executable, "-c", launch])
    assert eventually(lambda: len(told()) == 2, 100.0)
    family = [*imports(tmp_path), *(facts["pid"] for facts in told().values())]
    launcher.kill()
    launcher.wait()
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


def test_a_forked_process_is_waited_for_as_a_popen() -> None:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(ours, 1)
        os._exit(3)
    process = ForkedProcess(pid)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.write(theirs, b".")
    assert (process.wait(), process.poll(), process.returncode) == (3, 3, 3)
    for file in (ours, theirs):
        os.close(file)
