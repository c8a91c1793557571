"""Sources of the frames of a prepared corpus: features and alignments of a Kaldi directory, or lhotse Shar shards.

Existing features are read and packed again, not extracted again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import lhotse
import numpy as np

from murmur.speech.corpus.corpus import Corpus, CorpusError, Problem, Utterance
from murmur.speech.corpus.file_content import read_arrays
from murmur.speech.corpus.kaldi_dir import read_alignments
from murmur.speech.corpus.lhotse_urls import lhotse_reads
from murmur.speech.corpus.remote import is_remote, marks_in
from murmur.speech.features.analysis import Front, features_of
from murmur.speech.features.by_utterance import ByUtterance
from murmur.speech.features.chunks import AlignedFrames, fit_targets
from murmur.speech.features.cmvn import Pair, Scope, normalise, normalised_together, statistics
from murmur.speech.features.shards import UTTERANCES_PER_SHARD

TARGETS = "targets"  # field of a Shar folder with one class per frame


@dataclass(frozen=True, eq=False)
class OnDemand(ByUtterance):
    """{utterance: feats_TF}, read from the source given by the corpus on every access."""

    utterances: Mapping[str, Utterance]
    front: Front

    def __getitem__(self, name: str) -> np.ndarray:
        return features_of(self.utterances[name], self.front)

    @property
    def listed(self) -> Mapping[str, object]:
        return self.utterances

    def part(self, names: Sequence[str]) -> OnDemand:
        """The features of some utterances."""
        return OnDemand({name: self.utterances[name] for name in names}, self.front)


@dataclass(frozen=True, eq=False)
class AlignedPart:
    """Utterances with the statistics that normalise them and their alignments.

    Attributes:
        feats: features by utterance, including the utterances of this part.
        names: names of the utterances, in order.
        pairs: mean and deviation of each utterance; empty leaves features unchanged.
        targets: one class per frame, for the aligned utterances.
    """

    feats: Mapping[str, np.ndarray]
    names: tuple[str, ...]
    pairs: Mapping[str, Pair]
    targets: Mapping[str, np.ndarray]

    def utterances(self) -> Iterator[AlignedFrames | Problem]:
        """Normalised features with their targets; alignments a few frames off are fitted (`fit_targets`)."""
        for name in self.names:
            if name not in self.targets:
                yield Problem(name, "alignments", "it has no alignment: align it, or leave it out of the corpus")
                continue
            try:
                feats_TF = self.feats[name]
                targets_T = fit_targets(self.targets[name], len(feats_TF))
            except ValueError as error:
                yield Problem(name, "alignments", str(error))
                continue
            yield AlignedFrames(name, normalise(feats_TF, *self.pairs[name]) if self.pairs else feats_TF, targets_T)


def aligned_parts(
    feats: Mapping[str, np.ndarray], speakers: Mapping[str, str], targets: Mapping[str, np.ndarray], scope: Scope
) -> list[AlignedPart]:
    """Cut a corpus into shards; with a scope, all features are read once for their statistics.

    Statistics are those of the utterances that can be read. The others become problems of their shards.
    """
    names = list(feats)
    pairs = {} if scope == "none" else _statistics(feats, speakers, scope)
    parts = []
    for first in range(0, len(names), UTTERANCES_PER_SHARD):
        own = tuple(names[first : first + UTTERANCES_PER_SHARD])
        here = feats.part(own) if isinstance(feats, OnDemand) else feats
        chosen = {n: targets[n] for n in own if n in targets}
        parts.append(AlignedPart(here, own, {n: pairs[n] for n in own if n in pairs}, chosen))
    return parts


def _statistics(feats: Mapping[str, np.ndarray], speakers: Mapping[str, str], scope: Scope) -> dict[str, Pair]:
    """Mean and deviation of each utterance, without those of whose group none can be read."""
    pairs = {}
    for names in normalised_together(feats, speakers, scope).values():
        arrays = _readable(feats, names)
        first_TF = next(arrays, None)
        if first_TF is not None:
            pairs.update(dict.fromkeys(names, statistics(chain([first_TF], arrays))))
    return pairs


def _readable(feats: Mapping[str, np.ndarray], names: Iterable[str]) -> Iterator[np.ndarray]:
    """Features that can be read and have frames."""
    for name in names:
        try:
            feats_TF = feats[name]
        except CorpusError:
            continue  # its part reads it again, and names the problem
        if len(feats_TF):
            yield feats_TF


def on_demand(corpus: Corpus, front: Front) -> OnDemand:
    """The features of a corpus, read on access."""
    return OnDemand({u.id: u for u in corpus.utterances}, front)


def read_targets(source: Path) -> dict[str, np.ndarray]:
    """Classes by utterance: an .npz with one array per utterance (`murmur align`), or a folder of ali.*.gz.

    Kaldi's alignments hold transition-ids; turn them into classes first, with the model of the alignment:
    `ali-to-pdf final.mdl "ark:gunzip -c ali.*.gz |" "ark:| gzip -c > pdfs/ali.1.gz"`.

    Raises:
        CorpusError: it is neither, or damaged.
    """
    if not is_remote(source) and source.is_dir():
        return read_alignments(source)
    wanted = "it must be a folder of ali.*.gz or an .npz of classes, as `murmur align` writes it"
    if not is_remote(source) and not source.is_file():
        raise CorpusError(f"{source} is neither a folder of ali.*.gz nor an .npz: {wanted}")
    found = read_arrays(source, wanted)
    for name, classes_T in found.items():
        if classes_T.ndim != 1 or classes_T.dtype.kind not in "iu" or (len(classes_T) and classes_T.min() < 0):
            raise CorpusError(f"{source}: {name!r} is not a row of classes from 0 on: {wanted}")
    return found


@dataclass(frozen=True)
class SharPart:
    """One shard of a lhotse Shar folder: cuts with `features` and the temporal array `targets`."""

    files: tuple[tuple[str, Path], ...]
    scope: Literal["utterance", "none"]

    def utterances(self) -> Iterator[AlignedFrames | Problem]:
        """The cuts in the order of the shard."""
        with lhotse_reads(self.files[0][1]):
            yield from self._cuts()

    def _cuts(self) -> Iterator[AlignedFrames | Problem]:
        for cut in lhotse.CutSet.from_shar(fields={field: [str(path)] for field, path in self.files}):
            if not cut.has_features or not cut.has_custom(TARGETS):
                missing = f"{TARGETS!r}" if cut.has_features else "features"
                yield Problem(cut.id, str(self.files[0][1]), f"this cut of the Shar shard has no {missing}")
                continue
            feats_TF, targets_T = np.asarray(cut.load_features()), np.asarray(cut.load_custom(TARGETS))
            if self.scope == "utterance":
                feats_TF = normalise(feats_TF, *statistics([feats_TF]))
            yield AlignedFrames(cut.id, feats_TF, targets_T)


def _names(folder: Path) -> list[str]:
    return sorted(marks_in(folder) if is_remote(folder) else (path.name for path in folder.glob("*")))


def is_shar(folder: Path) -> bool:
    """True if a folder holds lhotse Shar shards."""
    if is_remote(folder) and folder.suffix in (".jsonl", ".gz"):  # of a manifest, which a web server would send
        return False
    return any(re.fullmatch(r"cuts\..*\.jsonl.*", name) for name in _names(folder))


def shar_parts(folder: Path, scope: Scope) -> list[SharPart]:
    """The shards of a Shar folder, each with its files of the same number.

    Raises:
        CorpusError: there are no shards, one lacks features or targets, or statistics of speakers are requested, which
            no shard holds completely.
    """
    if scope == "speaker":
        raise CorpusError("a Shar shard does not hold all utterances of a speaker: use --cmvn utterance, or none")
    shards: dict[str, dict[str, Path]] = {}
    for name in _names(folder):
        if name.count(".") > 1:
            field, number = name.split(".")[:2]
            shards.setdefault(number, {})[field] = folder / name
    if not shards:
        raise CorpusError(f"{folder} holds no Shar shards (cuts.000000.jsonl.gz and so on)")
    for number, files in shards.items():
        missing = {"cuts", "features", TARGETS} - set(files)
        if missing:
            raise CorpusError(f"{folder}, shard {number}: no file for {', '.join(sorted(missing))}; write it again")
    wanted = ("cuts", "features", TARGETS)
    make = partial(SharPart, scope="none" if scope == "none" else "utterance")
    return [make(tuple((field, files[field]) for field in wanted)) for files in shards.values()]
