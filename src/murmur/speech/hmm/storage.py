"""Models and alignments on disk: one .npz file each, without pickles, put in place in one step.

The file of a model holds arrays and, as bytes under "header", a JSON text with what is not an array.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.mixtures import Mixtures
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.projection import Projection
from murmur.speech.hmm.transitions import IntArray
from murmur.speech.hmm.tree import Tree
from murmur.speech.lexicon import Lang

MODEL_FORMAT = "murmur HMM-GMM 1"
ALIGNMENT_FORMAT = "murmur alignment 1"


def save_model(model: HmmGmm, path: Path) -> None:
    """Write a model; a file that exists is replaced in one step, so that readers see the old one or the new one."""
    header: dict[str, Any] = {"format": MODEL_FORMAT, "lang": model.lang.to_json(), "tree": model.tree.to_json()}
    mixtures = model.mixtures
    arrays: dict[str, NDArray] = {
        "log_probs": model.log_probs,
        "sizes": mixtures.sizes,
        "weights": mixtures.weights,
        "means": mixtures.means,
        "variances": mixtures.variances,
    }
    if model.projection is not None:
        header["projection"] = {
            "context_frames": model.projection.context_frames,
            "static_dim": model.projection.static_dim,
        }
        arrays["matrix"] = model.projection.matrix
    _write(path, header, arrays)


def load_model(path: Path) -> HmmGmm:
    """Read a model; it equals the one written to the bit.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or not a model.
    """
    header, arrays = _read(path, MODEL_FORMAT)
    projection = None
    if "projection" in header:
        projection = Projection(arrays["matrix"], **header["projection"])
    mixtures = Mixtures(*(arrays[name] for name in ("sizes", "weights", "means", "variances")))
    lang, tree = Lang.from_json(header["lang"]), Tree.from_json(header["tree"])
    return HmmGmm(lang, tree, arrays["log_probs"], mixtures, projection)


def tying_digest(model: HmmGmm) -> str:
    """A digest of phones and tree: equal for models whose transition-ids mean the same."""
    content = json.dumps([list(model.lang.phones), model.lang.num_silence, model.tree.to_json()])
    return hashlib.sha256(content.encode()).hexdigest()


def save_alignments(model: HmmGmm, tids: Mapping[str, IntArray], path: Path) -> None:
    """Write {utterance: (T,) transition-ids} of a model.

    Raises:
        ValueError: ids that are not transition-ids of the model; names the utterance.
    """
    model.pdf_ids(tids)
    names = sorted(tids)
    header = {"format": ALIGNMENT_FORMAT, "tying": tying_digest(model), "utterances": names}
    lengths = np.array([len(tids[u]) for u in names], dtype=np.int64)
    joined = np.concatenate([np.zeros(0, dtype=np.int32), *(tids[u] for u in names)]).astype(np.int32)
    _write(path, header, {"lengths": lengths, "tids": joined})


def load_alignments(model: HmmGmm, path: Path) -> dict[str, IntArray]:
    """Read alignments, which must be in the transition-ids of `model`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, not an alignment, or of a model with another tree.
    """
    header, arrays = _read(path, ALIGNMENT_FORMAT)
    if header["tying"] != tying_digest(model):
        raise ValueError(f"{path} was aligned by a model with another tree: load that model, or align again")
    ends = np.cumsum(arrays["lengths"])
    parts = np.split(arrays["tids"], ends[:-1]) if len(ends) else []
    return dict(zip(header["utterances"], parts, strict=True))


def _write(path: Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> None:
    content: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path, expected: str) -> tuple[dict[str, Any], dict[str, NDArray]]:
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        header = json.loads(arrays.pop("header").tobytes())
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged or of another kind ({error}): make it anew") from error
    if header.get("format") != expected:
        raise ValueError(f"{path} is {header.get('format')!r}, not {expected!r}: name the right file")
    return header, arrays
