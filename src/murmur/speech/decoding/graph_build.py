"""Construction of large decoding graphs in a separate process, which a stop signal ends.

Each step of the construction is one call of a library that holds the interpreter's lock. For the grammar of a large
language model it takes minutes, and until then this process could not handle a signal. Other work may go on meanwhile.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from murmur.execution.processes import bar_of
from murmur.execution.workers import Worker, WorkerDied, end_workers, in_worker, start_worker, wait_for_reason
from murmur.speech.decoding.graph import DecodingGraph, Tell
from murmur.speech.decoding.graph_store import load_graph, write_graph
from murmur.speech.language_model.grammar import Grammar

LARGE_STATES = 20_000  # of a grammar; the steps of smaller ones take less than a second
Build = Callable[..., DecodingGraph]  # called with `tell`, the function that is told each step; must pickle


def build_graph(build: Build, grammar: Grammar, scratch: Path, tell: Tell) -> DecodingGraph:
    """Build the graph of a grammar by `build`; for large grammars in another process, via files in `scratch`.

    A worker process builds all graphs itself: a stop signal ends it anyway.

    Raises:
        Exception: `build` raised it.
        WorkerDied: the other process died.
    """
    if not is_large(grammar) or in_worker():
        return build(tell=tell)
    with building([build], scratch) as results:
        return results[0](tell)


def is_large(grammar: Grammar) -> bool:
    """True if the graph of a grammar takes long."""
    return grammar.fst.num_states >= LARGE_STATES


@contextmanager
def building(builds: Sequence[Build], scratch: Path) -> Iterator[list[Callable[[Tell], DecodingGraph]]]:
    """Build graphs in another process, one after the other, while the block runs.

    Yields:
        Functions that wait for a graph and return it, to be called in this order; they raise the errors of
        `build_graph`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".graph-", dir=scratch) as folder:
        started: list[Worker] = []
        try:
            connection = start_worker(started, _build, builds, Path(folder)).connection
            yield [partial(_receive, connection, number, Path(folder, str(number))) for number in range(len(builds))]
        finally:
            end_workers(started)


def _receive(connection: Connection, number: int, folder: Path, tell: Tell) -> DecodingGraph:
    """Tell the steps of a graph until it is built, then read it; messages of earlier graphs are passed over."""
    answer: object = ()
    try:
        while isinstance(answer, tuple):
            of, answer = connection.recv()
            if isinstance(answer, Exception):
                raise answer
            if of < number:
                answer = ()
            elif isinstance(answer, tuple):
                tell(*answer)
    except (EOFError, ConnectionResetError):
        wait_for_reason()
        raise WorkerDied(
            "the process that built a decoding graph died: out of memory? A smaller language model (murmur lm prune)"
            " needs less"
        ) from None
    return load_graph(folder)


def _build(connection: Connection, builds: Sequence[Build], folder: Path) -> None:
    for number, build in enumerate(builds):
        (folder / str(number)).mkdir()
        try:
            write_graph(build(tell=partial(_send_step, connection, number)), folder / str(number), "")
        except Exception as error:  # raised again in the other process
            error.add_note(traceback.format_exc())
            connection.send((number, error))
            return
        connection.send((number, None))


def _send_step(connection: Connection, number: int, step: str, done: int, steps: int) -> None:
    connection.send((number, (step, done, steps)))


@contextmanager
def graph_bar() -> Iterator[Tell]:
    """Show the steps of one graph as a progress bar on stderr; yields the function that is told them."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with bar_of(*columns) as bar:
        task = bar.add_task("search graph", total=None)
        yield lambda step, done, steps: bar.update(
            task, description=f"search graph: {step}", completed=done, total=steps
        )
        steps = bar.tasks[0].total or 1
        bar.update(task, description="search graph", completed=steps, total=steps)
