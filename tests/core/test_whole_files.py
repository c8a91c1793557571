"""Files that appear complete, also where a link or a FIFO stands in their place."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_write
from murmur.core.whole_files import FinishedLines, in_place_of


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
