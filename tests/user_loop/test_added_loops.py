"""Learners that are added to a joined loop under way, and loops of `murmur launch` on several hosts."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from murmur.worlds.process.listener import listen

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

PROGRAM = """
import json, sys, time
from pathlib import Path
import torch
import murmur
from murmur.strategies import *

strategy, out, await_added = eval(sys.argv[1]), Path(sys.argv[2]), len(sys.argv) > 3
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
n, total = 0, 24
with murmur.join(strategy, model, torch.optim.Adam(model.parameters(), 0.01)) as me:
    begun = n = me.steps
    if me.rank == 2:
        total = n + 6
    while n < total or (await_added and not (out / "added").exists()):
        model(torch.full((4, 3), 1.0 + me.rank)).mean().backward()
        me.step()
        n += 1
        (out / "begun").touch()
        if me.rank == 2:
            (out / "added").touch()
end = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
(out / f"ended {me.rank}").write_text(json.dumps([me.size, begun, end]))
"""
LAUNCH = [sys.executable, "-m", "murmur", "launch", "--threads", "1"]


def prepared(folder: Path) -> tuple[str, str]:
    """Return the paths of the program and of a secret."""
    program, secret = folder / "program.py", folder / "secret"
    program.write_text(PROGRAM)
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    return str(program), str(secret)


def ended(folder: Path) -> dict[str, tuple[int, int, list[float]]]:
    return {path.name[-1]: json.loads(path.read_text()) for path in folder.glob("ended *")}


@pytest.mark.parametrize("strategy", ["KAVG(4)", pytest.param("ADPSGD()", marks=pytest.mark.slow)])
def test_a_learner_is_added_to_a_loop(strategy: str, tmp_path: Path) -> None:
    program, secret = prepared(tmp_path)
    run, words = str(tmp_path / "run"), [program, strategy, str(tmp_path), "await"]
    launch = subprocess.Popen([*LAUNCH, "--learners", "2", "--secret-file", secret, "--out", run, *words])
    while not (tmp_path / "begun").exists():
        assert launch.poll() is None
        time.sleep(0.05)
    add = [sys.executable, "-m", "murmur", "add", run, "--secret-file", secret, "--threads", "1", "--", *words]
    assert subprocess.run(add, check=False, timeout=200).returncode == 0
    assert launch.wait(100) == 0
    found = ended(tmp_path)
    assert set(found) == {"0", "1", "2"}
    assert all(end == found["0"][2] for _, _, end in found.values())
    assert found["2"][1] > 0


def test_a_strategy_that_takes_no_new_learners_says_so(tmp_path: Path) -> None:
    program, secret = prepared(tmp_path)
    run, words = str(tmp_path / "run"), [program, "SyncSGD()", str(tmp_path), "await"]
    launch = subprocess.Popen([*LAUNCH, "--learners", "2", "--secret-file", secret, "--out", run, *words])
    try:
        while not (tmp_path / "begun").exists():
            assert launch.poll() is None
            time.sleep(0.05)
        add = [sys.executable, "-m", "murmur", "add", run, "--secret-file", secret, "--", *words]
        done = subprocess.run(add, check=False, timeout=200, capture_output=True, text=True)
        assert done.returncode == 1
        assert "SyncSGD() accepts no new learners" in done.stderr
        assert launch.poll() is None
    finally:
        launch.kill()
        launch.wait()


def test_two_launches_on_two_hosts_are_one(tmp_path: Path) -> None:
    program, secret = prepared(tmp_path)
    with listen() as free:
        meet = f"127.0.0.1:{free.getsockname()[1]}"
    hosts = [*LAUNCH, "--learners", "1", "--hosts", "2", "--meet", meet, "--secret-file", secret]
    started = [
        subprocess.Popen([*hosts, "--host-number", str(number), program, "KAVG(4)", str(tmp_path)]) for number in (1, 0)
    ]
    assert [launch.wait(200) for launch in started] == [0, 0]
    found = ended(tmp_path)
    assert [found[rank][0] for rank in ("0", "1")] == [2, 2]
    assert found["0"][2] == found["1"][2]


@pytest.mark.parametrize(
    "words",
    [
        ("--hosts", "2", "--host-number", "2", "--meet", "a:1"),
        ("--hosts", "2", "--meet", "a:1"),
        ("--meet", "a"),
        ("--hosts", "2", "--meet", "a:1", "--secret-file", "secret", "--restarts", "1"),
    ],
)
def test_hosts_that_cannot_meet_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    program, _ = prepared(tmp_path)
    done = subprocess.run([*LAUNCH, *words, program], check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "--host-number" in done.stderr or "HOST:PORT" in done.stderr or "--on-failure alone" in done.stderr
