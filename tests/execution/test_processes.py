"""Processes that do a part of the work: ended in the middle of a job, errors told, results in order."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from murmur.core.errors import user_message
from murmur.execution import processes
from murmur.execution.processes import AHEAD, in_order, in_processes, run_following, run_in_workers
from murmur.execution.workers import WorkerDied

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


def open_nothing() -> Callable[[int], int]:
    raise ValueError("no such model")


def test_an_error_of_opening_has_the_traceback_of_its_process() -> None:
    with pytest.raises(ValueError, match="no such model") as raised:
        list(in_order(open_nothing, [1, 2], 2))
    assert "in open_nothing" in raised.value.__notes__[0]


def open_noted(path: Path) -> Callable[[int], int]:
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return lambda given: given


def test_tools_are_opened_once_in_each_process(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    assert list(in_order(partial(open_noted, opened), range(8), 2)) == list(range(8))
    processes = opened.read_text().split()
    assert len(set(processes)) == len(processes)


def give_function() -> Callable[[], None]:
    return lambda: None


class Unsendable(Exception):
    def __reduce__(self) -> tuple[Callable[..., object], tuple[object]]:
        return Unsendable, (lambda: None,)


def raise_unsendable() -> None:
    raise Unsendable("a fault with a lock inside")


@pytest.mark.parametrize(("job", "told"), [(give_function, "pickle"), (raise_unsendable, "a lock inside")])
def test_what_cannot_be_sent_back_is_an_error_of_its_job(job: Callable[[], object], told: str) -> None:
    with pytest.raises(Exception, match=told) as raised:
        list(run_in_workers([job], 1))
    assert not isinstance(raised.value, WorkerDied)


def note_and_die(path: Path) -> None:
    with path.open("a") as file:
        file.write("x")
    be_killed()


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_job_is_begun_as_often_as_it_may_be(attempts: int, tmp_path: Path) -> None:
    with pytest.raises(WorkerDied):
        list(run_in_workers([partial(note_and_die, tmp_path / "begun")], 1, attempts))
    assert (tmp_path / "begun").read_text() == "x" * attempts


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
    """One job at first, three after its result: two at a time, by at most two processes."""
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
    assert len(used) <= 2
    assert os.getpid() not in used


def kill_soon() -> int:
    """The process that runs this dies a moment after its result."""
    threading.Timer(0.3, be_killed).start()
    return os.getpid()


def test_a_process_that_dies_while_it_is_idle_is_replaced() -> None:
    jobs, wanted, found = [kill_soon, partial(give, 1)], [0], []
    for name, done in run_following(lambda: wanted.pop() if wanted else None, jobs.__getitem__, 1):
        found.append(done)
        if name == 0:
            time.sleep(1.0)
            wanted.append(1)
    assert found[0] != os.getpid()
    assert found[1:] == [1]


def warn_and_wait(seconds: float) -> None:
    logging.getLogger("job").warning("%g seconds are left", seconds)
    time.sleep(seconds)


def test_a_warning_is_told_while_its_job_runs(caplog: pytest.LogCaptureFixture) -> None:
    before = set(multiprocessing.active_children())  # the pool of another test may run
    results = run_in_workers([partial(give, 1), partial(warn_and_wait, 100_000.0)], 2)
    assert next(results) == (0, 1)

    def hear() -> None:
        with suppress(WorkerDied):
            next(results)

    heard = threading.Thread(target=hear, daemon=True)
    heard.start()
    end = time.monotonic() + 120
    while "100000 seconds are left" not in caplog.text:
        assert time.monotonic() < end
        time.sleep(0.05)
    while heard.is_alive() and time.monotonic() < end:  # a job whose process is killed is tried again
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        heard.join(0.2)
    assert not heard.is_alive()


def slow_jobs() -> list[int]:
    """Jobs for which a process that may start others does so."""
    processes.START_SECONDS = 0.0
    return list(in_processes([partial(give, value) for value in range(4)], 2))


def test_a_worker_runs_its_own_jobs_itself() -> None:
    assert list(run_in_workers([slow_jobs], 1)) == [(0, [0, 1, 2, 3])]


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
