"""Normalisation of mean and variance over an utterance or over all speech of a speaker; derivatives appended.

feats_TF, raw_TF: T frames of F values; C = (order + 1) F columns with derivatives. Statistics are summed in float64, so
that the order of speakers' utterances changes no visible digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from murmur.speech.features.analysis import deltas

Scope = Literal["speaker", "utterance", "none"]
Columns = Literal["static", "all"]
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
    """{utterance: mean and deviation of its speaker, or its own}; utterances of a speaker share the arrays."""
    groups = normalised_together(feats, speakers, scope).values()
    pairs = [(names, statistics((feats[n] for n in names), variance=variance)) for names in groups]
    return {name: pair for names, pair in pairs for name in names}


def normalised_together(names: Iterable[str], speakers: Mapping[str, str], scope: Scope) -> dict[str, list[str]]:
    """Utterances that share their statistics, by speaker or utterance."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(speakers[name] if scope == "speaker" else name, []).append(name)
    return groups


def normalise_all(feats: Mapping[str, np.ndarray], speakers: Mapping[str, str], scope: Scope) -> dict[str, np.ndarray]:
    """Every utterance normalised by the statistics of its speaker or its own; "none" returns unchanged features."""
    if scope == "none":
        return dict(feats)
    pairs = statistics_of_all(feats, speakers, scope)
    return {name: normalise(feats[name], *pairs[name]) for name in feats}


def with_derivatives(raw_TF: np.ndarray, pair: Pair | None, order: int, columns: Columns) -> np.ndarray:
    """(T, C) features with derivatives, normalised by a mean and deviation; None leaves them as they are.

    With columns "static" the pair is that of the features (F,), and derivatives keep the smaller deviations that follow
    from those; with "all" it is that of all columns (C,).
    """
    if columns == "all":
        wide_TC = deltas(raw_TF, order)
        return wide_TC if pair is None else normalise(wide_TC, *pair)
    return deltas(raw_TF if pair is None else normalise(raw_TF, *pair), order)


def all_with_derivatives(
    feats: Mapping[str, np.ndarray], speakers: Mapping[str, str], scope: Scope, order: int, columns: Columns
) -> dict[str, np.ndarray]:
    """`with_derivatives` of every utterance, with the statistics of its speaker or its own."""
    if columns == "all":
        return normalise_all({name: deltas(feats[name], order) for name in feats}, speakers, scope)
    normal = normalise_all(feats, speakers, scope)
    return {name: deltas(feats_TF, order) for name, feats_TF in normal.items()} if order else normal
