"""Launcher: signals that its parent ignored or blocked, and time for learners to save when it is asked to stop."""

from __future__ import annotations

import logging
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from murmur.worlds.process.endings import PEER_LOST_STATUS
from murmur.worlds.process.environment import COME_KEY
from murmur.worlds.process.launcher import Launch
from murmur.worlds.process.signals import STOPPED_STATUS, UNKNOWN_CODE, exit_code
from tests.support.learner_programs import TRAINS, python

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LAUNCHER = """
import sys
from murmur.worlds.process.launcher import Launch
sys.exit(Launch(lambda place, resume: [sys.executable, "-c", sys.argv[1], str(place.rank)], 2).run())
"""
FAILS = "import sys, time; time.sleep(0.5); sys.exit(7 * (sys.argv[1] == '1'))"
SAVES = """
import signal, sys, time
def save(*_):
    print("asked", flush=True); time.sleep({seconds}); print("saved", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
for _ in range(600):  # a signal just before a sleep is seen after it
    time.sleep(0.1)
"""
SAVES_ON_CTRL_C = """
import time
try:
    print("ready", flush=True)
    for _ in range(600):
        time.sleep(0.1)
except KeyboardInterrupt:
    print("asked", flush=True); time.sleep(2); print("saved", flush=True)
"""


def start(learner: str, before: Callable[[], object]) -> subprocess.Popen[str]:
    command = [*python(LAUNCHER), learner]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=before)  # noqa: PLW1509 - as a parent does


def read_until(launcher: subprocess.Popen[str], word: str, times: int) -> None:
    assert launcher.stdout is not None
    while times > 0:
        line = launcher.stdout.readline()
        assert line, f"ended before {word}"
        times -= line.count(word)


@pytest.mark.interpreter
@pytest.mark.parametrize("number", [signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP])
def test_a_failure_is_told_whatever_the_parent_ignores(number: signal.Signals) -> None:
    with start(FAILS, lambda: signal.signal(number, signal.SIG_IGN)) as launcher:
        assert launcher.wait(60) == 7


@pytest.mark.interpreter
@pytest.mark.parametrize("blocked", [{signal.SIGTERM}, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}])
def test_a_request_reaches_launcher_and_learners_if_the_parent_blocked_it(blocked: set[signal.Signals]) -> None:
    with start(SAVES.format(seconds=0), lambda: signal.pthread_sigmask(signal.SIG_BLOCK, blocked)) as launcher:
        read_until(launcher, "ready", 2)
        launcher.terminate()
        read_until(launcher, "saved", 2)
        assert launcher.wait(60) == 128 + signal.SIGTERM


@pytest.mark.interpreter
def test_an_interrupt_that_a_script_ignores_in_its_background_stays_ignored() -> None:
    with start(FAILS, lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) as launcher:
        for _ in range(10):
            time.sleep(0.1)
            launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 7


@pytest.mark.parametrize("code", [0, 7])
def test_the_status_of_a_process_for_which_other_code_has_waited_is_not_success(code: int) -> None:
    process = subprocess.Popen(python(f"raise SystemExit({code})"))
    os.waitpid(process.pid, 0)
    assert exit_code(process) == UNKNOWN_CODE
    again = subprocess.Popen(python(f"raise SystemExit({code})"))
    assert again.wait() == code
    assert exit_code(again) == code


def asked(launch: Launch, number: signal.Signals, at: Path) -> int:
    """Run a launch, and send this process a signal once a file exists."""

    def ask() -> None:
        deadline = time.monotonic() + 60
        while not at.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=ask, daemon=True).start()
    return launch.run()


def learner(folder: Path, seconds: float) -> list[str]:
    program = SAVES.format(seconds=seconds).replace('print("saved"', f"open({str(folder / 'saved')!r}, 'w'); print(0")
    return python(program.replace('print("ready"', f"open({str(folder / 'ready')!r}, 'w'); print(0"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_learners_have_time_to_save(number: signal.Signals, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    launch = Launch(lambda place, resume: learner(tmp_path, 6.0), 1)
    with pytest.raises(SystemExit, match=str(128 + number)):
        asked(launch, number, tmp_path / "ready")
    assert (tmp_path / "saved").exists()
    assert "waiting up to 30 s for learners 0 to stop" in caplog.text
    assert "killed" not in caplog.text


def test_a_kill_after_the_wait_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    launch = Launch(lambda place, resume: learner(tmp_path, 60.0), 1, grace_seconds=0.5)
    with pytest.raises(SystemExit, match="143"):
        asked(launch, signal.SIGTERM, tmp_path / "ready")
    assert not (tmp_path / "saved").exists()
    assert "learners 0 did not stop within 0.5 s (--grace-seconds) and were killed" in caplog.text


def test_learners_that_save_on_request_have_no_limit_but_the_one_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    program = f"""
{TRAINS.replace("begun", COME_KEY)}
import signal
def save(*_):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the launcher repeats its request
    time.sleep(3); sys.exit({STOPPED_STATUS})
signal.signal(signal.SIGUSR1, save)
open({str(tmp_path / "ready")!r}, "w")
for _ in range(600):
    time.sleep(0.1)
"""
    for grace, status in ((None, STOPPED_STATUS), (1.0, PEER_LOST_STATUS)):
        (tmp_path / "ready").unlink(missing_ok=True)
        launch = Launch(lambda p, r: python(program), 1, stop_signal=signal.SIGUSR1, grace_seconds=grace)
        assert asked(launch, signal.SIGTERM, tmp_path / "ready") == status
    assert "waiting until learners 0 have saved and stopped" in caplog.text
    assert "learners 0 did not save within 1 s (--grace-seconds) and are killed" in caplog.text


def test_ctrl_c_reaches_learners_once() -> None:
    """The terminal sends it to all processes; a second signal would interrupt the saving that the first has begun."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*python(LAUNCHER), SAVES_ON_CTRL_C])
    read = b""
    while read.count(b"ready") < 2:
        read += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while True:
        try:
            read += os.read(terminal, 1024)
        except OSError:  # all have ended
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGINT
    assert read.count(b"saved") == 2
