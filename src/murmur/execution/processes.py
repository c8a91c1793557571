"""Data work in the processes of an engine: jobs in any order, or results in the order of their inputs.

Memory does not grow with the number of inputs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.progress import Progress, ProgressColumn

from murmur.execution.executors import DiedOpening, Jobs, WorkerPool, engine_of
from murmur.execution.tasks import Call, Demands, Tools, pickled, tell_again
from murmur.execution.workers import WorkerDied, in_worker

START_SECONDS = 5.0  # startup of a process, which imports PyTorch
AHEAD = 4  # inputs for each process that may be taken before an earlier one is done
ATTEMPTS = 3  # with an input whose processes die
LOOK_SECONDS = 1.0  # between two looks for workers that are gone
SPARE_TIMES = 2  # memory for the tools of a task, as a multiple of their pickled size
LOST_JOB = (
    "a worker process died: out of memory, or a script that starts work outside of `if __name__ == "
    '"__main__"`? Finished work is saved; run it again, with fewer processes if memory was short'
)
LOST_INPUT = "a process died with it, three times, perhaps for want of memory: try it alone, or with fewer --jobs"
LOST_LOADING = "a process died while it loaded the model: out of memory? Use fewer --jobs"
Done = TypeVar("Done")
Named = TypeVar("Named")
Given = TypeVar("Given")


def in_processes(jobs: Sequence[Callable[[], Done]], processes: Jobs) -> Iterator[Done]:
    """Yield the results of picklable jobs, in any order; up to `processes` processes run them; one runs them here.

    The first jobs run in this process. Others are started once the rest would take longer than starting them; in a
    worker, which may start none, all jobs run here. An engine elsewhere gets all jobs.

    Raises:
        Exception: a job raised it; jobs that had not begun are not run.
        WorkerDied: a process died with a job, three times.
    """
    engine = engine_of(processes)
    began = time.monotonic()
    for number, job in enumerate(jobs):
        left = len(jobs) - number
        elapsed = time.monotonic() - began
        slow = engine.count > 1 and left > 1 and number and elapsed / number * left > START_SECONDS
        if (slow or not engine.is_here) and not in_worker():
            yield from (done for _, done in run_in_workers(jobs[number:], processes, ATTEMPTS))
            return
        yield job()


def run_in_workers(
    jobs: Sequence[Callable[[], Done]], processes: Jobs, attempts: int = 1
) -> Iterator[tuple[int, Done]]:
    """Run picklable jobs as `run_following` does; yield (place of the job in `jobs`, its result) as they finish."""
    places = iter(range(len(jobs)))
    return run_following(lambda: next(places, None), jobs.__getitem__, processes, attempts)


def run_following(
    following: Callable[[], Named | None],
    job_of: Callable[[Named], Callable[[], Done]],
    processes: Jobs,
    attempts: int = 1,
) -> Iterator[tuple[Named, Done]]:
    """Run jobs whose number is not known before; yield (name of a job, its result) as they finish.

    Args:
        following: function that names the next job; None: there is none now, though there may be one after a result.
            It is called while fewer jobs are under way than there are processes.
        job_of: function that returns the picklable job of a name.
        processes: largest number of processes, or an engine.
        attempts: number of processes that may die with a job; more than one for jobs that can be repeated.

    Raises:
        Exception: a job raised it, its traceback is added as a note; jobs under way are ended.
        WorkerDied: so many processes died with a job.
    """
    with engine_of(processes).open() as pool, _calls_of(pool, _caller) as calls:
        calls.attempts, calls.lost_opening = attempts, LOST_JOB
        while True:
            while len(calls.under_way) < pool.width and (name := following()) is not None:
                calls.send(name, job_of(name))
            if not calls.under_way:
                return
            for name, done in calls.received():
                if isinstance(done, WorkerDied):
                    raise WorkerDied(f"{LOST_JOB} (job {name})") from done
                yield name, done


def _caller() -> Callable[[Callable[[], Done]], Done]:
    return _call


def _call(job: Callable[[], Done]) -> Done:
    return job()


def with_bar(results: Iterable[Done], what: str, total: int, progress: bool) -> Iterator[Done]:
    """Yield `results`, with a progress bar on stderr if `progress` is set and there is anything to do."""
    with bar_of(disable=not (progress and total)) as bar:
        yield from bar.track(results, total, description=what)


def bar_of(
    *columns: ProgressColumn, console: Console | None = None, disable: bool = False, transient: bool = False
) -> Progress:
    """A progress bar on stderr, whose time left follows from the last 1,000 steps, however long each takes."""
    console = console or Console(stderr=True)
    return Progress(*columns, console=console, disable=disable, speed_estimate_period=math.inf, transient=transient)


def in_order(
    opened: Callable[[], Callable[[Given], Done]], inputs: Iterable[Given], processes: Jobs, files: Sequence[Path] = ()
) -> Generator[Done | WorkerDied, None, None]:
    """Yield the result of `opened()(each)` for each input, in their order, or WorkerDied for one that ends processes.

    Each of the processes calls `opened` once; `opened`, inputs and results must pickle. With one process, all is done
    in this one. Warnings of the processes go to the log of this one. Processes elsewhere must see the same `files`.

    Raises:
        Exception: `opened` or its function raised it; the traceback of the process is added as a note.
        WorkerDied: a process died before it took an input.
    """
    engine = engine_of(processes)
    if engine.is_this_process:
        yield from map(opened(), inputs)
        return
    with engine.open() as pool, closing(ordered(pool, opened, inputs, files)) as results:
        yield from results


def ordered(
    pool: WorkerPool,
    opened: Callable[[], Callable[[Given], Done]],
    inputs: Iterable[Given],
    files: Sequence[Path] = (),
    memory_bytes: int = 0,
) -> Generator[Done | WorkerDied, None, None]:
    """Yield results as `in_order` does, by workers that are there already.

    `memory_bytes` is the memory that a task needs beside its tools.
    """
    numbered = enumerate(inputs)
    following = next(numbered, None)
    early: dict[int, Done | WorkerDied] = {}  # results that wait for earlier ones
    due = 0
    with _calls_of(pool, opened, files, memory_bytes) as calls:
        while following or calls.under_way:
            while following and following[0] < due + AHEAD * pool.width and len(calls.under_way) < pool.width:
                calls.send(*following)
                following = next(numbered, None)
            early.update(calls.received())
            while due in early:
                yield early.pop(due)
                due += 1


@dataclass
class _Given(Generic[Named]):
    """An input under way: its name, its content, and how many workers died with it."""

    name: Named
    content: bytes
    deaths: int = 0


@dataclass
class _Calls(Generic[Named, Given, Done]):
    """Inputs under way by the future of their result."""

    pool: WorkerPool
    tools: Tools
    demands: Demands | None
    attempts: int = ATTEMPTS
    lost_opening: str = LOST_LOADING
    under_way: dict[Future[Any], _Given[Named]] = field(default_factory=dict)

    def send(self, name: Named, given: Given) -> None:
        self._submit(_Given(name, pickled(given)))

    def _submit(self, given: _Given[Named], whole: bool = False) -> None:
        """Give an input out; the content of the tools goes along only to a worker that has asked for it."""
        tools = self.tools if whole else replace(self.tools, content=None)
        self.under_way[self.pool.submit(Call(tools, given.content, self.demands))] = given

    def received(self) -> Iterator[tuple[Named, Done | WorkerDied]]:
        """Wait for results; yield them with their names, or WorkerDied for an input that ends every process."""
        while not (done := wait(self.under_way, LOOK_SECONDS, FIRST_COMPLETED).done):
            self.pool.look()
        for future in done:
            given = self.under_way.pop(future)
            try:
                answer = future.result()
            except WorkerDied as death:
                given.deaths += 1
                if given.deaths < self.attempts:
                    self._submit(given)
                elif isinstance(death, DiedOpening):
                    raise WorkerDied(self.lost_opening) from death
                else:
                    yield given.name, WorkerDied(LOST_INPUT)
            else:
                for warning in answer.warnings:
                    tell_again(*warning)
                if answer.lacks_tools:
                    self._submit(given, whole=True)
                else:
                    yield given.name, answer.done


@contextmanager
def _calls_of(
    pool: WorkerPool, opened: Callable[[], Callable[[Any], Any]], files: Sequence[Path] = (), memory_bytes: int = 0
) -> Iterator[_Calls[Any, Any, Any]]:
    """Context with the calls of one kind; those that have not begun at its end are cancelled."""
    tools, demands = Tools.of(opened), None
    if pool.elsewhere:
        assert tools.content is not None
        demands = Demands.of_this_process(files, memory_bytes + SPARE_TIMES * len(tools.content))
    calls: _Calls[Any, Any, Any] = _Calls(pool, tools, demands)
    try:
        yield calls
    finally:
        for future in calls.under_way:
            future.cancel()
