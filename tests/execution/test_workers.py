"""Processes that do a part of the work: ended in the middle of a job, and with the error that ended them told."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial

import pytest

from murmur.core.errors import user_message
from murmur.execution import processes
from murmur.execution.processes import in_processes, run_following, run_in_workers

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def give(value: int) -> int:
    return value


def divide(by: int) -> float:
    return 1 / by


def test_jobs_under_way_are_ended_when_nothing_waits_for_them() -> None:
    """As an exception out of the loop over the results does, for example that of a stop signal."""
    before = set(multiprocessing.active_children())  # the pool of another test may run
    results = run_in_workers([partial(give, 5), partial(time.sleep, 100_000), partial(time.sleep, 100_000)], 2)
    assert next(results) == (0, 5)
    results.close()
    assert set(multiprocessing.active_children()) == before


def test_results_have_their_places_and_errors_are_raised() -> None:
    assert dict(run_in_workers([partial(give, place * place) for place in range(5)], 2)) == {
        place: place * place for place in range(5)
    }
    with pytest.raises(ZeroDivisionError) as raised:
        list(run_in_workers([partial(divide, 1), partial(divide, 0)], 1))
    assert "in divide" in raised.value.__notes__[0]


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RuntimeError("a fault of the program")


def test_a_killed_worker_is_told_in_one_line() -> None:
    """As the kernel kills one that takes too much memory; other errors of jobs keep their traceback."""
    with pytest.raises(RuntimeError, match="a worker process died") as raised:
        list(run_in_workers([partial(give, 1), be_killed], 2))
    message = user_message(raised.value)
    assert message is not None
    assert "run it again, with fewer processes if memory was short" in message
    assert "\n" not in message
    with pytest.raises(RuntimeError, match="a fault of the program") as raised:
        list(run_in_workers([fail], 1))
    assert user_message(raised.value) is None


def test_jobs_that_results_call_for_are_run_by_idle_processes() -> None:
    """One job at first, three after its result: two at a time, by two processes in all."""
    wanted, under_way, most, used = [0], set(), 0, set()

    def following() -> int | None:
        if not wanted:
            return None
        under_way.add(wanted[-1])
        return wanted.pop()

    for name, process in run_following(following, lambda _: os.getpid, 2):
        most = max(most, len(under_way))
        under_way.remove(name)
        used.add(process)
        if name == 0:
            wanted += [1, 2, 3]
    assert not under_way
    assert most == 2
    assert len(used) == 2
    assert os.getpid() not in used


def slow_jobs() -> list[int]:
    """Jobs for which a process that may start others does so."""
    processes.START_SECONDS = 0.0
    return list(in_processes([partial(give, value) for value in range(4)], 2))


def test_a_worker_runs_its_own_jobs_itself() -> None:
    assert list(run_in_workers([slow_jobs], 1)) == [(0, [0, 1, 2, 3])]
