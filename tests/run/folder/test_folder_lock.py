"""Lock of a folder: admits one run at a time, is held by children and other learners too, and names its holder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from murmur.core.errors import SettingError
from murmur.run.folder.lock import LOCK, FolderLock, beside, held, holder_of, locked

HOLDS = """
import sys
from pathlib import Path
from murmur.run.folder.lock import FolderLock
lock = getattr(FolderLock, sys.argv[2])(Path(sys.argv[1]))
print("holds", flush=True)
sys.stdin.read()
"""


def other(path: Path, how: str = "take") -> subprocess.Popen[str]:
    """Start a process that holds a lock until its standard input ends."""
    command = [sys.executable, "-c", HOLDS, str(path), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(30)


def test_the_holder_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run" / LOCK
    holder = other(path)
    said = f"run is in use by process {holder.pid} on .*, since 20.*: murmur .*take"
    with pytest.raises(SettingError, match=said):
        FolderLock.take(path)
    assert held(path) == "held"
    end(holder)
    assert held(path) == "free"
    with locked(path) as lock:
        assert held(path) == "held"
        found = holder_of(path)
        assert found is not None
        assert found.pid == os.getpid()
        assert lock.path == path
    assert held(path) == "free"
    assert held(tmp_path / "nothing") == "unknown"


def test_a_lock_is_held_until_the_last_learner_ends(tmp_path: Path) -> None:
    """The process that took the lock is killed with SIGKILL; a learner elsewhere has joined."""
    path = tmp_path / LOCK
    first = other(path)
    learner = other(path, "join")
    first.kill()
    first.wait()
    with pytest.raises(SettingError, match=f"process {first.pid} on"):
        FolderLock.take(path)
    end(learner)
    FolderLock.take(path).close()


def test_a_child_that_inherits_the_file_holds_the_lock(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path / LOCK)
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, pass_fds=[lock.descriptor])
    lock.close()
    assert held(tmp_path / LOCK) == "held"
    end(child)
    assert held(tmp_path / LOCK) == "free"


def test_of_many_processes_one_gets_it(tmp_path: Path) -> None:
    """Readers test the lock at the same time."""
    program = HOLDS.replace("lock =", "from murmur.core.errors import SettingError\ntry:\n  lock =")
    program = program.replace('print("holds"', 'print("holds"').replace(
        "sys.stdin.read()\n", "except SettingError: print('refused', flush=True)\nsys.stdin.read()\n"
    )
    program = re.sub(r"\nprint\(\"holds\", flush=True\)\n", "\n  print('holds', flush=True)\n", program)
    command = [sys.executable, "-c", program, str(tmp_path / LOCK), "take"]
    several = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = []
    for process in several:
        assert process.stdout is not None
        held(tmp_path / LOCK)
        said.append(process.stdout.readline().strip())
    for process in several:
        end(process)
    assert sorted(said) == ["holds", "refused", "refused", "refused"]


def test_a_lock_beside_a_folder_stays_when_the_folder_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "exported"
    out.mkdir()
    with locked(beside(out)):
        out.rename(tmp_path / "old")
        (tmp_path / "new").mkdir()
        (tmp_path / "new").rename(out)
        with pytest.raises(SettingError, match="in use"):
            FolderLock.take(beside(out))


def test_a_damaged_lock_file_names_nobody_and_still_locks(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("{")
    assert holder_of(tmp_path / LOCK) is None
    with locked(tmp_path / LOCK):
        (tmp_path / LOCK).write_text("[]")
        with pytest.raises(SettingError, match="in use by another process"):
            FolderLock.take(tmp_path / LOCK)
