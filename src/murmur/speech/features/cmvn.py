"""Cepstral mean and variance normalisation over an utterance or over all speech of a speaker.

feats_TF: T frames of F values. Statistics are summed in float64, so that the order of speakers' utterances changes no
visible digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

Scope = Literal["speaker", "utterance", "none"]
SMALLEST_DEVIATION = 1e-5


def normalise(feats_TF: np.ndarray, mean_F: np.ndarray, deviation_F: np.ndarray) -> np.ndarray:
    """(x - mean) / deviation, float32."""
    return ((feats_TF - mean_F) / deviation_F).astype(np.float32)


def statistics(many_TF: Iterable[np.ndarray], *, variance: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (F,) over all frames; the deviation is 1 if `variance` is false.

    Raises:
        ValueError: no frame at all.
    """
    count, total, squares = 0, 0.0, 0.0
    for feats_TF in many_TF:
        wide = feats_TF.astype(np.float64)
        count, total, squares = count + len(wide), total + wide.sum(0), squares + np.square(wide).sum(0)
    if not count:
        raise ValueError("no frames to normalise by: give at least one utterance")
    mean_F = np.asarray(total / count)
    if not variance:
        return mean_F.astype(np.float32), np.ones_like(mean_F, np.float32)
    deviation_F = np.sqrt(np.maximum(squares / count - np.square(mean_F), SMALLEST_DEVIATION**2))
    return mean_F.astype(np.float32), deviation_F.astype(np.float32)


Pair = tuple[np.ndarray, np.ndarray]


def statistics_of_all(
    feats: Mapping[str, np.ndarray], speakers: Mapping[str, str], scope: Scope, *, variance: bool = True
) -> dict[str, Pair]:
    """{utterance: mean and deviation of its speaker, or its own}; utterances of a speaker share the arrays.

    Raises:
        ValueError: an unknown scope, or "none", which has no statistics.
    """
    groups = normalised_together(feats, speakers, scope)
    pairs = [(names, statistics((feats[n] for n in names), variance=variance)) for names in groups]
    return {name: pair for names, pair in pairs for name in names}


def normalised_together(names: Iterable[str], speakers: Mapping[str, str], scope: Scope) -> list[list[str]]:
    """Groups of utterances that share their statistics.

    Raises:
        ValueError: an unknown scope, or "none", which has no statistics.
    """
    if scope not in ("speaker", "utterance"):
        raise ValueError(f"unknown CMVN scope {scope!r}: use speaker, utterance or none")
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(speakers[name] if scope == "speaker" else name, []).append(name)
    return list(groups.values())


def normalise_all(
    feats: Mapping[str, np.ndarray], speakers: Mapping[str, str], scope: Scope, *, variance: bool = True
) -> dict[str, np.ndarray]:
    """Every utterance normalised by the statistics of its speaker or its own; "none" returns unchanged features.

    Raises:
        ValueError: an unknown scope.
    """
    if scope == "none":
        return dict(feats)
    pairs = statistics_of_all(feats, speakers, scope, variance=variance)
    return {name: normalise(feats[name], *pairs[name]) for name in feats}
