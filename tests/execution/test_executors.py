"""Engines: those that there are, workers that do not fit, and the same results from all of them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from murmur.core.errors import user_message
from murmur.execution import processes, tasks
from murmur.execution.executors import Engine, EngineError, ProcessExecutor, engine_of, whole_host
from murmur.execution.processes import in_order, in_processes, ordered
from murmur.execution.stored_arrays import StoredArray, folder_of
from murmur.execution.tasks import Demands, Tools, UnfitWorker, check_process
from murmur.execution.workers import WorkerDied, cores_here
from tests.support.dask_workers import dask_engine, needs_dask

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")
log = logging.getLogger("murmur.tests.engines")
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def dask() -> Iterator[Engine]:
    with dask_engine() as engine:
        yield engine


def open_square() -> Callable[[int], tuple[int, int]]:
    return square


def open_slow_square() -> Callable[[int], tuple[int, int]]:
    def slow_square(given: int) -> tuple[int, int]:
        time.sleep(0.3)  # no worker is done with all before another one begins
        return square(given)

    return slow_square


def square(given: int) -> tuple[int, int]:
    log.warning("input %d", given)
    return given * given, os.getpid()


@pytest.mark.parametrize("name", ["dusk:tcp://host:8786", "dask", "dask:", "ray:auto", "mpi:4", ""])
def test_an_unknown_engine_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(EngineError, match="there are processes, dask:ADDRESS, dask:slurm, mpi") as raised:
        Engine(name)
    assert repr(name) in str(raised.value)
    assert user_message(raised.value) is not None


def test_preparation_uses_all_cores_of_this_host_or_the_engine() -> None:
    elsewhere = Engine("dask:tcp://host:8786")
    assert whole_host(2) == whole_host(Engine(jobs=2)) == cores_here()
    assert whole_host(elsewhere) is elsewhere
    with pytest.raises(ValueError, match="jobs=0"):
        engine_of(0)


def test_a_process_takes_calls_of_tools_alone() -> None:
    with pytest.raises(TypeError, match="takes calls of tools"):
        ProcessExecutor().submit(len, "four")


def open_file(path: Path) -> Callable[[int], str]:
    content = path.read_text()
    return lambda _: content


def test_tools_are_opened_again_when_a_file_has_another_content(tmp_path: Path) -> None:
    """As by a worker that lives longer than one command, whose model was trained again in its folder."""
    file, found = tmp_path / "model", []
    for content in ("old", "new", "new"):
        file.write_text(content)
        call = tasks.Call(Tools.of(partial(open_file, file)), tasks.pickled(0), Demands.of_this_process([file]))
        found.append(call().done)
    assert found == ["old", "new", "new"]


def test_an_executor_that_is_shut_down_takes_no_tasks_and_cancels_those_that_wait() -> None:
    process = ProcessExecutor()
    call = tasks.Call(Tools.of(open_square), tasks.pickled(3))
    cancelled = [process.submit(call) for _ in range(3)]
    assert cancelled[2].cancel()
    assert cancelled[0].result(60).done[0] == 9
    slow = tasks.Call(Tools.of(open_sleep), tasks.pickled(100_000.0))
    under_way, waiting = process.submit(slow), process.submit(call)
    while not under_way.running():
        time.sleep(0.01)
    assert process.waiting == 2
    process.shutdown()
    assert isinstance(under_way.exception(0), WorkerDied)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shut down"):
        process.submit(call)


def open_sleep() -> Callable[[float], None]:
    return time.sleep


def demands(**changes: object) -> Demands:
    return replace(Demands.of_this_process(), **changes)  # type: ignore[arg-type]


def test_a_fitting_process_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_text("weights")
    check_process(Demands.of_this_process([file], 1000))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"murmur": "99.1"}, "has murmur [^ ]+ where the command has 99.1"),
        ({"torch": "1.0"}, "has torch [^ ]+ where the command has 1.0"),
        ({"program": "0123"}, "has murmur of digest [^ ]+ where the command has 0123"),
        ({"folder": "/no/such/folder"}, "does not see /no/such/folder"),
        ({"files": (("/no/such/file", "0"),)}, "has no /no/such/file"),
        ({"files": ((__file__, "0"),)}, "or another one than the command"),
        ({"memory_bytes": 10**18}, "GB of memory left, 1000000000.00 GB are needed"),
    ],
)
def test_a_process_that_does_not_fit_says_so_in_one_line(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UnfitWorker, match=f"^worker .+, process {os.getpid()}, .*{said}") as raised:
        check_process(demands(**changes))
    message = user_message(raised.value)
    assert message is not None
    assert "\n" not in message


def test_a_stored_array_that_is_another_one_is_refused(tmp_path: Path) -> None:
    stored = StoredArray.write(tmp_path / "a.npy", np.arange(4.0))
    assert stored.read().tolist() == [0, 1, 2, 3]
    np.save(stored.path, np.arange(5.0))
    with pytest.raises(UnfitWorker, match="sees another"):
        stored.read()
    Path(stored.path).unlink()
    with pytest.raises(UnfitWorker, match="cannot read"):
        stored.read()


def test_files_of_workers_elsewhere_lie_in_the_engines_folder(tmp_path: Path) -> None:
    with folder_of(Engine("mpi", folder=tmp_path / "cache"), "blocks") as folder:
        assert folder.parent == tmp_path / "cache"
    assert not folder.exists()
    with folder_of(Engine(folder=tmp_path / "cache"), "blocks") as folder:
        assert tmp_path not in folder.parents


class Threads:
    """A pool of threads as the workers of an engine."""

    elsewhere, width = True, 2

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool

    def submit(self, task: tasks.Call) -> Future[object]:
        return self.pool.submit(task)

    def look(self) -> None:
        pass


def test_any_executor_of_the_standard_library_serves(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = list(ordered(Threads(pool), open_square, range(9)))
    assert [value for value, _ in found] == [n * n for n in range(9)]  # type: ignore[misc]
    assert "input 8" in caplog.messages


def test_the_content_of_tools_is_sent_to_a_process_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bool] = []
    submit = ProcessExecutor.submit

    def counted(self: ProcessExecutor, task: tasks.Call) -> object:
        sent.append(task.tools.content is not None)
        return submit(self, task)

    monkeypatch.setattr(ProcessExecutor, "submit", counted)
    assert len(list(in_order(open_square, range(12), 2))) == 12
    assert sum(sent) == 2
    assert Tools.of(open_square) == Tools(Tools.of(open_square).digest, None)


@needs_dask
def test_workers_of_dask_give_the_same_results_in_order(dask: Engine, caplog: pytest.LogCaptureFixture) -> None:
    found = list(in_order(open_square, range(20), dask))
    assert [value for value, _ in found] == [n * n for n in range(20)]  # type: ignore[misc]
    assert len({pid for _, pid in found} - {os.getpid()}) == 2  # type: ignore[misc]
    told = [record.getMessage() for record in caplog.records if record.name == log.name]
    assert sorted(told) == sorted(f"input {n}" for n in range(20))
    assert sorted(in_processes([partial(pow, n, 2) for n in range(5)], dask)) == [0, 1, 4, 9, 16]


@needs_dask
def test_a_worker_of_dask_with_another_program_is_refused(dask: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "program_digest", lambda: "another")
    with pytest.raises(UnfitWorker, match=r"worker .+, process \d+, has murmur of digest .+ where .+ another"):
        list(in_order(open_square, range(4), dask))


@needs_dask
def test_a_worker_of_dask_that_lacks_a_file_is_refused(
    dask: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.json"
    file.write_text("{}")
    given = Demands.of_this_process([file])
    file.unlink()  # for the command it was there
    monkeypatch.setattr(processes, "Demands", type("Given", (), {"of_this_process": staticmethod(lambda *_: given)}))
    with pytest.raises(UnfitWorker, match=r"worker .+, process \d+, has no .+run\.json"):
        list(in_order(open_square, range(4), dask))


def open_kill() -> Callable[[int], int]:
    return kill_at_three


def kill_at_three(given: int) -> int:
    if given == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return given


@needs_dask
def test_an_input_that_ends_every_worker_is_given_up(dask: Engine) -> None:
    found = list(in_order(open_kill, range(6), dask))
    assert isinstance(found[3], WorkerDied)
    assert [found[n] for n in (0, 1, 2, 4, 5)] == [0, 1, 2, 4, 5]


def once(marker: Path, given: int) -> int:
    """Kill the process of the first call with 2."""
    if given == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return -given


def open_once(marker: Path) -> Callable[[int], int]:
    return partial(once, marker)


def test_an_input_whose_process_is_killed_is_done_elsewhere(tmp_path: Path) -> None:
    assert list(in_order(partial(open_once, tmp_path / "killed"), range(6), 2)) == [0, -1, -2, -3, -4, -5]
    assert (tmp_path / "killed").exists()


@needs_dask
def test_workers_of_several_threads_are_refused() -> None:
    with (
        dask_engine(1, threads_per_worker=2) as engine,
        pytest.raises(EngineError, match=r"must have one thread, and .+ has 2"),
    ):
        list(in_order(open_square, range(4), engine))


@needs_dask
def test_a_scheduler_that_is_not_there_is_named() -> None:
    import dask as settings

    with (
        settings.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(EngineError, match=r"--executor dask:tcp://127.0.0.1:9: .*connect"),
    ):
        list(in_order(open_square, range(4), Engine("dask:tcp://127.0.0.1:9")))


MPI_PROGRAM = """
import os, sys
from murmur.execution.executors import Engine
from murmur.execution.processes import in_order
from tests.execution.test_executors import open_slow_square
if __name__ == "__main__":
    found = list(in_order(open_slow_square, range(8), Engine("mpi")))
    print([value for value, _ in found], len({pid for _, pid in found} - {os.getpid()}))
"""


@pytest.mark.skipif(
    find_spec("mpi4py") is None or not MPIEXEC.exists(), reason="needs mpi4py and mpich: pip install 'murmur-asr[mpi]'"
)
@pytest.mark.parametrize(("start", "said"), [(3, "[0, 1, 4, 9, 16, 25, 36, 49] 2"), (1, "mpiexec -n NUMBER python")])
def test_the_processes_of_an_mpi_launch_give_the_same_results(start: int, said: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MPI_PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [MPIEXEC, "-n", str(start), sys.executable, "-m", "mpi4py.futures", program]
    ran = subprocess.run(
        [str(word) for word in command],
        env=environment,
        timeout=200,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert said in ran.stdout + ran.stderr
