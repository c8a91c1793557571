"""Results in the order of their inputs, from processes that each open their tools once.

Memory does not grow with the number of inputs. A process that dies takes one input with it, and is replaced.
"""

from __future__ import annotations

import io
import logging
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

import torch

from murmur.execution.told_once import KIND
from murmur.execution.workers import Worker, WorkerDied, end_workers, start_worker, wait_for_reason

AHEAD = 4  # inputs for each process that may be taken before an earlier one is done
Given = TypeVar("Given")
Done = TypeVar("Done")


def in_order(
    opened: Callable[[], Callable[[Given], Done]], inputs: Iterable[Given], processes: int
) -> Generator[Done | WorkerDied, None, None]:
    """Yield the result of `opened()(each)` for each input, in their order.

    Each of the processes calls `opened` once; `opened`, inputs and results must pickle. With one process, all is done
    in this one. Warnings of the processes go to the log of this one.

    Yields:
        The result, or the error of an input whose process died.

    Raises:
        Exception: `opened` or its function raised it; the traceback of the process is added as a note.
        WorkerDied: a process died before it took an input.
    """
    if processes == 1:
        yield from map(opened(), inputs)
        return
    pool = _Pool(opened, processes)
    try:
        yield from pool.results(iter(inputs))
    finally:
        end_workers(pool.started)


@dataclass
class _Pool(Generic[Given, Done]):
    """Processes, the inputs under way by connection, and the results that wait for earlier ones."""

    opened: Callable[[], Callable[[Given], Done]]
    processes: int
    started: list[Worker] = field(default_factory=list)
    busy: dict[Connection, int | None] = field(default_factory=dict)  # None while a process opens its tools
    idle: list[Connection] = field(default_factory=list)
    waiting: dict[int, Done | WorkerDied] = field(default_factory=dict)

    def results(self, inputs: Iterator[Given]) -> Iterator[Done | WorkerDied]:
        """Yield the results in the order of the inputs."""
        numbered = enumerate(inputs)
        following = next(numbered, None)
        due = 0
        while following is not None or due in self.waiting or self._under_way:
            while following is not None and following[0] < due + AHEAD * self.processes and self._send(*following):
                following = next(numbered, None)
            if due not in self.waiting:
                for ready in wait(list(self.busy)):
                    assert isinstance(ready, Connection)
                    self._take(ready)
            while due in self.waiting:
                yield self.waiting.pop(due)
                due += 1

    @property
    def _under_way(self) -> bool:
        return any(number is not None for number in self.busy.values())

    def _send(self, number: int, given: Given) -> bool:
        """Give an input to an idle process; False if there is none, though one may be starting."""
        if not self.idle:
            while len(self.busy) < self.processes:
                self.busy[start_worker(self.started, _serve, self.opened).connection] = None
            return False
        connection = self.idle.pop()
        try:
            connection.send(given)
        except (BrokenPipeError, ConnectionResetError):
            return False  # it died while it was idle: another one takes its place
        self.busy[connection] = number
        return True

    def _take(self, connection: Connection) -> None:
        """Take what a process has sent, or replace it by its error."""
        number = self.busy.pop(connection)
        try:
            done, error, records = connection.recv()
        except (EOFError, ConnectionResetError):
            wait_for_reason()
            died = WorkerDied("a process died with it, perhaps for want of memory: try it alone, or with fewer --jobs")
            if number is None:
                raise WorkerDied("a process died while it loaded the model: out of memory? Use fewer --jobs") from None
            self.waiting[number] = died
            return
        for name, level, kind, text in records:
            record = logging.LogRecord(name, level, "", 0, text, None, None)
            setattr(record, KIND, kind)
            logging.getLogger(name).handle(record)
        if error is not None:
            raise error
        self.idle.append(connection)
        if number is not None:
            self.waiting[number] = done


class _Kept(logging.Handler):
    """Keeps warnings as (logger, level, kind, text), which pickle whatever their arguments are."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[tuple[str, int, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append((record.name, record.levelno, str(record.msg), record.getMessage()))

    def taken(self) -> list[tuple[str, int, str, str]]:
        """Return the records kept since the last call."""
        taken, self.records = self.records, []
        return taken


def _serve(connection: Connection, opened: Callable[[], Callable[[Any], Any]]) -> None:
    """Main function of a process: open the tools, then answer until the other end closes."""
    torch.set_num_threads(1)
    kept = _Kept()
    logging.getLogger().addHandler(kept)
    try:
        with redirect_stderr(io.StringIO()):  # the first process has told the same
            work = opened()
        kept.taken()
        connection.send((None, None, []))
        while True:
            given = connection.recv()
            connection.send((work(given), None, kept.taken()))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:  # raised again in the other process
        error.add_note(traceback.format_exc())
        connection.send((None, error, kept.taken()))
