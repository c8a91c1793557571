"""World on MPI: its parts without MPI, and whole launches if mpi4py and mpich are installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.group import PeerLost
from murmur.engine.trainer import Trainer
from murmur.run.configuration import configure, resolved
from murmur.run.saved_model import read_into
from murmur.worlds.mpi.progress import MpiMail, MpiProgress, settle
from murmur.worlds.process.messages import from_block, to_block
from murmur.worlds.threads import ThreadWorld

ROOT = Path(__file__).parents[3]
MPIEXEC = Path(sys.executable).with_name("mpiexec")
needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="needs mpi4py and mpich: pip install 'murmur-asr[mpi]'"
)


def mpiexec(learners: int, *words: object, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    """Run a launch of this Python; a hang would last for ever."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(MPIEXEC), "-n", str(learners), sys.executable, *map(str, words)]
    return subprocess.run(
        command, env=environment, timeout=seconds, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@dataclass
class Request:
    """Operation of MPI that is completed by hand."""

    complete: bool = False
    tests: int = 0

    def Test(self) -> bool:
        self.tests += 1
        return self.complete


@contextmanager
def progress(*polls: Callable[[], bool]) -> Iterator[tuple[MpiProgress, list[Exception]]]:
    failures: list[Exception] = []
    running = MpiProgress(polls, failures.append)
    yield running, failures
    running.stop()


def test_operations_begin_in_order_and_end_when_they_can() -> None:
    first, second, begun, ended = Request(), Request(True), [], []

    def start(request: Request) -> Request:
        begun.append(request)
        return request

    with progress() as (running, _):
        slow = running.submit(lambda: start(first), lambda: ended.append(first), 5.0)
        fast = running.submit(lambda: start(second), lambda: ended.append(second), 5.0)
        fast.wait()
        assert not running.idle
        first.complete = True
        slow.wait()
        assert running.idle
    assert (begun[0] is first, begun[1] is second) == (True, True)
    assert (ended[0] is second, ended[1] is first) == (True, True)


def test_waiting_has_an_end() -> None:
    with progress() as (running, _):
        with pytest.raises(PeerLost, match=r"not all took part within 0.05 s"):
            running.submit(Request, lambda: None, 0.05).wait()
        running.check()
    with pytest.raises(PeerLost, match=r"not all processes of the MPI launch came within 0.01 s"):
        settle(Request(), 0.01)


def test_a_failure_ends_what_runs_and_what_comes() -> None:
    broken: list[Exception] = []

    def poll() -> bool:
        if broken:
            raise broken[0]
        return False

    with progress(poll) as (running, failures):
        waiting = running.submit(Request, lambda: None, 5.0)
        broken.append(PeerLost("learner 3 failed: planted"))
        with pytest.raises(PeerLost, match="learner 3 failed: planted"):
            waiting.wait()
        with pytest.raises(PeerLost, match="planted"):
            running.submit(Request, lambda: None, 5.0).wait()
        with pytest.raises(PeerLost, match="planted"):
            running.check()
    assert failures == broken


def test_a_waiting_thread_sleeps() -> None:
    request = Request()
    with progress() as (running, _):
        running.submit(lambda: request, lambda: None, 5.0)
        time.sleep(0.5)
        assert request.tests < 1000  # at most one test per millisecond; a busy thread would make 200,000


@dataclass
class Wire:
    """Communicator on which messages of learner 1 have begun to arrive."""

    messages: list[tuple[Request, np.ndarray[Any, Any]]]
    rank: int = 0
    sent: list[tuple[Any, int]] = field(default_factory=list)

    def Improbe(self, status: Any) -> Any:
        if not self.messages:
            return None
        request, raw = self.messages.pop(0)
        status.source, status.Get_count = 1, lambda _: raw.size

        def receive(into: list[Any]) -> Request:
            into[0][:] = raw
            return request

        return SimpleNamespace(Irecv=receive)

    def Isend(self, message: list[Any], to: int) -> Request:
        self.sent.append((from_block(message[0]), to))
        return Request(True)


def test_messages_are_delivered_in_the_order_in_which_they_began() -> None:
    large, small = Request(), Request(True)
    wire = Wire([(large, to_block(torch.ones(9), "t", ())), (small, to_block(torch.ones(1), "t", ()))])
    mail = MpiMail(SimpleNamespace(BYTE=None, Status=SimpleNamespace), wire)
    assert mail.box.wait("t", 0.1) is None
    large.complete = True
    assert [len(mail.box.wait("t", 10.0).x) for _ in range(2)] == [9, 1]  # type: ignore[union-attr]
    mail.progress.stop()


def test_a_damaged_message_ends_all_waits() -> None:
    raw = to_block(torch.ones(9), "t", ())
    raw[20] ^= 1
    mail = MpiMail(SimpleNamespace(BYTE=None, Status=SimpleNamespace), Wire([(Request(True), raw)]))
    with pytest.raises(ValueError, match="does not fit its checksum"):
        mail.box.wait("t", 10.0)
    with pytest.raises(PeerLost, match="does not fit its checksum"):
        mail.progress.check()
    mail.progress.stop()


def test_other_polls_share_the_thread() -> None:
    def lost() -> bool:
        raise PeerLost("learner 1 is gone")

    mail = MpiMail(SimpleNamespace(BYTE=None, Status=SimpleNamespace), Wire([]), [lost])
    with pytest.raises(PeerLost, match="learner 1 is gone"):
        mail.box.wait("t", 10.0)
    mail.progress.stop()


def test_posting_copies_and_counts() -> None:
    wire = Wire([])
    mail = MpiMail(SimpleNamespace(BYTE=None, Status=SimpleNamespace), wire)
    x = torch.ones(3)
    mail.post(x, 2, "tag", (7.0,))
    mail.post(x, 0, "own", (8.0,))
    x.zero_()
    while not mail.progress.idle:
        time.sleep(1e-3)
    mail.progress.stop()
    (((tag, got, header), to),) = wire.sent
    assert (tag, got.tolist(), header, to) == ("tag", [1.0] * 3, (7.0,), 2)
    own = mail.box.wait("own", 0.0)
    assert own is not None
    assert (own.x.tolist(), own.source, own.header) == ([1.0] * 3, 0, (8.0,))


@needs_mpi
@pytest.mark.processes
@pytest.mark.timeout(150)
def test_every_promise_of_a_world_and_user_loops() -> None:
    done = mpiexec(4, ROOT / "tests/support/mpi_driver.py", "joined", "conformance")
    assert "joined: good\nconformance: good" in done.stdout, done.stdout + done.stderr
    assert done.returncode != 0  # the conformance checks have failed runs in it, which abort the launch at its end


@needs_mpi
@pytest.mark.processes
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("one fails", "ValueError: planted"),
        pytest.param("leaves before", "nothing to train on here", marks=pytest.mark.slow),
        pytest.param("one is killed", "BAD TERMINATION", marks=pytest.mark.slow),
        pytest.param("one stops", r"learners \[1\] give no signs of life", marks=pytest.mark.slow),
    ],
)
def test_a_fault_ends_all_learners_soon(fault: str, said: str) -> None:
    done = mpiexec(3, ROOT / "tests/support/mpi_driver.py", fault, seconds=50)
    ended = time.time()
    assert done.returncode != 0
    assert re.search(said, done.stdout + done.stderr), done.stderr
    failed = re.search(r"failed at ([\d.]+)", done.stdout)
    assert failed is not None
    assert ended - float(failed[1]) < 5 + (2.0 if fault == "one stops" else 0.0)  # plus the lease


def weights(of: Any) -> Tensor:
    return Layout.everything(of).gather()


@needs_mpi
@pytest.mark.processes
def test_train_gives_what_other_worlds_give(tmp_path: Path) -> None:
    words = ["budget.epochs=0.3", "task.ragged=True", "task.hidden=16"]
    options = [w for word in words for w in ("--set", word)]
    command = ["-m", "murmur", "train", "toy", "--world", "mpi", "--strategy", "KAVG(K=4)", "--out", tmp_path / "a"]
    done = mpiexec(2, *command, *options, "--threads", "1")
    assert done.returncode == 0, done.stderr
    experiment = configure(resolved("toy"), words, "KAVG(K=4)")
    wanted = Trainer(experiment, ThreadWorld(2, 20.0)).fit().model
    found = experiment.task.model()
    read_into(found, tmp_path / "a" / "model")
    assert torch.allclose(weights(found), weights(wanted), atol=1e-6)
    assert (tmp_path / "a" / "score.json").exists()
    assert '"learners": 2' in (tmp_path / "a" / "run.json").read_text()


@needs_mpi
@pytest.mark.processes
def test_one_learner_alone_is_told_how_to_start(tmp_path: Path) -> None:
    words = ["-m", "murmur", "train", "toy", "--world", "mpi", "--learners", "3", "--out", str(tmp_path / "a")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "MPI has started 1 learner" in done.stderr
    assert "mpiexec -n 3 murmur train toy --world mpi" in done.stderr
    assert not (tmp_path / "a").exists()
