"""fMLLR transforms of all speakers of a corpus, from alignments or from the paths of a first decoding pass.

Shapes: T frames, D projected features.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from murmur.core.counted import are, counted
from murmur.speech.hmm.blocks import Block, Workers, cut_into_blocks
from murmur.speech.hmm.fmllr import (
    FmllrStats,
    FrameSums,
    SingularSumsError,
    adapt,
    estimate_fmllr,
    fmllr_stats,
    frame_sums,
    identity,
)
from murmur.speech.hmm.material import Features
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import aligned_frames, silence_weights, unadapted_frames
from murmur.speech.hmm.phone_arcs import IntArray

log = logging.getLogger(__name__)
Transforms = Mapping[str, FloatArray]


@dataclass(frozen=True)
class FmllrConfig:
    """Settings of the estimation.

    Attributes:
        min_frames: least number of weighted frames of a speaker; with fewer the transform is the identity.
        silence_weight: weight of the frames of silence.
    """

    min_frames: float = 500.0
    silence_weight: float = 0.0

    def __post_init__(self) -> None:
        if not (self.min_frames >= 0 and 0 <= self.silence_weight <= 1):
            raise ValueError(f"{self}: min_frames must not be negative, and silence_weight in 0 ... 1")


def speaker_stats(block: Block, seen: HmmGmm, target: HmmGmm, config: FmllrConfig) -> dict[str, FmllrStats]:
    """The statistics of a block's speakers.

    The posteriors are those of `seen` for frames under the block's present transforms; the transforms that follow from
    the sums fit unadapted frames to `target`. Both models have the same Gaussians in the same order.
    """
    weights_N, sums, frames_ND, speakers_N = _weighed(block, seen, target, config)
    found = {}
    for speaker in sorted(set(block.speakers[u] for u in block.tids)):
        own = np.flatnonzero(speakers_N == speaker)
        part = FrameSums(sums.precisions[own], sums.scaled_means[own])
        found[speaker] = fmllr_stats(part, frames_ND[own], weights_N[own])
    return found


def _weighed(
    block: Block, seen: HmmGmm, target: HmmGmm, config: FmllrConfig
) -> tuple[FloatArray, FrameSums, np.ndarray, np.ndarray]:
    """Weights, sums over Gaussians, unadapted features and speakers of the frames whose weight is not 0."""
    adapted_ND, tids_N = aligned_frames(block, seen)
    plain_ND = unadapted_frames(block, target)
    lengths = np.array([len(tids_T) for tids_T in block.tids.values()], dtype=np.int64)
    speakers_N = np.repeat(np.array([block.speakers[u] for u in block.tids], dtype=object), lengths)
    weights_N = silence_weights(seen, tids_N, config.silence_weight)
    kept = np.flatnonzero(weights_N)
    weights_N, pdfs_N = weights_N[kept], seen.transitions.pdf_of[tids_N[kept]]
    sums = frame_sums(seen.mixtures, adapted_ND[kept], pdfs_N, weights_N, target.mixtures)
    return weights_N, sums, plain_ND[kept], speakers_N[kept]


def use_transforms(block: Block, transforms: Transforms) -> None:
    """Adapt the block's speakers by these transforms from now on."""
    own = set(block.speakers.values())
    block.transforms = {speaker: transform for speaker, transform in transforms.items() if speaker in own}


def estimate_transforms(
    workers: Workers, seen: HmmGmm, target: HmmGmm, config: FmllrConfig, present: Transforms
) -> dict[str, FloatArray]:
    """New transforms of all speakers from the blocks' alignments, put into the blocks.

    `present` are the transforms in the blocks, from which the new ones start; the statistics are those of
    `speaker_stats`.
    """
    totals = sum_by_speaker(workers.map(speaker_stats, seen, target, config))
    found = {s: _estimated(s, stats, present.get(s), config.min_frames) for s, stats in sorted(totals.items())}
    if totals and not of_adapted(found):
        log.warning(
            "%s not adapted to: fewer than %g frames of speech each (fmllr.min_frames); utterances whose speaker is not"
            " given count as speakers of their own",
            *(f"{counted(len(totals), 'speaker')} {are(len(totals))}", config.min_frames),
        )
    workers.map(use_transforms, {**present, **found})
    return found


def _estimated(speaker: str, stats: FmllrStats, start: FloatArray | None, min_frames: float) -> FloatArray:
    """The transform of a speaker; the identity if the frames do not determine one, as those of a muted recording."""
    try:
        return estimate_fmllr(stats, start, min_frames)
    except SingularSumsError as error:
        log.warning("speaker %r is not adapted to: %s", speaker, error)
        return identity(len(stats.linear))


def sum_by_speaker(blocks: Iterable[Mapping[str, FmllrStats]]) -> dict[str, FmllrStats]:
    """The sums of speakers whose utterances lie in several blocks."""
    totals: dict[str, FmllrStats] = {}
    for block in blocks:
        for speaker, stats in block.items():
            totals[speaker] = totals[speaker] + stats if speaker in totals else stats
    return totals


@dataclass(frozen=True)
class AdaptedPair:
    """A model of adapted features, and its twin of unadapted ones with the same states and Gaussians.

    Attributes:
        adapted: model trained on adapted features; it scores features that a transform has adapted.
        unadapted: means and variances of unadapted features under the same posteriors; it aligns and decodes in the
            first pass, and decodes speakers who have no transform.
    """

    adapted: HmmGmm
    unadapted: HmmGmm

    def __post_init__(self) -> None:
        if not np.array_equal(self.adapted.mixtures.sizes, self.unadapted.mixtures.sizes):
            raise ValueError("the models of adapted and of unadapted features have different Gaussians")

    def loglikes(self, feats_TF: np.ndarray, transform: FloatArray | None) -> np.ndarray:
        """(T, P) natural log-likelihoods of features that are neither projected nor adapted.

        With a transform, the model of adapted features scores adapted frames; without one, for want of speech, the
        model of unadapted features scores the frames themselves.
        """
        if transform is None:
            return self.unadapted.loglikes(feats_TF)
        return self.adapted.mixtures.loglikes(adapt(transform, self.adapted.features(feats_TF)))


def transforms_from_paths(
    pair: AdaptedPair,
    feats: Features,
    paths: Mapping[str, IntArray],
    speakers: Mapping[str, str],
    config: FmllrConfig,
    jobs: int = 1,
) -> dict[str, FloatArray]:
    """Transforms of the speakers of decoded utterances; speakers with too few frames for one are left out.

    The transforms are estimated twice on the same paths: with posteriors of the model of unadapted features, and with
    those of adapted frames under the first transforms.

    Args:
        pair: models of adapted and of unadapted features.
        feats: {utterance: (T, F) features}, neither projected nor adapted.
        paths: {utterance: (T,) transition-ids} of the best paths; utterances whose path is shorter are left out.
        speakers: {utterance: speaker}.
        config: settings of the estimation.
        jobs: number of processes; the result does not depend on it.
    """
    whole = {u: path for u, path in paths.items() if len(path) and len(path) == len(feats[u])}
    blocks = cut_into_blocks({u: feats[u] for u in whole}, dict.fromkeys(whole, ""), speakers)
    for block in blocks:
        block.tids = {u: whole[u] for u in block.feats}
    with Workers(blocks, jobs) as workers:
        found = estimate_transforms(workers, pair.unadapted, pair.adapted, config, {})
        if of_adapted(found):
            found = estimate_transforms(workers, pair.adapted, pair.adapted, config, found)
    return of_adapted(found)


def of_adapted(transforms: Transforms) -> dict[str, FloatArray]:
    """The transforms that are not the identity."""
    return {s: w_DE for s, w_DE in transforms.items() if not np.array_equal(w_DE, identity(len(w_DE)))}
