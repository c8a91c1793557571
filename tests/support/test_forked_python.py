"""Programs that are forked: each behaves as in a new interpreter, and is a child of the process that starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import forked_python
from tests.support.forked_python import REAL, ForkServer

pytestmark = pytest.mark.processes

LOOKS = """
import json, os, signal, sys, threading
ignored = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
said = {
    "argv": sys.argv, "path": sys.path, "folder": os.getcwd(), "name": __name__,
    "main": sys.modules["__main__"].__name__, "tests": "tests" in sys.modules,
    "variables": dict(os.environ), "ignored": ignored, "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "umask": os.umask(0), "parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "group": os.getpgrp(),
    "threads": threading.active_count(), "in": sys.stdin.read(),
    "out": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.name],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
}
print(json.dumps(said))
"""
PROGRAMS = {
    "end": "print('out'); import sys; print('err', file=sys.stderr)",
    "status": "import sys; print('out', end=''); sys.exit(7)",
    "words": "import sys; sys.exit('the reason')",
    "error": "def f():\n    1 / 0\nf()",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os; print('lost', end=''); os.kill(os.getpid(), 9)",
    "thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
    "at exit": "import atexit; atexit.register(print, 'last'); print('first')",
    "quick": "import os; os._exit(3)",
    "closed": "import os; print('x'); os.close(1)",
    "random": "import random; print(random.getstate() == random.Random(0).getstate())",
}


def both(*words: str, **options: object) -> list[tuple[int, str, str]]:
    """Run a program from the server, then in a new interpreter; return statuses, outputs and errors."""
    ends = []
    for popen in (subprocess.Popen, REAL):
        with popen([sys.executable, *words], text=True, stdout=-1, stderr=-1, **options) as process:  # type: ignore[call-overload]
            out, errors = process.communicate("said", 60) if "stdin" in options else process.communicate(None, 60)
        ends.append((process.returncode, out, errors))
    return ends


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_as_in_a_new_interpreter(program: str) -> None:
    forked, new = both("-c", program)
    assert subprocess.Popen is not REAL
    assert forked == new


@pytest.mark.parametrize("way", ["-c", "-m", "file", "-u"])
def test_a_program_finds_what_a_new_interpreter_has(way: str, tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text(LOOKS)
    words = {"-c": ["-c", LOOKS], "-m": ["-m", "looks"], "file": [str(tmp_path / "looks.py")], "-u": ["-u", "looks.py"]}
    variables = {**os.environ, "FOR_A_TEST": "ü\udcff", "OMP_NUM_THREADS": "1"}
    found = [
        json.loads(out)
        for _, out, _ in both(*words[way], "a", "b c", cwd=tmp_path, env=variables, stdin=subprocess.PIPE)
    ]
    assert found[0] == found[1]
    assert found[0]["parent"] == os.getpid()
    assert (found[0]["in"], found[0]["tests"]) == ("said", False)


def test_state_of_the_parent_is_inherited(tmp_path: Path) -> None:
    def prepare() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        os.umask(0o77)
        os.setsid()

    found = [json.loads(out) for _, out, _ in both("-c", LOOKS, preexec_fn=prepare, stdin=subprocess.PIPE)]
    assert found[0]["group"] != found[1]["group"]
    assert {**found[0], "group": 0} == {**found[1], "group": 0}
    assert signal.SIGUSR1 in found[0]["ignored"]
    assert (found[0]["session"], found[0]["umask"], found[0]["interrupt"]) == (True, 0o77, False)
    for option in ({"start_new_session": True}, {"process_group": 0}):
        groups = [json.loads(out)["group"] for _, out, _ in both("-c", LOOKS, stdin=subprocess.PIPE, **option)]
        assert os.getpgrp() not in groups


def test_files_that_are_passed_have_their_numbers_and_no_others_are_open(tmp_path: Path) -> None:
    program = "import os, sys; print(sorted(os.listdir('/proc/self/fd')), os.read(int(sys.argv[1]), 9))"
    with (tmp_path / "file").open("w+b") as file, (tmp_path / "other").open("wb"):
        file.write(b"inside")
        file.flush()
        said = []
        for popen in (subprocess.Popen, REAL):
            file.seek(0)
            words = [sys.executable, "-c", program, str(file.fileno())]
            with popen(words, pass_fds=[file.fileno()], stdout=-1, text=True) as process:
                numbers, _, content = process.communicate()[0].partition("] ")
                said.append(({n for n in json.loads(numbers.replace("'", '"') + "]") if int(n) < 100}, content))
    assert said[0] == said[1]
    assert said[0][1] == "b'inside'\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_signals_reach_it(number: signal.Signals) -> None:
    words = [sys.executable, "-c", "import time; print('ready', flush=True); [time.sleep(0.1) for _ in range(600)]"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        assert process.wait(30) == -number


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_processes_of_a_program_are_its_children_and_end_with_it() -> None:
    # Both write to one pipe: a line is one call, so that lines are not mixed.
    inner = "import os, time; os.write(1, b'%d %d\\n' % (os.getppid(), os.getpid())); time.sleep(60)"
    outer = (
        "import ctypes, os, subprocess, sys, time; print(os.getpid(), flush=True);"
        f"p = subprocess.Popen([sys.executable, '-c', {inner!r}], preexec_fn=lambda: ctypes.CDLL(None).prctl(1, 9));"
        "os.write(1, f'{type(p).__module__} {p.pid}\\n'.encode()); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid}\n"
        lines = sorted(process.stdout.readline().split() for _ in range(2))
        child = int(lines[0][1])
        assert lines == sorted([[str(process.pid), str(child)], ["tests.support.forked_python", str(child)]])
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        assert words[:3] == [os.fsencode(sys.executable), b"-c", inner.encode()]
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        while lives(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not lives(child)


def test_what_a_fork_cannot_give_gets_a_new_interpreter() -> None:
    server = ForkServer()
    words = [sys.executable, "-c", "pass"]
    assert server.program(words, os.environ) == words
    assert server.program([sys.executable, "-X", "dev", *words[1:]], os.environ) is None
    assert server.program(["sh", "-c", "true"], os.environ) is None
    for name in ("PYTHONPATH", "PYTHONHASHSEED", "LC_ALL", "CUDA_VISIBLE_DEVICES"):
        assert server.program(words, {**os.environ, name: "other"}) is None
    hash_seed = "import sys; print(sys.flags.hash_randomization, 'torch' in sys.modules)"
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    said = subprocess.run([sys.executable, "-c", hash_seed], env=variables, capture_output=True, text=True, check=True)
    assert said.stdout == "0 False\n"


@pytest.mark.interpreter
def test_a_test_may_ask_for_new_interpreters() -> None:
    words = [sys.executable, "-c", "import sys; print('torch' in sys.modules)"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"


def test_threads_start_programs_at_the_same_time() -> None:
    words, said = [sys.executable, "-c", "import sys; print(sys.argv[1])"], []

    def start(n: int) -> None:
        said.append((n, subprocess.run([*words, str(n)], capture_output=True, text=True, check=True).stdout))

    threads = [threading.Thread(target=start, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == [(n, f"{n}\n") for n in range(8)]


def test_the_parent_adopts_a_program_however_late_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = forked_python.adopting

    @contextmanager
    def late() -> Iterator[None]:
        time.sleep(0.5)  # the process between the server and the program has ended by then
        with adopt():
            yield

    subprocess.run([sys.executable, "-c", ""], check=True)  # the server has started
    monkeypatch.setattr(forked_python, "adopting", late)
    done = subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"
