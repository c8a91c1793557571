"""Work on data by several processes: started where it is worth it, ended with their parent, with a progress bar."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import track

from murmur.speech.orphans import end_with_parent

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
            yield from _in_pool(jobs[number:], processes)
            return
        yield job()


def _in_pool(jobs: Sequence[Callable[[], Done]], processes: int) -> Iterator[Done]:
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=begin_worker)
    try:
        for done in as_completed([pool.submit(job) for job in jobs]):
            yield done.result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a preparing process died: out of memory, or a script that starts work outside of `if __name__ == "
            '"__main__"`? What is whole is kept; run it again, with fewer processes where memory was short'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)  # after a mistake or Ctrl-C nothing more is begun


def with_bar(results: Iterable[Done], what: str, total: int, progress: bool) -> Iterator[Done]:
    """`results`, with a progress bar on stderr where it is wanted and there is anything to do."""
    console = Console(stderr=True)
    yield from track(results, what, total, console=console, disable=not (progress and total))


def begin_worker() -> None:
    """Sets up a worker process: one thread, Ctrl-C left to its parent, and an end together with the parent."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
