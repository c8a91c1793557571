"""Stop signals: one exception, whatever the main thread is doing, and an end within seconds."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from murmur.core.stop_signals import STOPPED_STATUS
from murmur.plugins import AGAIN, commands, how_to_go_on

pytestmark = pytest.mark.timeout(300)
LONG_SECONDS = 120  # enough on a busy machine; a program that misses the signal runs for longer

STOPPABLE = """
import ctypes, hashlib, os, signal, sys, time
from murmur.core.stop_signals import Stoppable, Stopped
with Stoppable(lambda stopped: os.write(2, f"stopped by {stopped.name}, told\\n".encode())):
    print("ready", flush=True)
    %s
    print("came to its end")
"""
SWALLOWED = """
    def swallow(word):
        while True:
            try:
                time.sleep(600)
            except BaseException:
                break
    swallow(1)
    time.sleep(600)
"""
IN_CALLBACK = """
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    compare = call(lambda a, b: time.sleep(0.01) or 0)
    ctypes.CDLL(None).qsort((ctypes.c_int * 2000)(), 2000, 4, compare)
    time.sleep(600)
"""
CLEANING = """
    try:
        time.sleep(600)
    finally:
        print("removed", flush=True)
"""
WAITS_LONG = """
    try:
        time.sleep(600)
    finally:
        time.sleep(600)
"""
WAYS = {
    "python": "time.sleep(600)",
    "native": "hashlib.pbkdf2_hmac('sha256', b'a', b'b', 2**31 - 1)",
    "swallowed": SWALLOWED,
    "callback": IN_CALLBACK,
    "cleaning": CLEANING,
    "waits": WAITS_LONG,
}


@contextmanager
def program(words: Sequence[str], ignored: Sequence[signal.Signals] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program that handles SIGINT even if this test runs in the background of a shell."""

    def begin() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = subprocess.Popen([sys.executable, *words], text=True, preexec_fn=begin, **pipes)  # noqa: PLW1509
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("way", "number"), list(zip(WAYS, itertools.cycle([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]), strict=False))
)
def test_a_signal_ends_whatever_is_under_way(way: str, number: signal.Signals) -> None:
    with program(["-c", STOPPABLE % WAYS[way].strip("\n").strip()]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(number)
        said, errors = process.communicate(timeout=LONG_SECONDS)
    assert process.returncode == STOPPED_STATUS, errors
    assert errors == f"stopped by {number.name}, told\n"
    assert said == ("removed\n" if way == "cleaning" else "")


@pytest.mark.interpreter
def test_signals_ignored_at_start() -> None:
    """Ignore SIGINT, as a shell does for a background script; then all, as a launcher does, which reports itself."""
    every = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    for ignored in ([signal.SIGINT], every):
        with program(["-c", STOPPABLE % "time.sleep(600)"], ignored) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            time.sleep(1.0)
            assert process.poll() is None
            process.send_signal(signal.SIGUSR1)
            _, errors = process.communicate(timeout=LONG_SECONDS)
        assert process.returncode == STOPPED_STATUS
        assert errors == ("" if ignored == every else "stopped by SIGUSR1, told\n")


def test_every_command_tells_how_to_go_on() -> None:
    assert all(command.stopped for command in commands().values())
    assert how_to_go_on(["decode", "run"]).startswith("decoded utterances are kept")
    assert how_to_go_on(["unknown"]) == AGAIN
    assert how_to_go_on(["train", "toy", "--out", "a b"]).endswith("murmur train toy --out 'a b' --resume")
    assert how_to_go_on(["simulate", "toy", "--resume"]).endswith("murmur simulate toy --resume")
    assert how_to_go_on(["train", "toy", "--force"]).endswith("murmur train toy --resume")  # both are refused
    assert "--resume" not in how_to_go_on(["train", "toy", "--dry-run"])


SLOW_TEST = """
import time
from dataclasses import dataclass
from pathlib import Path
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.tasks.toy import ToyTask
from murmur.strategies import SyncSGD

HERE = Path(__file__).parent

@dataclass(frozen=True)
class Task(ToyTask):
    def {method}:
        (HERE / "begun").touch()
        while not (HERE / "go").exists():
            time.sleep(0.05)
        return super().{call}

def experiment():
    return Experiment(Task(), SyncSGD(), Budget(minibatches=20), SGD(0.1))
"""


def steps_and_evaluations(file: Path) -> tuple[list[dict[str, Any]], list[tuple[int, dict[str, float]]]]:
    """Return the records of steps, and place and figures of the evaluations."""
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    steps = [record for record in records if record["kind"] == "step"]
    return steps, [(r["minibatches"], r["figures"]) for r in records if r["kind"] == "evaluation"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("method", "call", "learners"),
    [
        ("prepare(self)", "prepare()", 1),
        pytest.param("model(self)", "model()", 2, marks=pytest.mark.slow),
        ("test(self, model)", "test(model)", 2),
    ],
)
def test_a_run_that_does_not_train_is_stopped_and_goes_on(
    method: str, call: str, learners: int, tmp_path: Path
) -> None:
    """Stop during preparation, initialisation and tests; training is not repeated."""
    file, out = tmp_path / "slow.py", tmp_path / "out"
    file.write_text(SLOW_TEST.format(method=method, call=call))
    words = ["-m", "murmur", "train", str(file), "--learners", str(learners), "--threads", "1", "--out", str(out)]
    with program(words) as process:
        wait_for(tmp_path / "begun", process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LONG_SECONDS)
    assert process.returncode == STOPPED_STATUS, errors
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith(
        "murmur: stopped by SIGTERM; finished parts are kept; continue with: murmur"
    )
    assert not (out / "score.json").exists()
    records = out / "records.jsonl"
    before = steps_and_evaluations(records)
    (tmp_path / "go").touch()
    with program([*words, "--resume"]) as process:
        _, errors = process.communicate(timeout=LONG_SECONDS)
    assert process.returncode == 0, errors
    assert "accuracy" in json.loads((out / "score.json").read_bytes())["test"]
    after = steps_and_evaluations(records)
    assert len(after[0]) == 20
    if before != ([], []):  # the evaluation at the end of the budget is made again, in place of the former one
        assert after == before


IMPORTS = """
import os, signal
from murmur.core.stop_signals import Stoppable, Stopped

def load():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Stopped:
        pass  # as an extension module does whose import of another one fails
    raise ImportError("cannot load module more than once per process")

with Stoppable(lambda stopped: print("stopped by", stopped.name)):
    load()
"""


@pytest.mark.interpreter
@pytest.mark.processes
def test_an_import_that_a_signal_has_broken_ends_as_a_stop() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (STOPPED_STATUS, "stopped by SIGTERM", "")


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "words", [["-m", "murmur"], ["-c", "from murmur.__main__ import main; main()"]], ids=["-m", "murmur"]
)
def test_a_signal_ends_the_imports_of_the_command_line(
    words: list[str], number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first library that it imports takes a minute here."""
    (tmp_path / "typer.py").write_text(
        "import time\nprint('importing', flush=True)\n[time.sleep(0.1) for _ in range(600)]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with program([*words, "score", "a", "b"]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=LONG_SECONDS)
    assert process.returncode == STOPPED_STATUS
    assert errors == f"murmur: stopped by {number.name}; {how_to_go_on(['score'])}\n"
