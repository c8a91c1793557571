"""Decoding graphs on disk: `graph.fst` (OpenFst), `words.txt`, and `graph.json` with a checksum and the key.

A graph is written into a folder of another name that is then renamed, so a killed writer leaves nothing that could be
taken for a graph; what does not match its checksum is refused by `load_graph` and made anew by `cached_graph`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kaldifst
import numpy as np

from murmur.speech.grammar import Grammar
from murmur.speech.graph import DecodingGraph, GraphFacts, GraphOptions
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.lexicon import Lang, write_symbols

_FORMAT = 1


class DamagedGraphError(ValueError):
    """A folder does not hold a complete, unchanged graph."""


def graph_key(
    lang: Lang, grammar: Grammar, transitions: Transitions | None = None, options: GraphOptions | None = None
) -> str:
    """Digest of all that a graph is made of: lexicon, grammar, tree, transition probabilities and options.

    `transitions` is None for a CTC graph.
    """
    parts: list[Any] = [_FORMAT, lang.to_json(), grammar.digest]
    if transitions is not None:
        parts.append(asdict(options or GraphOptions()))
        parts.append(transitions.log_probs.tolist())
        parts.append([a.tolist() for a in (transitions.phone_of, transitions.state_of, transitions.pdf_of)])
        parts.append(repr(transitions.tree.__getstate__()))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def save_graph(graph: DecodingGraph, folder: Path, key: str) -> None:
    """Write a graph into `folder`, which is replaced as a whole. Raises OSError where the graph cannot be written."""
    folder = Path(folder)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if not graph.fst.write(str(partial / "graph.fst")):
        raise OSError(f"could not write {partial / 'graph.fst'}: is the disk full?")
    write_symbols({word: label for label, word in enumerate(graph.words)}, partial / "words.txt")
    description = {
        "format": _FORMAT,
        "key": key,
        "sha256": _sha256(partial / "graph.fst"),
        "num_columns": graph.num_columns,
        "columns": graph.columns.tolist(),
        "words": list(graph.words),
        "facts": asdict(graph.facts),
    }
    (partial / "graph.json").write_text(json.dumps(description, ensure_ascii=False), encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)


def load_graph(folder: Path) -> DecodingGraph:
    """Read a graph after comparing its checksum.

    Raises:
        FileNotFoundError: there is no graph in `folder`.
        DamagedGraphError: a file is missing, cut short or changed, or comes from another version of the format.
    """
    return read_graph(Path(folder), _described(Path(folder)))


def read_graph(folder: Path, description: Mapping[str, Any]) -> DecodingGraph:
    """The graph of a folder whose description was read and checked before (as each decoding process does)."""
    # The library answers a missing file with a line on stderr and None.
    fst = kaldifst.StdVectorFst.read(str(folder / "graph.fst"))
    if fst is None:
        raise DamagedGraphError(f"{folder / 'graph.fst'} is missing or no OpenFst file: delete the folder and rebuild")
    return DecodingGraph(
        fst,
        tuple(description["words"]),
        np.array(description["columns"], dtype=np.int32),
        int(description["num_columns"]),
        GraphFacts(**description["facts"]),
    )


def cached_graph(folder: Path, key: str, build: Callable[[], DecodingGraph]) -> DecodingGraph:
    """The graph in `folder` if it is whole and was made with the same key; else build it and store it there."""
    folder = Path(folder)
    try:
        description = _described(folder)
    except (FileNotFoundError, DamagedGraphError):
        description = None
    if description is not None and description["key"] == key:
        return read_graph(folder, description)
    graph = build()
    save_graph(graph, folder, key)
    return graph


def _described(folder: Path) -> dict[str, Any]:
    path = folder / "graph.json"
    if not path.is_file():
        raise FileNotFoundError(f"no decoding graph in {folder}: build it first (save_graph or cached_graph)")
    try:
        description: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fitting = description["format"] == _FORMAT and description["sha256"] == _sha256(folder / "graph.fst")
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise DamagedGraphError(
            f"the graph in {folder} is incomplete ({error}): delete the folder and rebuild"
        ) from error
    if not fitting:
        raise DamagedGraphError(f"the graph in {folder} is not what was written there: delete the folder and rebuild")
    return description


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
