"""Features and labels of utterances that are computed as they are taken, and refer to what lies on disk.

A part of them, of some utterances, is small to pickle, and has plain values that a file can hold.

Shapes: T frames, F stored values, C = (order + 1) F columns, U utterances, G groups that share their statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from murmur.speech.features.by_utterance import Arrays, ByUtterance, part_of
from murmur.speech.features.cmvn import Columns, normalised_together, statistics, with_derivatives
from murmur.speech.features.feature_store import FeatureStore, Normalisation, ShardRows


@dataclass(frozen=True, eq=False)
class ChangedArrays(ByUtterance):
    """{utterance: change(utterance, array)} of other values, computed as they are taken.

    Attributes:
        of: the other values.
        change: function from an utterance and its array to another array.
        columns: values per frame, if the change keeps the frames and the number is known; None if not.
    """

    of: Arrays
    change: Callable[[str, np.ndarray], np.ndarray]
    columns: int | None = None

    def __getitem__(self, utterance: str) -> np.ndarray:
        return self.change(utterance, self.of[utterance])

    @property
    def listed(self) -> Arrays:
        return self.of

    def part(self, names: Sequence[str]) -> ChangedArrays:
        """The values of some utterances."""
        return ChangedArrays(part_of(self.of, names), self.change, self.columns)


@dataclass(frozen=True, eq=False)
class DerivedFeatures(ByUtterance):
    """{utterance: (T, C)} normalised features with derivatives.

    Attributes:
        raw: {utterance: (T, F)} features, such as rows of a store.
        normal: means and deviations; None leaves features as they are.
        order: number of derivatives.
        columns: columns that are normalised, see `with_derivatives`.
    """

    raw: Arrays
    normal: Normalisation | None = None
    order: int = 0
    columns: Columns = "static"

    @staticmethod
    def gaussian(cepstra: Arrays, speakers: Mapping[str, str]) -> DerivedFeatures:
        """Cepstra less their mean, with two orders of deltas, as Gaussian systems take them.

        The mean of a speaker is that of all their utterances in `cepstra`.
        """
        members = normalised_together(cepstra, speakers, "speaker")
        pairs = {s: statistics((cepstra[n] for n in names), variance=False) for s, names in members.items()}
        normal = Normalisation({name: s for s, names in members.items() for name in names}, pairs)
        rows = cepstra.part([*cepstra]) if isinstance(cepstra, FeatureStore) else cepstra
        return DerivedFeatures(rows, normal, 2)

    def __getitem__(self, utterance: str) -> np.ndarray:
        pair = None if self.normal is None else self.normal.of(utterance)
        return with_derivatives(self.raw[utterance], pair, self.order, self.columns)

    @property
    def listed(self) -> Arrays:
        return self.raw

    def part(self, names: Sequence[str]) -> DerivedFeatures:
        """The features of some utterances."""
        normal = None if self.normal is None else self.normal.part(names)
        return DerivedFeatures(part_of(self.raw, names), normal, self.order, self.columns)

    @property
    def stored(self) -> bool:
        """True if the features are rows of a store, so that they have plain values."""
        return isinstance(self.raw, ShardRows)

    def plain(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Values in JSON's terms and arrays, from which `of_plain` makes features of the same rows."""
        assert isinstance(self.raw, ShardRows)
        header = {
            "utterances": list(self.raw),
            "folder": str(self.raw.folder.absolute()),
            "shapes": [[shard, *shape] for shard, shape in self.raw.shapes.items()],
            "order": self.order,
            "columns": self.columns,
        }
        arrays = {"places": np.array(list(self.raw.places.values()), np.int64).reshape(-1, 3)}
        if self.normal is not None:
            groups = {group: number for number, group in enumerate(self.normal.pairs)}
            arrays["owners"] = np.array([groups[self.normal.group[name]] for name in self.raw], np.int64)
            arrays["pairs"] = np.stack([np.stack(pair) for pair in self.normal.pairs.values()])  # (G, 2, F)
        return header, arrays

    @staticmethod
    def of_plain(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> DerivedFeatures:
        """The inverse of `plain`."""
        names = header["utterances"]
        places = dict(zip(names, map(tuple, arrays["places"].tolist()), strict=True))
        shapes = {shard: (frames, columns) for shard, frames, columns in header["shapes"]}
        normal = None
        if "owners" in arrays:
            group = dict(zip(names, map(str, arrays["owners"].tolist()), strict=True))
            normal = Normalisation(group, {str(n): (pair[0], pair[1]) for n, pair in enumerate(arrays["pairs"])})
        rows = ShardRows(Path(header["folder"]), places, shapes)
        return DerivedFeatures(rows, normal, header["order"], header["columns"])


def shape_of(values: Arrays, utterance: str) -> tuple[int, ...]:
    """The shape of an utterance's array; of features of a store without reading them."""
    if isinstance(values, ChangedArrays) and values.columns is not None:
        return shape_of(values.of, utterance)[0], values.columns
    if not isinstance(values, DerivedFeatures):
        return values[utterance].shape
    if not isinstance(values.raw, ShardRows):
        frames, columns = values.raw[utterance].shape
    else:
        shard, _, frames = values.raw.places[utterance]
        columns = values.raw.shapes[shard][1]
    return frames, (values.order + 1) * columns


def is_finite(values: Arrays, utterance: str) -> bool:
    """True if all values of an utterance are finite; derivatives of finite values are."""
    if not isinstance(values, DerivedFeatures):
        return bool(np.isfinite(values[utterance]).all())
    pair = () if values.normal is None else values.normal.of(utterance)
    return all(bool(np.isfinite(part).all()) for part in (values.raw[utterance], *pair))
