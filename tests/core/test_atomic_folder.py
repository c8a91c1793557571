"""Atomic folders: the old or the new folder exists, even if its writer is killed or another program is faster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from murmur.core.whole_files import atomic_folder

PROGRAM = """
import sys, time
from pathlib import Path
from murmur.core.whole_files import atomic_folder
with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    print("half", flush=True)
    time.sleep(60)
"""


def write(out: Path, text: str) -> None:
    with atomic_folder(out) as folder:
        (folder / "text").write_text(text)


def fail_in(out: Path) -> None:
    with atomic_folder(out):
        assert (out / "text").read_text() == "old"
        raise ZeroDivisionError


def killed_halfway(out: Path) -> int:
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(out)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    return child.pid


def test_killed_halfway_leaves_what_was_there_and_the_next_one_tidies_up(tmp_path):
    out = tmp_path / "an export"
    killed_halfway(out)
    assert not out.exists()
    write(out, "first")
    killed_halfway(out)
    assert [path.name for path in out.iterdir()] == ["text"]
    assert len(list(tmp_path.iterdir())) == 2
    write(out, "second")
    assert (out / "text").read_text() == "second"
    assert list(tmp_path.iterdir()) == [out]


def test_killed_between_the_two_moves_nothing_is_lost(tmp_path):
    pid = killed_halfway(tmp_path / "elsewhere")
    aside = tmp_path / f".out.old-{socket.gethostname()}-{pid}-{pid}"
    aside.mkdir()
    (aside / "text").write_text("old")
    with pytest.raises(ZeroDivisionError):
        fail_in(tmp_path / "out")
    assert (tmp_path / "out" / "text").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".out")) == []


def test_what_a_living_program_writes_stays(tmp_path):
    other = tmp_path / f".out.new-{socket.gethostname()}-{os.getppid()}-{os.getppid()}"
    other.mkdir()
    write(tmp_path / "out", "mine")
    assert other.is_dir()


def test_of_two_writers_one_stays_whole(tmp_path, monkeypatch):
    first, release = threading.Event(), threading.Event()

    def slow() -> None:
        with atomic_folder(tmp_path / "out") as folder:
            (folder / "text").write_text("slow")
            first.set()
            release.wait(20)

    thread = threading.Thread(target=slow)
    thread.start()
    assert first.wait(20)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)  # another program
    monkeypatch.setattr("murmur.core.whole_files._is_running", lambda _: True)
    write(tmp_path / "out", "fast")
    monkeypatch.undo()
    assert (tmp_path / "out" / "text").read_text() == "fast"
    release.set()
    thread.join(20)
    assert (tmp_path / "out" / "text").read_text() == "slow"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_link_stays_and_its_folder_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(Path("far") / "out")
    for text in ("old", "new"):
        write(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "far" / "out" / "text").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "link"]
    assert [path.name for path in (tmp_path / "far").iterdir()] == ["out"]


def test_a_mount_point_is_refused_before_all_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda _: True)
    with pytest.raises(OSError, match="is a mount point, which cannot be replaced: name a folder in it"):
        write(tmp_path, "new")
    assert list(tmp_path.iterdir()) == []
