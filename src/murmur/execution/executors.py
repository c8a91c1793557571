"""Places where tasks run, each an Executor of `concurrent.futures`: processes of this host, Dask, MPI.

An `Engine` names one; `--executor` of the commands, `task.executor` of an experiment. Which worker runs a task has no
influence on results: those that are summed are taken in the order of their inputs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol

import torch

from murmur.execution.tasks import Call, Told, tell_again, told
from murmur.execution.workers import Worker, WorkerDied, cores_here, end_workers, start_worker, wait_for_reason

log = logging.getLogger(__name__)
HERE = "processes"
KNOWN = (HERE, "dask:ADDRESS", "dask:slurm", "mpi")
WAIT_SECONDS = 300.0  # for a worker of a Dask scheduler


class EngineError(ValueError):
    """An engine that is unknown, not installed, or not there; a command shows no traceback."""

    of_user = True


class DiedOpening(WorkerDied):
    """A worker process has ended while it opened the tools of a task."""


class WorkerPool(Protocol):
    """The workers of an engine while it is open. A worker should have one task at a time.

    Attributes:
        elsewhere: True if workers may be on other hosts and live longer than the work.
        width: number of workers at present.
    """

    elsewhere: bool

    @property
    def width(self) -> int: ...

    def submit(self, task: Call) -> Future[Any]:
        """Give a task to a free worker. The error of a task whose worker dies is WorkerDied."""

    def look(self) -> None:
        """Find workers that are gone; called about once a second while results are awaited."""


@dataclass(frozen=True)
class Engine:
    """The place where the tasks of a command run.

    Attributes:
        name: processes, dask:ADDRESS of a scheduler, dask:slurm, or mpi.
        jobs: number of processes here, or of Slurm jobs; other engines have the workers that they have. None: that of
            the experiment, or 1.
        folder: folder that all workers see, for files of the work; None for the system's temporary folder, or the
            working folder if workers may be on other hosts.
        progress: show a bar of the blocks of a pass, on a terminal.

    Raises:
        EngineError: no such engine is known.
        ValueError: `jobs` < 1.
    """

    name: str = HERE
    jobs: int | None = None
    folder: Path | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        kind, _, address = self.name.partition(":")
        if self.name not in (HERE, "mpi") and not (kind == "dask" and address):
            raise EngineError(f"there is no executor {self.name!r}; there are {', '.join(KNOWN)}")
        if self.count < 1:
            raise ValueError(f"jobs={self.jobs}: at least one process must work")

    @property
    def count(self) -> int:
        """Number of processes or Slurm jobs."""
        return 1 if self.jobs is None else self.jobs

    @property
    def is_this_process(self) -> bool:
        """True if tasks run in this process itself."""
        return self.name == HERE and self.count == 1

    @property
    def is_here(self) -> bool:
        """True if tasks run on this host."""
        return self.name == HERE

    @contextmanager
    def open(self) -> Iterator[WorkerPool]:
        """Context with the workers: new processes, which end with it, or those of the engine, which stay.

        Raises:
            EngineError: a library is missing, or no worker is there.
        """
        if not self.is_here:
            yield connected(self.name, self.count)
            return
        here = _Processes(self.count)
        try:
            yield here
        finally:
            here.end()


@cache
def connected(name: str, jobs: int) -> WorkerPool:
    """The workers of an engine elsewhere; they stay connected, and jobs that it has started end with this process."""
    return _Mpi() if name == "mpi" else _Dask(name.partition(":")[2], jobs)


Jobs = int | Engine  # number of processes of this host, or an engine


def engine_of(jobs: Jobs) -> Engine:
    return jobs if isinstance(jobs, Engine) else Engine(jobs=jobs)


def whole_host(jobs: Jobs) -> Jobs:
    """The engine for work that uses all cores: the same if its workers are elsewhere, else a process per core."""
    return cores_here() if engine_of(jobs).is_here else jobs


class ProcessExecutor(Executor):
    """Runs tasks one after the other in one process, started for the first of them and again after its death.

    A task whose process dies has the error WorkerDied. Warnings of the log are told while a task runs.
    """

    def __init__(self) -> None:
        self.waiting = 0  # tasks without result
        self._queue = SimpleQueue[tuple[Future[Any], Call] | None]()
        self._started: list[Worker] = []
        self._thread: Thread | None = None
        self._closed, self._changing = False, Lock()

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Give a `Call` to the process."""
        if not isinstance(task, Call) or args or kwargs:
            raise TypeError(f"{task!r} with {len(args) + len(kwargs)} arguments: this executor takes calls of tools")
        future = Future[Any]()
        with self._changing:
            if self._closed:
                raise RuntimeError("the executor is shut down")
            self.waiting += 1
            self._queue.put((future, task))
            if self._thread is None:
                self._thread = Thread(target=self._run, daemon=True)
                self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """End the process at once, even in the middle of a task; tasks that have not begun are cancelled."""
        with self._changing:
            self._closed = True
        for worker in self._started:
            worker.process.kill()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        end_workers(self._started)

    def _run(self) -> None:
        connection: Connection | None = None
        while (item := self._queue.get()) is not None:
            future, task = item
            if self._closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                self.waiting -= 1
                continue
            error: BaseException | None = None
            answer: Any = None
            try:
                connection = self._sent(connection, task)
                answer = _received(connection)
            except WorkerDied as death:
                connection, error = None, death
                if not self._closed:
                    wait_for_reason()
            except Exception as raised:  # the task's own
                error = raised
            self.waiting -= 1
            future.set_exception(error) if error is not None else future.set_result(answer)

    def _sent(self, connection: Connection | None, task: Call) -> Connection:
        """Send a task to the process; to a new one if there is none, or if it died while it was idle."""
        for _ in range(2):
            connection = connection or start_worker(self._started, _serve).connection
            if self._closed:
                break
            try:
                connection.send(task)
            except (BrokenPipeError, ConnectionResetError):
                connection = None
            else:
                return connection
        raise DiedOpening


def _received(connection: Connection) -> Any:
    """The answer of the process; its warnings are given to the log meanwhile."""
    death: type[WorkerDied] = DiedOpening
    while True:
        try:
            answer, error, warning = connection.recv()
        except (EOFError, OSError) as end:
            raise death from end
        if warning is not None:
            tell_again(*warning)
        elif error is not None:
            raise error
        elif answer is None:
            death = WorkerDied  # the tools are open
        else:
            return answer


class _Sent(logging.Handler):
    """Sends warnings to the process of the command, between answers."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self.connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        self.send(warning=told(record))

    def send(self, answer: Any = None, error: Exception | None = None, warning: Told | None = None) -> None:
        self.acquire()
        try:
            self.connection.send((answer, error, warning))
        except BrokenPipeError:
            raise SystemExit from None  # the process of the command has ended the work
        finally:
            self.release()


def _serve(connection: Connection) -> None:
    """Main function of a process: run tasks until the other end closes."""
    torch.set_num_threads(1)
    sent, root = _Sent(connection), logging.getLogger()
    while True:
        try:
            task: Call = connection.recv()
        except EOFError:
            return
        root.removeHandler(sent)  # while tools are opened: the process of the command has told the same
        try:
            task.open()
            sent.send()
            root.addHandler(sent)
            sent.send(task())
        except Exception as error:
            try:
                sent.send(error=error)
            except Exception:  # neither the answer nor its error can be pickled
                sent.send(error=RuntimeError(f"{type(error).__name__}: {error}"))


class _Processes:
    """Processes of this host."""

    elsewhere = False

    def __init__(self, jobs: int) -> None:
        self._each = [ProcessExecutor() for _ in range(jobs)]
        self.width = jobs

    def submit(self, task: Call) -> Future[Any]:
        return min(self._each, key=lambda each: each.waiting).submit(task)

    def look(self) -> None:
        pass  # each process is watched by its thread

    def end(self) -> None:
        for process in self._each:
            process.shutdown()


class _Dask:
    """Workers of a Dask scheduler: one that runs already, or one that starts its workers by Slurm.

    Each task is for one worker, and given to another one here: Dask would count the death of a worker against all
    tasks that it had been given.
    """

    elsewhere = True

    def __init__(self, address: str, jobs: int) -> None:
        distributed = _library("distributed", "cluster")
        self._lost = (distributed.scheduler.KilledWorker, CancelledError)
        self._held: dict[Future[Any], tuple[str, Future[Any]]] = {}  # the worker and Dask's future of each of ours
        self._address = address
        try:
            self._client = distributed.Client(_slurm(jobs) if address == "slurm" else address)
        except (OSError, ValueError) as error:
            raise EngineError(f"--executor dask:{address}: {error}") from error
        threads = {place: w["nthreads"] for place, w in self._present().items() if w["nthreads"] != 1}
        if threads:
            self._client.close()
            raise EngineError(
                "each worker must have one thread, and {} has {}: start them with --nthreads 1 --nworkers"
                " NUMBER".format(*next(iter(threads.items())))
            )

    def _scheduler_workers(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return found

    def _present(self) -> dict[str, Any]:
        """Workers by address; waits for the first if there is none, as while lost ones start again."""
        if found := self._scheduler_workers():
            return found
        log.warning("waiting for a worker of dask:%s", self._address)
        try:
            self._client.wait_for_workers(1, timeout=None if self._address == "slurm" else WAIT_SECONDS)
        except TimeoutError as error:
            raise EngineError(f"--executor dask:{self._address}: no worker came in {WAIT_SECONDS:g} s") from error
        return self._scheduler_workers()

    @property
    def width(self) -> int:
        return max(1, len(self._scheduler_workers()))

    def submit(self, task: Call) -> Future[Any]:
        workers = sorted(self._present())
        tasks = Counter(place for place, _ in list(self._held.values()))  # Dask's thread removes some
        place = min(workers, key=lambda each: tasks[each])
        ours: Future[Any] = Future()
        theirs = self._client.get_executor(pure=False, workers=[place]).submit(task)
        self._held[ours] = place, theirs
        ours.add_done_callback(self._cancel)  # without a reference to theirs: workers keep results that are referred to
        theirs.add_done_callback(partial(self._settle, ours))
        return ours

    def _cancel(self, ours: Future[Any]) -> None:
        if ours.cancelled() and (held := self._held.pop(ours, None)):
            held[1].cancel()

    def _settle(self, ours: Future[Any], theirs: Future[Any]) -> None:
        self._held.pop(ours, None)
        error = CancelledError() if theirs.cancelled() else theirs.exception()
        with suppress(InvalidStateError):  # its worker was gone before
            if error is None:
                ours.set_result(theirs.result())
            else:
                ours.set_exception(WorkerDied() if isinstance(error, self._lost) else error)

    def look(self) -> None:
        there = self._scheduler_workers()
        for ours, (place, theirs) in list(self._held.items()):
            if place not in there:
                with suppress(InvalidStateError):
                    ours.set_exception(WorkerDied())
                theirs.cancel()


def _slurm(jobs: int) -> Any:
    """A cluster of `jobs` Slurm jobs, with the settings of Dask's own configuration (jobqueue.slurm)."""
    cluster = _library("dask_jobqueue", "cluster").SLURMCluster(cores=1, processes=1)
    cluster.scale(jobs=jobs)
    return cluster


class _Mpi:
    """The other processes of an MPI launch. The loss of one ends them all."""

    elsewhere = True

    def __init__(self) -> None:
        try:
            world = _library("mpi4py.MPI", "mpi").COMM_WORLD
        except RuntimeError as error:
            raise EngineError(f"--executor mpi: {error}") from error
        if world.size < 2 or world.rank != 0:
            raise EngineError(
                "--executor mpi: start the command as mpiexec -n NUMBER python -m mpi4py.futures -m murmur ...; one of"
                " the processes gives the work to the others"
            )
        self._executor: Executor = _library("mpi4py.futures", "mpi").MPIPoolExecutor()
        self.width = world.size - 1

    def submit(self, task: Call) -> Future[Any]:
        return self._executor.submit(task)

    def look(self) -> None:
        pass  # MPI ends the launch


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise EngineError(f"{error.name} is not installed: pip install 'murmur-asr[{extra}]'") from error
