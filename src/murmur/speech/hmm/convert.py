"""Alignments of one model in the transition-ids of another: same phones, states and arcs, other pdfs.

Shapes: T frames, I transition-ids + 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.blocks import Block
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import compile_graphs
from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.hmm.tree_stats import windows_of


class Converter:
    """Expresses alignments of `old` in the transition-ids of `new`, whose phones and topology must be the same."""

    def __init__(self, old: HmmGmm, new: HmmGmm) -> None:
        if old.lang.phones != new.lang.phones or old.lang.num_silence != new.lang.num_silence:
            raise ValueError(
                "the two models have different phones: alignments can only be converted between equal ones"
            )
        self._old, self._new = old.transitions, new.transitions
        self._tree = new.tree
        self._pdf_of_window: dict[tuple[int, ...], int] = {}
        new_ids = (self._new.phone_of, self._new.state_of, self._new.pdf_of, self._new.arc_of)
        codes_I = _code(*new_ids)[1:]
        self._order = np.argsort(codes_I)
        self._codes_I = codes_I[self._order]

    def convert(self, tids_T: IntArray) -> IntArray:
        """The same path in the new transition-ids."""
        windows, inverse = np.unique(windows_of(self._old, tids_T), axis=0, return_inverse=True)
        pdfs = np.array([self._pdf(tuple(w)) for w in windows.tolist()], dtype=np.int64)[inverse.ravel()]
        wanted = _code(self._old.phone_of[tids_T], self._old.state_of[tids_T], pdfs, self._old.arc_of[tids_T])
        return (self._order[np.searchsorted(self._codes_I, wanted)] + 1).astype(np.int32)

    def _pdf(self, window: tuple[int, ...]) -> int:
        if window not in self._pdf_of_window:
            left = 1 - self._tree.centre
            self._pdf_of_window[window] = self._tree.pdf(window[left : left + self._tree.width], window[3])
        return self._pdf_of_window[window]


def carry_over(block: Block, old: HmmGmm, new: HmmGmm) -> None:
    """Convert a block's alignments to a new model and make its training graphs."""
    converter = Converter(old, new)
    block.tids = {u: converter.convert(tids_T) for u, tids_T in block.tids.items()}
    compile_graphs(block, new)


def _code(phone: NDArray, state: NDArray, pdf: NDArray, arc: NDArray) -> NDArray[np.int64]:
    """One number for (phone, state, pdf, arc); topologies have at most 8 states and 8 arcs a state."""
    return ((pdf.astype(np.int64) * (1 << 20) + phone) * 8 + state) * 8 + arc
