"""Settings of hybrid systems: front ends, Gaussian systems, criteria, decoding. All are frozen, and all can be set.

Shapes: N chunks, T frames, C pdfs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import ClassVar, Literal

import torch
from torch import Tensor

from murmur.speech.features.chunks import ChunkBatch
from murmur.speech.features.cmvn import Columns, Scope
from murmur.speech.features.shards import Storage
from murmur.speech.features.speed_and_noise import Noise
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.ivector import IvectorConfig
from murmur.speech.hmm.lda_mllt import LdaMlltConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.hmm.triphone import TriphoneConfig
from murmur.speech.sequence import criteria
from murmur.speech.sequence.denominator import Denominator, PhoneNgrams
from murmur.speech.sequence.numerators import NumeratorBuilder, Numerators, check_tolerance
from murmur.speech.sequence.state_graph import StateGraph
from murmur.speech.tasks.graph_sources import POSTERIOR_SCALES, Search

Perturb = Literal["stored", "on_the_fly"]


@dataclass(frozen=True)
class NetworkInput:
    """Parts of the network's input, joined frame by frame in this order: spectrum, adapted features, i-vector.

    Attributes:
        spectrum: True for the network's own features: log-mel bins, or the features that a set brings.
        deltas: derivatives appended to the spectrum, 0 to 2; None: none for log-mel bins, two for features of a set.
        fmllr: True for the features of the speaker-adapted Gaussian system (`HmmStages.sat`): projected, and adapted by
            the transforms of training, or of two-pass decoding for other speech. They are not normalised further.
        ivector: settings of the i-vector, which is the same in all frames of an utterance; None leaves it out.
    """

    spectrum: bool = True
    deltas: int | None = None
    fmllr: bool = False
    ivector: IvectorConfig | None = None

    def __post_init__(self) -> None:
        if not self.spectrum and not self.fmllr:
            raise ValueError("an input without spectrum and fmllr says nothing about a frame: set one of them to True")
        if self.deltas is not None and not (self.spectrum and 0 <= self.deltas <= 2):
            raise ValueError(f"deltas = {self.deltas}: give 0, 1 or 2 with spectrum=True, or None")

    @property
    def of_speakers(self) -> bool:
        return self.fmllr or self.ivector is not None


@dataclass(frozen=True)
class FrontEnd:
    """Features of the HMMs and of the network, at 100 frames a second.

    Attributes:
        cepstra: MFCC of the Gaussian mixtures, with two orders of deltas, less the mean of the speaker.
        bins: log-mel bins of the network, normalised by mean and variance.
        cmvn: scope of the mean and variance that normalise the network's input: "speaker", "utterance" or "none".
        speeds: playback speeds of the copies that the network trains on (Ko et al. 2015); 1.0 must be among them.
        perturb: "stored" keeps a copy for each speed on disk, and an epoch is one pass over all copies. This needs disk
            space for every speed, and no work in training. "on_the_fly" keeps the copy at speed 1 alone. The speed of a
            chunk is drawn by the number of its minibatch, and the chunk is analysed from audio in the background. This
            needs disk space for one copy, and some milliseconds of a core per chunk. An epoch is then one pass at mixed
            speeds, and cmvn is that of speed 1.
        noise: noise added to chunks "on_the_fly", such as noise.share=0.5; normalised like the speech without it.
        storage: type of the network's training features on disk, 4, 2 or 1 bytes a value.
        input: parts of the network's input; those of the speaker are estimated for each stored speed, as if the copies
            were speech of other speakers.
        normalised: columns of the spectrum that cmvn normalises: "static" before deltas are appended, which leaves
            deltas with deviations of 0.1 to 0.3, or "all" after that.

    Sets that bring features use those, with deltas, for both. Their copies at other speeds are made from cepstra, if
    the analysis of those is known (`SpeechSet.analysis`).
    """

    cepstra: int = 13
    bins: int = 40
    cmvn: Scope = "speaker"
    speeds: tuple[float, ...] = (1.0,)
    perturb: Perturb = "stored"
    noise: Noise = field(default_factory=Noise)
    storage: Storage = "float32"
    input: NetworkInput = field(default_factory=NetworkInput)
    normalised: Columns = "static"

    def __post_init__(self) -> None:
        if self.bins < 1 or self.cepstra < 1 or min(self.speeds, default=1.0) <= 0:
            raise ValueError(f"bins {self.bins}, cepstra {self.cepstra} and speeds {self.speeds} must be positive")
        if self.perturb == "on_the_fly" and self.input != NetworkInput():
            raise ValueError(
                f"perturb = {self.perturb!r} with {self.input}: chunks that are changed as they are drawn have neither "
                "transforms nor i-vectors of their own, and no deltas: set perturb=stored, which keeps copies at all "
                "speeds with their own"
            )
        if 1.0 not in self.speeds or len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"speeds {self.speeds} must hold 1.0 and no speed twice: alignments are made at speed 1")
        if self.perturb == "on_the_fly" and len(self.speeds) == 1 and not self.noise.share:
            raise ValueError(
                f"perturb = {self.perturb!r} has nothing to draw: give speeds, such as (0.9, 1.0, 1.1), or noise.share"
            )

    @property
    def draws(self) -> bool:
        """True if training chunks are changed as they are drawn."""
        if self.perturb == "stored" and self.noise.share:
            raise ValueError("noise is added only on the fly: set task.front.perturb=on_the_fly, or noise.share=0")
        return self.perturb == "on_the_fly"

    @property
    def stored(self) -> FrontEnd:
        """The front end of the copies on disk."""
        return self if self.perturb == "stored" else replace(self, speeds=(1.0,), perturb="stored", noise=Noise())


@dataclass(frozen=True)
class HmmStages:
    """The Gaussian systems, trained one after the other; the last one gives the network its targets.

    Attributes:
        silence_probability: probability of a silence between words, in training.
        monophone: first stage, monophones.
        triphone: second stage, triphones; None stops before it.
        lda: third stage, on LDA+MLLT features; None stops before it.
        sat: last stage, on features adapted to each speaker by fMLLR; None leaves it out. It starts from the stage
            before it, whose projection it keeps, and is decoded in two passes.
    """

    silence_probability: float = 0.5
    monophone: EmConfig = field(default_factory=EmConfig)
    triphone: TriphoneConfig | None = field(default_factory=TriphoneConfig)
    lda: LdaMlltConfig | None = None
    sat: SatConfig | None = None

    def __post_init__(self) -> None:
        for name, stage in (("LDA+MLLT", self.lda), ("speaker-adaptive training", self.sat)):
            if stage is not None and self.triphone is None:
                raise ValueError(f"{name} starts from the alignments of triphones: give a triphone stage too")

    @property
    def names(self) -> list[str]:
        """The systems in the order in which they are trained."""
        return [name for name in ("monophone", "triphone", "lda", "sat") if getattr(self, name) is not None]


@dataclass(frozen=True)
class Decoding:
    """Settings of decoding, from scores to words.

    Attributes:
        gmm: grammar and tuning of the Gaussian systems.
        network: grammar and tuning of the network.
        tune_every: tuning uses every n-th dev utterance; figures use all of them.
        silence_probability: probability of a silence before the first word and after each word, in the decoding
            graph; None takes the share of such places with a silence in the alignments of train.
        scored: Gaussian systems to score: "last" is the one that aligned for the network.
    """

    gmm: Search = field(default_factory=Search)
    network: Search = field(default_factory=lambda: Search(scales=POSTERIOR_SCALES))
    tune_every: int = 1
    silence_probability: float | None = None
    scored: Literal["all", "last", "none"] = "all"

    def __post_init__(self) -> None:
        if self.tune_every < 1:
            raise ValueError(f"tune_every = {self.tune_every}: it must be at least 1, which uses every utterance")


@dataclass(frozen=True, eq=False)
class SequenceBatch:
    """Chunks for sequence training.

    Attributes:
        chunks: features with context, and the pdfs of the chunks' own frames.
        first: index of the first own frame, the same in all chunks.
        lengths: (N,) number of own frames.
        numerators: numerators of the chunks; None for criteria without.
    """

    chunks: ChunkBatch
    first: int
    lengths: Tensor
    numerators: Numerators | None

    @property
    def frames(self) -> int:
        return self.chunks.frames

    def own(self, x_NT: Tensor) -> Tensor:
        """The own frames of a tensor over all frames, padded to the longest chunk."""
        return x_NT[:, self.first : self.first + int(self.lengths.max())]


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy of the aligned pdf of each frame."""

    aligned: ClassVar[bool] = True  # by a Gaussian system
    continues: ClassVar[str | None] = None


@dataclass(frozen=True, kw_only=True)
class LatticeFree(ABC):
    """Criterion over the paths of a phone graph, for a network that cross-entropy has trained.

    Attributes:
        ngrams: phone model of the denominator.
        acoustic_scale: factor k of scores k (ln p(pdf | frame) - ln p(pdf)), against which phone model and transitions
            have the weight 1.
        leak: weight of the arcs from each state of the denominator to all.
        cross_entropy: weight of the cross-entropy of the same frames.
    """

    aligned: ClassVar[bool] = True
    continues: ClassVar[str | None] = "the same network trained by cross-entropy"

    ngrams: PhoneNgrams = field(default_factory=PhoneNgrams)
    acoustic_scale: float = 0.2
    leak: float = 1e-5
    cross_entropy: float = 0.1

    def __post_init__(self) -> None:
        factors = (self.acoustic_scale, self.leak, self.cross_entropy)
        if not (self.acoustic_scale > 0 and self.leak > 0 and self.cross_entropy >= 0 and all(map(isfinite, factors))):
            raise ValueError(
                f"acoustic_scale {self.acoustic_scale} and leak {self.leak} must be positive, cross_entropy"
                f" {self.cross_entropy} not negative, and all of them finite"
            )

    @abstractmethod
    def builder(self, denominator: Denominator) -> NumeratorBuilder | None:
        """Builder of numerators; None if the criterion has none."""

    @abstractmethod
    def objective(self, scores_NTC: Tensor, batch: SequenceBatch, graph: StateGraph) -> Tensor:
        """Objective of each chunk, summed over its own frames, (N,)."""


@dataclass(frozen=True, kw_only=True)
class Mmi(LatticeFree):
    """Maximum mutual information: log probability of the aligned phones among all phone sequences.

    Attributes:
        tolerance_frames: frames by which limits of phones may move in the numerator.
    """

    tolerance_frames: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tolerance(self.tolerance_frames)

    def builder(self, denominator: Denominator) -> NumeratorBuilder:
        return NumeratorBuilder(denominator, self.tolerance_frames, self.leak)

    def objective(self, scores_NTC: Tensor, batch: SequenceBatch, graph: StateGraph) -> Tensor:
        assert batch.numerators is not None
        device = scores_NTC.device
        return criteria.mmi(scores_NTC, batch.lengths.to(device), batch.numerators.to(device), graph, self.leak)


@dataclass(frozen=True, kw_only=True)
class Smbr(LatticeFree):
    """Minimum Bayes risk of states: expected number of frames with the aligned pdf."""

    def builder(self, denominator: Denominator) -> None:
        """None: the aligned pdfs are the reference."""

    def objective(self, scores_NTC: Tensor, batch: SequenceBatch, graph: StateGraph) -> Tensor:
        device: torch.device = scores_NTC.device
        references_NT = batch.own(batch.chunks.targets).to(device)
        return criteria.smbr(scores_NTC, references_NT, batch.lengths.to(device), graph, self.leak)


@dataclass(frozen=True, kw_only=True)
class ChainMmi:
    """Lattice-free MMI on the outputs of the network as log-likelihoods, without prior and scale.

    Attributes:
        ngrams: phone model of the denominator.
        leak: weight of the arcs from each state of the denominator to all.
        cross_entropy: weight of the cross-entropy of the aligned pdfs; a flat start has none.
        tolerance_frames: output frames by which limits of aligned phones may move in the numerator; None for all paths
            of the transcript.
        draws: phone sequences that a flat start draws from each transcript for the phone model.
        tree: tree of states in context, grown on alignments; None for a flat start with monophones.
        shifts: frames by which the features of each epoch in turn are shifted, so that all frames are taken.
    """

    continues: ClassVar[str | None] = None

    ngrams: PhoneNgrams = field(default_factory=PhoneNgrams)
    leak: float = 0.1
    cross_entropy: float = 0.1
    tolerance_frames: int | None = None
    draws: int = 5
    tree: TreeConfig | None = None
    shifts: tuple[int, ...] = (-1, 0, 1)

    def __post_init__(self) -> None:
        factors = (self.leak, self.cross_entropy)
        if not (self.leak > 0 and self.cross_entropy >= 0 and all(map(isfinite, factors)) and self.draws >= 1):
            raise ValueError(
                f"leak {self.leak} must be positive, cross_entropy {self.cross_entropy} not negative, both of them"
                f" finite, and draws {self.draws} at least 1"
            )
        if not self.shifts:
            raise ValueError("shifts names no shift: give (0,) for none")
        if self.tolerance_frames is not None:
            check_tolerance(self.tolerance_frames)
            if self.tree is None:
                raise ValueError(
                    f"tolerance_frames = {self.tolerance_frames}: a flat start has no alignments: set a tree, or None"
                )

    @property
    def aligned(self) -> bool:
        """True if a Gaussian system aligns; a flat start needs none."""
        return self.tree is not None


Criterion = CrossEntropy | Mmi | Smbr | ChainMmi
