"""Connectionist temporal classification (Graves et al., ICML 2006): output units, criterion, best paths, word times.

Shapes: N utterances, T frames (U for those of the output), C = 1 + number of units; column 0 is the blank; S states of
a graph of label sequences, K ways into a state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.lexicon.spelling import graphemes

BLANK = 0
Kind = Literal["char", "grapheme", "phone", "word"]
WORD_START = "\u2581"  # in front of the first grapheme of a word
Arc = tuple[int, int, int]
NEVER = -1e30  # log probability of an impossible event; infinity would make gradients nan


@dataclass(frozen=True)
class Units:
    """The output units of the network. Unit i is column i + 1.

    "char": code points, including the space. "grapheme": letters with their marks; `WORD_START` precedes the first one
    of a word, so that no unit stands for a space. "word": whole words. "phone": phones; texts are pronunciations.

    Raises:
        ValueError: an unknown kind.
    """

    kind: Kind
    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"unknown CTC unit {self.kind!r}: use {', '.join(get_args(Kind))}")

    @classmethod
    def of(cls, texts: Iterable[str], kind: Kind) -> Units:
        """All units that occur in `texts`, in byte order."""
        found = {symbol for text in texts for symbol in pieces(text, kind)}
        return cls(kind, tuple(sorted(found, key=str.encode)))

    @property
    def columns(self) -> int:
        """C: the blank and all units."""
        return 1 + len(self.symbols)

    def encode(self, text: str) -> tuple[int, ...]:
        """Columns of a transcript.

        Raises:
            CorpusError: the transcript has a unit that is not among the symbols.
        """
        column = {symbol: i for i, symbol in enumerate(self.symbols, 1)}
        parts = pieces(text, self.kind)
        unknown = [piece for piece in parts if piece not in column]
        if unknown:
            raise CorpusError(f"{self.kind} {unknown[0]!r} of {text!r} does not occur in training: leave the text out")
        return tuple(column[piece] for piece in parts)

    def covers(self, text: str) -> bool:
        """True if the units can write the transcript."""
        return set(pieces(text, self.kind)) <= set(self.symbols)

    def decode(self, columns: Iterable[int]) -> str:
        """The text of a sequence of columns without blanks."""
        glue = " " if self.kind in ("word", "phone") else ""
        text = glue.join(self.symbols[c - 1] for c in columns)
        return " ".join((text.replace(WORD_START, " ") if self.kind == "grapheme" else text).split())


def pieces(text: str, kind: Kind) -> list[str]:
    """The units of a text, in order.

    Raises:
        CorpusError: a text for graphemes contains the mark of word beginnings.
    """
    if kind == "char":
        return list(text)
    words = text.split()
    if kind != "grapheme":
        return words
    if WORD_START in text:
        raise CorpusError(f"{text!r} holds U+2581, which marks word beginnings here: remove it, or use char")
    spelled = [graphemes(word) for word in words]
    return [unit for first, *rest in spelled for unit in (WORD_START + first, *rest)]


def greedy(logits_NTC: Tensor, lengths_N: Tensor) -> list[list[int]]:
    """Best path decoding: the best column of each frame, repeats merged, blanks removed (section 3.2)."""
    best = zip(logits_NTC.argmax(-1).cpu().numpy(), lengths_N.tolist(), strict=True)
    return [[column for column, _, _ in collapsed(best_T[:frames])] for best_T, frames in best]


@dataclass(frozen=True)
class LabelGraph:
    """An acyclic deterministic acceptor of label sequences; state 0 is the start.

    Attributes:
        arcs: tuples (source, label, target), in topological order of their sources.
        finals: states where a sequence may end.
    """

    arcs: tuple[Arc, ...]
    finals: tuple[int, ...]

    @staticmethod
    def linear(labels: Sequence[int]) -> LabelGraph:
        """The graph of one sequence."""
        return LabelGraph(tuple((i, label, i + 1) for i, label in enumerate(labels)), (len(labels),))

    @staticmethod
    def of_words(words: Sequence[Sequence[Sequence[int]]]) -> LabelGraph:
        """All ways to say a sequence of words; `words[i]` lists the pronunciations of word i.

        Every different label sequence appears once, even if two choices of pronunciations give the same one.

        Raises:
            ValueError: a word has no pronunciation, or an empty one.
        """
        steps: dict[int, list[tuple[int, int]]] = {}
        before, states = 0, 1
        for prons in words:
            if not prons or not all(prons):
                raise ValueError(f"pronunciations {prons}: each word needs at least one, none of them empty")
            after = states + sum(len(pron) - 1 for pron in prons)
            for pron in prons:
                source = before
                for label in pron[:-1]:
                    steps.setdefault(source, []).append((label, states))
                    source, states = states, states + 1
                steps.setdefault(source, []).append((pron[-1], after))
            before, states = after, after + 1
        return _determinised(steps, before)

    @property
    def sequence(self) -> tuple[int, ...] | None:
        """The labels of a graph with a single sequence; None for all other graphs."""
        linear = all(arc[0] == i and arc[2] == i + 1 for i, arc in enumerate(self.arcs))
        return tuple(arc[1] for arc in self.arcs) if linear and self.finals == (len(self.arcs),) else None

    @cached_property
    def frames_needed(self) -> int:
        """Minimum number of frames for an alignment of some sequence."""
        if 0 in self.finals:
            return 0
        needed: list[int] = []
        into = self._arcs_into
        for source, label, _ in self.arcs:
            ways = [needed[a] + 1 + (self.arcs[a][1] == label) for a in into.get(source, ())]
            needed.append(min(ways, default=1))
        return min(needed[a] for final in self.finals for a in into.get(final, ()))

    def nearest(self, labels: Sequence[int]) -> tuple[int, ...]:
        """The sequence with the fewest insertions, deletions and substitutions to `labels`."""
        # Per state, a row over prefixes of `labels`: (errors, sequence so far as a chain of (label, chain)).
        start = [(n, None) for n in range(len(labels) + 1)]
        rows: dict[int, list[tuple[int, Any]]] = {0: start}
        for source, label, target in self.arcs:
            above = rows[source]
            row: list[tuple[int, Any]] = []
            for n in range(len(labels) + 1):
                ways = [(above[n][0] + 1, (label, above[n][1]))]
                if n:
                    ways.append((above[n - 1][0] + (labels[n - 1] != label), (label, above[n - 1][1])))
                    ways.append((row[n - 1][0] + 1, row[n - 1][1]))
                row.append(min(ways, key=lambda way: way[0]))
            known = rows.get(target)
            rows[target] = (
                row if known is None else [min(pair, key=lambda way: way[0]) for pair in zip(known, row, strict=True)]
            )
        chain = min((rows[final][-1] for final in self.finals), key=lambda way: way[0])[1]
        found = []
        while chain is not None:
            label, chain = chain
            found.append(label)
        return tuple(reversed(found))

    @cached_property
    def _arcs_into(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, (_, _, target) in enumerate(self.arcs):
            found.setdefault(target, []).append(number)
        return found

    @cached_property
    def _topology(self) -> tuple[list[int], list[list[int]], list[int], list[int]]:
        """Columns, incoming arcs, starts and ends of the CTC states: the arcs, then the blank of every graph state."""
        into, arcs = self._arcs_into, self.arcs
        states = 1 + max((target for _, _, target in arcs), default=0)
        columns = [label for _, label, _ in arcs] + [BLANK] * states
        ways = [
            [a, len(arcs) + source, *(b for b in into.get(source, ()) if arcs[b][1] != label)]
            for a, (source, label, _) in enumerate(arcs)
        ]
        ways += [[len(arcs) + state, *into.get(state, ())] for state in range(states)]
        starts = [a for a, arc in enumerate(arcs) if arc[0] == 0] + [len(arcs)]
        ends = [s for final in self.finals for s in (*into.get(final, ()), len(arcs) + final)]
        return columns, ways, starts, ends


def _determinised(steps: dict[int, list[tuple[int, int]]], final: int) -> LabelGraph:
    """Subset construction. Arcs lead to higher states only, so the smallest member of a subset grows along each arc."""
    found: dict[frozenset[int], dict[int, frozenset[int]]] = {}
    waiting = [frozenset({0})]
    while waiting:
        subset = waiting.pop()
        if subset in found:
            continue
        targets: dict[int, set[int]] = {}
        for state in subset:
            for label, target in steps.get(state, ()):
                targets.setdefault(label, set()).add(target)
        found[subset] = {label: frozenset(targets[label]) for label in sorted(targets)}
        waiting += found[subset].values()
    order = {subset: n for n, subset in enumerate(sorted(found, key=lambda subset: (min(subset), sorted(subset))))}
    arcs = tuple((order[s], label, order[t]) for s in order for label, t in found[s].items())
    return LabelGraph(arcs, tuple(n for subset, n in order.items() if final in subset))


def loss(logits_NTC: Tensor, lengths_N: Tensor, graphs: Sequence[LabelGraph]) -> Tensor:
    """Sum over utterances of -ln sum_q sum_a P(a | logits), over the sequences q of a graph and their alignments a.

    With one sequence this is equation 3 of Graves et al. (2006), computed by torch; with several it is their forward
    recursion over the states of the graph.

    Args:
        logits_NTC: network output before the softmax.
        lengths_N: number of frames of each utterance.
        graphs: label sequences of each transcript.

    Raises:
        ValueError: an utterance has fewer frames than its graph's `frames_needed`, for which P = 0.
    """
    for number, (frames, graph) in enumerate(zip(lengths_N.tolist(), graphs, strict=True)):
        if frames < graph.frames_needed:
            raise ValueError(
                f"item {number} has {frames} frames, {graph.frames_needed} are needed for its labels: leave it out or "
                "stack fewer frames"
            )
    total = logits_NTC.new_zeros(())
    single = {i: graph.sequence for i, graph in enumerate(graphs) if graph.sequence is not None}
    if single:
        total = total + _loss_of_sequences(logits_NTC[list(single)], lengths_N[list(single)], list(single.values()))
    several = [i for i in range(len(graphs)) if i not in single]
    if several:
        total = total + _forward(logits_NTC[several], lengths_N[several], [graphs[i] for i in several])
    return total


def _loss_of_sequences(logits_NTC: Tensor, lengths_N: Tensor, targets: Sequence[Sequence[int]]) -> Tensor:
    log_probs_TNC = logits_NTC.log_softmax(-1).transpose(0, 1)
    flat = torch.tensor([label for labels in targets for label in labels], device=logits_NTC.device)
    target_lengths_N = torch.tensor([len(labels) for labels in targets], device=logits_NTC.device)
    return functional.ctc_loss(log_probs_TNC, flat, lengths_N, target_lengths_N, blank=BLANK, reduction="sum")


def _forward(logits_NTC: Tensor, lengths_N: Tensor, graphs: Sequence[LabelGraph]) -> Tensor:
    """The forward recursion of all utterances in one batch, padded to the largest graph."""
    columns_NS, ways_NSK, starts_NS, ends_NS = (part.to(logits_NTC.device) for part in _tensors(graphs))
    count, frames = logits_NTC.shape[:2]
    states, most = ways_NSK.shape[1:]
    log_probs_NTC = logits_NTC.log_softmax(-1)
    emitted_NTS = log_probs_NTC.gather(2, columns_NS[:, None].expand(-1, frames, -1))
    flat_NX = ways_NSK.reshape(count, states * most)
    lengths_N1 = lengths_N.to(logits_NTC.device)[:, None]
    reached_NS = emitted_NTS[:, 0] + starts_NS
    for t in range(1, frames):
        padded = functional.pad(reached_NS, (0, 1), value=NEVER)
        before_NS = padded.gather(1, flat_NX).reshape(count, states, most).logsumexp(-1)
        reached_NS = torch.where(t < lengths_N1, before_NS + emitted_NTS[:, t], reached_NS)
    return -(reached_NS + ends_NS).logsumexp(-1).sum()


def _tensors(graphs: Sequence[LabelGraph]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """columns_NS, ways_NSK (S if there is none), and 0 at starts and ends, `NEVER` elsewhere."""
    topologies = [graph._topology for graph in graphs]
    states = max(len(columns) for columns, *_ in topologies)
    most = max(len(way) for _, ways, *_ in topologies for way in ways)
    columns_NS = torch.zeros(len(graphs), states, dtype=torch.long)
    ways_NSK = torch.full((len(graphs), states, most), states)
    starts_NS, ends_NS = (torch.full((len(graphs), states), NEVER) for _ in range(2))
    for n, (columns, ways, starts, ends) in enumerate(topologies):
        columns_NS[n, : len(columns)] = torch.tensor(columns)
        ways_NSK[n, : len(ways)] = torch.tensor([way + [states] * (most - len(way)) for way in ways])
        starts_NS[n, starts] = 0.0
        ends_NS[n, ends] = 0.0
    return columns_NS, ways_NSK, starts_NS, ends_NS


class SpokenWord(NamedTuple):
    """A word, its first output frame, the frame after its last, and its confidence."""

    word: str
    first: int
    end: int
    confidence: float


def spoken_words(log_probs_UC: np.ndarray, units: Units) -> list[SpokenWord]:
    """The words of the best path: the units between spaces; for whole words and phones, each unit.

    A unit's frames are the run in which it is the best column; a word lasts from the first frame of its first unit to
    the last frame of its last unit. These are spikes: they show only when the network is sure, which is inside or
    shortly after the sound. A word's confidence is the geometric mean over its units of the greatest posterior in each
    run: 1 for a network without doubt, not calibrated.
    """
    words: list[list[tuple[str, int, int, float]]] = [[]]
    for column, first, end in collapsed(log_probs_UC.argmax(1)):
        symbol = units.symbols[column - 1]
        alone = units.kind in ("word", "phone")
        if alone or symbol == " " or (units.kind == "grapheme" and symbol.startswith(WORD_START)):
            words.append([])
        if symbol != " ":
            words[-1].append((symbol, first, end, float(log_probs_UC[first:end, column].max())))
    return [_word(pieces) for pieces in words if pieces]


def _word(pieces: list[tuple[str, int, int, float]]) -> SpokenWord:
    """The word of units with their first frames, the frames after their last, and their greatest log posteriors."""
    text = "".join(symbol for symbol, *_ in pieces).replace(WORD_START, "")
    mean = sum(log_posterior for *_, log_posterior in pieces) / len(pieces)
    return SpokenWord(text, pieces[0][1], pieces[-1][2], math.exp(min(mean, 0.0)))


def collapsed(columns_U: np.ndarray) -> list[tuple[int, int, int]]:
    """The units of a path: column, first frame, the frame after the last; repeats are merged, blanks removed."""
    edges = [0, *(np.flatnonzero(np.diff(columns_U)) + 1).tolist(), len(columns_U)]
    spans = pairwise(edges) if len(columns_U) else ()
    return [(int(columns_U[first]), first, end) for first, end in spans if columns_U[first] != BLANK]


def units_between(columns_U: np.ndarray, emitted: Sequence[int]) -> list[tuple[int, int]]:
    """First frame and the frame after the last unit, approximately, for each word of a graph's best path.

    `columns_U` are the columns of the path, `emitted` the frames at which its words are emitted, possibly some frames
    early or late; a word's units are those from there up to the next word's frame. A word without units there has one
    frame.
    """
    found = []
    for first, limit in pairwise([*emitted, len(columns_U)]):
        spoken = [u for u in range(first, limit) if columns_U[u] != BLANK]
        alone = min(first, len(columns_U) - 1)
        found.append((spoken[0], spoken[-1] + 1) if spoken else (alone, alone + 1))
    return found
