"""Decoding with a speaker-adapted Gaussian system, in two passes and a final one.

The first pass uses the model of unadapted features. Its best paths give a transform for each speaker; the second pass
decodes adapted features, and its best paths give the transforms of the final pass. The first two search narrowly.
Transcripts are used for tuning and scoring alone. Povey and Saon (2006); the order of the passes follows Kaldi, which
rescores lattices in the last one.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.speech.corpus.corpus import Corpus, CorpusError
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.hmm.speaker_transforms import AdaptedPair, Transforms, transforms_from_paths
from murmur.speech.hmm.storage import load_transforms, save_transforms
from murmur.tasks.hybrid.config import Search
from murmur.tasks.hybrid.decode import DecodeHalf, DecodingResult, System
from murmur.tasks.hybrid.stage import Stage
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.speaker_inputs import DecodingPasses
from murmur.tasks.word_search import WordSearch

log = logging.getLogger(__name__)
Arrays = Mapping[str, np.ndarray]
FIRST_BEAM, FIRST_STATES = 10.0, 2000  # widest search of passes whose paths only give transforms; Kaldi's


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
        """Error rates of the first pass ("NAME unadapted") and of the final pass ("NAME") on each part.

        Both passes are tuned on dev, whose utterances are decoded in any case; the final pass uses the settings of the
        second.
        """
        name, half = self.stage.name, self.decoder
        every = {"dev": half.material.dev, **parts}
        first = System(f"{name} unadapted", self.words, self.search, self._scorers({}))
        options = half.tune(first, half.material.dev)
        results = []
        for part, corpus in parts.items():
            results.append(half.result(first, options, part, corpus, half.decode(first, options, part, corpus)))

        before, transforms = narrow(options), {}
        for part, corpus in every.items():
            transforms[part] = self._estimated(part, corpus, half.decode(first, before, part, corpus), None)
        second = System(f"{name} second pass", self.words, self.search, self._scorers(transforms))
        options = half.tune(second, half.material.dev)
        self._keep(DecodingPasses(self._grammar, before, narrow(options)))
        for part, corpus in parts.items():
            again = half.decode(second, narrow(options), part, corpus)
            final = self._estimated(part, corpus, again, transforms[part])
            save_transforms(final, self.transforms_file(corpus))
            last = replace(second, name=name, scores=self._scorers({part: final}))
            results.append(half.result(last, options, part, corpus, half.decode(last, options, part, corpus)))
        return results

    def transforms(self, part: str, corpus: Corpus) -> Transforms:
        """The transforms of a part, from their file; decodes the part if it is missing or damaged."""
        path = self.transforms_file(corpus)
        try:
            return load_transforms(path)
        except FileNotFoundError:
            self._check_absent(f"the transforms of the speakers of {part}")
            log.info("%s, %s: decoding for the transforms of its speakers", self.stage.name, part)
        except ValueError as error:
            log.warning("%s", error)
        self.results({part: corpus})
        return load_transforms(path)

    @property
    def settings(self) -> DecodingPasses:
        """Settings of both passes, from their file; tunes them on dev if it is missing or damaged.

        Raises:
            SettingError: the file is missing, and `absent` refuses to make it.
        """
        path = self._settings_file
        try:
            return DecodingPasses.read(path)
        except FileNotFoundError:
            self._check_absent(f"the settings of two-pass decoding {path.name}")
        except CorpusError as error:
            log.warning("%s", error)
        self.results({})
        return DecodingPasses.read(path)

    def transforms_file(self, corpus: Corpus) -> Path:
        """File of the transforms of a corpus, beside the model; named by all that made them."""
        return self._file("transforms", corpus.digest(), ".npz")

    @property
    def _settings_file(self) -> Path:
        return self._file("passes", self._grammar, ".json")

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

    def _keep(self, settings: DecodingPasses) -> None:
        self.cache.mkdir(parents=True, exist_ok=True)
        write_whole(self._settings_file, json.dumps(settings.to_json(), indent=1).encode())

    def _check_absent(self, what: str) -> None:
        if self.absent == "refuse":
            refuse_to_make(what, self.cache)

    def _estimated(self, part: str, corpus: Corpus, decoded: Decoded, present: Transforms | None) -> Transforms:
        adaptation = self.stage.adaptation
        assert adaptation is not None  # two passes are for adapted systems
        paths = {u: hypothesis.labels for u, hypothesis in decoded.hypotheses.items()}
        pair, feats, speakers = self.stage.pair, self.feats(part), corpus.speakers
        found = transforms_from_paths(pair, feats, paths, speakers, adaptation.decoding, present, self.jobs)
        log.info("%s, %s: transforms of %d speakers", self.stage.name, part, len(found))
        return found

    def _scorers(self, transforms: Mapping[str, Transforms]) -> dict[str, partial[np.ndarray]]:
        """Scores of each part, see `adapted_scores`; parts without an entry in `transforms` are not adapted."""
        return {part: partial(self._scores, part, transforms.get(part, {})) for part in ("train", "dev", "test")}

    def _scores(self, part: str, transforms: Transforms, name: str) -> np.ndarray:
        speakers = getattr(self.decoder.material, part).speakers
        return adapted_scores(self.stage.pair, self.feats(part), speakers, transforms, name)


def narrow(options: DecodeOptions) -> DecodeOptions:
    """The settings with a search that is no wider than a pass needs whose paths only give transforms."""
    beam, states = min(options.beam, FIRST_BEAM), min(options.max_active, FIRST_STATES)
    return replace(options, beam=beam, max_active=states)


def adapted_scores(
    pair: AdaptedPair, feats: Arrays, speakers: Mapping[str, str], transforms: Transforms, name: str
) -> np.ndarray:
    """(T, P) natural log-likelihoods of an utterance, adapted to its speaker if there is a transform."""
    return pair.loglikes(feats[name], transforms.get(speakers[name]))
