"""The joined loop inside a framework: its saved states, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from murmur.core.errors import DamagedCheckpoint, SettingError
from murmur.core.world import Seat
from murmur.integrations.base import Session, check_processes, saved_learners
from murmur.strategies import ASGD, KAVG, SyncSGD
from murmur.worlds.threads import ThreadWorld
from tests.support.user_loops import Net, Words, loss_of, net, optimizer_of, state


def steps(model: Net, optimizer: torch.optim.Optimizer, first: int, count: int) -> None:
    for n in range(first, first + count):
        loss_of(model, n).backward()
        optimizer.step()


def test_strategies_whose_learners_only_serve_are_refused() -> None:
    def body(seat: Seat) -> str:
        model = net(0)
        with pytest.raises(SettingError, match="serve others"):
            Session(ASGD(), timeout_seconds=20.0).begin(model, optimizer_of(model), seat)  # type: ignore[arg-type]
        return "refused"

    assert ThreadWorld(2, 20.0).run(Words(body)) == ["refused"] * 2


def test_a_state_is_resumed_and_those_of_other_numbers_are_removed(tmp_path: Path) -> None:
    (tmp_path / "learner-0-of-3.pt").touch()
    assert saved_learners(tmp_path) is None  # two are missing
    whole, again = net(0), net(0)
    torch.nn.init.zeros_(again.inner.weight)
    optimizer = optimizer_of(whole)
    with (session := Session(KAVG(4))).ending():
        session.begin(whole, optimizer)
        steps(whole, optimizer, 0, 3)
        session.save(tmp_path)
        steps(whole, optimizer, 3, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["learner-0-of-1.pt"]
    assert saved_learners(tmp_path) == 1
    optimizer = optimizer_of(again)
    with (session := Session(KAVG(4))).ending():
        session.begin(again, optimizer)
        assert not session.load(tmp_path / "nothing")
        assert session.load(tmp_path)
        steps(again, optimizer, 3, 3)
    assert torch.equal(state(again), state(whole))


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("made by a file",)


@pytest.mark.parametrize("kind", ["empty", "cut", "text", "other", "hostile"])
def test_files_that_are_no_states_are_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, file = net(0), tmp_path / "learner-0-of-1.pt"
    optimizer = optimizer_of(model)
    with (session := Session(KAVG(4))).ending():
        session.begin(model, optimizer)
        session.save(tmp_path)
        whole = file.read_bytes()
        if kind in ("other", "hostile"):
            torch.save({"model": torch.ones(2)} if kind == "other" else {"weights": Hostile()}, file)
        else:
            file.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "text": b"no zip\n" * 9}[kind])
        with pytest.raises(DamagedCheckpoint, match=r"learner-0-of-1\.pt is not the state of a learner"):
            session.load(tmp_path)
        steps(model, optimizer, 0, 2)  # the block goes on
    assert not (tmp_path / "made by a file").exists()


def test_another_number_of_learners_resumes_the_mean(tmp_path: Path) -> None:
    def body(seat: Seat) -> Tensor:
        model = net(0)
        optimizer = optimizer_of(model)
        with (session := Session(KAVG(9), timeout_seconds=20.0)).ending():
            session.begin(model, optimizer, seat)  # type: ignore[arg-type]
            steps(model, optimizer, 5 * seat.group.rank, 2)
            session.save(tmp_path)
            return model.inner.weight.detach().clone()

    first, second = ThreadWorld(2, 20.0).run(Words(body))
    assert not torch.equal(first, second)  # type: ignore[arg-type]
    model = net(1)
    with (session := Session(KAVG(9))).ending():
        session.begin(model, optimizer_of(model))
        assert session.load(tmp_path)
        torch.testing.assert_close(model.inner.weight.detach(), (first + second) / 2)  # type: ignore[operator]


def test_samples_and_losses_of_each_step_reach_the_strategy() -> None:
    model, seen = net(0), list[float]()
    optimizer = optimizer_of(model)
    samples, losses = iter([2.0, 5.0]), iter([1.5, 0.5])
    with (session := Session(SyncSGD())).ending():
        me = session.begin(model, optimizer, samples=lambda: next(samples), loss=lambda: next(losses))
        for n in range(2):
            steps(model, optimizer, n, 1)
            seen.append(me.progress.loss)
    assert seen == [1.5, 0.5]
    assert next(samples, None) is None


def test_a_framework_that_runs_alone_in_a_launch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_processes(1, "it", "do that")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    check_processes(2, "it", "do that")
    with pytest.raises(SettingError, match="it runs as one of 1 processes, but the launch has 2 learners: do that"):
        check_processes(1, "it", "do that")
