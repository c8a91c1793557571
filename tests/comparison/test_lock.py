"""Folders of comparisons: one comparison at a time, rows of several programs, named damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.comparison import rows as rows_module
from murmur.comparison import runs
from murmur.comparison.rows import Rows
from murmur.run.folder.lock import LOCK
from murmur.worlds.process.signals import STOPPED_STATUS

GRID = ["compare", "toy", "--strategies", "KAVG(2)", "--virtual", "2", "--step-seconds", "0.1"]


def test_a_second_comparison_is_refused(tmp_path: Path) -> None:
    with runs.locked(tmp_path):
        done = CliRunner().invoke(app, [*GRID, "--out", str(tmp_path)])
        assert done.exit_code == 1
        assert f"{tmp_path} is in use by process {os.getpid()} on " in done.stderr
        assert not (tmp_path / "cells.jsonl").exists()
    with runs.locked(tmp_path) as place:
        assert place.out == tmp_path


def test_a_run_holds_the_lock_of_its_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nls -l /proc/$$/fd\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(runs.sys, "executable", str(program))
    done = CliRunner().invoke(app, [*GRID, "--out", str(tmp_path / "grid")])
    assert done.exit_code == 1
    logs = list((tmp_path / "grid" / "runs").glob("*.log"))
    assert len(logs) == 2
    assert all(str(tmp_path / "grid" / LOCK) in log.read_text() for log in logs)


def test_a_run_that_has_just_begun_is_told_what_came_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with runs.Asked() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        with asked.begun(subprocess.Popen(["/bin/sleep", "100"])) as begun:
            assert begun.wait(30) == -signal.SIGTERM
    assert asked.signals == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_who_asks_a_comparison_to_stop_stops_its_run(tmp_path: Path) -> None:
    """Signal the one process that a scheduler knows."""
    out = tmp_path / "grid"
    words = [*GRID[:4], "--learners", "1", "--threads", "1", "--set", "budget.epochs=1000", "--out", str(out)]
    with subprocess.Popen([sys.executable, "-m", "murmur", *words], stderr=subprocess.PIPE, text=True) as program:
        try:
            while not any(path.stat().st_size for path in out.glob("runs/*/records.jsonl")):
                assert program.poll() is None, program.stderr.read()
                time.sleep(0.05)
            program.send_signal(signal.SIGTERM)
            assert program.wait(60) == STOPPED_STATUS
        finally:
            program.kill()
        assert "run the same command to continue" in program.stderr.read()
    with runs.locked(out):  # no process works there any more
        pass
    assert Rows(out / "cells.jsonl").read() == {}
    assert list(out.glob("runs/*/checkpoints/*"))


@pytest.mark.parametrize("measured", ['"x"', "[]", "true"])
def test_a_measured_step_that_is_no_number_is_named(measured: str, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text(f'{{"source": "toy", "settings": [], "measured_step_seconds": {measured}}}')
    done = CliRunner().invoke(app, [*GRID[:6], "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{tmp_path / 'compare.json'} is damaged (measured_step_seconds" in done.stderr


def test_rows_of_several_programs_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = rows_module._end_of_last_whole_line

    def slowly(path: Path) -> int:
        end = find(path)
        time.sleep(0.002)
        return end

    monkeypatch.setattr(rows_module, "_end_of_last_whole_line", slowly)

    def write(writer: int) -> None:
        for number in range(8):
            Rows(tmp_path / "rows.jsonl").append({"digest": f"{writer}-{number}", "long": "x" * writer * 100})

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    assert len(Rows(tmp_path / "rows.jsonl").read()) == 4 * 8
