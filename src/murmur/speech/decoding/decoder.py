"""Viterbi beam search of one utterance on a decoding graph, through kaldi-decoder; n-best lists through its lattices.

T frames, C columns of a score matrix (pdfs or CTC tokens), L input labels of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import kaldi_decoder
import kaldifst
import numpy as np

from murmur.speech.decoding.graph import DecodingGraph, with_insertion_penalty
from murmur.speech.decoding.lattice import arcs_of, best_word_paths

FRAMES_AT_ONCE = 100
RETRY_FACTOR = 10
MOST_RETRIED = 100_000_000  # states times frames


@dataclass(frozen=True)
class DecodeOptions:
    """Search settings.

    Attributes:
        acoustic_scale: factor of the scores relative to the graph's weights; tune it on development data per system.
        beam: largest distance (natural log, after scaling) from the best path; worse paths are dropped.
        max_active, min_active: largest and smallest number of states per frame, regardless of the beam.
        lattice_beam: largest distance of a listed path from the best, for n-best lists.
        insertion_penalty: cost (natural log) of every word, added to the graph's; above 0 there are fewer words.
        retries: number of repetitions of a search that ends outside a final state, each with ten times the beam and
            the states. For graphs of few sentences, since speech may be far from all of them.
        listed: hypotheses of a result; above 1 they come from a lattice, see `Decoder.nbest`.
    """

    acoustic_scale: float = 0.1
    beam: float = 13.0
    max_active: int = 7000
    min_active: int = 20
    lattice_beam: float = 6.0
    insertion_penalty: float = 0.0
    retries: int = 0
    listed: int = 1

    def __post_init__(self) -> None:
        positive = min(self.acoustic_scale, self.beam, self.lattice_beam) > 0
        if not positive or not 1 <= self.min_active < self.max_active:
            raise ValueError(f"{self}: scale and beams must be positive, and 1 <= min_active < max_active")
        if not math.isfinite(self.insertion_penalty):
            raise ValueError(f"insertion_penalty = {self.insertion_penalty}: give a finite cost, 0 for none")
        if self.retries < 0:
            raise ValueError(f"retries = {self.retries}: give 0 for none")
        if self.listed < 1:
            raise ValueError(f"listed = {self.listed}: a result has at least 1 hypothesis")

    def wider(self) -> DecodeOptions:
        """The settings of the next try."""
        most = min(RETRY_FACTOR * self.max_active, 2**31 - 1)  # the library stores it in 32 bits
        return replace(self, beam=RETRY_FACTOR * self.beam, max_active=most, retries=self.retries - 1)


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """The result of the search for one utterance.

    Attributes:
        words: the recognised words.
        labels: (T,) graph input labels (transition-ids, or CTC token + 1) of the best path; shorter than T only if
            the search died.
        cost: - (graph weight + acoustic_scale * score) of the path, natural log, insertion penalties included.
        complete: True if the path ends in a final state; otherwise the words are a partial hypothesis.
    """

    words: tuple[str, ...]
    labels: np.ndarray
    cost: float
    complete: bool

    @property
    def text(self) -> str:
        """The words with single spaces."""
        return " ".join(self.words)


class Decoder:
    """Decodes score matrices on one graph. The library holds the interpreter's lock: use processes, not threads."""

    def __init__(self, graph: DecodingGraph, options: DecodeOptions | None = None) -> None:
        self.options = options or DecodeOptions()
        penalty = self.options.insertion_penalty
        self.graph = with_insertion_penalty(graph, penalty) if penalty else graph
        self._search = self._searching(self.options)
        identity = np.arange(graph.num_columns)
        self._is_identity = len(graph.columns) == len(identity) and bool(np.all(graph.columns == identity))

    def decode(self, scores_TC: np.ndarray) -> Hypothesis:
        """The best path, up to the beam, for unscaled natural-log scores with one column per pdf or token.

        A search that ends outside a final state gives its best partial path, with `complete` False; no frames give an
        empty one. Raises ValueError if the number of columns is not the graph's, or if scores are nan or +inf.
        """
        scores_TL = self._by_label(scores_TC)
        nothing = Hypothesis((), np.zeros(0, dtype=np.int32), float("inf") if len(scores_TL) else 0.0, False)
        if not len(scores_TL):
            return nothing
        search = self._searched(self._search, scores_TL)
        for settings in self._tries(len(scores_TL)):
            if search.reached_final():
                break
            search = self._searched(self._searching(settings), scores_TL)
        complete = search.reached_final()
        found, path = search.get_best_path(use_final_probs=complete)
        return _hypothesis(path, self.graph, complete) if found and path.num_states else nothing

    def _searching(self, settings: DecodeOptions) -> kaldi_decoder.FasterDecoder:
        options = kaldi_decoder.FasterDecoderOptions(
            beam=settings.beam, max_active=settings.max_active, min_active=settings.min_active
        )
        return kaldi_decoder.FasterDecoder(self.graph.fst, options)

    def _searched(self, search: kaldi_decoder.FasterDecoder, scores_TL: np.ndarray) -> kaldi_decoder.FasterDecoder:
        decodable = kaldi_decoder.DecodableCtc(scores_TL)
        search.init_decoding()
        for _ in range(0, len(scores_TL), FRAMES_AT_ONCE):  # Python handles signals between calls
            search.advance_decoding(decodable, FRAMES_AT_ONCE)
        return search

    def _tries(self, frames: int) -> Iterator[DecodeOptions]:
        """Settings for further searches of this many frames; none if they would take minutes."""
        settings = self.options
        while settings.retries and frames * self.graph.fst.num_states <= MOST_RETRIED:
            settings = settings.wider()
            yield settings

    def results(self, scores_TC: np.ndarray) -> list[Hypothesis]:
        """`options.listed` hypotheses with different words, best first; at least one, fewer if there are no more."""
        found = self.nbest(scores_TC, self.options.listed) if self.options.listed > 1 else []
        return found or [self.decode(scores_TC)]

    def nbest(self, scores_TC: np.ndarray, n: int) -> list[Hypothesis]:
        """Up to n hypotheses with different words, best first, from a lattice pruned at `options.lattice_beam`.

        Holds fewer than n if the lattice has fewer different word sequences; none for no frames, or if the search died.
        Raises ValueError as `decode` does.
        """
        lattice, complete = self.lattice(scores_TC)
        if lattice is None:
            return []
        return [
            Hypothesis(
                tuple(self.graph.words[word] for word in path.words),
                np.array(path.labels, dtype=np.int32),
                path.cost,
                complete,
            )
            for path in best_word_paths(lattice, n)
        ]

    def lattice(self, scores_TC: np.ndarray) -> tuple[kaldifst.Lattice | None, bool]:
        """All paths within `options.lattice_beam` of the best one, and True if they end in final states.

        The library prunes states by `options.beam` alone here, not by `max_active`. None for no frames, or if the
        search died. Raises ValueError as `decode` does.
        """
        scores_TL = self._by_label(scores_TC)
        if not len(scores_TL):
            return None, False
        decodable = kaldi_decoder.DecodableCtc(scores_TL)
        for settings in (self.options, *self._tries(len(scores_TL))):
            search = kaldi_decoder.LatticeSimpleDecoder(
                self.graph.fst,
                kaldi_decoder.LatticeSimpleDecoderConfig(beam=settings.beam, lattice_beam=settings.lattice_beam),
            )
            search.decode(decodable)
            if np.isfinite(search.final_relative_cost()):
                break
        found, lattice = search.get_raw_lattice()
        return (lattice, bool(np.isfinite(search.final_relative_cost()))) if found else (None, False)

    def best_of(self, lattice: kaldifst.Lattice, complete: bool) -> tuple[Hypothesis, tuple[int, ...]]:
        """The best path of a lattice, and for each word the frame at which the path emits it.

        This frame lies between the word's start and its end, and close to the start for words with a unique beginning.
        `PhoneSpans` has exact times for HCLG graphs.
        """
        path = kaldifst.lattice_to_nbest(lattice, acoustic_scale=1.0, n=1)[0]
        return _hypothesis(path, self.graph, complete), _word_frames(path)

    def _by_label(self, scores_TC: np.ndarray) -> np.ndarray:
        """(T, L) scaled scores per input label. The C++ side checks no sizes: it would read beyond the matrix."""
        if scores_TC.ndim != 2 or scores_TC.shape[1] != self.graph.num_columns:
            raise ValueError(
                f"scores of shape {scores_TC.shape}, but the graph reads {self.graph.num_columns} columns: "
                "model and graph do not belong together"
            )
        # The maximum finds nan and +inf without a temporary matrix; -inf (an impossible state) is allowed.
        if not scores_TC.max(initial=-np.inf) < np.inf:
            raise ValueError("scores hold nan or +inf: look at the model's output and its features")
        scaled_TC = np.multiply(scores_TC, self.options.acoustic_scale, dtype=np.float32)
        if self._is_identity:
            return np.ascontiguousarray(scaled_TC)
        return np.take(scaled_TC, self.graph.columns, axis=1)


def _hypothesis(path: kaldifst.Lattice, graph: DecodingGraph, complete: bool) -> Hypothesis:
    """Labels, words and cost of a linear path; each arc with an input label is one frame."""
    linear, labels, word_ids, weight = kaldifst.get_linear_symbol_sequence(path)
    if not linear:
        raise RuntimeError("the decoder's best path has branches; a fault of the library: use the pinned version")
    words = tuple(graph.words[label] for label in word_ids)
    cost = weight.value1 + weight.value2
    return Hypothesis(words, np.array(labels, dtype=np.int32), cost, complete)


def _word_frames(path: kaldifst.Lattice) -> tuple[int, ...]:
    """The frame of each arc with a word."""
    table, _ = arcs_of(path)
    frames, frame, state = [], 0, path.start
    while state in table:
        (arc,) = table[state]
        if arc.olabel:
            frames.append(frame)
        frame, state = frame + (arc.ilabel != 0), arc.target
    return tuple(frames)
