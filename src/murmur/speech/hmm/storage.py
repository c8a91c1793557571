"""Models and alignments on disk: one .npz file each, without pickles, put in place in one step.

The file of a model holds arrays and, as bytes under "header", a JSON text with all other values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.core.whole_files import replacing
from murmur.speech.corpus.file_content import making_sense_of, read_arrays
from murmur.speech.hmm.mixtures import Mixtures
from murmur.speech.hmm.model import HmmGmm, HmmStates, Projection
from murmur.speech.hmm.tree import IntArray, Tree
from murmur.speech.lexicon.lexicon import Lang

MODEL_FORMAT = "murmur HMM-GMM 1"
STATES_FORMAT = "murmur HMM states 1"
AGAIN = "make it anew"
ALIGNMENT_FORMAT = "murmur alignment 1"
TRANSFORMS_FORMAT = "murmur fMLLR transforms 1"


def save_model(model: HmmGmm, path: Path) -> None:
    """Write a model, replacing an existing file in one step, so that readers see either the old or the new one."""
    header: dict[str, Any] = {"format": MODEL_FORMAT, "lang": model.lang.to_json(), "tree": model.tree.to_json()}
    arrays: dict[str, NDArray] = {"log_probs": model.log_probs, **model.mixtures.__getstate__()}
    if model.projection is not None:
        header["projection"] = asdict(model.projection)
        arrays["matrix"] = header["projection"].pop("matrix")
    write_with_header(path, header, arrays)


def load_model(path: Path) -> HmmGmm:
    """Read a model, equal to the written one to the bit. Raises as `read_with_header` does."""
    header, arrays = read_with_header(path, MODEL_FORMAT)
    with making_sense_of(path, AGAIN):
        projection = None
        if "projection" in header:
            projection = Projection(floats_of(arrays["matrix"]), **header["projection"])
        if arrays["sizes"].dtype.kind != "i" or arrays["sizes"].ndim != 1:
            raise ValueError(f"sizes are {arrays['sizes'].dtype} of shape {arrays['sizes'].shape}")
        mixtures = Mixtures(arrays["sizes"], *(floats_of(arrays[name]) for name in ("weights", "means", "variances")))
        states = _states_in(header, arrays)
        if not np.isfinite(mixtures.linear_terms.astype(np.float32)).all():
            raise ValueError("its Gaussians are beyond what 32 bits can hold")
        return HmmGmm(states.lang, states.tree, states.log_probs, mixtures, projection)


def save_states(states: HmmStates, path: Path) -> None:
    """Write phones, tying and transition probabilities, replacing an existing file in one step."""
    header = {"format": STATES_FORMAT, "lang": states.lang.to_json(), "tree": states.tree.to_json()}
    write_with_header(path, header, {"log_probs": states.log_probs})


def load_states(path: Path) -> HmmStates:
    """Read the file of `save_states`, equal to the bit. Raises as `read_with_header` does."""
    header, arrays = read_with_header(path, STATES_FORMAT)
    with making_sense_of(path, AGAIN):
        return _states_in(header, arrays)


def _states_in(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> HmmStates:
    lang, tree = Lang.from_json(header["lang"]), Tree.from_json(header["tree"])
    states = HmmStates(lang, tree, floats_of(arrays["log_probs"]))
    states.check()
    return states


def floats_of(values: NDArray) -> NDArray:
    """The values. Raises ValueError unless they are finite floating-point numbers."""
    if values.dtype not in (np.float32, np.float64) or not np.isfinite(values).all():
        raise ValueError(f"an array of {values.dtype} that are not all finite numbers")
    return values


def tying_digest(model: HmmGmm) -> str:
    """A digest of phones and tree, equal for models whose transition-ids have the same meaning."""
    content = json.dumps([list(model.lang.phones), model.lang.num_silence, model.tree.to_json()])
    return hashlib.sha256(content.encode()).hexdigest()


def save_alignments(model: HmmGmm, tids: Mapping[str, IntArray], path: Path) -> None:
    """Write {utterance: (T,) transition-ids} of a model.

    Raises:
        ValueError: some ids are not transition-ids of the model; the message names the utterance.
    """
    model.pdf_ids(tids)
    names = sorted(tids)
    header = {"format": ALIGNMENT_FORMAT, "tying": tying_digest(model), "utterances": names}
    lengths = np.array([len(tids[u]) for u in names], dtype=np.int64)
    joined = np.concatenate([np.zeros(0, dtype=np.int32), *(tids[u] for u in names)]).astype(np.int32)
    write_with_header(path, header, {"lengths": lengths, "tids": joined})


def load_alignments(model: HmmGmm, path: Path) -> dict[str, IntArray]:
    """Read alignments, which must be in the transition-ids of `model`. Raises as `read_with_header` does."""
    header, arrays = read_with_header(path, ALIGNMENT_FORMAT)
    if header.get("tying") != tying_digest(model):
        raise ValueError(f"{path} was aligned by a model with another tree: load that model, or align again")
    with making_sense_of(path, "align again"):
        lengths, tids = arrays["lengths"], arrays["tids"]
        if lengths.dtype.kind != "i" or (lengths < 0).any() or lengths.sum() != len(tids) or tids.dtype != np.int32:
            raise ValueError(f"{len(lengths)} lengths do not fit {len(tids)} transition-ids")
        ends = np.cumsum(lengths)
        parts = np.split(tids, ends[:-1]) if len(ends) else []
        found = dict(zip(map(str, header["utterances"]), parts, strict=True))
        model.pdf_ids(found)  # ids that are not the model's
        return found


def save_transforms(transforms: Mapping[str, NDArray], path: Path) -> None:
    """Write {speaker: (D, D + 1) fMLLR transform} of a corpus, replacing an existing file in one step."""
    names = sorted(transforms)
    stacked = np.stack([transforms[name] for name in names]) if names else np.zeros((0, 0, 1))
    write_with_header(path, {"format": TRANSFORMS_FORMAT, "speakers": names}, {"transforms": stacked})


def load_transforms(path: Path) -> dict[str, NDArray]:
    """Read transforms, equal to the written ones to the bit. Raises as `read_with_header` does."""
    header, arrays = read_with_header(path, TRANSFORMS_FORMAT)
    with making_sense_of(path, AGAIN):
        stacked = floats_of(arrays["transforms"])
        if stacked.ndim != 3 or stacked.shape[2] != stacked.shape[1] + 1:
            raise ValueError(f"transforms of shape {stacked.shape}, not (speakers, D, D + 1)")
        return dict(zip(map(str, header["speakers"]), stacked, strict=True))


def write_with_header(path: Path, header: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> None:
    """Write arrays and values in JSON's terms, replacing an existing file in one step."""
    content: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays}
    with replacing(path) as beside, beside.open("xb") as file:
        np.savez(file, **content)


def read_with_header(path: Path, expected: str) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Values and arrays of a file of the expected format.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another kind.
    """
    arrays = read_arrays(path, AGAIN)
    with making_sense_of(path, AGAIN):
        header = dict(json.loads(arrays.pop("header").tobytes()))
    if header.get("format") != expected:
        raise ValueError(f"{path} is {header.get('format')!r}, not {expected!r}: name the right file")
    return header, arrays
