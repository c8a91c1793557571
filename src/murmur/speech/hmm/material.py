"""Input of training and alignment: checked features and transcripts; unusable utterances are named and counted.

Shapes: T frames, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.core.counted import counted
from murmur.speech.hmm.topology import shortest_words
from murmur.speech.lexicon.lexicon import Lang

Features = Mapping[str, NDArray[np.float32]]
MAX_LOST = 0.01


@dataclass(frozen=True)
class Material:
    """Usable utterances, and the reasons why others are not.

    Attributes:
        feats: {utterance: (T, F) features}.
        texts: {utterance: transcript}.
        lost: {utterance: reason}.
    """

    feats: dict[str, NDArray[np.float32]]
    texts: dict[str, str]
    lost: dict[str, str]

    @property
    def frames(self) -> int:
        """Frames of the usable utterances."""
        return sum(len(x) for x in self.feats.values())


def check_material(lang: Lang, feats: Features, texts: Mapping[str, str], dim: int) -> Material:
    """Select usable utterances: those with features, transcript, words of the lexicon, finite values and at least as
    many frames as states.

    Raises:
        ValueError: features do not have `dim` columns; the message names the utterance.
    """
    shortest = shortest_words(lang)
    usable_feats, usable_texts, lost = {}, {}, {}
    for utterance in sorted(feats.keys() | texts.keys()):
        reason = _why_not(lang, shortest, feats.get(utterance), texts.get(utterance))
        if reason:
            lost[utterance] = reason
            continue
        if feats[utterance].shape[1] != dim:
            raise ValueError(f"utterance {utterance} has {feats[utterance].shape[1]} features, {dim} are needed")
        usable_feats[utterance], usable_texts[utterance] = feats[utterance], texts[utterance]
    return Material(usable_feats, usable_texts, lost)


def _why_not(lang: Lang, shortest: Mapping[int, int], feats_TF: NDArray | None, text: str | None) -> str:
    """Reason why an utterance cannot be used; empty if it can."""
    if feats_TF is None or text is None:
        return "has no features" if feats_TF is None else "has no transcript"
    if feats_TF.ndim != 2:
        return f"has features of shape {feats_TF.shape} in place of (frames, features)"
    missing = lang.unknown_words(text) if lang.unknown is None else []
    if missing:
        return f"has words outside the lexicon: {' '.join(missing)}"
    if not text.split():
        return "has an empty transcript"
    if not np.isfinite(feats_TF).all():
        return f"has {int((~np.isfinite(feats_TF)).any(1).sum())} frames that are not finite"
    needed = sum(shortest[word] for word in lang.word_ids(text))
    return f"has {len(feats_TF)} frames but its states need {needed}" if len(feats_TF) < needed else ""


def refuse_losses(lost: Mapping[str, str], total: int, max_lost: float = MAX_LOST) -> None:
    """Raise ValueError if more than the fraction `max_lost` of `total` utterances is lost; names the first ten."""
    if len(lost) > max_lost * total:
        named = "; ".join(f"{u} {reason}" for u, reason in sorted(lost.items())[:10])
        raise ValueError(
            f"{len(lost)} of {counted(total, 'utterance')} cannot be used, more than {100 * max_lost:g} %: {named}"
            f"{'; ...' if len(lost) > 10 else ''}. Repair the data, or leave these utterances out"
        )
