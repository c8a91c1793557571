"""Launcher: processes are started, watched, restarted, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Timer

import pytest

from murmur.worlds.process.environment import COME_KEY, Place
from murmur.worlds.process.launcher import Launch, Restart
from murmur.worlds.process.signals import STOPPED_STATUS, is_stopped
from tests.support.learner_programs import TRAINS, python

pytestmark = pytest.mark.processes


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_learners_know_their_place(tmp_path: Path) -> None:
    program = (
        f"import os, pathlib; pathlib.Path(r'{tmp_path}', os.environ['RANK']).write_text("
        "os.environ['WORLD_SIZE'] + ' ' + os.environ['OMP_NUM_THREADS'])"
    )
    assert Launch(lambda place, resume: python(program), learners=3, threads=2).run() == 0
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {str(r): "3 2" for r in range(3)}


@pytest.mark.parametrize("restart", list(Restart), ids=lambda r: r.name)
def test_a_failed_learner_is_started_again(restart: Restart, tmp_path: Path) -> None:
    started: list[tuple[int, bool, int]] = []

    def command(place: Place, resume: bool) -> Sequence[str]:
        started.append((place.rank, resume, place.generation))
        fails = place.rank == 1 and not resume
        return python(TRAINS + ("sys.exit(3)" if fails else "time.sleep(2)"))

    assert Launch(command, learners=2, restarts=1, restart=restart).run() == 0
    again = [(0, True, 1), (1, True, 1)] if restart is Restart.TOGETHER else [(1, True, 0)]
    assert started == [(0, False, 0), (1, False, 0), *again]


def test_learners_that_have_not_come_yet_are_ended_at_once() -> None:
    """They ignore requests, as an interpreter does that imports; a learner that has come is asked and waited for."""
    for prelude, longest in (("import time; ", 3.0), (TRAINS.replace("begun", COME_KEY), 60.0)):
        program = prelude + "time.sleep(4)" + ("" if longest < 4 else f"; sys.exit({STOPPED_STATUS})")
        launch = Launch(lambda place, resume, p=program: python(p), learners=2, stop_signal=signal.SIGUSR1)  # type: ignore[misc]
        asking = Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        asking.start()
        began = time.monotonic()
        assert launch.run() == STOPPED_STATUS
        assert 2.0 < time.monotonic() - began < 2.0 + longest
        assert longest < 4 or time.monotonic() - began > 4.0


def test_without_restarts_the_failure_ends_the_run() -> None:
    def command(place: Place, resume: bool) -> Sequence[str]:
        return python("raise SystemExit(7)" if place.rank else "import time; time.sleep(60)")

    began = time.monotonic()
    assert Launch(command, learners=2).run() == 7
    assert time.monotonic() - began < 30


@pytest.mark.interpreter
def test_killing_the_parent_leaves_nothing(tmp_path: Path) -> None:
    child = f"import os, pathlib, time; pathlib.Path(r'{tmp_path}', str(os.getpid())).touch(); time.sleep(100)"
    parent = (
        "import sys; from murmur.worlds.process.launcher import Launch;"
        f"Launch(lambda place, resume: [sys.executable, '-c', {child!r}], learners=2).run()"
    )
    process = subprocess.Popen(python(parent))
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    family = [int(p.name) for p in tmp_path.iterdir()]
    task = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    family += [int(pid) for pid in task]  # including the store
    assert len(set(family)) == 3
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in family if alive(pid)] == []


def test_a_process_that_another_thread_has_waited_for_is_not_stopped() -> None:
    process = subprocess.Popen(python("pass"))
    os.waitpid(process.pid, 0)  # as another thread does between two polls of the launcher
    assert not is_stopped(process)
    process.returncode = 0  # so that its destructor does not wait
