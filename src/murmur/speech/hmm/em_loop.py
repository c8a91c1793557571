"""The EM loop of all stages of training: alignments, E step, M step, growing mixtures.

Rabiner, "A tutorial on hidden Markov models" (1989), section VI; the recipe (Viterbi training, growing mixtures) is
Kaldi's, and so is the allocation: pdfs get Gaussians in proportion to a power of their number of frames. Training
repeats bit for bit for a seed, whatever the number of processes.

Shapes: F features, P pdfs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Workers
from murmur.speech.hmm.material import MAX_LOST, Losses
from murmur.speech.hmm.mixtures import FloatArray, Mixtures, maximise
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import AlignOptions
from murmur.speech.hmm.storage import StoredAlignments
from murmur.speech.hmm.transitions import reestimate

# Early models fail on utterances that later ones align; only the last alignment must meet the strict limit.
MAX_LOST_EARLY = 0.5
# The halves lie this many standard deviations (times a standard normal number) from the mean, as in HTK: from much
# closer they take many passes to separate.
PERTURBATION = 0.2


@dataclass(frozen=True)
class EmConfig:
    """Settings of the EM loop.

    Attributes:
        gaussians: final number of Gaussians of all mixtures.
        passes: number of M steps.
        grow_passes: number of passes in which the number of Gaussians grows, in even steps.
        align_passes: passes before which the alignments are made again (the first pass has number 1).
        allocation_power: power of the frame counts by which Gaussians are allocated.
        min_gaussian_frames: least frames of a Gaussian, below which it is removed; a new one needs three times as many.
        variance_floor: smallest variance, as a fraction of the features' variance over the corpus.
        seed: seed of the flat start and of the splits.
        align: settings of the search for alignments.
    """

    gaussians: int = 1000
    passes: int = 30
    grow_passes: int = 22
    align_passes: tuple[int, ...] = (*range(2, 12), 13, 15, 17, 19, 22, 25, 28)
    allocation_power: float = 0.25
    min_gaussian_frames: float = 5.0
    variance_floor: float = 0.005
    seed: int = 0
    align: AlignOptions = field(default_factory=AlignOptions)

    def __post_init__(self) -> None:
        if self.passes < 1 or not 1 <= self.grow_passes <= self.passes or self.gaussians < 1:
            raise ValueError(f"passes, grow_passes (at most passes) and gaussians must be positive, got {self}")


@dataclass(frozen=True)
class PassReport:
    """Report of one pass of training.

    Attributes:
        stage: name of the stage.
        number: number of the pass, from 1.
        passes: total number of passes.
        log_likelihood_per_frame: mean over the data before the pass's M step, given the alignment.
        gaussians: number of Gaussians after the pass.
        frames: number of frames used.
        failed: {utterance: reason} for utterances that could not be aligned.
    """

    stage: str
    number: int
    passes: int
    log_likelihood_per_frame: float
    gaussians: int
    frames: int
    failed: Mapping[str, str]


Progress = Callable[[PassReport], None]


def ignore_progress(_report: PassReport) -> None:
    """Discard the report."""


@dataclass(frozen=True)
class Trained:
    """A model with the alignments of its last training pass.

    Attributes:
        model: the model.
        tids: {utterance: transition-ids by frame}, in a file that stays as long as they are in use.
        lost: {utterance: reason why it did not take part at the end}.
        history: reports of the passes.
    """

    model: HmmGmm
    tids: StoredAlignments
    lost: dict[str, str]
    history: tuple[PassReport, ...]


@dataclass
class EmLoop:
    """Passes of alignment, E step, M step and splitting over one corpus.

    Attributes:
        stage: name of the stage, for the reports.
        workers: blocks of the corpus.
        losses: utterances that the blocks leave out.
        config: settings of the loop.
        progress: function called after each pass.
        failed: {utterance: reason} of the last alignment.
    """

    stage: str
    workers: Workers
    losses: Losses
    config: EmConfig
    progress: Progress
    failed: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        model: HmmGmm,
        variance_F: FloatArray,
        refine: Callable[[int, HmmGmm], HmmGmm] | None = None,
        adapt: Callable[[int, HmmGmm], None] | None = None,
    ) -> Trained:
        """Train from the blocks' alignments.

        `variance_F` is the features' variance over the corpus, of which the floor is a fraction. `refine(n, model)`
        returns the model that a stage makes at the end of pass n; `adapt(n, model)` may change the blocks before the E
        step of pass n.
        """
        history = []
        random = np.random.default_rng(self.config.seed)
        first = model.mixtures.num_pdfs
        for number in range(1, self.config.passes + 1):
            if number in self.config.align_passes:
                self.realign(model)
            if adapt:
                adapt(number, model)
            stats = self.accumulate(model)
            model = self.maximise(model, stats, variance_F)
            if number <= self.config.grow_passes:
                target = first + (self.config.gaussians - first) * number // self.config.grow_passes
                model = self.grow(model, stats, target, random)
            if refine:
                model = refine(number, model)
            history.append(self.report(number, stats, model))
        self.realign(model, most_lost=MAX_LOST)
        tids = self.workers.alignments
        return Trained(model, tids, {**self.losses.lost, **self.failed}, tuple(history))

    def realign(self, model: HmmGmm, options: AlignOptions | None = None, most_lost: float = MAX_LOST_EARLY) -> None:
        """Make new alignments, and refuse more than `most_lost` failures; None for the options of `config`."""
        self.failed = self.workers.gather(passes.realign, model, options or self.config.align)
        self.losses.with_failed(self.failed, most_lost)

    def accumulate(self, model: HmmGmm) -> passes.PassStats:
        """The E step on the blocks' alignments."""
        return self.workers.sum(passes.accumulate, model)

    def maximise(self, model: HmmGmm, stats: passes.PassStats, variance_F: FloatArray) -> HmmGmm:
        """The M step of transitions and mixtures."""
        transitions = reestimate(model.lang, model.tree, model.transitions, stats.transition_counts)
        floor_F = self.config.variance_floor * variance_F
        mixtures = maximise(model.mixtures, stats.mixtures, floor_F, self.config.min_gaussian_frames)
        return replace(model, log_probs=transitions.log_probs, mixtures=mixtures)

    def grow(self, model: HmmGmm, stats: passes.PassStats, target: int, random: np.random.Generator) -> HmmGmm:
        """Split Gaussians until there are `target` of them, or too few frames for more."""
        held_P = np.bincount(model.transitions.pdf_of[1:], stats.transition_counts[1:]).astype(np.float64)
        least = 3 * self.config.min_gaussian_frames
        wanted_P = allocate(held_P, target, self.config.allocation_power, least)
        return replace(model, mixtures=split(model.mixtures, wanted_P, random))

    def report(self, number: int, stats: passes.PassStats, model: HmmGmm) -> PassReport:
        """Describe a pass and pass the report to the caller's function."""
        sums, gaussians = stats.mixtures, int(model.mixtures.sizes.sum())
        per_frame = sums.log_likelihood / max(1, sums.frames)
        report = PassReport(self.stage, number, self.config.passes, per_frame, gaussians, sums.frames, self.failed)
        self.progress(report)
        return report


def allocate(held_P: FloatArray, total: int, power: float, min_frames: float) -> NDArray[np.int64]:
    """Gaussians of each pdf out of `total`: the next one always goes to the largest held^power / number already given.

    `held_P` are the frames of each pdf; Gaussians are not split below `min_frames` each. Each pdf gets at least one,
    even if the sum then exceeds `total`.
    """
    counts = np.ones(len(held_P), dtype=np.int64)
    queue = [(-(float(held) ** power), pdf) for pdf, held in enumerate(held_P)]
    heapq.heapify(queue)
    for _ in range(total - len(held_P)):
        while queue and (counts[queue[0][1]] + 1) * min_frames > held_P[queue[0][1]]:
            heapq.heappop(queue)
        if not queue:
            break
        pdf = queue[0][1]
        counts[pdf] += 1
        heapq.heapreplace(queue, (-(float(held_P[pdf]) ** power) / counts[pdf], pdf))
    return counts


def split(mixtures: Mixtures, target_P: NDArray[np.int64], random: np.random.Generator) -> Mixtures:
    """Split the heaviest Gaussian of each pdf until it has at least `target_P` of them.

    w, mu, sigma become twice w / 2 and mu +- 0.2 z sigma, z standard normal; a pdf with enough Gaussians is unchanged.
    """
    parts = []
    for start, size, target in zip(mixtures.starts, mixtures.sizes, target_P, strict=True):
        part = slice(start, start + size)
        own = (mixtures.weights, mixtures.means, mixtures.variances)
        weights, means, variances = (list(values[part]) for values in own)
        while len(weights) < target:
            heaviest = int(np.argmax(weights))
            shift = PERTURBATION * random.standard_normal(mixtures.dim) * np.sqrt(variances[heaviest])
            weights[heaviest] /= 2
            weights.append(weights[heaviest])
            variances.append(variances[heaviest])
            means.append(means[heaviest] - shift)
            means[heaviest] = means[heaviest] + shift
        parts.append((weights, means, variances))
    weights_G, means_GF, variances_GF = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Mixtures(np.array([len(weights) for weights, _, _ in parts]), weights_G, means_GF, variances_GF)
