"""Numerators of whole utterances: all paths of the transcripts, or the aligned phones with limits that may move.

Shapes: N utterances, U output frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.sequence.denominator import Denominator
from murmur.speech.sequence.numerators import Aligned, NumeratorBuilder, Numerators
from murmur.speech.sequence.transcripts import TranscriptNumerator, joined


class Supervision(Protocol):
    """Numerators of the utterances of a part."""

    def batch(self, chosen: Sequence[int], frames: Sequence[int]) -> Numerators:
        """Numerators of some utterances with these numbers of output frames."""


@dataclass(frozen=True, eq=False)
class ByTranscript:
    """All paths of each transcript."""

    numerators: tuple[TranscriptNumerator, ...]

    def batch(self, chosen: Sequence[int], frames: Sequence[int]) -> Numerators:
        """See `Supervision`."""
        return joined([self.numerators[i] for i in chosen], frames)


@dataclass(frozen=True, eq=False)
class ByAlignment:
    """The aligned phones of each utterance, whose limits may move by the tolerance of the builder."""

    builder: NumeratorBuilder
    aligned: tuple[Aligned, ...]

    def batch(self, chosen: Sequence[int], frames: Sequence[int]) -> Numerators:
        """See `Supervision`."""
        return self.builder.batch([(self.aligned[i], 0, last) for i, last in zip(chosen, frames, strict=True)])


def aligned_phones(denominator: Denominator, windows_U4: IntArray) -> Aligned | None:
    """Phones of the windows of `lower_rate_windows`; None if the denominator has no such phone in a context."""
    starts = np.flatnonzero(windows_U4[:, 3] == 0)
    try:
        return Aligned.of(denominator, windows_U4[starts, 1].tolist(), [*starts.tolist(), len(windows_U4)])
    except KeyError:
        return None
