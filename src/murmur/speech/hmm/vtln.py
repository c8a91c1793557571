"""Vocal tract length normalisation: a warp factor for each speaker, by maximum likelihood over a grid.

A warp multiplies cepstra and each of their derivatives by one matrix T (`speech/features/cepstral_warp.py`). With
W = diag(T, T, ..) the likelihood of a speaker's frames x is that of W x times |det W| a frame, so the factor maximises
the auxiliary function of fMLLR, Q(W), over the few W of the grid. The Gaussians are those of all speech in one mixture:
no transcript and no decoding pass is needed. Gaussians of silence take their frames out of the sums.

Factors and Gaussians are estimated in turn: each sweep refits the Gaussians to the frames under the present factors.
Lee and Rose, "A frequency warping approach to speaker normalization" (1998); Wegmann, McAllaster, Orloff and Peskin,
"Speaker normalization on conversational telephone speech" (1996).

Shapes: N frames, K cepstra, D = K (orders + 1) features, G Gaussians.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.speech.features.cepstral_warp import MelCepstra, warp_matrix, warped
from murmur.speech.hmm.em import MixtureStats, expect, posteriors_by_pdf, refit
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.fmllr import FmllrStats, FrameSums, fmllr_stats
from murmur.speech.hmm.material import Features
from murmur.speech.hmm.mixtures import FloatArray, Mixtures, one_thread
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.phone_arcs import IntArray

FRAMES_AT_ONCE = 8192


@dataclass(frozen=True)
class VtlnConfig:
    """Settings of the estimation.

    Attributes:
        factors: warp factors to try; 1 must be among them.
        sweeps: number of times that factors and Gaussians are estimated, one after the other.
        em: EM loop of the monophones whose Gaussians describe all speech.
    """

    factors: tuple[float, ...] = tuple(round(0.84 + 0.02 * k, 2) for k in range(17))
    sweeps: int = 4
    em: EmConfig = field(default_factory=lambda: EmConfig(gaussians=400, passes=20, grow_passes=15))

    def __post_init__(self) -> None:
        if self.sweeps < 1 or 1.0 not in self.factors or not all(0 < factor < np.inf for factor in self.factors):
            raise ValueError(f"{self}: give at least one sweep, and positive factors with 1 among them")


@dataclass(frozen=True)
class SpeechGaussians:
    """The Gaussians of all speech and silence in one mixture.

    Attributes:
        mixtures: one pdf with G Gaussians.
        speech: (G,) True for the Gaussians of speech.
    """

    mixtures: Mixtures
    speech: NDArray[np.bool_]

    @staticmethod
    def of(model: HmmGmm, tids: Mapping[str, IntArray]) -> SpeechGaussians:
        """The Gaussians of a model, weighted by the frames of their pdfs in alignments."""
        pdf_of, phone_of = model.transitions.pdf_of, model.transitions.phone_of
        frames = np.zeros(model.num_pdfs)
        silent = np.zeros(model.num_pdfs, dtype=bool)
        for tids_T in tids.values():
            frames += np.bincount(pdf_of[tids_T], minlength=model.num_pdfs)
        silent[np.unique(pdf_of[1:][phone_of[1:] <= model.lang.num_silence])] = True
        mixtures = model.mixtures
        weights = mixtures.weights * np.repeat(frames + 1.0, mixtures.sizes)
        one = np.array([len(weights)], dtype=np.int64)
        joined = Mixtures(one, weights / weights.sum(), mixtures.means, mixtures.variances)
        return SpeechGaussians(joined, np.repeat(~silent, mixtures.sizes))


def warp_stats(gaussians: SpeechGaussians, feats_ND: NDArray, matrix: FloatArray | None) -> FmllrStats:
    """The sums of fMLLR over a speaker's frames, with posteriors of the frames under their present warp.

    A frame counts as much as its posterior of speech.
    """
    speech = torch.from_numpy(gaussians.speech.astype(np.float64))
    precisions = torch.from_numpy(1.0 / gaussians.mixtures.variances)
    both = torch.cat([precisions, precisions * torch.from_numpy(gaussians.mixtures.means)], 1)
    found = []
    for part_ND in _pieces(feats_ND):
        with one_thread(), torch.inference_mode():
            (one_pdf,) = posteriors_by_pdf(gaussians.mixtures, warped(part_ND, matrix), _zeros(part_ND))
            posteriors = one_pdf.posteriors * speech
            sums, weights_N = (posteriors @ both).numpy(), posteriors.sum(1).numpy()
        dim = gaussians.mixtures.dim
        found.append(fmllr_stats(FrameSums(sums[:, :dim], sums[:, dim:]), part_ND, weights_N))
    return reduce(add, found)


def best_factor(stats: FmllrStats, matrices: Mapping[float, FloatArray]) -> float:
    """The factor whose matrix (K, K) maximises Q; among equal ones, that closest to 1."""
    values = {
        factor: stats.auxiliary(over_derivatives(matrix, len(stats.linear))) for factor, matrix in matrices.items()
    }
    return max(values, key=lambda factor: (values[factor], -abs(np.log(factor))))


def over_derivatives(matrix: FloatArray, dim: int) -> FloatArray:
    """(D, D + 1) the transform of features whose blocks are all multiplied by one (K, K) matrix, without offset."""
    return np.hstack([np.kron(np.eye(dim // len(matrix)), matrix), np.zeros((dim, 1))])


def speaker_factors(
    gaussians: SpeechGaussians,
    feats: Features,
    speakers: Mapping[str, str],
    matrices: Mapping[float, FloatArray],
    present: Mapping[str, float] | None = None,
    rounds: int = 2,
) -> dict[str, float]:
    """The factor of each speaker.

    Args:
        gaussians: Gaussians of all speech.
        feats: {utterance: (T, D) cepstra less their mean with derivatives}, not warped.
        speakers: {utterance: speaker}.
        matrices: (K, K) warp by factor.
        present: first factors; 1 for speakers without.
        rounds: number of times that posteriors are computed.
    """
    found = {}
    for speaker, frames_ND in _by_speaker(feats, speakers):
        factor = (present or {}).get(speaker, 1.0)
        for _ in range(rounds):
            factor = best_factor(warp_stats(gaussians, frames_ND, matrices[factor]), matrices)
        found[speaker] = factor
    return found


def train_vtln(
    gaussians: SpeechGaussians,
    feats: Features,
    speakers: Mapping[str, str],
    matrices: Mapping[float, FloatArray],
    sweeps: int,
    variance_floor: float = 0.005,
) -> SpeechGaussians:
    """Gaussians of all speech under the factors of its speakers, see the module."""
    factors: dict[str, float] = {}
    for _ in range(sweeps):
        factors = speaker_factors(gaussians, feats, speakers, matrices, factors, rounds=1)
        gaussians = refitted(gaussians, feats, speakers, matrices, factors, variance_floor)
    return gaussians


def refitted(
    gaussians: SpeechGaussians,
    feats: Features,
    speakers: Mapping[str, str],
    matrices: Mapping[float, FloatArray],
    factors: Mapping[str, float],
    variance_floor: float,
) -> SpeechGaussians:
    """The Gaussians with means and variances of the frames under the factors of their speakers."""
    stats = reduce(add, _sums(gaussians.mixtures, feats, speakers, matrices, factors))
    mean_D = stats.first.sum(0) / stats.frames
    floor_D = variance_floor * (stats.second.sum(0) / stats.frames - mean_D**2)
    return replace(gaussians, mixtures=refit(gaussians.mixtures, stats, floor_D, min_occupancy=5.0))


@dataclass(frozen=True, eq=False)
class Vtln:
    """Normalisation of the speech of any speakers, with Gaussians that are trained.

    Attributes:
        gaussians: Gaussians of all speech.
        analysis: the analysis that made the cepstra.
        cepstra: number K of cepstra.
        factors: warp factors to try.
    """

    gaussians: SpeechGaussians
    analysis: MelCepstra
    cepstra: int
    factors: tuple[float, ...]

    def warps(self, feats: Features, speakers: Mapping[str, str]) -> dict[str, FloatArray]:
        """The warp (K, K) of each utterance, see `warps_of`, under factors estimated for the speakers of `feats`."""
        matrices = warp_matrices(self.analysis, self.cepstra, self.factors)
        return warps_of(speaker_factors(self.gaussians, feats, speakers, matrices), speakers, matrices)


def warp_matrices(analysis: MelCepstra, cepstra: int, factors: Sequence[float]) -> dict[float, FloatArray]:
    """(K, K) warp by factor."""
    return {factor: warp_matrix(analysis, cepstra, factor) for factor in factors}


def warps_of(
    factors: Mapping[str, float], speakers: Mapping[str, str], matrices: Mapping[float, FloatArray]
) -> dict[str, FloatArray]:
    """The warp (K, K) of each utterance by the factor of its speaker; those of factor 1, or without one, are left out.

    Args:
        factors: {speaker: factor}.
        speakers: {utterance: speaker}.
        matrices: warp by factor.
    """
    own = {utterance: factors.get(speaker, 1.0) for utterance, speaker in speakers.items()}
    return {utterance: matrices[factor] for utterance, factor in own.items() if factor != 1.0}


def _sums(
    mixtures: Mixtures,
    feats: Features,
    speakers: Mapping[str, str],
    matrices: Mapping[float, FloatArray],
    factors: Mapping[str, float],
) -> Iterator[MixtureStats]:
    for speaker, frames_ND in _by_speaker(feats, speakers):
        for part_ND in _pieces(frames_ND):
            yield expect(mixtures, warped(part_ND, matrices[factors[speaker]]), _zeros(part_ND))


def _zeros(frames_ND: NDArray) -> NDArray[np.int64]:
    """The pdf of each frame: there is one alone."""
    return np.zeros(len(frames_ND), dtype=np.int64)


def _by_speaker(feats: Features, speakers: Mapping[str, str]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Each speaker with their frames, end to end, in the order of the names."""
    members: dict[str, list[str]] = {}
    for utterance in feats:
        members.setdefault(speakers[utterance], []).append(utterance)
    for speaker in sorted(members):
        yield speaker, np.concatenate([feats[u] for u in members[speaker]])


def _pieces(frames_ND: NDArray) -> Iterator[NDArray]:
    for begin in range(0, len(frames_ND), FRAMES_AT_ONCE):
        yield frames_ND[begin : begin + FRAMES_AT_ONCE]
