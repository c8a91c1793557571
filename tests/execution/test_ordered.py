"""Results in the order of their inputs, from processes that each open their tools once."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from murmur.execution.ordered import AHEAD, in_order
from murmur.execution.workers import WorkerDied

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
log = logging.getLogger("murmur.tests.ordered")


class Work:
    """Counts its calls, which are of one process; odd inputs take longer."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: int) -> tuple[int, int, int]:
        self.calls += 1
        time.sleep(0.02 * (given % 3))
        log.warning("input %d is %s", given, "odd" if given % 2 else "even")
        return given * given, os.getpid(), self.calls


def open_work() -> Callable[[int], tuple[int, int, int]]:
    log.warning("opened")
    print("loading")
    return Work()


def open_killed() -> Callable[[int], int]:
    return killed_by_seven


def killed_by_seven(given: int) -> int:
    if given == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return -given


def never_opened() -> Callable[[int], int]:
    os.kill(os.getpid(), signal.SIGKILL)
    return killed_by_seven


def open_divide() -> Callable[[int], float]:
    return divide


def divide(by: int) -> float:
    return 1 / by


@pytest.mark.parametrize("processes", [1, 3])
def test_the_order_does_not_depend_on_the_number_of_processes(
    processes: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    found = list(in_order(open_work, range(20), processes))
    assert [value for value, _, _ in found] == [n * n for n in range(20)]
    own = {pid for _, pid, _ in found}
    assert (own == {os.getpid()}) == (processes == 1)
    assert len(own) <= processes
    assert max(calls for _, _, calls in found) <= 20
    told = [message for message in caplog.messages if message != "opened"]
    assert sorted(told) == sorted(f"input {n} is {'odd' if n % 2 else 'even'}" for n in range(20))
    assert "loading" not in capfd.readouterr().err


def test_an_input_whose_process_dies_ends_no_batch() -> None:
    found = list(in_order(open_killed, range(12), 2))
    assert [each for each in found if not isinstance(each, WorkerDied)] == [-n for n in range(12) if n != 7]
    assert isinstance(found[7], WorkerDied)


def test_a_process_that_cannot_load_ends_the_batch() -> None:
    with pytest.raises(WorkerDied, match="while it loaded the model"):
        list(in_order(never_opened, range(12), 2))


def test_an_error_is_raised_with_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        list(in_order(open_divide, [1, 2, 0, 4], 2))
    assert "in divide" in raised.value.__notes__[0]


def test_few_inputs_are_taken_ahead() -> None:
    """Inputs may be large, and results wait for an earlier one."""
    taken: list[int] = []

    def inputs() -> Iterator[int]:
        for n in range(1, 1000):
            taken.append(n)
            yield n

    results = in_order(open_divide, inputs(), 2)
    for done in range(1, 20):
        next(results)
        assert len(taken) <= done + AHEAD * 2 + 1
    before = set(multiprocessing.active_children())
    results.close()
    assert set(multiprocessing.active_children()) < before
