"""Data work in several processes: started when worth it, ended with their parent, with a progress bar."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress, ProgressColumn

from murmur.execution.workers import Worker, WorkerDied, end_workers, in_worker, start_worker, wait_for_reason

START_SECONDS = 5.0  # startup of a process, which imports PyTorch
Done = TypeVar("Done")
Named = TypeVar("Named")


def in_processes(jobs: Sequence[Callable[[], Done]], processes: int) -> Iterator[Done]:
    """Yield the results of picklable jobs, in any order; up to `processes` processes run them; one runs them here.

    The first jobs run in this process. Others are started once the rest would take longer than starting them; in a
    worker, which may start none, all jobs run here.

    Raises:
        Exception: a job raised it; jobs that had not begun are not run.
        WorkerDied: a process died.
    """
    began = time.monotonic()
    for number, job in enumerate(jobs):
        left = len(jobs) - number
        elapsed = time.monotonic() - began
        if processes > 1 and left > 1 and number and elapsed / number * left > START_SECONDS and not in_worker():
            yield from (done for _, done in run_in_workers(jobs[number:], processes))
            return
        yield job()


def run_in_workers(jobs: Sequence[Callable[[], Done]], processes: int) -> Iterator[tuple[int, Done]]:
    """Run picklable jobs in up to `processes` processes; yield (place of the job in `jobs`, its result) as they finish.

    Raises:
        Exception: a job raised it, its traceback is added as a note; jobs under way are ended.
        WorkerDied: a process died.
    """
    places = iter(range(len(jobs)))
    return run_following(lambda: next(places, None), jobs.__getitem__, processes)


def run_following(
    following: Callable[[], Named | None], job_of: Callable[[Named], Callable[[], Done]], processes: int
) -> Iterator[tuple[Named, Done]]:
    """Run jobs whose number is not known before; yield (name of a job, its result) as they finish.

    Args:
        following: function that names the next job; None: there is none now, though there may be one after a result.
            It is called while fewer than `processes` jobs are under way.
        job_of: function that returns the picklable job of a name.
        processes: largest number of processes.

    Raises:
        Exception: a job raised it, its traceback is added as a note; jobs under way are ended.
        WorkerDied: a process died.
    """
    started: list[Worker] = []
    idle: list[Connection] = []
    busy: dict[Connection, Named] = {}
    try:
        while True:
            while len(busy) < processes and (name := following()) is not None:
                connection = idle.pop() if idle else start_worker(started, _answer).connection
                connection.send(job_of(name))
                busy[connection] = name
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                name, done = busy.pop(ready), _receive(ready)
                idle.append(ready)
                yield name, done
    finally:
        end_workers(started)


def _receive(connection: Connection) -> Any:
    try:
        done, error = connection.recv()
    except (EOFError, ConnectionResetError):
        wait_for_reason()
        raise WorkerDied(
            "a worker process died: out of memory, or a script that starts work outside of `if __name__ == "
            '"__main__"`? Finished work is saved; run it again, with fewer processes if memory was short'
        ) from None
    if error is not None:
        raise error
    return done


def _answer(connection: Connection) -> None:
    """Main function of a process: do jobs until the other end closes."""
    torch.set_num_threads(1)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, Exception | None] = (job(), None)
        except Exception as error:  # raised again in the other process
            error.add_note(traceback.format_exc())
            answer = (None, error)
        connection.send(answer)


def with_bar(results: Iterable[Done], what: str, total: int, progress: bool) -> Iterator[Done]:
    """Yield `results`, with a progress bar on stderr if `progress` is set and there is anything to do."""
    with bar_of(disable=not (progress and total)) as bar:
        yield from bar.track(results, total, description=what)


def bar_of(*columns: ProgressColumn, console: Console | None = None, disable: bool = False) -> Progress:
    """A progress bar on stderr, whose time left follows from the last 1,000 steps, however long each takes."""
    console = console or Console(stderr=True)
    return Progress(*columns, console=console, disable=disable, speed_estimate_period=math.inf)
