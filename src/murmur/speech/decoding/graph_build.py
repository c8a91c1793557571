"""Construction of large decoding graphs in a separate process, which a stop signal ends.

Each step of the construction is one call of a library that holds the interpreter's lock. For the grammar of a large
language model it takes minutes, and until then this process could not handle a signal.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from murmur.execution.workers import Worker, WorkerDied, end_workers, in_worker, start_worker, wait_for_reason
from murmur.speech.decoding.graph import DecodingGraph
from murmur.speech.decoding.graph_store import load_graph, write_graph
from murmur.speech.language_model.grammar import Grammar

LARGE_STATES = 20_000  # of a grammar; the steps of smaller ones take less than a second


def build_graph(build: Callable[[], DecodingGraph], grammar: Grammar, scratch: Path) -> DecodingGraph:
    """Build the graph of a grammar by `build`, which must pickle; for large grammars in another process, via `scratch`.

    A worker process builds all graphs itself: a stop signal ends it anyway.

    Raises:
        Exception: `build` raised it.
        WorkerDied: the other process died.
    """
    if grammar.fst.num_states < LARGE_STATES or in_worker():
        return build()
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".graph-", dir=scratch) as folder:
        started: list[Worker] = []
        try:
            error = start_worker(started, _build, build, Path(folder)).connection.recv()
        except (EOFError, ConnectionResetError):
            wait_for_reason()
            raise WorkerDied(
                "the process that built a decoding graph died: out of memory? A smaller language model (murmur lm"
                " prune) needs less"
            ) from None
        finally:
            end_workers(started)
        if error is not None:
            raise error
        return load_graph(Path(folder))


def _build(connection: Connection, build: Callable[[], DecodingGraph], folder: Path) -> None:
    try:
        write_graph(build(), folder, "")
    except Exception as error:  # raised again in the other process
        error.add_note(traceback.format_exc())
        connection.send(error)
    else:
        connection.send(None)
