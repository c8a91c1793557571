"""Settings of the criterion of chain models."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from murmur.speech.sequence.numerators import check_tolerance
from murmur.speech.sequence.phone_ngrams import PhoneNgrams


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
    """

    ngrams: PhoneNgrams = field(default_factory=PhoneNgrams)
    leak: float = 0.1
    cross_entropy: float = 0.1
    tolerance_frames: int | None = None
    draws: int = 5

    def __post_init__(self) -> None:
        factors = (self.leak, self.cross_entropy)
        if not (self.leak > 0 and self.cross_entropy >= 0 and all(map(isfinite, factors)) and self.draws >= 1):
            raise ValueError(
                f"leak {self.leak} must be positive, cross_entropy {self.cross_entropy} not negative, both of them"
                f" finite, and draws {self.draws} at least 1"
            )
        if self.tolerance_frames is not None:
            check_tolerance(self.tolerance_frames)
