"""Training of triphones on features projected by LDA and MLLT.

Shapes: T frames, F features, D projected features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Workers, cut_into_blocks
from murmur.speech.hmm.convert import carry_over
from murmur.speech.hmm.em_loop import MAX_LOST_EARLY, EmConfig, EmLoop, Progress, Trained, ignore_progress
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.lda import LdaConfig, estimate_lda, lda_stats
from murmur.speech.hmm.material import Features
from murmur.speech.hmm.mllt import apply_mllt, estimate_mllt, mllt_stats
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.monophone import usable
from murmur.speech.hmm.triphone import grow_model


def _default_em() -> EmConfig:
    return EmConfig(gaussians=4000, passes=16, grow_passes=12, align_passes=(3, 5, 7, 10, 13), min_gaussian_frames=20.0)


@dataclass(frozen=True)
class LdaMlltConfig:
    """Settings of the projection, the tree and the EM loop.

    Attributes:
        lda: settings of splicing and projection.
        mllt_passes: passes after which the MLLT is estimated again.
        tree: size of the decision tree that ties the states of triphones.
        em: settings of the EM loop.
        silence_weight: weight of the frames of silence in the statistics of LDA and MLLT.
    """

    lda: LdaConfig = field(default_factory=LdaConfig)
    mllt_passes: tuple[int, ...] = (2, 4, 6, 10)
    tree: TreeConfig = field(default_factory=TreeConfig)
    em: EmConfig = field(default_factory=_default_em)
    silence_weight: float = 0.0


def train_lda_mllt(
    previous: HmmGmm,
    feats: Features,
    texts: Mapping[str, str],
    config: LdaMlltConfig | None = None,
    jobs: int = 1,
    progress: Progress = ignore_progress,
) -> Trained:
    """Triphones on projected features, from the alignments of an earlier triphone model.

    Args:
        previous: model that aligns the corpus; its pdfs are the classes of the LDA.
        feats: {utterance: (T, F) float32}, the earlier model's features; the first `lda.static_dim` are spliced.
        texts: {utterance: transcript}.
        config: settings of projection, tree and EM loop; None for the defaults.
        jobs: number of processes.
        progress: function called after each pass.

    Raises:
        ValueError: more than 1 % of the utterances cannot be used; the message names them and gives the reasons.
    """
    config = config or LdaMlltConfig()
    narrow = [u for u, x in feats.items() if x.ndim == 2 and x.shape[1] < config.lda.static_dim]
    if narrow:
        raise ValueError(f"utterance {narrow[0]} has fewer features than static_dim = {config.lda.static_dim}")
    material = usable(previous.lang, feats, texts)
    with Workers(cut_into_blocks(material.feats, material.texts), jobs) as workers:
        workers.map(passes.compile_graphs, previous)
        loop = EmLoop("LDA+MLLT triphone", workers, material, config.em, progress)
        failed = loop.realign(previous, config.em.align, MAX_LOST_EARLY)
        lda = estimate_lda(reduce(add, workers.map(lda_stats, previous, config.lda, config.silence_weight)), config.lda)
        model, variance_D = grow_model(workers, previous, lda, config.tree)
        workers.map(carry_over, previous, model)

        def refine(number: int, model: HmmGmm) -> HmmGmm:
            if number not in config.mllt_passes:
                return model
            return apply_mllt(model, estimate_mllt(reduce(add, workers.map(mllt_stats, model, config.silence_weight))))

        return loop.run(model, variance_D, failed, refine)
