"""Extractors of i-vectors and background models on disk: .npz files with arrays and a JSON header; no pickles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from murmur.speech.corpus.file_errors import making_sense_of
from murmur.speech.hmm.storage import AGAIN, read_with_header, write_with_header
from murmur.speech.ivector.extractor import Extractor
from murmur.speech.ivector.ubm import Ubm

FORMAT = "murmur i-vectors 1"
UBM_FORMAT = "murmur background model 1"


def save_ubm(ubm: Ubm, path: Path) -> None:
    """Write a background model, replacing an existing file in one step."""
    write_with_header(path, {"format": UBM_FORMAT}, _arrays(ubm))


def load_ubm(path: Path) -> Ubm:
    """Read a background model, equal to the written one to the bit.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another kind.
    """
    _, arrays = read_with_header(path, UBM_FORMAT)
    with making_sense_of(path, AGAIN):
        return _ubm(arrays)


def save_extractor(extractor: Extractor, path: Path) -> None:
    """Write an extractor, replacing an existing file in one step."""
    arrays = {**_arrays(extractor.ubm), "matrix": extractor.matrix}
    write_with_header(path, {"format": FORMAT, "dims": extractor.dims}, arrays)


def load_extractor(path: Path) -> Extractor:
    """Read an extractor, equal to the written one to the bit.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another kind.
    """
    header, arrays = read_with_header(path, FORMAT)
    with making_sense_of(path, AGAIN):
        extractor = Extractor(_ubm(arrays), _finite(arrays["matrix"]))
        if header["dims"] != extractor.dims:
            raise ValueError(f"i-vectors of {extractor.dims} values, and {header['dims']} in the header")
        return extractor


def _arrays(ubm: Ubm) -> dict[str, NDArray]:
    return {"weights": ubm.weights, "means": ubm.means, "variances": ubm.variances}


def _ubm(arrays: Mapping[str, NDArray]) -> Ubm:
    return Ubm(*(_finite(arrays[name]) for name in ("weights", "means", "variances")))


def _finite(values: NDArray) -> NDArray:
    """The values in float64, if all are finite numbers."""
    wide = values.astype("float64")
    if not np.isfinite(wide).all():
        raise ValueError("some values are not finite numbers")
    return wide
