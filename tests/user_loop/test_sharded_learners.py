"""Learners that are groups of processes with a sharded model (FSDP2): two learners of two processes each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from murmur.core.facts import Facts
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, ALL, KAVG
from murmur.worlds.process.endings import PEER_LOST_STATUS
from murmur.worlds.threads import ThreadWorld
from tests.support.forked_python import ROOT
from tests.support.sharded_loops import (
    EQUAL,
    LEARNERS,
    SAVED,
    SHARDS,
    SPOILED,
    STEPS,
    linear,
    norm_net,
    rows,
    trained,
    uneven,
)
from tests.support.user_loops import Words

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@dataclass(frozen=True)
class Ended:
    """End of the four processes of a launch: statuses, messages, and what each has saved."""

    codes: list[int]
    said: list[str]
    found: list[dict[str, Any]]


def launched(folder: Path, *programs: str) -> Ended:
    words = [sys.executable, "-m", "tests.support.sharded_loops", str(folder), *programs]
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
    try:
        said = [process.communicate(timeout=100)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    saved = [folder / f"found-{rank}" for rank in range(LEARNERS * SHARDS)]
    found = [torch.load(path, weights_only=True) if path.exists() else {} for path in saved]
    return Ended([process.returncode for process in processes], said, found)


def ended_well(folder: Path, *programs: str) -> list[dict[str, Any]]:
    end = launched(folder, *programs)
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
def equal(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return [found["equal"] for found in ended_well(tmp_path_factory.mktemp("equal"), "equal")]


@pytest.mark.parametrize("name", EQUAL)
def test_sharded_learners_are_as_whole_ones(name: str, equal: list[dict[str, Any]]) -> None:
    norms: dict[int, list[float]] = {}

    def body(seat: Seat) -> nn.Module:
        model = models[seat.group.rank]
        norms[seat.group.rank] = trained(EQUAL[name], model, seat)
        return model

    models = [uneven(rank) for rank in range(LEARNERS)]  # drawn here: torch's generator belongs to all threads
    expected = unsharded(body)[0]
    for rank, found in enumerate(equal):
        check_close(found[name], expected)
        assert found[f"norms of {name}"] == pytest.approx(norms[rank // SHARDS], rel=1e-5)
    begun = uneven(0).state_dict()
    assert not torch.equal(begun["inner.weight"], equal[0][name]["inner.weight"])
    assert max(norms[0]) > 0.8  # some steps were clipped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("others")


@pytest.fixture(scope="module")
def ended(folder: Path) -> Ended:
    return launched(folder, "odd", "pairs", "saved", "asked", "scaled", "refused", "diverged")


@pytest.fixture(scope="module")
def others(ended: Ended) -> list[dict[str, Any]]:
    assert ended.codes == [0] * 4, "\n".join(ended.said)
    return ended.found


@pytest.fixture(scope="module")
def messages(ended: Ended) -> list[str]:
    return ended.said


@pytest.mark.parametrize(("name", "spoiled"), [("parts", None), ("bad", SPOILED)])
def test_what_a_process_finds_alone_counts_for_its_learner(
    name: str, spoiled: int | None, others: list[dict[str, Any]]
) -> None:
    def body(seat: Seat) -> nn.Module:
        trained(KAVG(4), models[seat.group.rank], seat, spoiled=spoiled)
        return models[seat.group.rank]

    models = [uneven(rank) for rank in range(LEARNERS)]
    expected = unsharded(body)[0]
    for found in others:
        check_close(found["odd"][name], expected)
        assert all(torch.equal(x, others[0]["odd"][name][key]) for key, x in found["odd"][name].items())


def test_pairs_average_each_shard_to_one_model(others: list[dict[str, Any]]) -> None:
    """Moments of exchanges differ between shards; all learners end with one model, and the mean is kept."""
    model = nn.Linear(6, 5)
    begun = {name: x.clone() for name, x in model.state_dict().items()}
    models = [nn.Linear(6, 5) for _ in range(LEARNERS)]
    for each in models:
        each.load_state_dict(begun)
    expected = unsharded(lambda seat: linear(ADPSGD(), models[seat.group.rank], seat))[0]
    for found in others:
        first = others[0]["pairs"]
        for end in ("end", "moments"):
            assert all(torch.equal(found["pairs"][end][name], x) for name, x in first[end].items())
        moved = {name: x - first["begun"][name] for name, x in first["end"].items()}
        check_close(moved, {name: x - begun[name] for name, x in expected.items()})


def test_a_saved_run_is_resumed_to_the_bit(others: list[dict[str, Any]]) -> None:
    for found in (each["saved"] for each in others):
        first = others[0]["saved"]
        assert all(torch.equal(x, found["resumed"][name]) for name, x in first["uninterrupted"].items())
        assert all(torch.equal(x, found["uninterrupted"][name]) for name, x in first["uninterrupted"].items())
        assert found["steps uninterrupted"] == found["steps resumed"] == STEPS
        assert found["drawn resumed"] == found["drawn uninterrupted"][4 * SAVED :]
        model = norm_net()
        model.load_state_dict(found["resumed"])
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(rows(0, 0)[0]), found["output resumed"])


def test_each_process_has_its_part_of_the_data(others: list[dict[str, Any]]) -> None:
    drawn = [each["saved"]["drawn uninterrupted"] for each in others]
    assert sorted(number for part in drawn for number in part) == list(range(4 * STEPS * LEARNERS * SHARDS))


def test_the_first_processes_write_the_records(folder: Path, others: list[dict[str, Any]]) -> None:
    records = [json.loads(line) for line in (folder / "records" / "records.jsonl").read_text().splitlines()]
    steps = [record["learner"] for record in records if "step" in record or "loss" in record]
    assert {*steps} == {0, 1}
    assert json.loads((folder / "records" / "run.json").read_text())["learners"] == LEARNERS


def test_a_signal_to_one_process_stops_all_after_the_same_step(others: list[dict[str, Any]]) -> None:
    found = [each["asked"] for each in others]
    assert len({each["steps"] for each in found}) == 1
    assert 8 < found[0]["steps"] < 2000
    for learner in range(LEARNERS):  # the mean has one set of buffers
        torch.testing.assert_close(
            found[SHARDS * learner]["shown"], found[SHARDS * learner + 1]["shown"], rtol=0, atol=0
        )


def test_processes_of_a_learner_have_one_scale(others: list[dict[str, Any]]) -> None:
    found = [each["scaled"] for each in others]
    assert [each.pop("scale") for each in found] == [4.0, 4.0, 2.0, 2.0]
    assert all(torch.isfinite(x).all() for x in found[0].values())
    assert all(torch.equal(x, each[name]) for each in found for name, x in found[0].items())


def test_a_shard_that_diverges_ends_the_run(others: list[dict[str, Any]]) -> None:
    for found in others:
        assert found["diverged"]["said"].startswith("the weights of a shard are not finite on any learner: training")


REFUSED = {
    "no mesh": r"wrapped in FSDPModule, which shards the model .*join\(..., mesh=mesh\[.learner.\]\)",
    "one learner of all": r"stand in the mesh of learners and in that of shards, .*init_device_mesh",
    "HSDP": r"0.weight is sharded by .* over 2 dimensions of processes, .*init_device_mesh",
    "whole": r"mesh is for learners whose model is sharded by fully_shard: give a mesh of two dimensions",
    "mesh of shards": r"stand in the mesh of learners and in that of shards",
    "norms": r"ParameterAveraging.* does not declare Facts.elementwise",
    "losses": r"AdaptiveKAVG.* does not declare Facts.elementwise",
    "compressed": r"Compressed.* does not declare Facts.elementwise",
    "figures": r"evaluate inside me.consensus\(\)",
    "scaling": r"set the rate in the loop",
    "whole beside shards": r"1.weight is whole in each process of a learner, .*: apply fully_shard to the whole model",
    "state of another": r"each process of a learner loads the state that it has saved",
    "last backward": r"not for sharded learners",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused(name: str, others: list[dict[str, Any]]) -> None:
    for found in others:
        assert re.search(REFUSED[name], found["refused"][name]), found["refused"][name]


def test_processes_that_read_the_same_data_are_told_so_once(messages: list[str]) -> None:
    told = [said.count("has read the same data") for said in messages]
    assert sum(told) == 1
    assert told[1] == told[3] == 0


def test_the_page_names_the_strategies() -> None:
    page = (ROOT / "docs" / "your_own_loop.md").read_text()
    (row,) = re.findall(r"^\| strategies \| those that treat each element alone.*?\. ", page, re.MULTILINE)
    declared = {name for name, make in ALL.items() if Facts.of(make()).elementwise}
    assert {*re.findall(r"`(\w+)`", row)} == declared


@pytest.mark.parametrize("strategy", [pytest.param("KAVG"), pytest.param("ADPSGD", marks=pytest.mark.slow)])
def test_the_loss_of_a_process_is_that_of_its_learner(strategy: str, tmp_path: Path) -> None:
    """In lock-step it ends the run; with ADPSGD the other learner goes on to its end."""
    (tmp_path / strategy).touch()
    end = launched(tmp_path, "lost")
    status = PEER_LOST_STATUS if strategy == "KAVG" else 0
    assert end.codes[:2] == [status] * SHARDS, end.said
    assert end.codes[2] == -signal.SIGKILL
    assert end.codes[3] not in (0, None)
    if strategy == "ADPSGD":
        check_close(end.found[0]["lost"], end.found[1]["lost"])
