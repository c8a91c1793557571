"""Work on data by several processes: started where it is worth it, ended with their parent, with a progress bar."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from murmur.execution.workers import Worker, end_workers, start_worker, wait_for_reason

START_SECONDS = 5.0  # until started processes work: each imports PyTorch
Done = TypeVar("Done")


def in_processes(jobs: Sequence[Callable[[], Done]], processes: int) -> Iterator[Done]:
    """Results of jobs, which must pickle, in any order; up to `processes` processes run them, one runs them here.

    The first jobs are done here: processes are started once what remains would take longer than starting them.

    Raises:
        Exception: the exception of a job; jobs that had not begun are then left undone.
        RuntimeError: a process died.
    """
    began = time.monotonic()
    for number, job in enumerate(jobs):
        left = len(jobs) - number
        elapsed = time.monotonic() - began
        if processes > 1 and left > 1 and number and elapsed / number * left > START_SECONDS:
            yield from (done for _, done in run_in_workers(jobs[number:], processes))
            return
        yield job()


def run_in_workers(jobs: Sequence[Callable[[], Done]], processes: int) -> Iterator[tuple[int, Done]]:
    """The place of each job in `jobs` and what it returns, as they are done, by up to so many processes.

    Raises:
        Exception: what a job raised, with its traceback as a note; jobs under way are then ended.
        RuntimeError: a process died.
    """
    left = iter(enumerate(jobs))
    started: list[Worker] = []
    busy: dict[Connection, int] = {}
    try:
        for place, job in islice(left, processes):
            connection = start_worker(started, _answer).connection
            connection.send(job)
            busy[connection] = place
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                place, done = busy.pop(ready), _receive(ready)
                if (following := next(left, None)) is not None:
                    ready.send(following[1])
                    busy[ready] = following[0]
                yield place, done
    finally:
        end_workers(started)


def _receive(connection: Connection) -> Any:
    try:
        done, error = connection.recv()
    except (EOFError, ConnectionResetError):
        wait_for_reason()
        raise RuntimeError(
            "a working process died: out of memory, or a script that starts work outside of `if __name__ == "
            '"__main__"`? What is whole is kept; run it again, with fewer processes where memory was short'
        ) from None
    if error is not None:
        raise error
    return done


def _answer(connection: Connection) -> None:
    """Body of a process: do jobs until the other end closes."""
    torch.set_num_threads(1)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, Exception | None] = (job(), None)
        except Exception as error:  # the other process raises it
            error.add_note(traceback.format_exc())
            answer = (None, error)
        connection.send(answer)


def with_bar(results: Iterable[Done], what: str, total: int, progress: bool) -> Iterator[Done]:
    """`results`, with a progress bar on stderr where it is wanted and there is anything to do."""
    console = Console(stderr=True)
    yield from track(results, what, total, console=console, disable=not (progress and total))
