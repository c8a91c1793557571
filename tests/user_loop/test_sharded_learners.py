"""Learners that are groups of processes with a sharded model (FSDP2): two learners of two processes each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from murmur.core.world import Seat
from murmur.worlds.threads import ThreadWorld
from tests.support import sharded_loops
from tests.support.forked_python import ROOT
from tests.support.sharded_loops import EQUAL, LEARNERS, SHARDS, trained, uneven
from tests.support.user_loops import Words

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class Ended:
    """End of the four processes of a launch: statuses, messages, and what each has saved."""

    codes: list[int]
    said: list[str]
    found: list[dict[str, Any]]


def launched(folder: Path, program: str) -> Ended:
    words = [sys.executable, "-m", "tests.support.sharded_loops", str(folder), program]
    processes = [
        subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(LEARNERS * SHARDS), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(LEARNERS * SHARDS)
    ]
    said = [process.communicate(timeout=200)[1] for process in processes]
    saved = [folder / f"found-{rank}" for rank in range(LEARNERS * SHARDS)]
    found = [torch.load(path, weights_only=True) if path.exists() else {} for path in saved]
    return Ended([process.returncode for process in processes], said, found)


def ended_well(folder: Path, program: str) -> list[dict[str, Any]]:
    end = launched(folder, program)
    assert end.codes == [0] * 4, "\n".join(end.said)
    return end.found


def unsharded(body: Callable[[Seat], nn.Module]) -> list[dict[str, Tensor]]:
    """Return the states of two whole learners at their end."""
    return ThreadWorld(LEARNERS, 60.0).run(Words(lambda seat: body(seat).state_dict()))  # type: ignore[return-value]


def check_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, x in one.items():
        torch.testing.assert_close(x, other[name], rtol=1e-6, atol=1e-6, msg=lambda said, name=name: f"{name}: {said}")


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    return ended_well(tmp_path_factory.mktemp("equal"), "equal")


@pytest.mark.parametrize("name", EQUAL)
def test_sharded_learners_are_as_whole_ones(name: str, equal: list[dict[str, dict[str, Tensor]]]) -> None:
    def body(seat: Seat) -> nn.Module:
        model = seats[seat.group.rank]
        trained(EQUAL[name], model, seat)
        return model

    seats = [uneven(rank) for rank in range(LEARNERS)]  # drawn here: torch's generator belongs to all threads
    expected = unsharded(body)
    for found in equal:
        check_close(found[name], expected[0])
    begun = uneven(0).state_dict()
    assert not torch.equal(begun["inner.weight"], equal[0][name]["inner.weight"])
