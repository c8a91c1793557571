"""Launcher: learners lost before training begins, and exit statuses of a launch."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from murmur.run.training import WHOLE, missing_from
from murmur.worlds.process.endings import PEER_LOST_STATUS
from murmur.worlds.process.environment import Place
from murmur.worlds.process.launcher import Launch, Restart
from murmur.worlds.process.signals import STOPPED_STATUS
from tests.support.learner_programs import TRAINS, python

pytestmark = pytest.mark.processes
KILLED = "import os; os.kill(os.getpid(), 9)"
WAITS = "import time; time.sleep(60)"
Started = list[tuple[int, int, bool, int]]


def children() -> set[int]:
    """Return the child processes that have not been waited for."""
    lists = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for each in lists for pid in each.read_text().split()}


def launch(programs: dict[tuple[int, int], str], otherwise: str, started: Started, **options: object) -> Launch:
    """Return a launch of three learners, with programs by (generation, rank)."""

    def command(place: Place, resume: bool) -> Sequence[str]:
        started.append((place.rank, place.size, resume, place.generation))
        return python(programs.get((place.generation, place.rank), otherwise))

    return Launch(command, 3, **options)  # type: ignore[arg-type]


def test_a_learner_that_is_killed_at_start_is_left_out_by_strategies_that_tolerate_a_loss() -> None:
    started: Started = []
    programs = {(0, 1): KILLED, (0, 0): WAITS, (0, 2): WAITS}
    assert launch(programs, TRAINS, started, restart=Restart.ALONE).run() == 0
    assert started[3:] == [(0, 2, False, 1), (1, 2, False, 1)]


def test_all_start_again_from_the_beginning_while_the_learner_killed_at_start_has_restarts() -> None:
    for restart in Restart:
        started: Started = []
        programs = {(0, 1): KILLED, (0, 0): WAITS, (0, 2): WAITS}
        assert launch(programs, TRAINS, started, restart=restart, restarts=1).run() == 0
        assert started[3:] == [(r, 3, False, 1) for r in range(3)]  # the folder may hold another run's checkpoints


def test_without_restarts_a_loss_at_start_ends_a_lock_step_launch_with_the_status_of_a_loss() -> None:
    programs = {(0, 1): KILLED}
    assert launch(programs, WAITS, [], restart=Restart.TOGETHER).run() == PEER_LOST_STATUS


def test_an_error_of_a_learners_own_at_start_is_not_tried_again_without_it() -> None:
    started: Started = []
    programs = {(0, 1): "raise SystemExit(7)"}
    assert launch(programs, WAITS, started, restart=Restart.ALONE).run() == 7
    assert len(started) == 3


def test_learners_that_lost_the_only_one_with_the_model_start_again_together() -> None:
    """Learner 0 alone trains on; learners 1 and 2 come back and have not caught up when it dies."""
    started: Started = []
    dies_later = TRAINS + "time.sleep(4); import os; os.kill(os.getpid(), 9)"
    programs = {(0, 0): dies_later, (1, 0): TRAINS, (1, 1): TRAINS, (1, 2): TRAINS}

    def command(place: Place, resume: bool) -> Sequence[str]:
        started.append((place.rank, place.size, resume, place.generation))
        first = not any(s[0] == place.rank for s in started[:-1])
        dies = TRAINS + "import os; os.kill(os.getpid(), 9)"
        return python(programs.get((place.generation, place.rank), dies if first else WAITS))

    assert Launch(command, 3, 1, Restart.ALONE).run() == 0
    assert sorted(started[3:5]) == [(1, 3, True, 0), (2, 3, True, 0)]
    assert started[5:] == [(r, 3, True, 1) for r in range(3)]


MEMBER = """
import sys
from threading import Event
from murmur.worlds.process.environment import take_place
from murmur.worlds.process.membership_client import StoreMembership
from murmur.worlds.process.store_server import StoreClient

place, told = take_place(), Event()
connect = lambda: StoreClient(place.host, place.port, 30, place.secret)
membership = StoreMembership(connect, f"{place.prefix}world", place.rank, place.size, 60.0)
membership.report_losses(lambda rank, why: told.set() if rank == 1 else None)
here = told.wait(60)
connect().call({"do": "set", "key": f"{place.prefix}done"})
sys.exit(0 if here else 9)
"""


@pytest.mark.parametrize("again", [KILLED, "import time; time.sleep(2); " + KILLED], ids=["at once", "later"])
def test_a_restarted_member_does_not_wait_for_a_leader_that_is_not_started_again(again: str) -> None:
    """Learner 1 is killed twice; learner 2, which needs it, ends with the status of a loss, and comes back to wait."""
    comes = TRAINS + 'line.call({"do": "set", "key": f"{place.prefix}host/{place.rank}"})\n'
    dies, waits = comes + "import os; os.kill(os.getpid(), 9)", comes + 'line.wait([f"{place.prefix}done"], 60)'
    programs = {0: [waits], 1: [dies, again], 2: [comes + "sys.exit(75)", MEMBER]}

    def command(place: Place, resume: bool) -> Sequence[str]:
        return python(programs[place.rank][int(resume)])

    assert Launch(command, 3, 1, Restart.ALONE).run() == 0


def test_a_launch_is_not_well_before_its_run_is_whole(tmp_path: Path) -> None:
    def write(*names: str) -> str:
        return "; ".join(f"open({str(tmp_path / name)!r}, 'w').write('new')" for name in names) or "pass"

    for name in WHOLE:
        (tmp_path / name).write_text("of an earlier launch")
    time.sleep(0.05)
    assert Launch(lambda p, r: python(write(*WHOLE[:2])), 1, missing=missing_from(tmp_path)).run() == PEER_LOST_STATUS
    assert Launch(lambda p, r: python(write(*WHOLE)), 1, missing=missing_from(tmp_path)).run() == 0

    def fails_last(place: Place, resume: bool) -> Sequence[str]:
        return python(TRAINS + ("raise SystemExit(7)" if place.rank == 0 else "time.sleep(3)"))

    status = Launch(fails_last, 2, restart=Restart.ALONE, missing=missing_from(tmp_path)).run()
    assert status == 7, "the learner that tests the model has failed, the others ended well"
    stopped = Launch(lambda p, r: python(f"raise SystemExit({STOPPED_STATUS})"), 2, missing=missing_from(tmp_path))
    assert stopped.run() == STOPPED_STATUS


def test_a_lost_store_ends_the_launch_with_the_status_of_a_loss() -> None:
    kill_store = """
import os, pathlib, signal, time
parent = os.getppid()
for pid in map(int, pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()):
    if b"store.server" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
        os.kill(pid, signal.SIGKILL)
time.sleep(60)
"""
    assert Launch(lambda p, r: python(kill_store), 1).run() == PEER_LOST_STATUS


def test_a_stopped_learner_is_the_one_that_is_left_out() -> None:
    started: Started = []
    before = children()
    gave_up = TRAINS.split("line.call")[0] + f"time.sleep(1); sys.exit({PEER_LOST_STATUS})"
    stops = f"import os, signal; os.kill(os.getpid(), {int(signal.SIGSTOP)})"
    programs = {(0, 1): stops, (0, 0): gave_up, (0, 2): WAITS}
    assert launch(programs, TRAINS, started, restart=Restart.ALONE).run() == 0
    assert started[3:] == [(0, 2, False, 1), (1, 2, False, 1)]
    assert children() <= before  # none is left, not even the stopped one
