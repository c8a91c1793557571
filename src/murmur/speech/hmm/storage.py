"""Models and alignments on disk: one .npz file each, without pickles, put in place in one step.

A file holds arrays and, as bytes under "header", a JSON text with all other values. Alignments of a corpus are mapped,
not read.
"""

from __future__ import annotations

import json
import shutil
import struct
import weakref
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.core.whole_files import replacing
from murmur.speech.corpus.file_content import making_sense_of, read_arrays
from murmur.speech.features.by_utterance import ByUtterance
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


class _PassingFolder:
    """A temporary folder that is removed with this object, or at the end of the program."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix=".alignments-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class StoredAlignments(ByUtterance):
    """{utterance: (T,) transition-ids} of a file, mapped as they are taken; pickled as names and places.

    Attributes:
        path: the file.
        begin: place of its first id, in bytes; ids are 32-bit integers.
        places: first id of each utterance, and number of its ids.
        folder: temporary folder of the file, which is removed with this object; None for a file that stays.
    """

    path: Path
    begin: int
    places: Mapping[str, tuple[int, int]]
    folder: _PassingFolder | None = None

    @cached_property
    def tids(self) -> IntArray:
        """The ids up to those of the last utterance, end to end."""
        last = max((first + count for first, count in self.places.values()), default=0)
        if not last:
            return np.zeros(0, np.int32)
        return np.memmap(self.path, np.int32, "r", self.begin, (last,)).view(np.ndarray)

    def __getitem__(self, utterance: str) -> IntArray:
        first, count = self.places[utterance]
        return self.tids[first : first + count]

    @property
    def listed(self) -> Mapping[str, object]:
        return self.places

    def part(self, names: Sequence[str]) -> StoredAlignments:
        """The alignments of some utterances."""
        return StoredAlignments(self.path, self.begin, {name: self.places[name] for name in names}, self.folder)

    def __reduce__(self) -> tuple[type[StoredAlignments], tuple[object, ...]]:
        return StoredAlignments, (self.path, self.begin, self.places)


def kept_alignments(tids: Iterable[tuple[str, IntArray]]) -> StoredAlignments:
    """Alignments in a temporary file; those of one utterance at a time are in memory."""
    folder, places, first = _PassingFolder(), dict[str, tuple[int, int]](), 0
    path = folder.path / "tids"
    with path.open("xb") as file:
        for utterance, tids_T in tids:
            file.write(np.ascontiguousarray(tids_T, np.int32).data)
            places[utterance] = first, len(tids_T)
            first += len(tids_T)
    return StoredAlignments(path, 0, places, folder)


def save_alignments(model: HmmGmm, tids: Mapping[str, IntArray], path: Path) -> StoredAlignments:
    """Write {utterance: (T,) transition-ids} of a model; return those of the file.

    Raises:
        ValueError: some ids are not transition-ids of the model; the message names the utterance.
    """
    model.check_ids(tids)
    kept = kept_alignments((u, tids[u]) for u in sorted(tids))
    header = {"format": ALIGNMENT_FORMAT, "tying": model.tying, "utterances": list(kept)}
    lengths = np.array([count for _, count in kept.places.values()], dtype=np.int64)
    write_with_header(path, header, {"lengths": lengths, "tids": kept.tids})
    return load_alignments(model, path)


def load_alignments(model: HmmGmm, path: Path) -> StoredAlignments:
    """Alignments of a file, which must be in the transition-ids of `model`; its checksum is compared.

    Raises as `read_with_header` does.
    """
    header, arrays = read_with_header(path, ALIGNMENT_FORMAT, unread=("tids",))
    if header.get("tying") != model.tying:
        raise ValueError(f"{path} was aligned by a model with another tree: load that model, or align again")
    with making_sense_of(path, "align again"):
        lengths, (begin, count) = arrays["lengths"], _ids_in(path)
        if lengths.dtype.kind != "i" or (lengths < 0).any() or lengths.sum() != count:
            raise ValueError(f"{len(lengths)} lengths do not fit {count} transition-ids")
        firsts = (np.cumsum(lengths) - lengths).tolist()
        names = map(str, header["utterances"])
        places = dict(zip(names, zip(firsts, lengths.tolist(), strict=True), strict=True))
        found = StoredAlignments(path, begin, places)
        model.check_ids(found)
        return found


def _ids_in(path: Path) -> tuple[int, int]:
    """Place of the first transition-id in an .npz file that is not compressed, in bytes, and their number."""
    with zipfile.ZipFile(path) as archive:
        facts = archive.getinfo("tids.npy")
        with archive.open(facts) as member:
            version = np.lib.format.read_magic(member)
            shape, _, dtype = np.lib.format.read_array_header_1_0(member)
            header_bytes = member.tell()
            while member.read(1 << 20):  # the end compares the checksum
                pass
        if (
            facts.compress_type != zipfile.ZIP_STORED
            or version != (1, 0)
            or dtype != np.dtype("<i4")
            or len(shape) != 1
        ):
            raise ValueError(f"transition-ids are {dtype} of shape {shape}")
        with path.open("rb") as file:
            file.seek(facts.header_offset + 26)
            name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
        return facts.header_offset + 30 + name_bytes + extra_bytes + header_bytes, int(shape[0])


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


def write_with_header(
    path: Path,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray],
    whole: Callable[[Path], AbstractContextManager[Path]] = replacing,
) -> None:
    """Write arrays and values in JSON's terms, replacing an existing file in one step by `whole`."""
    content: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **arrays}
    with whole(path) as beside, beside.open("xb") as file:
        np.savez(file, **content)


def read_with_header(
    path: Path, expected: str, unread: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Values and arrays of a file of the expected format; the arrays `unread` are left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another kind.
    """
    arrays = read_arrays(path, AGAIN, unread)
    with making_sense_of(path, AGAIN):
        header = dict(json.loads(arrays.pop("header").tobytes()))
    if header.get("format") != expected:
        raise ValueError(f"{path} is {header.get('format')!r}, not {expected!r}: name the right file")
    return header, arrays
