"""Decoding with a speaker-adapted Gaussian system in two passes.

The first pass uses the model of unadapted features. Its best paths give a transform for each speaker, estimated twice
on the same paths; the second pass decodes adapted features. Transcripts are used for tuning and scoring alone. Povey
and Saon (2006). Kaldi estimates once more from the second pass, and rescores its lattices. On dev this made no
difference: 44 errors in place of 45 in 694 words of AN4, 216 in place of 214 in 952 words of LibriSpeech.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from murmur.core.counted import counted
from murmur.core.errors import READ_ONLY
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.speech.corpus.corpus import Corpus, CorpusError
from murmur.speech.hmm.speaker_transforms import AdaptedPair, Transforms, transforms_from_paths
from murmur.speech.hmm.storage import load_transforms, save_transforms
from murmur.tasks.hybrid.config import Search
from murmur.tasks.hybrid.decode import DecodeHalf, DecodingResult, System
from murmur.tasks.hybrid.stage import Stage
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.speaker_inputs import FIRST_BEAM, FIRST_STATES, FirstPass, narrow
from murmur.tasks.word_search import WordSearch

log = logging.getLogger(__name__)
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class TwoPass:
    """Two-pass decoding of a set.

    Attributes:
        stage: speaker-adapted system.
        words: graph of the system's states and its grammar.
        search: settings to try in the first and in the second pass.
        feats: function from the name of a part to the features of its utterances, neither projected nor adapted; it is
            called for the parts in use.
        decoder: decoding and scoring of the set.
        cache: folder where the transforms of each part are stored.
        jobs: number of processes.
        absent: "make" to decode for transforms and settings that are missing, "refuse" to end with an error.
    """

    stage: Stage
    words: WordSearch
    search: Search
    feats: Callable[[str], Arrays]
    decoder: DecodeHalf
    cache: Path
    jobs: int = 1
    absent: Absent = "make"

    def results(self, parts: Mapping[str, Corpus]) -> list[DecodingResult]:
        """Error rates of the first pass ("NAME unadapted") and of the second ("NAME") on each part.

        Both are tuned on dev, whose utterances are decoded in any case. The decoding that gives the transforms searches
        more narrowly than the one that is scored.
        """
        name, half, first = self.stage.name, self.decoder, self._unadapted
        options = half.tune(first, half.material.dev)
        self._keep(FirstPass(self._grammar, narrow(options)))
        results = []
        for part, corpus in parts.items():
            results.append(half.result(first, options, part, corpus, half.decode(first, options, part, corpus)))
        every = {"dev": half.material.dev, **parts}
        transforms = {part: self._made(part, corpus) for part, corpus in every.items()}
        second = System(name, self.words, self.search, self._scorers(transforms))
        options = half.tune(second, half.material.dev)
        for part, corpus in parts.items():
            results.append(half.result(second, options, part, corpus, half.decode(second, options, part, corpus)))
        return results

    def transforms(self, part: str, corpus: Corpus) -> Transforms:
        """The transforms of a part, from their file; decodes the part if it is missing or damaged."""
        try:
            return load_transforms(self.transforms_file(corpus))
        except FileNotFoundError:
            self._check_absent(f"the transforms of the speakers of {part}")
            log.info("%s, %s: decoding for the transforms of its speakers", self.stage.name, part)
        except ValueError as error:
            self._check_absent(f"the transforms of the speakers of {part} ({error})")
            log.warning("%s", error)
        return self._made(part, corpus)

    @property
    def first_pass(self) -> FirstPass:
        """Settings of the first pass, from their file; tunes them on dev if it is missing or damaged.

        Raises:
            SettingError: the file is missing, and `absent` refuses to make it.
        """
        path = self._first_pass_file
        try:
            return FirstPass.read(path)
        except FileNotFoundError:
            self._check_absent(f"the settings of the first pass {path.name}")
        except CorpusError as error:
            self._check_absent(f"the settings of the first pass ({error})")
            log.warning("%s", error)
        options = self.decoder.tune(self._unadapted, self.decoder.material.dev)
        return self._keep(FirstPass(self._grammar, narrow(options)))

    def transforms_file(self, corpus: Corpus) -> Path:
        """File of the transforms of a corpus, beside the model; named by all that made them."""
        return self._file("transforms", corpus.digest(), ".npz")

    @property
    def _first_pass_file(self) -> Path:
        return self._file("first-pass", self._grammar, ".json")

    @property
    def _grammar(self) -> str:
        assert isinstance(self.words.grammar, str)  # the task names it
        return self.words.grammar

    def _file(self, kind: str, of: str, end: str) -> Path:
        half, graph = self.decoder, self.words.sources.key(*self.words.words)
        tuned = [half.material.dev.digest(), half.tune_every, asdict(self.search), FIRST_BEAM, FIRST_STATES]
        content = json.dumps([self.stage.key, of, graph, tuned], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return self.cache / f"{self.stage.name}-{self.stage.key}-{kind}-{digest}{end}"

    @property
    def _unadapted(self) -> System:
        return System(f"{self.stage.name} unadapted", self.words, self.search, self._scorers({}))

    def _keep(self, settings: FirstPass) -> FirstPass:
        content = json.dumps(settings.to_json(), indent=1).encode()
        self._store(self._first_pass_file, lambda path: write_whole(path, content))
        return settings

    def _store(self, path: Path, write: Callable[[Path], None]) -> None:
        """Write a file of the cache, unless the cache is read-only: it may hold the file already."""
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            write(path)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            log.warning("%s is not written: %s", path, error)

    def _check_absent(self, what: str) -> None:
        if self.absent == "refuse":
            refuse_to_make(what, self.cache)

    def _made(self, part: str, corpus: Corpus) -> Transforms:
        """Decode a part for the transforms of its speakers, and store them."""
        adaptation = self.stage.adaptation
        assert adaptation is not None  # two passes are for adapted systems
        decoded = self.decoder.decode(self._unadapted, self.first_pass.options, part, corpus)
        paths = {u: hypothesis.labels for u, hypothesis in decoded.hypotheses.items()}
        pair, feats, speakers = self.stage.pair, self.feats(part), corpus.speakers
        found = transforms_from_paths(pair, feats, paths, speakers, adaptation.decoding, self.jobs)
        log.info("%s, %s: transforms of %s", self.stage.name, part, counted(len(found), "speaker"))
        self._store(self.transforms_file(corpus), lambda path: save_transforms(found, path))
        return found

    def _scorers(self, transforms: Mapping[str, Transforms]) -> dict[str, partial[np.ndarray]]:
        """Scores of each part, see `adapted_scores`; parts without an entry in `transforms` are not adapted."""
        return {part: partial(self._scores, part, transforms.get(part, {})) for part in ("train", "dev", "test")}

    def _scores(self, part: str, transforms: Transforms, name: str) -> np.ndarray:
        speakers = getattr(self.decoder.material, part).speakers
        return adapted_scores(self.stage.pair, self.feats(part), speakers, transforms, name)


def adapted_scores(
    pair: AdaptedPair, feats: Arrays, speakers: Mapping[str, str], transforms: Transforms, name: str
) -> np.ndarray:
    """(T, P) natural log-likelihoods of an utterance, adapted to its speaker if there is a transform."""
    return pair.loglikes(feats[name], transforms.get(speakers[name]))
