"""The Slurm script with stand-ins for srun and scontrol, and the systemd unit as read by systemd."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from murmur.worlds.process.signals import STOPPED_STATUS

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "slurm" / "train.sbatch"
UNIT = EXAMPLES / "systemd" / "murmur@.service"

# Two learners with Slurm's variables; USR1 after SIGNAL_AFTER records, if it is set.
SRUN = """#!{python}
import os, signal, subprocess, sys, time
from pathlib import Path
run = Path(sys.argv[sys.argv.index("--out") + 1])
def learner(rank):
    own = dict(SLURM_PROCID=str(rank), SLURM_STEP_NUM_TASKS="2", SLURM_LOCALID=str(rank))
    return subprocess.Popen(sys.argv[1:], env=os.environ | own | dict(SLURM_STEP_TASKS_PER_NODE="2", SLURM_STEP_ID="0"))
def records():
    path = run / "records.jsonl"
    return path.read_bytes().count(b"\\n") if path.exists() else 0
learners = [learner(rank) for rank in range(2)]
after = int(os.environ.get("SIGNAL_AFTER", "0"))
while after and records() < after and all(p.poll() is None for p in learners):
    time.sleep(0.005)
for p in learners if after else ():
    p.send_signal(signal.SIGUSR1)
codes = [p.wait() for p in learners]
sys.exit(max(128 - code if code < 0 else code for code in codes))  # as srun ends
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "{calls}"\n'


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def submit(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script like Slurm, with stand-ins on PATH."""
    program(folder / "bin/murmur", f"#!{sys.executable}\nfrom murmur.__main__ import main\nmain()\n")
    if not (folder / "bin/srun").exists():
        program(folder / "bin/srun", SRUN.format(python=sys.executable))
    program(folder / "bin/scontrol", SCONTROL.format(calls=folder / "calls"))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "SLURM_JOB_ID": f"77{os.getpid()}", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=folder, env=given, capture_output=True, text=True, check=False, timeout=230
    )


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


@pytest.mark.timeout(300)
@pytest.mark.processes
def test_a_job_is_requeued_when_its_time_is_up_and_goes_on(tmp_path: Path) -> None:
    words = ("toy", "runs/a", "--strategy", "KAVG(K=4)", "--threads", "1", "--set", "budget.minibatches=300")
    first = submit(tmp_path, *words, SIGNAL_AFTER="40")
    assert first.returncode == 0, first.stderr
    (asked,) = calls(tmp_path)
    assert re.fullmatch(r"requeue 77\d+", asked)
    assert not (tmp_path / "runs/a/score.json").exists()
    secret = tmp_path / "runs/a.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    before = secret.read_bytes()
    second = submit(tmp_path, *words, SLURM_RESTART_COUNT="1")
    assert second.returncode == 0, second.stderr
    assert "going on from" in second.stderr
    assert calls(tmp_path) == [asked]
    assert json.loads((tmp_path / "runs/a/score.json").read_text())
    assert secret.read_bytes() == before


@pytest.mark.parametrize(
    ("status", "restarts", "requeued", "ends_with"),
    [
        (STOPPED_STATUS, 0, True, 0),
        (75, 19, True, 0),
        (128 + signal.SIGKILL, 0, True, 0),
        (STOPPED_STATUS, 20, False, STOPPED_STATUS),
        pytest.param(128 + signal.SIGKILL, 20, False, 128 + signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(1, 0, False, 1, marks=pytest.mark.slow),
    ],
)
def test_only_what_another_try_can_help_is_requeued(
    status: int, restarts: int, requeued: bool, ends_with: int, tmp_path: Path
) -> None:
    program(tmp_path / "bin/srun", f'#!/bin/bash\nprintf "%s\\n" "$@" > "{tmp_path}/words"\nexit {status}\n')
    done = submit(tmp_path, "ctc", "runs/b", "--set", "a=b c", SLURM_RESTART_COUNT=str(restarts))
    assert done.returncode == ends_with, done.stderr
    assert bool(calls(tmp_path)) == requeued
    assert ("given up after 20 restarts" in done.stderr) == (restarts == 20)
    wanted = "murmur train ctc --out runs/b --resume --secret-file runs/b.secret --set a=b c"
    assert (tmp_path / "words").read_text().splitlines() == [*wanted.split(" ")[:-2], "a=b c"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_that_ends_without_a_killed_learner_is_not_started_again(whole: bool, tmp_path: Path) -> None:
    """srun ends with 128 + 9 in both cases; a score of an earlier job does not count."""
    (tmp_path / "runs/b").mkdir(parents=True)
    score = tmp_path / "runs/b/score.json"
    score.write_text("{}")
    os.utime(score, (1, 1))
    program(tmp_path / "bin/srun", f"#!/bin/bash\n{f'touch {score}' if whole else ''}\nexit 137\n")
    done = submit(tmp_path, "ctc", "runs/b")
    assert done.returncode == 0, done.stderr
    assert bool(calls(tmp_path)) == (not whole)


def test_the_script_says_how_it_is_called(tmp_path: Path) -> None:
    done = submit(tmp_path, "ctc")
    assert done.returncode == 2
    assert "usage: sbatch train.sbatch EXPERIMENT RUN" in done.stderr


def test_signal_and_requeue_stand_in_the_header() -> None:
    header = [line for line in SCRIPT.read_text().splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --requeue" in header
    assert any(
        re.fullmatch(r"#SBATCH --signal=USR1@\d+", line) for line in header
    )  # without B: the learners get the signal


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_takes_every_line_of_the_unit(tmp_path: Path) -> None:
    unit = UNIT.read_text().replace("/srv/murmur/.venv/bin/murmur", sys.executable)  # must be an existing program
    (tmp_path / UNIT.name).write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr  # unknown keys give only a warning


def test_the_unit_stops_with_the_status_of_a_saved_run() -> None:
    lines = UNIT.read_text().splitlines()
    assert f"SuccessExitStatus={STOPPED_STATUS}" in lines
    assert "KillMode=mixed" in lines  # a signal to all processes would end learners before the launcher forwards it
    command = next(line for line in lines if line.startswith("ExecStart="))
    assert "--resume" in command
