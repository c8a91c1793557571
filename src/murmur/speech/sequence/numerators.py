"""Numerator graphs of chunks: the aligned phones, whose limits may move by some frames, as paths of the denominator.

A phone of the alignment that takes the frames [b, e) may be passed through in the frames [b - d, e + d), with any state
of its HMM at any of them; d is the tolerance. States and arcs have the probabilities of the denominator, so that every
path of a numerator is a path of the denominator. A chunk may begin and end in the middle of a phone.

Shapes: M phones of an utterance, N chunks, K states of the largest numerator, W arcs into or out of a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from murmur.speech.sequence.denominator import Denominator

NEVER = -1e30  # log probability of an impossible event; infinity would make gradients nan


@dataclass(frozen=True, eq=False)
class Aligned:
    """The phones of an utterance.

    Attributes:
        places: (M,) place of each phone in the denominator.
        arcs: (M - 1,) probabilities of the arcs between neighbours; 0 if the graph lacks the arc.
        starts: (M + 1,) first frame of each phone, and number of frames.
    """

    places: np.ndarray
    arcs: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of(denominator: Denominator, phones: Sequence[int], starts: Sequence[int]) -> Aligned:
        """The phones of an alignment.

        Raises:
            KeyError: the denominator has no such phone in a context.
        """
        places, arcs = denominator.path(phones)
        return Aligned(np.array(places, np.int32), np.array(arcs, np.float32), np.array(starts, np.int32))

    def stretched(self, frames: int) -> Aligned:
        """The same phones in the `frames` frames of the audio at another speed.

        A frame t belongs to the phone that `murmur.speech.features.chunks.at_speed` gives it.
        """
        total, starts = int(self.starts[-1]), self.starts.astype(np.int64)
        starts = -((total - 2 * starts * frames) // (2 * total))  # ceil(s frames / T - 1/2), without rounding
        return Aligned(self.places, self.arcs, np.append(starts[:-1], frames).astype(np.int32))

    def limits(self, tolerance: int) -> tuple[np.ndarray, np.ndarray]:
        """First frame that each phone may have, and the frame after its last, if limits move by `tolerance` frames.

        Each phone before and after it has at least one frame of the utterance.
        """
        k = np.arange(len(self.places))
        soonest_P = np.maximum(self.starts[:-1] - tolerance, k)
        return soonest_P, np.minimum(self.starts[1:] + tolerance, self.starts[-1] - k[::-1])

    def fitted(self, frames: int) -> Aligned:
        """The same phones for some frames more or fewer, shared equally between both ends.

        The rule is that of `murmur.speech.features.chunks.fit_targets`.
        """
        missing = frames - int(self.starts[-1])
        shift = missing // 2 if missing >= 0 else -(-missing // 2)
        starts = (self.starts[:-1] + shift).clip(0)
        starts[0] = 0
        return Aligned(self.places, self.arcs, np.append(starts, np.int32(frames)))


@dataclass(frozen=True, eq=False)
class Numerators:
    """Numerators of a batch of chunks. State k of chunk n has the number n K + k; the number N K stands for no state.

    Attributes:
        pdf: (N, K) pdf of each state.
        initial: (N, K) log probability of beginning in a state.
        first, last: (N, K) the frames [first, last) in which a state may be passed; none for padding.
        into, into_log: (N K, W) sources of the arcs into each state, and log probabilities of the arcs.
        out, out_log: (N K, W) targets of the arcs out of each state, and log probabilities of the arcs.
    """

    pdf: Tensor
    initial: Tensor
    first: Tensor
    last: Tensor
    into: Tensor
    into_log: Tensor
    out: Tensor
    out_log: Tensor

    def to(self, device: torch.device) -> Numerators:
        """The numerators on a device."""
        return Numerators(**{name: part.to(device) for name, part in self.__dict__.items()})


def check_tolerance(frames: int) -> None:
    """Check a tolerance.

    Raises:
        ValueError: it is negative.
    """
    if frames < 0:
        raise ValueError(f"a tolerance of {frames} frames: give 0 or more")


@dataclass(frozen=True, eq=False)
class NumeratorBuilder:
    """Makes the numerators of chunks.

    Attributes:
        denominator: graph that holds them.
        tolerance_frames: frames by which the limits of phones may move.
        leak: weight of the leak of `probability_domain`, by which arcs go that the graph lacks.
    """

    denominator: Denominator
    tolerance_frames: int
    leak: float

    def has_path(self, aligned: Aligned) -> bool:
        """True if the frames of an utterance, and with them of each chunk, can be divided among its phones."""
        soonest_P, latest_P = aligned.limits(self.tolerance_frames)
        end = 0
        for place, soonest, latest in zip(aligned.places.tolist(), soonest_P.tolist(), latest_P.tolist(), strict=True):
            end = max(end, soonest) + self.denominator.places[place][1].fewest
            if end > latest:
                return False
        return True

    def batch(self, chunks: Sequence[tuple[Aligned, int, int]]) -> Numerators:
        """Numerators of chunks, each given by the phones of its utterance and its frames [first, last)."""
        owner, place, begin, end, arc = [], [], [], [], []
        for n, (aligned, first, last) in enumerate(chunks):
            soonest_P, latest_P = aligned.limits(self.tolerance_frames)
            low, high = int(np.searchsorted(latest_P, first, "right")), int(np.searchsorted(soonest_P, last, "left"))
            owner.append(np.full(high - low, n))
            place.append(aligned.places[low:high])
            begin.append(soonest_P[low:high] - first)
            end.append(latest_P[low:high] - first)
            arc.append(np.append(aligned.arcs[low : high - 1], np.nan))
        phones = _Phones(*(np.concatenate(parts) for parts in (owner, place, begin, end, arc)))
        return self._joined(phones, len(chunks))

    def _joined(self, phones: _Phones, count: int) -> Numerators:
        sizes_P = np.diff(self.denominator.first)[phones.place]
        before_P = np.cumsum(sizes_P) - sizes_P
        chunk_first_N = np.searchsorted(phones.owner, np.arange(count))
        chunk_before_P = before_P[chunk_first_N][phones.owner]
        states = int((before_P + sizes_P - chunk_before_P).max())
        node_P = phones.owner * states + before_P - chunk_before_P  # number of each phone's first state
        state = _ranges(self.denominator.first[phones.place], sizes_P)
        node = _ranges(node_P, sizes_P)

        def spread(values: np.ndarray, padding: float, kind: type) -> Tensor:
            table: np.ndarray = np.full(count * states, padding, kind)
            table[node] = values
            return torch.from_numpy(table.reshape(count, states))

        into, out = self._arcs(phones, node_P, count * states)
        return Numerators(
            spread(self.denominator.graph.pdf.numpy()[state], 0, np.int64),
            spread(self._initial[state], NEVER, np.float32),
            spread(np.repeat(phones.begin, sizes_P), 0, np.int64),
            spread(np.repeat(phones.end, sizes_P), 0, np.int64),
            *into,
            *out,
        )

    def _arcs(self, phones: _Phones, node_P: np.ndarray, nodes: int) -> tuple[tuple[Tensor, Tensor], ...]:
        inner, exits = self._inner, self._exits
        counts = np.diff(inner.first)[phones.place]
        row, base = _ranges(inner.first[phones.place], counts), np.repeat(node_P, counts)
        sources, targets, logs = [base + inner.source[row]], [base + inner.target[row]], [inner.log[row]]
        left = np.flatnonzero(~np.isnan(phones.arc))  # phones that another one of the same chunk follows
        counts = np.diff(exits.first)[phones.place[left]]
        row = _ranges(exits.first[phones.place[left]], counts)
        sources.append(np.repeat(node_P[left], counts) + exits.source[row])
        targets.append(np.repeat(node_P[left + 1], counts))
        known = np.repeat(phones.arc[left], counts)
        entry = self._initial[self.denominator.first[np.repeat(phones.place[left + 1], counts)]]
        by_leak = entry + (math.log(self.leak) if self.leak > 0 else NEVER)
        logs.append(np.where(known > 0, exits.log[row] + np.log(np.where(known > 0, known, 1.0)), by_leak))
        source, target, log = (np.concatenate(parts) for parts in (sources, targets, logs))
        return by_row(target, source, log, nodes), by_row(source, target, log, nodes)

    @cached_property
    def _initial(self) -> np.ndarray:
        initial_S = self.denominator.graph.initial.numpy().astype(np.float64)
        return np.log(initial_S, where=initial_S > 0, out=np.full(len(initial_S), NEVER))

    @cached_property
    def _inner(self) -> _Table:
        return _Table.of([hmm.inner for _, hmm, _ in self.denominator.places])

    @cached_property
    def _exits(self) -> _Table:
        return _Table.of([[(s, 0, p) for s, p in hmm.exits] for _, hmm, _ in self.denominator.places])


@dataclass(frozen=True, eq=False)
class _Phones:
    """Phones of all chunks (P,): chunk, place, frames [begin, end) of the chunk, arc to the next; nan for the last."""

    owner: np.ndarray
    place: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    arc: np.ndarray


@dataclass(frozen=True, eq=False)
class _Table:
    """Rows (source, target, log probability) of each place; place i has the rows from first[i] to first[i + 1]."""

    first: np.ndarray
    source: np.ndarray
    target: np.ndarray
    log: np.ndarray

    @staticmethod
    def of(rows: Sequence[Sequence[tuple[int, int, float]]]) -> _Table:
        source, target, p = (np.array(column) for column in zip(*(row for own in rows for row in own), strict=True))
        return _Table(np.cumsum([0, *map(len, rows)]), source, target, np.log(p))


def _ranges(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers first, first + 1, ... of all pairs, one pair after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(int(counts.sum()))


def by_row(row: np.ndarray, column: np.ndarray, log: np.ndarray, nodes: int) -> tuple[Tensor, Tensor]:
    """Entries by row, (nodes, W), padded with the number `nodes` and NEVER."""
    order = np.argsort(row, kind="stable")
    row = row[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    width = int(place.max(initial=0)) + 1
    columns, logs = np.full((nodes, width), nodes), np.full((nodes, width), NEVER, np.float32)
    columns[row, place], logs[row, place] = column[order], log[order]
    return torch.from_numpy(columns), torch.from_numpy(logs)
