"""The usable utterances of a corpus, and the reasons why others are not used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.core.counted import counted
from murmur.speech.features.by_utterance import part_of
from murmur.speech.features.derived import is_finite, shape_of
from murmur.speech.hmm.topology import shortest_words
from murmur.speech.lexicon.lexicon import Lang

Features = Mapping[str, NDArray[np.float32]]
MAX_LOST = 0.01


@dataclass(frozen=True)
class Losses:
    """Utterances that are not used.

    Attributes:
        lost: {utterance: reason}.
        total: number of all utterances, with the lost ones.
    """

    lost: Mapping[str, str]
    total: int

    def with_failed(self, failed: Mapping[str, str], most: float = MAX_LOST) -> dict[str, str]:
        """The lost utterances and those that failed later, with reasons.

        Raises:
            ValueError: they are more than the fraction `most` of all; names the first ten.
        """
        lost = {**self.lost, **failed}
        if len(lost) > most * self.total:
            named = "; ".join(f"{u} {reason}" for u, reason in sorted(lost.items())[:10])
            raise ValueError(
                f"{len(lost)} of {counted(self.total, 'utterance')} cannot be used, more than {100 * most:g} %: {named}"
                f"{'; ...' if len(lost) > 10 else ''}. Repair the data, or leave these utterances out"
            )
        return lost


@dataclass(frozen=True)
class Material:
    """Usable utterances.

    Attributes:
        feats: {utterance: (T, F) features}; those of a store are not read.
        texts: {utterance: transcript}.
        losses: the other utterances.
    """

    feats: Features
    texts: Mapping[str, str]
    losses: Losses


def check_material(lang: Lang, feats: Features, texts: Mapping[str, str], dim: int | None = None) -> Material:
    """Select usable utterances: those with features, transcript, words of the lexicon, finite values and at least as
    many frames as states. `dim` is the number of columns of features; None for that of the first utterance.

    Raises:
        ValueError: features have another number of columns; the message names the utterance.
    """
    shortest = shortest_words(lang)
    lost: dict[str, str] = {}
    names = sorted({*feats, *texts})
    for utterance in names:
        shape = shape_of(feats, utterance) if utterance in feats else None
        if dim is None and shape is not None and len(shape) == 2:
            dim = shape[1]
        reason = _why_not(lang, shortest, feats, utterance, shape, texts.get(utterance))
        if reason:
            lost[utterance] = reason
        elif shape is not None and shape[1] != dim:
            raise ValueError(f"utterance {utterance} has {shape[1]} features, {dim} are needed")
    used = [utterance for utterance in names if utterance not in lost]
    return Material(part_of(feats, used), {u: texts[u] for u in used}, Losses(lost, len(names)))


def usable(lang: Lang, feats: Features, texts: Mapping[str, str]) -> Material:
    """The usable part of a corpus. Raises ValueError if it is empty or less than 99 % of it."""
    material = check_material(lang, feats, texts)
    material.losses.with_failed({})
    if not material.texts:
        raise ValueError("no utterance can be used: there is none")
    return material


def _why_not(
    lang: Lang,
    shortest: Mapping[int, int],
    feats: Features,
    utterance: str,
    shape: tuple[int, ...] | None,
    text: str | None,
) -> str:
    """Reason why an utterance cannot be used; empty if it can."""
    if shape is None or text is None:
        return "has no features" if shape is None else "has no transcript"
    if len(shape) != 2:
        return f"has features of shape {shape} in place of (frames, features)"
    missing = lang.unknown_words(text)
    if missing:
        return f"has words outside the lexicon: {' '.join(missing)}"
    if not text.split():
        return "has an empty transcript"
    if not is_finite(feats, utterance):
        return f"has {int((~np.isfinite(feats[utterance])).any(1).sum())} frames that are not finite"
    needed = sum(shortest[word] for word in lang.word_ids(text))
    return f"has {shape[0]} frames but its states need {needed}" if shape[0] < needed else ""
