"""Settings of the hybrid recipe: front ends, HMM stages, chunks, decoding. All are frozen, and all can be set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from murmur.engine.experiment import added
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

LOOP, ONE_WORD = "loop", "one word"
Perturb = Literal["stored", "on_the_fly"]
Adapted = Literal["none", "fmllr"]


@dataclass(frozen=True)
class FrontEnd:
    """Features of the HMMs and of the network, at 100 frames a second.

    Attributes:
        cepstra: MFCC of the Gaussian mixtures, with two orders of deltas, less the mean of the speaker.
        bins: log-mel bins of the network, normalised by mean and variance.
        cmvn: scope of the mean and variance that normalise the network's input: "speaker", "utterance" or "none".
        speeds: playback speeds of the copies that the network trains on (Ko et al. 2015); 1.0 must be among them.
        perturb: "stored" keeps a copy for each speed on disk, and an epoch is one pass over all of them: disk space
            times the number of speeds, no work. "on_the_fly" keeps speed 1 alone; the minibatch number draws
            the speed of its chunks, which are analysed from audio in the background: disk of one copy, some
            milliseconds of a core per chunk. An epoch is then one pass at mixed speeds, and cmvn is that of speed 1.
        noise: noise added to chunks "on_the_fly", such as noise.share=0.5; normalised like the speech without it.
        storage: type of the network's training features on disk, 4, 2 or 1 bytes a value.
        adaptation: "fmllr" gives the network the features of the speaker-adapted Gaussian system (`HmmStages.sat`) in
            place of its own, not normalised further: projected, and adapted to the speaker by the transforms of
            training, or of two-pass decoding for other speech. They have one speed.

        normalised: columns of the network's input that cmvn normalises: "static" before deltas are appended, which
            leaves deltas with deviations of 0.1 to 0.3, or "all" after that.

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
    adaptation: Adapted = field(default="none", repr=False)  # frames without it keep the digests of their folders
    normalised: Columns = added(lambda: "static")  # noqa: RUF009

    def __post_init__(self) -> None:
        if self.adaptation != "none" and (self.speeds != (1.0,) or self.perturb != "stored"):
            raise ValueError(
                f"adaptation = {self.adaptation!r} with speeds {self.speeds} and perturb = {self.perturb!r}: copies at "
                "other speeds and noisy copies need transforms of their own: set speeds=(1.0,) and perturb=stored"
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
            the features of the Gaussian systems, not those of the network, but for `FrontEnd.adaptation`.
    """

    silence_probability: float = 0.5
    monophone: EmConfig = field(default_factory=EmConfig)
    triphone: TriphoneConfig | None = field(default_factory=TriphoneConfig)
    lda: LdaMlltConfig | None = None
    sat: SatConfig | None = None
    vtln: VtlnConfig | None = added(lambda: None)  # noqa: RUF009

    def __post_init__(self) -> None:
        for name, stage in (("LDA+MLLT", self.lda), ("speaker-adaptive training", self.sat)):
            if stage is not None and self.triphone is None:
                raise ValueError(f"{name} starts from the alignments of triphones: give a triphone stage too")

    @property
    def names(self) -> list[str]:
        """The systems in the order in which they are trained."""
        return [name for name in ("monophone", "triphone", "lda", "sat") if getattr(self, name) is not None]


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
        scales: acoustic scales to try on dev.
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
