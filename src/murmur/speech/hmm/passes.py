"""Work on one block of a corpus in a pass; `Workers` can map each function."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.blocks import Block
from murmur.speech.hmm.em import MixtureStats, expect
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.hmm.viterbi import (
    AlignOptions,
    BestPath,
    GraphCompiler,
    best_path,
    equal_length_path,
    gmm_scores,
    matrix_scores,
)


@dataclass(frozen=True)
class AlignReport:
    """Result of an alignment pass.

    Attributes:
        failed: {utterance: reason}.
        retried: utterances that needed the wide beam.
        log_likelihood: sum over the best paths, unscaled.
        frames: number of aligned frames.
    """

    failed: dict[str, str] = field(default_factory=dict)
    retried: int = 0
    log_likelihood: float = 0.0
    frames: int = 0

    def __add__(self, other: AlignReport) -> AlignReport:
        return AlignReport(
            self.failed | other.failed,
            self.retried + other.retried,
            self.log_likelihood + other.log_likelihood,
            self.frames + other.frames,
        )


@dataclass(frozen=True)
class PassStats:
    """The E step's sums for mixtures and transitions.

    Attributes:
        mixtures: sums of the mixtures.
        transition_counts: (I,) count of each transition-id.
    """

    mixtures: MixtureStats
    transition_counts: NDArray[np.float64]

    def frames_of_pdfs(self, pdf_of: IntArray) -> NDArray[np.float64]:
        """(P,) number of frames of each pdf; `pdf_of` (I,) is the pdf of each transition-id."""
        return np.bincount(pdf_of[1:], weights=self.transition_counts[1:]).astype(np.float64)

    def __add__(self, other: PassStats) -> PassStats:
        return PassStats(self.mixtures + other.mixtures, self.transition_counts + other.transition_counts)


def feature_sums(block: Block) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Sums of x and x^2 over all frames, and the number of frames."""
    total = squares = np.zeros(1)
    for x in block.feats.values():
        wide = x.astype(np.float64)
        total, squares = total + wide.sum(0), squares + (wide**2).sum(0)
    return total, squares, sum(len(x) for x in block.feats.values())


def compile_graphs(block: Block, model: HmmGmm) -> None:
    """Make the block's training graphs for the model's tree."""
    compiler = GraphCompiler(model.lang, model.transitions)
    block.graphs = {utterance: compiler.compile(text) for utterance, text in block.texts.items()}


def align_flat(block: Block, seed: int) -> AlignReport:
    """Give each utterance a random path with states of about equal length.

    Each utterance has its own seed: with one seed for all, the random places of optional silences coincide between
    utterances, and the models of words and silence do not separate.
    """
    paths = {
        u: equal_length_path(graph, len(block.feats[u]), flat_start_seed(seed, u)) for u, graph in block.graphs.items()
    }
    block.tids = {u: path for u, path in paths.items() if path is not None}
    failed = {u: "has no path of its length for the flat start" for u, path in paths.items() if path is None}
    return AlignReport(failed, frames=sum(len(t) for t in block.tids.values()))


def flat_start_seed(seed: int, utterance: str) -> int:
    """The seed of one utterance's flat-start path: a positive 31-bit number."""
    return zlib.crc32(f"{seed} {utterance}".encode()) & 0x7FFFFFFF


def realign(block: Block, model: HmmGmm, options: AlignOptions) -> AlignReport:
    """Replace the block's alignments by the best paths under the model."""
    return _take(block, {u: _best(block, u, model, options) for u in block.graphs})


def realign_pair(
    block: Block, model: HmmGmm, options: AlignOptions, unadapted: HmmGmm, speakers: Collection[str]
) -> AlignReport:
    """`realign` of adapted speakers, and of all others with the model `unadapted`."""
    found = {u: model if block.speakers.get(u) in speakers else unadapted for u in block.graphs}
    return _take(block, {u: _best(block, u, own, options) for u, own in found.items()})


def _best(block: Block, utterance: str, model: HmmGmm, options: AlignOptions) -> BestPath | None:
    frames_TD = block.frames(utterance, model.projection)
    scores = gmm_scores(model.library_mixtures, model.transitions, frames_TD, options.acoustic_scale)
    return best_path(utterance, block.graphs[utterance], model.transitions, scores, options)


def realign_scores(block: Block, model: HmmGmm, options: AlignOptions) -> AlignReport:
    """Replace the block's alignments by the best paths under scores by pdf, which the block holds as features."""
    paths = {}
    for u, graph in block.graphs.items():
        scores = matrix_scores(model.transitions, block.feats[u], options.acoustic_scale)
        paths[u] = best_path(u, graph, model.transitions, scores, options)
    return _take(block, paths)


def _take(block: Block, paths: dict) -> AlignReport:
    found = {u: path for u, path in paths.items() if path is not None}
    block.tids = {u: path.tids for u, path in found.items()}
    return AlignReport(
        {u: "has no path within the retry beam" for u, path in paths.items() if path is None},
        sum(path.retried for path in found.values()),
        sum(path.log_likelihood + len(path.tids) * block.log_determinant(u) for u, path in found.items()),
        sum(len(path.tids) for path in found.values()),
    )


def alignments_of(block: Block) -> dict[str, IntArray]:
    """The block's current alignments."""
    return block.tids


def accumulate(block: Block, model: HmmGmm) -> PassStats:
    """The E step over the block's current alignments."""
    feats_NF, tids_N = aligned_frames(block, model)
    transitions = model.transitions
    counts = np.bincount(tids_N, minlength=transitions.num_ids + 1).astype(np.float64)
    sums = expect(model.mixtures, feats_NF, transitions.pdf_of[tids_N])
    changed = sum(len(path) * block.log_determinant(u) for u, path in block.tids.items())
    return PassStats(replace(sums, log_likelihood=sums.log_likelihood + changed), counts)


def aligned_frames(block: Block, model: HmmGmm) -> tuple[NDArray[np.float32], IntArray]:
    """The mixtures' input and the transition-ids of all aligned frames of a block, end to end."""
    if not block.tids:
        return np.zeros((0, model.mixtures.dim), dtype=np.float32), np.zeros(0, dtype=np.int32)
    feats_NF = np.concatenate([block.frames(u, model.projection) for u in block.tids])
    return feats_NF, np.concatenate(list(block.tids.values()))


def unadapted_frames(block: Block, model: HmmGmm) -> NDArray[np.float32]:
    """The projected features of all aligned frames of a block before adaptation, in the order of `aligned_frames`."""
    parts = [model.features(block.feats[u]) for u in block.tids]
    return np.concatenate([np.zeros((0, model.mixtures.dim), dtype=np.float32), *parts])


def silence_weights(model: HmmGmm, tids_N: IntArray, weight: float) -> NDArray[np.float64]:
    """(N,) `weight` for frames of silence-like phones, 1 for the others."""
    return np.where(model.transitions.phone_of[tids_N] <= model.lang.num_silence, weight, 1.0)
