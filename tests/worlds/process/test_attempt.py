"""Attempts under torchrun: learners agree on a new name in a store that keeps the keys of earlier attempts."""

from __future__ import annotations

import logging
import os
import random
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from murmur.worlds.process.environment import Place
from murmur.worlds.process.torch_store import Attempt, agreed_attempt

PLACE = Place(0, 3, 0, "127.0.0.1", 29500, store="torchrun")


def attempt(store: HashStore, size: int, draw: random.Random, steps: int) -> list[str | None]:
    """Start learners and let them act in a random order, at most so often; return the names that they have found."""
    begun: dict[int, Attempt] = {}
    names: list[str | None] = [None] * size
    for _ in range(steps):
        rank = draw.randrange(size)
        if rank not in begun:
            begun[rank] = Attempt(store, rank, size)
        elif names[rank] is None:
            names[rank] = begun[rank].step()
    return names


@given(st.integers(0, 2**32), st.integers(2, 4), st.lists(st.integers(0, 40), max_size=4))
def test_learners_of_one_attempt_agree_on_a_new_name(seed: int, size: int, interrupted: list[int]) -> None:
    """Each earlier attempt ends after a number of steps, wherever its learners are then."""
    store, draw = HashStore(), random.Random(seed)
    earlier = set[str]()
    for steps in interrupted:
        found = {name for name in attempt(store, size, draw, steps) if name is not None}
        assert len(found) <= 1
        assert not found & earlier
        earlier |= found
    found = set(attempt(store, size, draw, 500))
    assert len(found) == 1
    assert None not in found
    assert not found & earlier


@pytest.mark.parametrize(("rank", "absent"), [(0, "1-2"), (1, "0")])
def test_learners_that_do_not_come_to_this_store_are_named_with_the_remedy(rank: int, absent: str) -> None:
    with pytest.raises(ConnectionError, match=f"learners {absent} have not come.*TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        agreed_attempt(replace(PLACE, rank=rank), HashStore(), 0.2)


def test_a_long_wait_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("murmur.worlds.process.arrival.TELL_SECONDS", 0.1)
    with pytest.raises(ConnectionError):
        agreed_attempt(PLACE, HashStore(), 0.5)
    assert "learner 0 waits until" in caplog.text
    assert "learners 1-2 have not come to the store at 127.0.0.1:29500" in caplog.text


LOOP = """
import os, time, torch, murmur
from pathlib import Path
failed = Path("failed")
first = not failed.exists()
model = torch.nn.Linear(2, 1)
with murmur.join(murmur.KAVG(K=2), model, torch.optim.SGD(model.parameters(), 0.1)) as me:
    for i in range(8):
        model(torch.ones(2, 2)).square().sum().backward()
        if first and i == 4:
            if me.rank == 0:
                time.sleep(60)  # its agent ends it before it learns of the loss, which would be a failure too
            failed.touch()
            os._exit(3)
        me.step()
print("end", me.rank, flush=True)
"""


@pytest.mark.processes
@pytest.mark.timeout(200)
@pytest.mark.parametrize("own_store", ["0", "1"])
def test_learners_of_two_agents_go_on_after_a_failure(own_store: str, tmp_path: Path) -> None:
    """The agent whose learner failed counts a restart, and the other one does not."""
    (tmp_path / "loop.py").write_text(LOOP)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--nnodes=2:2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    words += ["--rdzv-id=x", "--max-restarts=1", "--local-addr=127.0.0.1", "loop.py"]
    given = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": own_store, "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-m", "torch.distributed.run", *words]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    agents = [subprocess.Popen(run, env=given, cwd=tmp_path, **pipe) for _ in range(2)]  # type: ignore[call-overload]
    try:
        said = [agent.communicate(timeout=150)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sorted(word for text in said for word in ("end 0", "end 1") if word in text) == ["end 0", "end 1"]
