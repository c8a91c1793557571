"""Data work in several processes: jobs in any order, or results in the order of their inputs.

Memory does not grow with the number of inputs.
"""

from __future__ import annotations

import io
import logging
import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch
from rich.console import Console
from rich.progress import Progress, ProgressColumn

from murmur.execution.messages import KIND
from murmur.execution.workers import Worker, WorkerDied, end_workers, in_worker, start_worker, wait_for_reason

START_SECONDS = 5.0  # startup of a process, which imports PyTorch
AHEAD = 4  # inputs for each process that may be taken before an earlier one is done
LOST_JOB = (
    "a worker process died: out of memory, or a script that starts work outside of `if __name__ == "
    '"__main__"`? Finished work is saved; run it again, with fewer processes if memory was short'
)
LOST_INPUT = "a process died with it, perhaps for want of memory: try it alone, or with fewer --jobs"
LOST_LOADING = "a process died while it loaded the model: out of memory? Use fewer --jobs"
Done = TypeVar("Done")
Named = TypeVar("Named")
Given = TypeVar("Given")


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
    """Run picklable jobs as `run_following` does; yield (place of the job in `jobs`, its result) as they finish."""
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
    pool: _Pool[Named, Callable[[], Done], Done] = _Pool(_caller, LOST_JOB, LOST_JOB)
    pending = deque[Named]()  # names whose processes are starting
    try:
        while True:
            while pool.under_way + len(pending) < processes and (name := following()) is not None:
                pending.append(name)
            pool.grow(pool.under_way + len(pending))
            while pending and pool.send(pending[0], job_of(pending[0])):
                pending.popleft()
            if not pending and not pool.under_way:
                return
            for name, done in pool.received():
                if isinstance(done, WorkerDied):
                    raise done
                yield name, done
    finally:
        end_workers(pool.started)


def _caller() -> Callable[[Callable[[], Done]], Done]:
    return _call


def _call(job: Callable[[], Done]) -> Done:
    return job()


def with_bar(results: Iterable[Done], what: str, total: int, progress: bool) -> Iterator[Done]:
    """Yield `results`, with a progress bar on stderr if `progress` is set and there is anything to do."""
    with bar_of(disable=not (progress and total)) as bar:
        yield from bar.track(results, total, description=what)


def bar_of(*columns: ProgressColumn, console: Console | None = None, disable: bool = False) -> Progress:
    """A progress bar on stderr, whose time left follows from the last 1,000 steps, however long each takes."""
    console = console or Console(stderr=True)
    return Progress(*columns, console=console, disable=disable, speed_estimate_period=math.inf)


def in_order(
    opened: Callable[[], Callable[[Given], Done]], inputs: Iterable[Given], processes: int
) -> Generator[Done | WorkerDied, None, None]:
    """Yield the result of `opened()(each)` for each input, in their order, or WorkerDied for one whose process died.

    Each of the processes calls `opened` once; `opened`, inputs and results must pickle. With one process, all is done
    in this one. Warnings of the processes go to the log of this one.

    Raises:
        Exception: `opened` or its function raised it; the traceback of the process is added as a note.
        WorkerDied: a process died before it took an input.
    """
    if processes == 1:
        yield from map(opened(), inputs)
        return
    pool: _Pool[int, Given, Done] = _Pool(opened, LOST_INPUT, LOST_LOADING)
    waiting: dict[int, Done | WorkerDied] = {}  # results that wait for earlier ones
    numbered = enumerate(inputs)
    following, due = next(numbered, None), 0
    try:
        while following is not None or due in waiting or pool.under_way:
            while following is not None and following[0] < due + AHEAD * processes:
                pool.grow(processes)
                if not pool.send(*following):
                    break
                following = next(numbered, None)
            if due not in waiting:
                waiting.update(pool.received())
            while due in waiting:
                yield waiting.pop(due)
                due += 1
    finally:
        end_workers(pool.started)


@dataclass
class _Pool(Generic[Named, Given, Done]):
    """Processes that each open their tools once, and the names of the inputs under way by connection.

    `lost` tells of a process that dies with an input, `lost_opening` of one that dies before it has opened its tools.
    """

    opened: Callable[[], Callable[[Given], Done]]
    lost: str
    lost_opening: str
    started: list[Worker] = field(default_factory=list)
    busy: dict[Connection, Named | None] = field(default_factory=dict)  # None while a process opens its tools
    idle: list[Connection] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return sum(name is not None for name in self.busy.values())

    def grow(self, processes: int) -> None:
        """Start processes until there are as many."""
        while len(self.busy) + len(self.idle) < processes:
            self.busy[start_worker(self.started, _serve, self.opened).connection] = None

    def send(self, name: Named, given: Given) -> bool:
        """Give an input to an idle process; False if there is none, though one may be starting."""
        while self.idle:
            connection = self.idle.pop()
            try:
                connection.send(given)
            except (BrokenPipeError, ConnectionResetError):
                continue  # it died while it was idle: another one takes its place
            self.busy[connection] = name
            return True
        return False

    def received(self) -> Iterator[tuple[Named, Done | WorkerDied]]:
        """Wait for processes; log their warnings, and yield their results, or the errors of those that died."""
        for ready in wait(list(self.busy)) if self.busy else ():
            assert isinstance(ready, Connection)
            try:
                done, error, warning = ready.recv()
            except (EOFError, ConnectionResetError):
                wait_for_reason()
                if (name := self.busy.pop(ready)) is None:
                    raise WorkerDied(self.lost_opening) from None
                yield name, WorkerDied(self.lost)
                continue
            if warning is not None:
                _log(*warning)
            elif error is not None:
                raise error
            else:
                name = self.busy.pop(ready)
                self.idle.append(ready)
                if name is not None:
                    yield name, done


def _log(name: str, level: int, kind: str, text: str) -> None:
    record = logging.LogRecord(name, level, "", 0, text, None, None)
    setattr(record, KIND, kind)
    logging.getLogger(name).handle(record)


class _Sent(logging.Handler):
    """Sends warnings to the other process as (logger, level, kind, text), which pickle whatever their arguments are."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self.connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        warning = (record.name, record.levelno, str(record.msg), record.getMessage())
        with suppress(BrokenPipeError):  # the other end has closed: this process ends with its next result
            self.connection.send((None, None, warning))

    def send(self, done: Any, error: Exception | None = None) -> None:
        """Send a result or an error, between warnings of other threads."""
        self.acquire()
        try:
            self.connection.send((done, error, None))
        finally:
            self.release()


def _serve(connection: Connection, opened: Callable[[], Callable[[Any], Any]]) -> None:
    """Main function of a process: open the tools, then answer until the other end closes."""
    torch.set_num_threads(1)
    sent = _Sent(connection)
    try:
        with redirect_stderr(io.StringIO()):  # the first process has told the same
            work = opened()
        logging.getLogger().addHandler(sent)
        given = _exchange(sent, None)
        while True:
            given = _exchange(sent, work(given))
    except Exception as error:  # raised again in the other process
        error.add_note(traceback.format_exc())
        sent.send(None, error)


def _exchange(sent: _Sent, done: Any) -> Any:
    """Send a result and return the next input; end this process when the other end closes."""
    try:
        sent.send(done)
        return sent.connection.recv()
    except (EOFError, BrokenPipeError):
        raise SystemExit from None
