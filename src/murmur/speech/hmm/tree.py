"""Decision trees that tie the states of phones in context to pdfs (leaves), and their form in the library.

A tree has one root per (phone, pdf class). An inner node asks whether the phone at a position of the context window
(0 = left neighbour, 1 = the phone itself, 2 = right neighbour for triphones) is in a set. Phone 0 stands for "outside
the utterance". Young, Odell and Woodland, "Tree-based state tying for high accuracy acoustic modelling" (1994).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import kaldi_hmm_gmm as khg
import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.topology import num_states
from murmur.speech.lexicon.lexicon import Lang

IntArray = NDArray[np.int32]


class Question(NamedTuple):
    """An inner node: go to node `then` if the phone at `position` is in `members`, else to node `otherwise`."""

    position: int
    members: tuple[int, ...]
    then: int
    otherwise: int


class Leaf(NamedTuple):
    """An end node: the pdf of all contexts that reach it."""

    pdf: int


@dataclass(frozen=True)
class Tree:
    """State tying for windows of `width` phones, of which the phone at position `centre` is modelled.

    Attributes:
        width: number of phones in a window: 1 for monophones, 3 for triphones.
        centre: position of the modelled phone in the window.
        nodes: all nodes; roots and questions refer to them by index.
        roots: the root node of each (phone, pdf class).

    Raises:
        ValueError: the pdfs of the leaves are not 0 ... n - 1, or a root or question names a node that does not exist,
            or one of its own ancestors.
    """

    width: int
    centre: int
    nodes: tuple[Question | Leaf, ...]
    roots: Mapping[tuple[int, int], int]

    def __post_init__(self) -> None:
        pdfs = {node.pdf for node in self.nodes if isinstance(node, Leaf)}
        if pdfs != set(range(len(pdfs))):
            raise ValueError(f"the leaves must carry the pdfs 0 ... {len(pdfs) - 1}, got {sorted(pdfs)[:20]}")
        if not 0 <= self.centre < self.width:
            raise ValueError(f"phone {self.centre} of a window of {self.width} cannot be in its centre")
        asked = {n: node for n, node in enumerate(self.nodes) if isinstance(node, Question)}
        outside = [n for n, node in asked.items() if not 0 <= node.position < self.width]
        if outside:
            raise ValueError(f"node {outside[0]} asks for a phone outside of the window of {self.width}")
        branches = {n: (node.then, node.otherwise) for n, node in asked.items()}
        if not set(self.roots.values()).union(*branches.values()) <= set(range(len(self.nodes))):
            raise ValueError("a root or a branch leads nowhere: the tree has no such node")
        try:
            TopologicalSorter(branches).prepare()
        except CycleError as error:
            raise ValueError(f"the branches of nodes {error.args[1]} lead back to them") from error

    @cached_property
    def num_pdfs(self) -> int:
        """The number of pdfs of the leaves."""
        return len({node.pdf for node in self.nodes if isinstance(node, Leaf)})

    def pdf(self, window: Sequence[int], pdf_class: int) -> int:
        """The pdf of a state of the phone in the centre of `window`.

        Raises:
            KeyError: the tree has no root for this phone and pdf class.
        """
        node = self.nodes[self.roots[window[self.centre], pdf_class]]
        while isinstance(node, Question):
            node = self.nodes[node.then if window[node.position] in node.members else node.otherwise]
        return node.pdf

    def pdfs_of(self, windows_N4: IntArray) -> IntArray:
        """(N,) the pdfs of rows of left neighbour, phone, right neighbour and pdf class."""
        windows, inverse = np.unique(windows_N4, axis=0, return_inverse=True)
        first = 1 - self.centre
        pdfs = [self.pdf(window[first : first + self.width], window[3]) for window in windows.tolist()]
        return np.array(pdfs, np.int32)[inverse.ravel()]

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes an equal tree."""
        return {
            "width": self.width,
            "centre": self.centre,
            "nodes": [list(node) for node in self.nodes],
            "roots": [[phone, pdf_class, node] for (phone, pdf_class), node in self.roots.items()],
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Tree:
        """The inverse of `to_json`."""
        nodes = tuple(Leaf(*n) if len(n) == 1 else Question(n[0], tuple(n[1]), n[2], n[3]) for n in content["nodes"])
        roots = {(phone, pdf_class): node for phone, pdf_class, node in content["roots"]}
        return Tree(content["width"], content["centre"], nodes, roots)


def monophone_tree(lang: Lang) -> Tree:
    """One pdf per state of each phone, without context."""
    roots: dict[tuple[int, int], int] = {}
    for phone in range(1, lang.num_phones + 1):
        for state in range(num_states(lang, phone)):
            roots[phone, state] = len(roots)
    return Tree(1, 0, tuple(Leaf(n) for n in range(len(roots))), roots)


def context_dependency(tree: Tree) -> khg.ContextDependency:
    """The tree as the library's object.

    The library has no constructor for it, but its unpickling hook takes Kaldi's binary tree format, as a 1-tuple of one
    list of signed chars.
    """
    library_tree = khg.ContextDependency.__new__(khg.ContextDependency)
    library_tree.__setstate__(([byte - 256 if byte > 127 else byte for byte in tree_bytes(tree)],))
    return library_tree


def tree_bytes(tree: Tree) -> bytes:
    """The tree in Kaldi's binary format, without the marker for binary files."""
    classes: dict[int, list[int]] = {}
    for phone, pdf_class in sorted(tree.roots):
        classes.setdefault(phone, []).append(tree.roots[phone, pdf_class])
    maps = {phone: _table(-1, [_event_map(tree, root) for root in roots]) for phone, roots in classes.items()}
    body = _table(tree.centre, [maps.get(phone, b"NULL ") for phone in range(max(maps) + 1)])
    header = b"ContextDependency " + _int(tree.width) + _int(tree.centre)
    return header + b"ToPdf " + body + b"EndContextDependency "


def _int(value: int) -> bytes:
    return b"\x04" + struct.pack("<i", value)


def _table(key: int, children: Sequence[bytes]) -> bytes:
    # The size is unsigned, which the format marks with the byte -4 in place of 4.
    return b"TE " + _int(key) + b"\xfc" + struct.pack("<I", len(children)) + b"( " + b"".join(children) + b") "


def _event_map(tree: Tree, root: int) -> bytes:
    """A subtree, depth first; `pending` holds the nodes still to write, and `closing` the ends of splits."""
    closing = -1
    out, pending = [], [root]
    while pending:
        index = pending.pop()
        if index == closing:
            out.append(b"} ")
            continue
        node = tree.nodes[index]
        if isinstance(node, Leaf):
            out.append(b"CE " + _int(node.pdf))
        else:
            members = sorted(node.members)
            out.append(
                b"SE " + _int(node.position) + b"\x04" + struct.pack(f"<i{len(members)}i", len(members), *members)
            )
            out.append(b"{ ")
            pending += [closing, node.otherwise, node.then]
    return b"".join(out)
