"""Decoding graphs on disk: `graph.fst` (OpenFst), `words.txt`, and `graph.json` with a checksum and the key.

A graph is written into a folder of another name that is then renamed, so a killed writer leaves nothing that looks
like a graph; `load_graph` refuses a graph that does not match its checksum, and `ensure_graph` makes it again.

Large graphs are built in a separate process, which a stop signal ends: each step is one call of a library that holds
the interpreter's lock, for minutes with a large language model. Other work may go on meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import kaldifst
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from murmur.core.plain_files import UNREADABLE, refuse_link
from murmur.core.whole_files import alone, atomic_folder
from murmur.execution.messages import library_lines_kept
from murmur.execution.processes import bar_of
from murmur.execution.workers import Worker, WorkerDied, end_workers, in_worker, start_worker, wait_for_reason
from murmur.speech.decoding.graph import DecodingGraph, GraphFacts, GraphOptions, Tell
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.language_model.grammar import Grammar
from murmur.speech.lexicon.lexicon import Lang, write_symbols

_FORMAT = 1
log = logging.getLogger(__name__)


class DamagedGraphError(ValueError):
    """A folder does not hold a complete, unchanged graph."""


def graph_key(
    lang: Lang, grammar: Grammar, transitions: Transitions | None = None, options: GraphOptions | None = None
) -> str:
    """Digest of everything that a graph is made of: lexicon, grammar, tree, transition probabilities and options.

    `transitions` is None for a CTC graph.
    """
    parts: list[Any] = [_FORMAT, lang.to_json(), grammar.digest]
    if transitions is not None:
        parts.append(asdict(options or GraphOptions()))
        parts.append(transitions.log_probs.tolist())
        parts.append([a.tolist() for a in (transitions.phone_of, transitions.state_of, transitions.pdf_of)])
        parts.append(repr(transitions.tree.__getstate__()))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def outputs_key(lang: Lang, transitions: Transitions) -> str:
    """Digest of what the pdfs stand for: phones, states and arcs of the topology, and the tree."""
    ids = (transitions.phone_of, transitions.state_of, transitions.arc_of, transitions.pdf_of)
    parts = [list(lang.phones), lang.num_silence, [a.tolist() for a in ids], repr(transitions.tree.__getstate__())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def save_graph(graph: DecodingGraph, folder: Path, key: str) -> None:
    """Write a graph into `folder`, which is replaced as a whole. Raises OSError if the graph cannot be written."""
    folder = Path(folder)
    refuse_link(folder)
    with atomic_folder(folder) as new:
        write_graph(graph, new, key)


def write_graph(graph: DecodingGraph, folder: Path, key: str) -> None:
    """Write the three files of a graph into an existing folder. Raises OSError if they cannot be written."""
    if not graph.fst.write(str(folder / "graph.fst")):
        raise OSError(f"could not write {folder / 'graph.fst'}: is the disk full?")
    write_symbols({word: label for label, word in enumerate(graph.words)}, folder / "words.txt")
    description = {
        "format": _FORMAT,
        "key": key,
        "sha256": _sha256(folder / "graph.fst"),
        "num_columns": graph.num_columns,
        "columns": graph.columns.tolist(),
        "words": list(graph.words),
        "facts": asdict(graph.facts),
    }
    (folder / "graph.json").write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")


@dataclass(frozen=True)
class StoredGraph:
    """A graph on disk with a verified checksum: processes that share it need not verify it again."""

    folder: Path
    key: str
    num_columns: int
    columns: tuple[int, ...]
    words: tuple[str, ...]
    facts: GraphFacts

    @staticmethod
    def of(folder: Path) -> StoredGraph:
        """Find the graph in `folder`.

        Raises:
            FileNotFoundError: there is no graph in `folder`.
            DamagedGraphError: a file is missing, cut short or changed, or comes from another version of the format.
        """
        path = folder / "graph.json"
        if not path.is_file():
            raise FileNotFoundError(f"no decoding graph in {folder}: build it first (ensure_graph)")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            whole = found["format"] == _FORMAT and found["sha256"] == _sha256(folder / "graph.fst")
            columns, words, count = tuple(found["columns"]), tuple(found["words"]), found["num_columns"]
            if not isinstance(count, int) or not all(isinstance(c, int) and 0 <= c < count for c in columns):
                raise ValueError(f"columns that are not all numbers below {count!r}")
            if not all(isinstance(word, str) for word in words):
                raise ValueError("words that are no texts")
            graph = StoredGraph(folder, str(found["key"]), count, columns, words, GraphFacts(**found["facts"]))
        except (*UNREADABLE, FileNotFoundError) as error:
            raise DamagedGraphError(f"the graph in {folder} is incomplete ({error}): build it again") from error
        if not whole:
            raise DamagedGraphError(f"the graph in {folder} is not what was written there: build it again")
        return graph

    def read(self) -> DecodingGraph:
        """The graph itself."""
        # For a missing or damaged file, the library prints a line on stderr and returns None.
        with library_lines_kept():
            try:
                fst = kaldifst.StdVectorFst.read(str(self.folder / "graph.fst"))
            except (MemoryError, ValueError):
                fst = None  # a number of states that exceeds all memory
            if fst is None:
                raise DamagedGraphError(f"{self.folder / 'graph.fst'} is missing or no OpenFst file: build it again")
        return DecodingGraph(fst, self.words, np.array(self.columns, dtype=np.int32), self.num_columns, self.facts)


def load_graph(folder: Path) -> DecodingGraph:
    """Read a graph after verifying its checksum. Raises as `StoredGraph.of` does."""
    return StoredGraph.of(Path(folder)).read()


def ensure_graph(folder: Path, key: str, build: Callable[[], DecodingGraph]) -> DecodingGraph | None:
    """Make sure that `folder` holds a complete graph with this key; return the graph if it had to be built.

    Of several processes that need the same graph, one builds it and the others wait.
    """
    if graph_is_there(folder, key):
        return None
    with alone(folder):
        if graph_is_there(folder, key):  # built in the meantime
            return None
        log.info("graph %s: building", folder.name)
        graph = build()
        log.info("graph %s: %s", folder.name, graph.facts.told)
        save_graph(graph, folder, key)
        return graph


def graph_is_there(folder: Path, key: str) -> bool:
    """True if a folder holds a complete graph with this key."""
    try:
        return StoredGraph.of(folder).key == key
    except FileNotFoundError:
        return False
    except DamagedGraphError as error:  # left by a killed or failing writer
        log.warning("%s", error)
        return False


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
