"""Extractors of i-vectors on disk: one .npz file with arrays and a JSON header; no pickles."""

from __future__ import annotations

from pathlib import Path

from murmur.speech.corpus.file_errors import making_sense_of
from murmur.speech.hmm.storage import AGAIN, read_with_header, write_with_header
from murmur.speech.ivector.extractor import Extractor
from murmur.speech.ivector.ubm import Ubm

FORMAT = "murmur i-vectors 1"


def save_extractor(extractor: Extractor, path: Path) -> None:
    """Write an extractor, replacing an existing file in one step."""
    ubm = extractor.ubm
    arrays = {"weights": ubm.weights, "means": ubm.means, "variances": ubm.variances, "matrix": extractor.matrix}
    write_with_header(path, {"format": FORMAT, "dims": extractor.dims}, arrays)


def load_extractor(path: Path) -> Extractor:
    """Read an extractor, equal to the written one to the bit.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another kind.
    """
    header, arrays = read_with_header(path, FORMAT)
    with making_sense_of(path, AGAIN):
        ubm = Ubm(*(arrays[name].astype("float64") for name in ("weights", "means", "variances")))
        extractor = Extractor(ubm, arrays["matrix"].astype("float64"))
        if header["dims"] != extractor.dims:
            raise ValueError(f"i-vectors of {extractor.dims} values, and {header['dims']} in the header")
        return extractor
