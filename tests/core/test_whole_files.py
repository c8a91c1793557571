"""Files that appear complete, also where a link or a FIFO stands in their place."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import murmur
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_write
from murmur.core.whole_files import FinishedLines, in_place_of, name_beside


def write(path: Path, text: str) -> None:
    with in_place_of(path) as beside:
        beside.write_text(text)


def fail(path: Path) -> None:
    with in_place_of(path) as beside:
        beside.write_text("half")
        raise ZeroDivisionError


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / ("x" * 255)
    write(path, "old")
    with pytest.raises(ZeroDivisionError):
        fail(path)
    assert path.read_text() == "old"
    write(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_file_is_written(tmp_path, there):
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real", tmp_path / "link"
    if there:
        real.write_text("old")
    link.symlink_to(Path("far") / "real")
    file_to_write(link, "--out")
    write(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert list(real.parent.iterdir()) == [real]


def test_a_fifo_stays_and_passes_on_what_is_written(tmp_path):
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    for path in (fifo, link):
        file_to_write(path, "--out")
        got: list[str] = []
        reader = threading.Thread(target=lambda got=got: got.append(fifo.read_text()), daemon=True)
        reader.start()
        write(path, "new")
        reader.join(10)
        assert got == ["new"]
        assert fifo.is_fifo()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["fifo", "link"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file" / "below")
    with pytest.raises(SettingError, match="is a file, not a folder"):
        file_to_write(tmp_path / "link", "--out")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(SettingError, match="you may not write to it"):
        file_to_write(tmp_path / "fifo", "--out")


def test_of_two_writers_at_once_the_later_one_stays(tmp_path):
    path, both = tmp_path / "file", threading.Barrier(2)

    def slow() -> None:
        with in_place_of(path) as beside:
            beside.write_text("slow")
            both.wait(20)  # the other one has begun
            both.wait(20)  # and has ended

    thread = threading.Thread(target=slow)
    thread.start()
    with in_place_of(path) as beside:
        both.wait(20)
        beside.write_text("fast")
    assert path.read_text() == "fast"
    both.wait(20)
    thread.join(20)
    assert path.read_text() == "slow"
    assert list(tmp_path.iterdir()) == [path]


PROGRAM = """
import os, signal, sys
from pathlib import Path
from murmur.core.whole_files import in_place_of
with in_place_of(Path(sys.argv[1])) as beside:
    beside.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.processes
def test_a_writer_killed_half_way_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    assert subprocess.run([sys.executable, "-c", PROGRAM, path], check=False).returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    write(path, "new")
    assert path.read_text() == "new"


def test_what_is_written_is_on_disk_before_it_has_the_name(tmp_path, monkeypatch):
    steps: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: steps.append(os.path.realpath(f"/proc/self/fd/{file}")) or sync(file))
    monkeypatch.setattr(os, "replace", lambda *names: steps.append("renamed") or replace(*names))
    write(tmp_path / "file", "new")
    assert steps == [str(name_beside(tmp_path / "file")), "renamed", str(tmp_path)]


def test_files_take_the_place_of_others_in_one_module() -> None:
    """The other modules move files and folders that exist: an old trace, reports, the link to a run, whole splits."""
    moving = {
        "engine/run_files.py",
        "run/folder/contents.py",
        "run/learner.py",
        "speech/corpus/published/dataset_writer.py",
    }
    package = Path(murmur.__file__).parent
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if renames(path)}
    assert found == moving | {"core/whole_files.py"}


def renames(path: Path) -> bool:
    """True if a module renames a file: `x.rename(y)`, `x.replace(y)` with nothing more, or a function of `os`."""
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    methods = ((call.func, call) for call in calls if isinstance(call.func, ast.Attribute))
    return any(
        function.attr in ("rename", "renames")
        or (
            function.attr == "replace"
            and ((len(call.args) == 1 and not call.keywords) or "os." in ast.unparse(function))
        )
        for function, call in methods
    )


@given(text=st.text("ab\n\r\x85\u2028\0").map(str.encode), cut=st.integers(0, 40))
def test_lines_are_finished_by_their_line_feed_alone(text: bytes, cut: int, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("lines") / "records"
    path.write_bytes(text[:cut])
    lines = FinishedLines(path)
    for _ in range(2):  # the file may be read again
        assert b"".join(line + b"\n" for line in lines) + lines.rest == text[:cut]
        assert b"\n" not in lines.rest
    path.write_bytes(text + b"\n")
    assert list(lines) == (text + b"\n").split(b"\n")[:-1]
    assert lines.rest == b""
