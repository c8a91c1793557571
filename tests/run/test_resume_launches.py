"""Launches of `murmur train` that are killed or stopped at random moments, and resumed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from murmur.engine.checkpoints.checkpoint import read_pair
from murmur.recipes import toy
from murmur.run.configuration import configure
from murmur.run.learner import run_learner
from murmur.run.request import RunRequest
from murmur.worlds.process.environment import Place
from murmur.worlds.process.signals import STOPPED_STATUS
from tests.support.pool import Pool
from tests.support.tasks import fit_in_process

pytestmark = pytest.mark.processes
SETTINGS = ("budget.epochs=5", "task.hidden=8", "task.dropout=0.2", "evaluate_every_epochs=0.2")
MINIBATCHES = 500
IN_STEP = ["SyncSGD()", "KAVG(K=4)", "BMUF(K=4)", "DelayByOne()", "Compressed(KAVG(K=4), 'int8')", "AdaptiveKAVG()"]


def launch(strategy: str, out: Path, resume: bool) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "murmur", "train", str(Path(toy.__file__)), "--learners", "2", "--threads", "1"]
    words += ["--strategy", strategy, "--out", str(out), *(["--resume"] if resume else [])]
    for setting in SETTINGS:
        words += ["--set", setting]
    return subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def records(out: Path) -> int:
    path = out / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def cut(process: subprocess.Popen[str], out: Path, after: int, how: signal.Signals) -> None:
    """Send a signal after `after` records have been written."""
    deadline = time.monotonic() + 120
    while records(out) < after and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(how)
    process.wait(60)


def go_through(strategy: str, ways: Sequence[signal.Signals], seed: int, out: Path, pool: Pool) -> None:
    """Check that a run interrupted in these ways ends with the same bits as an uninterrupted one."""
    draw = random.Random(seed)
    wanted = pool.call(fit_in_process, 2, configure(toy.experiment(), SETTINGS, strategy))[0]
    for number, how in enumerate(ways):
        begun = records(out)
        process = launch(strategy, out, resume=number > 0)
        cut(process, out, begun + draw.randrange(20, MINIBATCHES // len(ways)), how)
        if how == signal.SIGKILL:
            assert process.returncode in (-signal.SIGKILL, 0), f"seed {seed}"
        else:
            assert process.returncode in (STOPPED_STATUS, 0), f"seed {seed}: {process.stderr and process.stderr.read()}"
    process = launch(strategy, out, resume=True)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, f"seed {seed}: {said}"
    assert "going on from" in said or "is finished" in said or "the run starts from the beginning" in said
    assert torch.equal(read_pair(out / "model")[0]["weights"], torch.tensor(wanted)), f"seed {seed}"


def learn(place: Place, strategy: str, out: Path, resume: bool) -> None:
    """Act as a learner's process once Python has started."""
    source = str(toy.__file__)
    request = RunRequest(
        source=source, settings=SETTINGS, strategy=strategy, learners=2, out=out, resume=resume, threads=1
    )
    sys.exit(run_learner(request, request.experiment(), place).status)


def launch_forked(strategy: str, out: Path, resume: bool, pool: Pool) -> list[Any]:
    """Fork two learners, without a launcher, from a process that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["murmur.run.learner", "murmur.recipes.toy"])
    pool.jobs += 1  # the pool provides the store
    places = [Place(rank, 2, rank, "127.0.0.1", pool.port, pool.jobs) for rank in range(2)]
    learners = [context.Process(target=learn, args=(p, strategy, out, resume), daemon=True) for p in places]
    for learner in learners:
        learner.start()
    return learners


@pytest.mark.timeout(120)
@pytest.mark.parametrize("which", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_random_times_a_run_ends_with_the_same_bits(which: int, tmp_path: Path, pool: Pool) -> None:
    """All learners are killed, then all are asked to stop; the third launch finishes the run."""
    seed = int.from_bytes(os.urandom(4), "big")
    draw, strategy = random.Random(seed), IN_STEP[(seed + which) % len(IN_STEP)]
    wanted = pool.call(fit_in_process, 2, configure(toy.experiment(), SETTINGS, strategy))[0]
    for generation, ends in enumerate([signal.SIGKILL, signal.SIGUSR1, None]):
        begun = records(tmp_path)
        learners = launch_forked(strategy, tmp_path, generation > 0, pool)
        if ends is not None:
            after = begun + draw.randrange(1, MINIBATCHES // 2)
            while records(tmp_path) < after and all(learner.exitcode is None for learner in learners):
                time.sleep(0.002)
            for learner in learners:
                with suppress(ProcessLookupError):  # the process has already ended
                    os.kill(learner.pid, ends)
        for learner in learners:
            learner.join(60)
        codes = {learner.exitcode for learner in learners}
        allowed = {0, {signal.SIGKILL: -signal.SIGKILL, signal.SIGUSR1: STOPPED_STATUS, None: 0}[ends]}
        assert codes <= allowed, f"seed {seed}, {strategy}: {codes} in launch {generation}"
    assert torch.equal(read_pair(tmp_path / "model")[0]["weights"], torch.tensor(wanted)), f"seed {seed}, {strategy}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strategy", IN_STEP)
def test_many_kills(strategy: str, seed: int, tmp_path: Path, pool: Pool) -> None:
    ways = random.Random(seed).choices([signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1], [3, 1, 1], k=3)
    go_through(strategy, ways, seed, tmp_path, pool)


@pytest.mark.timeout(120)
def test_a_second_request_ends_at_once(tmp_path: Path) -> None:
    """The first request is still pending, because no learner arrives at a boundary."""
    waits = "import signal, time; from murmur.worlds.process.signals import StopSignals\n"
    waits += "with StopSignals() as asked:\n    print('ready', flush=True); time.sleep(60); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)  # a repetition of the same request
    time.sleep(2.0)
    assert process.poll() is None
    process.send_signal(signal.SIGUSR1)  # only a request
    time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM
