"""`murmur launch`: programs with loops of their own whose learners fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import torch
import murmur
from murmur.strategies import ADPSGD

out = Path(sys.argv[1])
model = torch.nn.Linear(2, 1)
with murmur.join(ADPSGD(), model, torch.optim.SGD(model.parameters(), 0.01)) as me:
    mark, back, n = out / "killed", out / "back", 0
    while n < 60 or ("wait" in sys.argv and not back.exists()):
        model(torch.ones(4, 2)).mean().backward()
        me.step()
        time.sleep(0.01)
        n += 1
        if me.rank == 1 and mark.exists():
            back.touch()
        if me.rank == 1 and n == 20 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
(out / f"ended {me.rank}").write_text(repr(torch.nn.utils.parameters_to_vector(model.parameters()).tolist()))
"""


def launched(folder: Path, *words: str, until: str = "") -> tuple[int, str, set[str]]:
    """Return the exit status, the messages, and the ranks that ended."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "murmur", "launch", "--learners", "3", "--threads", "1", *words]
    done = subprocess.run([*command, program, folder, until], check=False, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr, {path.name[-1] for path in folder.glob("ended *")}


def test_a_failure_ends_all_learners_by_default(tmp_path: Path) -> None:
    code, said, ended = launched(tmp_path)
    assert code != 0
    assert "has no restart left" in said
    assert not ended


def test_the_others_go_on_alone(tmp_path: Path) -> None:
    code, said, ended = launched(tmp_path, "--on-failure", "alone")
    assert (code, ended) == (0, {"0", "2"}), said
    assert "the others go on" in said


def test_a_learner_that_is_started_again_ends_with_the_others(tmp_path: Path) -> None:
    code, said, ended = launched(tmp_path, "--on-failure", "alone", "--restarts", "1", until="wait")
    assert (code, ended) == (0, {"0", "1", "2"}), said
    assert len({path.read_text() for path in tmp_path.glob("ended *")}) == 1
