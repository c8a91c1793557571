"""Speaker-adaptive training (SAT): triphones on features adapted to each speaker of the corpus by fMLLR.

Anastasakos, McDonough, Schwartz and Makhoul, "A compact model for speaker-adaptive training" (1996); Gales (1998). The
schedule and the model of unadapted features are those of Kaldi.

Shapes: T frames, F features, D projected features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from murmur.execution.executors import Jobs
from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Block, Workers
from murmur.speech.hmm.em_loop import EmConfig, Progress, Trained, ignore_progress
from murmur.speech.hmm.fmllr import FmllrConfig, Transforms, estimate_transforms
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.material import Features
from murmur.speech.hmm.mixtures import FloatArray, MixtureStats, expect, refit
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.triphone import aligned_by, grow_model

EM = EmConfig(gaussians=4000, passes=20, grow_passes=14, align_passes=(5, 10, 15), min_gaussian_frames=20.0)


@dataclass(frozen=True)
class SatConfig:
    """Settings of the transforms, the tree and the EM loop.

    Attributes:
        fmllr_passes: passes before whose E step the transforms are estimated again.
        fmllr: settings of the estimation in training.
        decoding: settings of the estimation in decoding.
        tree: size of the decision tree that ties the states of triphones.
        em: settings of the EM loop.
    """

    fmllr_passes: tuple[int, ...] = (2, 4, 6, 12)
    fmllr: FmllrConfig = field(default_factory=FmllrConfig)
    decoding: FmllrConfig = field(default_factory=lambda: FmllrConfig(silence_weight=0.01))
    tree: TreeConfig = field(default_factory=TreeConfig)
    em: EmConfig = EM

    def __post_init__(self) -> None:
        late = [number for number in self.fmllr_passes if not 1 <= number <= self.em.passes]
        if late:
            raise ValueError(f"fmllr_passes names {late}, and em.passes = {self.em.passes}: name passes from 1 to that")


@dataclass(frozen=True)
class SatTrained(Trained):
    """Models with alignments and transforms of the last training pass.

    Attributes:
        unadapted: twin of `model` for unadapted features.
        transforms: {speaker: W (D, D + 1)}.
    """

    unadapted: HmmGmm
    transforms: Transforms


def train_sat(
    previous: HmmGmm,
    feats: Features,
    texts: Mapping[str, str],
    speakers: Mapping[str, str],
    config: SatConfig | None = None,
    jobs: Jobs = 1,
    progress: Progress = ignore_progress,
) -> SatTrained:
    """Triphones on adapted features, from the alignments of an earlier triphone model.

    `previous` aligns the corpus, whose features are its own, and gives the first transforms; its projection is kept.
    `speakers` is {utterance: speaker}. The other arguments, and the errors, are those of `train_monophone`.
    """
    config = config or SatConfig()
    transforms: dict[str, FloatArray] = {}
    with aligned_by(previous, "SAT triphone", feats, texts, config.em, jobs, progress, speakers) as loop:
        workers = loop.workers

        def adapt(number: int, model: HmmGmm) -> None:
            if number in (0, *config.fmllr_passes):
                transforms.update(estimate_transforms(workers, model, model, config.fmllr, transforms))

        adapt(0, previous)
        model, variance_D = grow_model(workers, previous, previous.projection, config.tree)
        trained = loop.run(model, variance_D, adapt=adapt)
        unadapted = unadapted_twin(workers, trained.model, config.em)
    return SatTrained(trained.model, trained.tids, trained.lost, trained.history, unadapted, transforms)


def unadapted_twin(workers: Workers, model: HmmGmm, config: EmConfig) -> HmmGmm:
    """The model with means and variances of unadapted features, under posteriors of the adapted ones."""
    stats = workers.sum(unadapted_sums, model)
    mean_D = stats.first.sum(0) / stats.frames
    variance_D = stats.second.sum(0) / stats.frames - mean_D**2
    floor_D = config.variance_floor * variance_D
    return replace(model, mixtures=refit(model.mixtures, stats, floor_D, config.min_gaussian_frames))


def unadapted_sums(block: Block, model: HmmGmm) -> MixtureStats:
    """Sums of a block's unadapted frames, under the model's posteriors of the adapted ones."""
    adapted_ND, tids_N = passes.aligned_frames(block, model)
    pdfs_N = model.transitions.pdf_of[tids_N]
    return expect(model.mixtures, adapted_ND, pdfs_N, passes.unadapted_frames(block, model))
