"""Settings of the hybrid recipe: front ends, HMM stages, chunks, decoding. All are frozen, and all can be set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from murmur.engine.experiment import ADDED
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.features.cmvn import Scope
from murmur.speech.features.derivatives import Columns
from murmur.speech.features.frame_store import Storage
from murmur.speech.features.noise import Noise
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.lda_mllt import LdaMlltConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.hmm.triphone import TriphoneConfig
from murmur.speech.hmm.vtln import VtlnConfig
from murmur.speech.ivector.extractor import IvectorConfig

LOOP, ONE_WORD = "loop", "one word"
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
        """True if a part depends on the speaker."""
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
    input: NetworkInput = field(default_factory=NetworkInput, repr=False, metadata=ADDED)
    normalised: Columns = field(default="static", repr=False, metadata=ADDED)

    def __post_init__(self) -> None:
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
        """True if training chunks are changed as they are drawn.

        Raises:
            ValueError: they are not, but noise is requested.
        """
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
        vtln: normalisation of the vocal tract length of each speaker, before all stages; None leaves it out. It changes
            the features of the Gaussian systems, and with them `NetworkInput.fmllr`; not the spectrum of the network,
            nor i-vectors, which describe the speaker.
    """

    silence_probability: float = 0.5
    monophone: EmConfig = field(default_factory=EmConfig)
    triphone: TriphoneConfig | None = field(default_factory=TriphoneConfig)
    lda: LdaMlltConfig | None = None
    sat: SatConfig | None = None
    vtln: VtlnConfig | None = field(default=None, repr=False, metadata=ADDED)

    def __post_init__(self) -> None:
        for name, stage in (("LDA+MLLT", self.lda), ("speaker-adaptive training", self.sat)):
            if stage is not None and self.triphone is None:
                raise ValueError(f"{name} starts from the alignments of triphones: give a triphone stage too")

    @property
    def names(self) -> list[str]:
        """The systems in the order in which they are trained."""
        return [name for name in ("monophone", "triphone", "lda", "sat") if getattr(self, name) is not None]

    @property
    def to_train(self) -> list[str]:
        """The systems after the normalisation of the vocal tract length, if there is one, which is trained first."""
        return self.names if self.vtln is None else ["vtln", *self.names]


@dataclass(frozen=True)
class Chunks:
    """Options for cutting utterances into training chunks.

    Attributes:
        frames: length of the longest chunk.
        left_frames: frames of context before the chunk, not trained.
        right_frames: frames of context after the chunk, not trained.
        size: number of chunks in a minibatch.
        parts: number of shares of the chunks; with as many lock-step learners, each trains on its own share alone.
    """

    frames: int = 100
    left_frames: int = 12
    right_frames: int = 12
    size: int = 24
    parts: int = 1


@dataclass(frozen=True)
class Search:
    """Grammar and tuning of one kind of system.

    Attributes:
        grammar: "loop" (any number of words, equally likely), "one word", or the name of a language model of the set.
        scales: acoustic scales to try on dev; of three and more, the range is widened while the best is at an end.
        insertion_penalties: costs per word (natural log) to try on dev, each with all scales.
        beams: (beam, most active states) to try on dev; the fastest one within 0.2 % of the widest is taken.
    """

    grammar: str = LOOP
    scales: tuple[float, ...] = (0.05, 0.07, 0.1, 0.14, 0.2)
    insertion_penalties: tuple[float, ...] = (0.0,)
    beams: tuple[tuple[float, int], ...] = ((13.0, 7000),)


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
    network: Search = field(default_factory=lambda: Search(scales=(0.1, 0.14, 0.2, 0.3, 0.4, 0.6, 0.8)))
    tune_every: int = 1
    silence_probability: float | None = None
    scored: Literal["all", "last", "none"] = "all"

    def __post_init__(self) -> None:
        if self.tune_every < 1:
            raise ValueError(f"tune_every = {self.tune_every}: it must be at least 1, which uses every utterance")


TOLERANCE_PERCENT = 0.2


def first_options(search: Search) -> DecodeOptions:
    """The options from which tuning of the scale starts: the widest beam of the search."""
    if not search.beams or not search.scales or not search.insertion_penalties:
        raise ValueError("give at least one acoustic scale, insertion penalty and (beam, most states) to decode with")
    beam, most = max(search.beams)
    penalty = search.insertion_penalties[0]
    return DecodeOptions(acoustic_scale=search.scales[0], beam=beam, max_active=most, insertion_penalty=penalty)
