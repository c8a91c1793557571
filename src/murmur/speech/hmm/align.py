"""Forced alignment of a corpus, with the model's own scores or with those of a network.

Shapes: T frames, F features, P pdfs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import add

from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Block, Workers, cut_into_blocks
from murmur.speech.hmm.material import Features, Material, check_material, refuse_losses
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import AlignReport
from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.hmm.speaker_transforms import AdaptedPair, FmllrConfig, estimate_transforms, of_adapted
from murmur.speech.hmm.viterbi import AlignOptions

Search = Callable[[Block, HmmGmm, AlignOptions], AlignReport]


@dataclass(frozen=True)
class Aligned:
    """Alignments of a corpus.

    Attributes:
        tids: {utterance: (T,) transition-ids}.
        lost: {utterance: reason why it could not be aligned}.
        retried: number of utterances that needed the wide beam.
        log_likelihood_per_frame: mean of the best paths, natural and unscaled.
    """

    tids: dict[str, IntArray]
    lost: dict[str, str]
    retried: int
    log_likelihood_per_frame: float


def align(
    model: HmmGmm,
    feats: Features,
    texts: Mapping[str, str],
    options: AlignOptions | None = None,
    jobs: int = 1,
) -> Aligned:
    """Align transcripts with features by the model.

    Args:
        model: the model.
        feats: {utterance: (T, F) float32}, the same features as in training.
        texts: {utterance: transcript}.
        options: settings of the search; None for the defaults.
        jobs: number of processes; the result does not depend on it.

    Raises:
        ValueError: the features have the wrong number of columns, or more than 1 % of the utterances cannot be aligned;
            the message names them and gives the reasons.
    """
    dim = model.mixtures.dim if model.projection is None else _dim(feats)
    return _align(model, check_material(model.lang, feats, texts, dim), passes.realign, options, jobs)


def align_scores(
    model: HmmGmm,
    scores: Features,
    texts: Mapping[str, str],
    options: AlignOptions | None = None,
    jobs: int = 1,
) -> Aligned:
    """Align transcripts with scores of another model of the same pdfs, such as a network.

    `scores` are {utterance: (T, P) float32} log-likelihoods up to a constant per frame, e.g. log-posteriors minus
    log-priors, not yet scaled; the rest is as for `align`.
    """
    material = check_material(model.lang, scores, texts, model.num_pdfs)
    return _align(model, material, passes.realign_scores, options, jobs)


def align_adapted(
    pair: AdaptedPair,
    feats: Features,
    texts: Mapping[str, str],
    speakers: Mapping[str, str],
    config: FmllrConfig,
    options: AlignOptions | None = None,
    jobs: int = 1,
) -> Aligned:
    """Align in two passes: by the model of unadapted features, then adapted to each speaker by the first alignments.

    A speaker with too few frames for a transform keeps the model of unadapted features. `speakers` is {utterance:
    speaker}, `config` holds the settings of the transforms; the rest is as for `align`.
    """
    material = check_material(pair.adapted.lang, feats, texts, _dim(feats))
    total, options = len(material.feats) + len(material.lost), options or AlignOptions()
    refuse_losses(material.lost, total)
    with Workers(cut_into_blocks(material.feats, material.texts, speakers), jobs) as workers:
        workers.map(passes.compile_graphs, pair.unadapted)
        workers.map(passes.realign, pair.unadapted, options)
        found = estimate_transforms(workers, pair.unadapted, pair.adapted, config, {})
        search = partial(passes.realign_pair, unadapted=pair.unadapted, speakers=frozenset(of_adapted(found)))
        return _aligned(workers, pair.adapted, search, options, material)


def _align(
    model: HmmGmm,
    material: Material,
    search: Search,
    options: AlignOptions | None,
    jobs: int,
) -> Aligned:
    refuse_losses(material.lost, len(material.feats) + len(material.lost))
    with Workers(cut_into_blocks(material.feats, material.texts), jobs) as workers:
        workers.map(passes.compile_graphs, model)
        return _aligned(workers, model, search, options or AlignOptions(), material)


def _aligned(workers: Workers, model: HmmGmm, search: Search, options: AlignOptions, material: Material) -> Aligned:
    """Align the blocks, which hold training graphs."""
    report = reduce(add, workers.map(search, model, options), AlignReport())
    tids = {u: path for block in workers.map(passes.alignments_of) for u, path in block.items()}
    lost = {**material.lost, **report.failed}
    refuse_losses(lost, len(material.feats) + len(material.lost))
    return Aligned(tids, lost, report.retried, report.log_likelihood / max(1, report.frames))


def _dim(feats: Features) -> int:
    return next((x.shape[1] for _, x in sorted(feats.items()) if x.ndim == 2), 0)
