"""Hidden Markov models as sparse graphs of emitting states, laid out for sums over many sequences at once.

Shapes: S states, A arcs, N sequences, C pdfs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

MOST_ROUNDS, CONVERGED = 20_000, 1e-10  # of the power iteration for long-run frequencies


@dataclass(frozen=True, eq=False)
class Bags:
    """A sparse matrix by rows: row r sums `weights[k] * x[columns[k]]` over k from offsets[r] to the next offset.

    `weights` None stands for ones.
    """

    columns: Tensor
    offsets: Tensor
    weights: Tensor | None = None

    @staticmethod
    def of(rows: np.ndarray, columns: np.ndarray, weights: np.ndarray | None, count: int) -> Bags:
        """The matrix of entries (row, column, weight) with `count` rows."""
        order = np.lexsort((columns, rows))
        offsets = np.searchsorted(rows[order], np.arange(count))
        found = None if weights is None else torch.from_numpy(weights[order].astype(np.float32))
        return Bags(torch.from_numpy(columns[order].astype(np.int64)), torch.from_numpy(offsets), found)

    def __matmul__(self, x_KN: Tensor) -> Tensor:
        """The product with a dense matrix, in the type of that matrix."""
        weights = None if self.weights is None else self.weights.to(x_KN.dtype)
        return functional.embedding_bag(self.columns, x_KN, self.offsets, mode="sum", per_sample_weights=weights)

    def to(self, device: torch.device) -> Bags:
        """The matrix on a device."""
        weights = None if self.weights is None else self.weights.to(device)
        return Bags(self.columns.to(device), self.offsets.to(device), weights)


@dataclass(frozen=True, eq=False)
class StateGraph:
    """States that emit, arcs between them, and where sequences begin. They may end in any state.

    Attributes:
        pdf: (S,) pdf of each state.
        initial: (S,) probabilities of the first state.
        into: (S, S) matrix of arc probabilities, a row for each target.
        out: its transpose, a row for each source.
        members: (C, S) ones where a pdf is that of a state.
    """

    pdf: Tensor
    initial: Tensor
    into: Bags
    out: Bags
    members: Bags

    @staticmethod
    def of(pdf_S: np.ndarray, arcs: Arcs, pdfs: int, initial_S: np.ndarray | None = None) -> StateGraph:
        """The graph of arcs; by default sequences begin by the long-run frequencies of its states.

        Raises:
            ValueError: a state has a pdf outside 0 ... pdfs - 1.
        """
        if len(pdf_S) == 0 or pdf_S.min() < 0 or pdf_S.max() >= pdfs:
            raise ValueError(f"states with pdfs outside 0 ... {pdfs - 1}, or none at all")
        states = len(pdf_S)
        initial_S = long_run(arcs, states) if initial_S is None else initial_S
        return StateGraph(
            torch.from_numpy(pdf_S.astype(np.int64)),
            torch.from_numpy(initial_S.astype(np.float32)),
            Bags.of(arcs.target, arcs.source, arcs.probability, states),
            Bags.of(arcs.source, arcs.target, arcs.probability, states),
            Bags.of(pdf_S.astype(np.int64), np.arange(states), None, pdfs),
        )

    @property
    def states(self) -> int:
        """S."""
        return len(self.pdf)

    @property
    def arcs(self) -> int:
        """A."""
        return len(self.into.columns)

    def to(self, device: torch.device) -> StateGraph:
        """The graph on a device."""
        parts: dict[str, Any] = {name: part.to(device) for name, part in self.__dict__.items()}
        return StateGraph(**parts)


@dataclass(frozen=True, eq=False)
class Arcs:
    """Arcs as arrays (A,): source and target state, probability."""

    source: np.ndarray
    target: np.ndarray
    probability: np.ndarray


def long_run(arcs: Arcs, states: int) -> np.ndarray:
    """Share of time that an endless sequence spends in each state, (S,), by power iteration from equal shares."""
    share_S = np.full(states, 1.0 / states)
    for _ in range(MOST_ROUNDS):
        next_S = np.bincount(arcs.target, share_S[arcs.source] * arcs.probability, minlength=states)
        next_S = next_S / next_S.sum()
        moved, share_S = np.abs(next_S - share_S).sum(), next_S
        if moved < CONVERGED:
            break
    return share_S
