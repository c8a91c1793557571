"""Decoding of CTC networks with a graph of the units' lexicon and a word grammar, its scale tuned on dev.

Miao, Gowayyed and Metze, "EESEN: end-to-end speech recognition using deep RNN models and WFST-based decoding" (2015).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.ctc import criterion as ctc
from murmur.speech.ctc.graph import build_ctc_graph
from murmur.speech.decoding.decode_set import Decoded, decode_set
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.graph_build import build_graph
from murmur.speech.decoding.graph_store import ensure_graph, graph_key
from murmur.speech.decoding.tuning import DevelopmentSet, Trial, tune_acoustic_scale
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.grammar import Grammar, loop_grammar, ngram_grammar, one_word_grammar
from murmur.speech.language_model.ngram import NgramModel
from murmur.speech.lexicon.lexicon import Entry, Lang, make_lang
from murmur.tasks.ctc.data import Data
from murmur.tasks.hybrid.config import LOOP, ONE_WORD
from murmur.tasks.vocabulary import Vocabulary, is_mark, writable

log = logging.getLogger(__name__)
GREEDY = "greedy"
BLANK_NAME = "<blk>"
Scores = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CtcDecoding:
    """Settings of decoding, from log posteriors to words.

    Attributes:
        grammar: "greedy" (the best unit of each frame, no graph), "loop" (any words of the lexicon, or of train for
            units that spell), "one word", or an ARPA file: its name in the corpus folder, or its path.
        scales: acoustic scales to try on dev.
        insertion_penalties: costs per word (natural log) to try on dev, each with all scales.
        beam: beam of the search, natural log after scaling.
        max_active: largest number of active states in a frame.
    """

    grammar: str = GREEDY
    scales: tuple[float, ...] = (0.5, 0.7, 1.0, 1.4, 2.0)
    insertion_penalties: tuple[float, ...] = (0.0, 1.0, -1.0)
    beam: float = 16.0
    max_active: int = 7000

    def __post_init__(self) -> None:
        if not self.scales or not self.insertion_penalties:
            raise ValueError("give at least one acoustic scale and insertion penalty to decode with")

    @property
    def first(self) -> DecodeOptions:
        """The options that tuning starts from."""
        penalty = self.insertion_penalties[0]
        return DecodeOptions(self.scales[0], self.beam, self.max_active, insertion_penalty=penalty)


@dataclass(frozen=True)
class CtcSearch:
    """Graph decoding for the units of one set.

    Attributes:
        data: units, lexicon and texts.
        root: the corpus folder, where grammars are looked for first.
        decoding: settings.
        cache: folder of graphs.
        jobs: decoding processes.
        frames_per_second: rate of the scores.
        own: the user's words and grammar, in place of those of `decoding`.
        kept: folder where results are saved as they are made; None saves nothing.
    """

    data: Data
    root: Path
    decoding: CtcDecoding
    cache: Path
    jobs: int = 1
    frames_per_second: float = 100.0
    own: Vocabulary | None = None
    kept: Path | None = None

    @cached_property
    def folder(self) -> Path:
        """The folder of the decoding graph, which is built if it is missing.

        Raises:
            ValueError: no such grammar, or it shares no word with what the units can write.
        """
        tokens, separator, (lang, grammar) = self._tokens, self._separator, self.words
        content = json.dumps([graph_key(lang, grammar), tokens, separator]).encode()
        key = hashlib.sha256(content).hexdigest()
        folder = self.cache / f"graph-{key[:16]}"
        build = partial(build_ctc_graph, lang, tokens, grammar, separator)
        ensure_graph(folder, key, lambda: build_graph(build, grammar, self.cache))
        return folder

    def with_own(self, own: Vocabulary) -> CtcSearch:
        """This search with other words; tries several scales and word costs if the experiment fixes them."""
        free, fixed = CtcDecoding(), self.decoding
        scales = fixed.scales if len(fixed.scales) > 1 else free.scales
        penalties = fixed.insertion_penalties if len(fixed.insertion_penalties) > 1 else free.insertion_penalties
        return replace(self, own=own, decoding=replace(fixed, scales=scales, insertion_penalties=penalties))

    def tune(self, scores: Scores, references: Mapping[str, str]) -> DecodeOptions:
        """Penalty and scale with the fewest errors on dev; among equals, the first penalty and the middle scale."""
        dev = DevelopmentSet(self.folder, scores, references, self.jobs, self.frames_per_second, self.kept)
        found: list[Trial] = []
        for penalty in self.decoding.insertion_penalties:
            first = replace(self.decoding.first, insertion_penalty=penalty)
            _, trials = tune_acoustic_scale(dev, self.decoding.scales, first)
            for trial in trials:
                log.info("dev: %s", trial)
            fewest = min(trial.rate.errors for trial in trials)
            alike = [trial for trial in trials if trial.rate.errors == fewest]
            found.append(alike[len(alike) // 2])
        best = min(found, key=lambda trial: trial.rate.errors).options
        if len(self.decoding.scales) > 2 and best.acoustic_scale in (
            min(self.decoding.scales),
            max(self.decoding.scales),
        ):
            log.warning("scale %g is at the edge of the tried range", best.acoustic_scale)
        return best

    def decode(self, scores: Scores, options: DecodeOptions) -> Decoded:
        """The best words of every utterance."""
        return decode_set(self.folder, scores, options, self.jobs, kept=self.kept)

    @property
    def spellings(self) -> dict[str, list[tuple[int, ...]]]:
        """The spellings of each word, as output columns."""
        column = {token: number for number, token in enumerate(self._tokens)}
        found: dict[str, list[tuple[int, ...]]] = {}
        lang, _ = self.words
        for pron in lang.prons:
            found.setdefault(pron.word, []).append(tuple(column[lang.phones[p]] for p in pron.phones))
        return found

    @property
    def separator(self) -> int | None:
        """The column of the unit between two words, if there is one."""
        return None if self._separator is None else self._tokens.index(self._separator)

    @property
    def _tokens(self) -> list[str]:
        return [BLANK_NAME, *self.data.units.symbols]

    @property
    def _separator(self) -> str | None:
        units = self.data.units
        return " " if units.kind == "char" and " " in units.symbols else None

    @cached_property
    def words(self) -> tuple[Lang, Grammar]:
        """The vocabulary in the network's units, and the grammar over it.

        Raises:
            ValueError: no such grammar, or words that the units cannot write.
        """
        if self.own is None:
            lang = make_lang(self._entries(self._model))
            return lang, self._grammar(lang, self._model)
        words, grammar_over = self.own.content
        units = self.data.units
        if units.kind == "phone":
            lang = make_lang(self.own.pronounced(words, list(self.data.lexicon), units.symbols))
        else:
            lang = make_lang(self.own.spelled(words, units))
        return lang, grammar_over(lang)

    @cached_property
    def _model(self) -> NgramModel | None:
        name = self.decoding.grammar
        if name in (LOOP, ONE_WORD):
            return None
        for path in (self.root / name, Path(name)):
            if path.is_file():
                return read_arpa(path)
        raise CorpusError(
            f"there is no grammar {name!r}: write greedy, loop, 'one word', or an ARPA file (in {self.root} or a path)"
        )

    def _grammar(self, lang: Lang, model: NgramModel | None) -> Grammar:
        if model is not None:
            return ngram_grammar(lang, model)
        return loop_grammar(lang) if self.decoding.grammar == LOOP else one_word_grammar(lang)

    def _entries(self, model: NgramModel | None) -> list[Entry]:
        """Words and their units: the lexicon for phones; otherwise the words of the grammar or of train."""
        units = self.data.units
        if units.kind == "phone":
            return list(self.data.lexicon)
        train = {word for name in self.data.train.names for word in self.data.train.texts[name].split()}
        words = train if model is None else {word for word in model.words if not is_mark(word)}
        written = [word for word in words if writable(units, word)]
        if len(written) < len(words):
            log.warning("%d words of the grammar need units that the network lacks", len(words) - len(written))
        if not written:
            raise CorpusError(f"the network's units can write none of the {len(words)} words of the grammar")
        return [(word, tuple(ctc.pieces(word, units.kind))) for word in sorted(written, key=str.encode)]
