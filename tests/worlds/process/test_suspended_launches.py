"""All processes of a launch are stopped for longer than every lease, and continued: Ctrl-Z and fg, scontrol suspend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]
STOPPED_SECONDS = 7.0  # without an answer of the store, learners give up after 5 s

LOOP = """
import sys, time, torch, murmur
from murmur.strategies import DelayByOne, KAVG
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
plan = murmur.Plan(lease_seconds=1.0, timeout_seconds=5.0)
with murmur.join(eval(sys.argv[1]), model, torch.optim.SGD(model.parameters(), 0.1), plan) as me:
    for i in range(60):
        time.sleep(0.05 if me.rank == 0 else 0.01)
        model(torch.ones(2, 2)).square().sum().backward()
        me.step()
        if me.rank == 0 and i in (20, 40):
            print("go", flush=True)
print("end", flush=True)
"""


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def stop_for(seconds: float, processes: list[int]) -> None:
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in processes:
        os.kill(pid, signal.SIGCONT)


LEARNERS = """
import os, subprocess, signal, sys, time
from murmur.worlds.process.membership_client import StoreMembership
from murmur.worlds.process.failure_detector import FailureDetector
from murmur.worlds.process.store_server import StoreClient, StoreServer
from murmur.worlds.process.listener import listen
server = StoreServer(listen())
members = [StoreMembership(lambda: StoreClient(*server.address), "group", rank, 2, 1.0) for rank in range(2)]
detectors = [FailureDetector(member, str, None) for member in members]
time.sleep(1.0)
own, before = os.getpid(), time.monotonic()
subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(7); os.kill({own}, {int(signal.SIGCONT)})"])
os.kill(own, signal.SIGSTOP)
found = [detector.missing([0, 1], {}) for detector in detectors]
assert time.monotonic() - before > 6.0
while time.monotonic() - before < 9.0:
    found += [detector.missing([0, 1], {}) for detector in detectors]
print({str(each) for each in found})
"""


def test_learners_do_not_judge_one_another_by_the_time_in_which_they_were_stopped() -> None:
    done = subprocess.run([sys.executable, "-c", LEARNERS], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.returncode) == ("{'None'}\n", 0), done.stderr


@pytest.mark.parametrize("strategy", ["DelayByOne()", "KAVG(4)"])
def test_a_loop_goes_on_after_a_pause_of_all(strategy: str, tmp_path: Path) -> None:
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    command = [sys.executable, "-m", "murmur", "launch", "--learners", "2", program, strategy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launch:
        assert launch.stdout is not None
        for _ in range(2):
            assert launch.stdout.readline() == "go\n"
            stop_for(STOPPED_SECONDS, family(launch.pid))
        out, said = launch.communicate(timeout=100)
        assert (launch.returncode, out.count("end")) == (0, 2), said


def test_a_run_goes_on_after_a_pause_of_all(tmp_path: Path) -> None:
    words = ["toy", "--learners", "2", "--strategy", "SyncSGD()", "--out", "run", "--set", "budget.epochs=40"]
    command = [sys.executable, "-m", "murmur", "train", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as launch:
        records = tmp_path / "run" / "records.jsonl"
        while launch.poll() is None and not (records.exists() and records.stat().st_size > 0):
            time.sleep(0.02)
        assert launch.poll() is None, "ended before the pause"
        stop_for(STOPPED_SECONDS, family(launch.pid))
        _, said = launch.communicate(timeout=100)
        assert launch.returncode == 0, said
