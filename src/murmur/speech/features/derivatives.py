"""A network's input from stored features: derivatives appended, and normalised before or after that.

Shapes: raw_TF, T frames of F values; C = (order + 1) F columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from murmur.speech.features.analysis import deltas
from murmur.speech.features.cmvn import Pair, Scope, normalise, normalise_all

Columns = Literal["static", "all"]


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
    """`with_derivatives` of every utterance, with the statistics of its speaker or its own.

    Raises:
        ValueError: an unknown scope.
    """
    if columns == "all":
        return normalise_all({name: deltas(feats[name], order) for name in feats}, speakers, scope)
    normal = normalise_all(feats, speakers, scope)
    return {name: deltas(feats_TF, order) for name, feats_TF in normal.items()} if order else normal
