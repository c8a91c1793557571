"""Features of a corpus on disk by utterance, made once, and their means and deviations."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from murmur.core.counted import counted
from murmur.execution.executors import Jobs
from murmur.execution.processes import in_processes, with_bar
from murmur.speech.corpus.corpus import Corpus, CorpusError, Problem, Utterance, losses, tell_losses
from murmur.speech.corpus.file_content import NONSENSE, read_object
from murmur.speech.features.analysis import Front, deltas, digest, features_of
from murmur.speech.features.by_utterance import ByUtterance
from murmur.speech.features.chunks import AlignedFrames
from murmur.speech.features.cmvn import Pair, Scope, normalised_together, statistics
from murmur.speech.features.shards import AGAIN, FORMAT, MANIFEST, FrameStore, make, mapped, stamp

log = logging.getLogger(__name__)
UTTERANCES_PER_SHARD = 256
UTTERANCES_PER_JOB = 1024  # of statistics; or one speaker with any number of utterances


@dataclass(frozen=True)
class ShardRows(ByUtterance):
    """{utterance: feats_TF} of a store, mapped from disk on access; pickled as names and places.

    Attributes:
        folder: folder of the store.
        places: shard, first row in its array, and number of frames of each utterance.
        shapes: frames and columns of each shard.
    """

    folder: Path
    places: Mapping[str, tuple[int, int, int]]
    shapes: Mapping[int, tuple[int, int]]

    def __getitem__(self, utterance: str) -> np.ndarray:
        shard, first, frames = self.places[utterance]
        if shard not in self._maps:
            self._maps[shard] = mapped(self.folder / f"{shard:05}.feats.npy", self.shapes[shard], "f")[0]
        return self._maps[shard][first : first + frames]

    @property
    def listed(self) -> Mapping[str, object]:
        return self.places

    def __reduce__(self) -> tuple[type[ShardRows], tuple[object, ...]]:
        return ShardRows, (self.folder, self.places, self.shapes)

    def frames(self, utterance: str) -> int:
        """Number of frames of an utterance, without reading them."""
        return self.places[utterance][2]

    def part(self, names: Sequence[str]) -> ShardRows:
        """The rows of some utterances."""
        places = {name: self.places[name] for name in names}
        return ShardRows(self.folder, places, {shard: self.shapes[shard] for shard, _, _ in places.values()})

    @cached_property
    def _maps(self) -> dict[int, np.ndarray]:
        return {}


@dataclass(frozen=True)
class FeatureStore(ShardRows):
    """The features of a whole corpus, and the corpus without the utterances left out."""

    corpus: Corpus
    front: Front

    @property
    def hours(self) -> float:
        """Hours of speech."""
        return sum(n for _, _, n in self.places.values()) * self.front.frame_shift_seconds / 3600

    def summary(self) -> str:
        """Hours, utterances, speakers, and a line about utterances left out."""
        speakers, problems = len(set(self.corpus.speakers.values())), self.corpus.problems
        counts = f"{counted(len(self), 'utterance')}, {counted(speakers, 'speaker')}, {len(problems)} skipped"
        return "\n".join([f"{self.hours:.3f} h, {counts}", *([losses(problems, len(self))] if problems else [])])


def features_in(store: FrameStore, corpus: Corpus, front: Front) -> FeatureStore:
    """The features of a corpus in an open store; a CorpusError if there are none of an utterance."""
    places: dict[str, tuple[int, int, int]] = {}
    for number, name in enumerate(store.names):
        shard, _, first = store.place(number)
        places[name] = shard, first, int(store.lengths[number])
    missing = [u.id for u in corpus.utterances if u.id not in places]
    if missing:
        raise CorpusError(f"{store.folder} has no features of {missing[:3]}: {AGAIN}")
    shapes = {shard: store.shape(shard) for shard in range(len(store.manifest["shards"]))}
    return FeatureStore(store.folder, {u.id: places[u.id] for u in corpus.utterances}, shapes, corpus, front)


@dataclass(frozen=True)
class AnalysedPart:
    """The features of some utterances, for one shard."""

    corpus: Sequence[Utterance]
    front: Front

    def utterances(self) -> Iterator[AlignedFrames | Problem]:
        """The features of each utterance, or the reason why it has none."""
        for utterance in self.corpus:
            yield self._analysed(utterance)

    def _analysed(self, utterance: Utterance) -> AlignedFrames | Problem:
        try:
            return AlignedFrames(utterance.id, features_of(utterance, self.front))
        except CorpusError as error:
            source = utterance.audio or utterance.features
            return Problem(utterance.id, str(source.path) if source else "no source", str(error))

    def is_mended(self, index: Path) -> bool:
        """True if an utterance that was left out of the shard with this JSON has features now."""
        try:
            left_out = {problem["utterance"] for problem in read_object(index, AGAIN)["problems"]}
        except (OSError, *NONSENSE):
            return False  # it is made again for that reason
        for utterance in self.corpus:
            if utterance.id in left_out and isinstance(self._analysed(utterance), AlignedFrames):
                log.info("%s can be used now; its shard of features is made again", utterance.id)
                return True
        return False


def prepare(corpus: Corpus, front: Front, cache: Path, processes: Jobs = 1, progress: bool = False) -> FeatureStore:
    """The features of a corpus, computed or found in `cache`/<digest of corpus and front>.

    Utterances whose audio cannot be used are left out and named in `store.corpus.problems`. They are tried again in
    every call, since the reason may have passed, such as a program that was not installed.

    Args:
        corpus: corpus to analyse.
        front: analysis.
        cache: folder of stores; one store per corpus and front.
        processes: up to that many start if the work is worth it (`spawn`: scripts need `if __name__ == "__main__"`).
        progress: show a progress bar.

    Raises:
        CorpusError: more than 1 % of the utterances cannot be used.
    """
    folder = store_folder(corpus, front, cache)
    firsts = range(0, len(corpus), UTTERANCES_PER_SHARD)
    parts = [AnalysedPart(corpus.utterances[first : first + UTTERANCES_PER_SHARD], front) for first in firsts]
    mended = [number for number, part in enumerate(parts) if part.is_mended(folder / f"{number:05}.json")]
    before = [stamp(folder, number) for number in range(len(parts))]
    store = make(folder, parts, "float32", processes, progress, mended, "features")
    kept = corpus.without(store.problems)
    if before != [stamp(folder, number) for number in range(len(parts))]:
        tell_losses(f"features in {folder.name}", len(kept), store.problems)
    return features_in(store, kept, front)


def is_prepared(corpus: Corpus, front: Front, cache: Path) -> bool:
    """True if the features of a corpus are in `cache`; their content is not checked."""
    return missing_share(corpus, front, cache) == 0.0


def store_folder(corpus: Corpus, front: Front, cache: Path) -> Path:
    """The folder in `cache` for the features of this corpus and analysis."""
    name = hashlib.sha256(f"{FORMAT} {corpus.digest()} {digest(front)}".encode()).hexdigest()[:16]
    return Path(cache) / f"features-{name}"


def missing_share(corpus: Corpus, front: Front, cache: Path) -> float:
    """The share of a store's shards and manifest that is missing, 0 to 1; their content is not checked."""
    folder = store_folder(corpus, front, cache)
    count = -(-len(corpus) // UTTERANCES_PER_SHARD)
    shards = [[f"{n:05}.{end}" for end in ("feats.npy", "lengths.npy", "names.txt", "json")] for n in range(count)]
    missing = [not all((folder / name).is_file() for name in files) for files in (*shards, [MANIFEST])]
    return sum(missing) / len(missing)


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Assignment of means and deviations to utterances; small if many utterances share them.

    Attributes:
        group: speaker or utterance whose statistics each utterance takes.
        pairs: mean and deviation (F,) by group.
    """

    group: Mapping[str, str]
    pairs: Mapping[str, Pair]

    def of(self, utterance: str) -> Pair:
        """Mean and deviation for an utterance."""
        return self.pairs[self.group[utterance]]

    def part(self, utterances: Sequence[str]) -> Normalisation:
        """The normalisation of some utterances."""
        group = {name: self.group[name] for name in utterances}
        return Normalisation(group, {g: self.pairs[g] for g in dict.fromkeys(group.values())})


def normalisation(
    store: FeatureStore, scope: Scope, processes: Jobs, progress: bool = False, delta_order: int = 0
) -> Normalisation | None:
    """Statistics of every speaker or utterance, of features with `delta_order` derivatives; None for scope "none"."""
    if scope == "none":
        return None
    members = normalised_together(store, store.corpus.speakers, scope)
    batches: list[dict[str, list[str]]] = []
    room = 0
    for owner, names in members.items():
        if room <= 0:
            batches.append({})
            room = UTTERANCES_PER_JOB
        batches[-1][owner] = names
        room -= len(names)
    jobs = [
        partial(_pairs, store.part([name for names in batch.values() for name in names]), batch, delta_order)
        for batch in batches
    ]
    pairs: dict[str, Pair] = {}
    for found in with_bar(in_processes(jobs, processes), "statistics", len(jobs), progress):
        pairs |= found
    return Normalisation({name: owner for owner, names in members.items() for name in names}, pairs)


def _pairs(rows: ShardRows, members: Mapping[str, Sequence[str]], delta_order: int) -> dict[str, Pair]:
    return {
        owner: statistics(deltas(np.asarray(rows[name]), delta_order) for name in names)
        for owner, names in members.items()
    }
