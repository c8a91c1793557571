"""Settings of a search for words, and the sources of its decoding graphs.

A hybrid system's graphs are made from HMM states, pronunciations and language models; those of a CTC network from its
units, pronunciations or words of train, and grammars. Miao, Gowayyed and Metze, "EESEN: end-to-end speech recognition
using deep RNN models and WFST-based decoding" (2015).
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.speech import ctc
from murmur.speech.corpus.corpus import CorpusError, left_out
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.graph import DecodingGraph, GraphOptions, Tell, build_ctc_graph, build_hclg, untold
from murmur.speech.decoding.graph_store import graph_key, outputs_key
from murmur.speech.decoding.recogniser import PhoneSpans, Spans, UnitSpans
from murmur.speech.hmm.model import HmmStates
from murmur.speech.hmm.storage import load_states, save_states
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.grammar import Grammar, loop_grammar, ngram_grammar, one_word_grammar
from murmur.speech.language_model.ngram import NgramModel
from murmur.speech.lexicon.lexicon import Entry, Lang, make_lang, read_lexicon
from murmur.speech.tasks.vocabulary import Vocabulary, is_mark, writable

log = logging.getLogger(__name__)
LOOP, ONE_WORD, GREEDY = "loop", "one word", "greedy"
CTC_GRAMMARS = (GREEDY, LOOP, ONE_WORD)
POSTERIOR_SCALES = (0.1, 0.14, 0.2, 0.3, 0.4, 0.6, 0.8)  # of log posteriors of a frame, less their prior
CHAIN_SCALES = (0.5, 0.7, 1.0, 1.4)
TOLERANCE_PERCENT = 0.2
STATES, LEXICON, WORDS = "states.npz", "lexicon.txt", "words.txt"
BLANK_NAME = "<blk>"
FORMAT = 2  # of the token transducer; graphs of another one have another key


@dataclass(frozen=True)
class Search:
    """Grammar and tuning of one kind of system.

    Attributes:
        grammar: "loop" (any number of words, equally likely), "one word", or the name of a language model of the set.
            CTC also has "greedy" (the best unit of each frame, no graph), and takes the path of an ARPA file. Its words
            are those of the lexicon, or of train for units that spell.
        scales: acoustic scales to try on dev; of three and more, the range is widened while the best is at an end.
        insertion_penalties: costs per word (natural log) to try on dev, each with all scales.
        beams: (beam, most active states) to try on dev; the fastest one within 0.2 % of the widest is taken.
    """

    grammar: str = LOOP
    scales: tuple[float, ...] = (0.05, 0.07, 0.1, 0.14, 0.2)
    insertion_penalties: tuple[float, ...] = (0.0,)
    beams: tuple[tuple[float, int], ...] = ((13.0, 7000),)

    @staticmethod
    def of_json(content: Mapping[str, Any]) -> Search:
        scales, penalties = (tuple(map(float, content[name])) for name in ("scales", "insertion_penalties"))
        beams = tuple((float(beam), int(most)) for beam, most in content["beams"])
        search = Search(str(content["grammar"]), scales, penalties, beams)
        first_options(search)
        return search


CTC_SEARCH = Search(GREEDY, (0.5, 0.7, 1.0, 1.4, 2.0), (0.0, 1.0, -1.0), ((16.0, 7000),))


def first_options(search: Search) -> DecodeOptions:
    """The options from which tuning of the scale starts: the widest beam of the search."""
    if not search.beams or not search.scales or not search.insertion_penalties:
        raise ValueError("give at least one acoustic scale, insertion penalty and (beam, most states) to decode with")
    beam, most = max(search.beams)
    penalty = search.insertion_penalties[0]
    return DecodeOptions(acoustic_scale=search.scales[0], beam=beam, max_active=most, insertion_penalty=penalty)


def check_named(name: str, language_models: Collection[str], option: str) -> None:
    """Check that a set with these language models has a grammar; `option` is the setting or option that names it."""
    known = [LOOP, ONE_WORD, *language_models]
    if name not in known:
        raise SettingError(
            f"{option}: this set has no grammar {name!r}; choose one of {', '.join(known)}, or give a file: JSGF "
            "by --grammar, ARPA by --lm, words by --words"
        )


class GraphSources(ABC):
    """Sources of the decoding graphs of one acoustic model: lexicon, grammars, and for hybrid systems the HMM.

    Attributes:
        kind: name of the kind of sources in files.
        search: own grammar, and the settings that tuning tries.
        tune_every: every n-th dev utterance is used for tuning.
        untuned_scale: acoustic scale of a search that was never tuned; None if none is safe.
        units: units of the network's columns; None for pdfs, which have no names.
        best_path: name of the grammar that stands for the network's best path, without a graph; None if there is none.
    """

    kind: str
    untuned_scale: float | None
    best_path: str | None
    units: ctc.Units | None
    search: Search
    language_models: Mapping[str, Path]
    tune_every: int

    @property
    @abstractmethod
    def free_scales(self) -> tuple[float, ...]:
        """Acoustic scales that tuning tries if the experiment fixes the scale for its own grammar."""

    @property
    @abstractmethod
    def outputs_key(self) -> str:
        """Digest of what the columns of scores stand for; equal for networks whose scores may be averaged."""

    @abstractmethod
    def check_grammar(self, name: str, option: str) -> None:
        """Check that there is a grammar of this name; `option` is the setting or option that gives the name."""

    def words(self, grammar: str | Vocabulary) -> tuple[Lang, Grammar]:
        """The vocabulary of decoding, and the grammar over it: one by name, or the user's own."""
        if isinstance(grammar, Vocabulary):
            words, grammar_over = grammar.content
            lang = self.lang_of(grammar, words)
            return lang, grammar_over(lang)
        model = self.language_model(grammar)
        lang = self.lang(model)
        if model is not None:
            return lang, ngram_grammar(lang, model)
        return lang, loop_grammar(lang) if grammar == LOOP else one_word_grammar(lang)

    def language_model(self, grammar: str | Vocabulary) -> NgramModel | None:
        """The n-gram model that a grammar is made of; None for other grammars."""
        if isinstance(grammar, Vocabulary):
            return grammar.language_model
        return None if grammar in (LOOP, ONE_WORD) else read_arpa(self.model_file(grammar))

    @abstractmethod
    def model_file(self, grammar: str) -> Path:
        """The ARPA file of a grammar; raises ValueError if there is none."""

    @abstractmethod
    def lang(self, model: NgramModel | None) -> Lang:
        """The own vocabulary, for a language model."""

    @abstractmethod
    def lang_of(self, vocabulary: Vocabulary, words: Sequence[str]) -> Lang:
        """The words of the user's vocabulary."""

    @abstractmethod
    def key(self, lang: Lang, grammar: Grammar) -> str:
        """Digest of everything that the graph is made of."""

    @abstractmethod
    def build(self, lang: Lang, grammar: Grammar, tell: Tell = untold) -> DecodingGraph:
        """The decoding graph; each step is told. The bound method can be pickled."""

    @abstractmethod
    def spans(self, lang: Lang, columns: np.ndarray, /) -> Spans:
        """Rule that finds the frames of words on a path; `columns` holds the scores' column of each input label."""

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the sources into a folder; return the values that are not files, in JSON's terms."""
        names = {}
        for number, (name, path) in enumerate(self.language_models.items()):
            names[name] = f"lm-{number}.arpa{'.gz' if path.suffix == '.gz' else ''}"
            shutil.copyfile(path, folder / names[name])
        return {"kind": self.kind, "search": asdict(self.search), "language_models": names}


@dataclass(frozen=True, eq=False)
class HmmSources(GraphSources):
    """Sources of the decoding graphs of a hybrid system.

    Attributes:
        lexicon: file of pronunciations over the phones of training.
        silence_probability: probability of a silence before the first word and after each word.
    """

    kind, untuned_scale, best_path, units = "hmm", None, None, None

    states: HmmStates
    lexicon: Path
    silence_probability: float
    search: Search
    language_models: Mapping[str, Path] = field(default_factory=dict)
    tune_every: int = 1

    @property
    def _is_chain(self) -> bool:
        return self.states.lang.topology == "chain"

    @property
    def free_scales(self) -> tuple[float, ...]:
        """Acoustic scales around 1 for chain models, whose outputs are log-likelihoods; else those of posteriors."""
        return CHAIN_SCALES if self._is_chain else POSTERIOR_SCALES

    @property
    def _options(self) -> GraphOptions:
        """Chain models count transition probabilities in full, as in their training."""
        return GraphOptions(self_loop_scale=1.0) if self._is_chain else GraphOptions()

    @property
    def outputs_key(self) -> str:
        """Digest of phones, topology and tree: which state of which phone in context each column scores."""
        return outputs_key(self.states.lang, self.states.transitions)

    def check_grammar(self, name: str, option: str) -> None:
        check_named(name, self.language_models, option)

    def model_file(self, grammar: str) -> Path:
        if grammar not in self.language_models:
            known = ", ".join([LOOP, ONE_WORD, *self.language_models])
            raise ValueError(f"there is no grammar {grammar!r} for this set: choose one of {known}")
        return self.language_models[grammar]

    def lang(self, model: NgramModel | None) -> Lang:  # noqa: ARG002 - the lexicon has the words of all models
        """The words of the lexicon over the phones of training."""
        return self._with(read_lexicon(self.lexicon))

    def lang_of(self, vocabulary: Vocabulary, words: Sequence[str]) -> Lang:
        return self._with(vocabulary.pronounced(words, read_lexicon(self.lexicon), self.states.lang.phones))

    def _with(self, entries: Sequence[Entry]) -> Lang:
        return self.states.lang.with_lexicon(entries).with_silence_probability(self.silence_probability)

    def key(self, lang: Lang, grammar: Grammar) -> str:
        return graph_key(lang, grammar, self.states.transitions, self._options)

    def build(self, lang: Lang, grammar: Grammar, tell: Tell = untold) -> DecodingGraph:
        return build_hclg(lang, self.states.transitions, grammar, self._options, tell)

    def spans(self, lang: Lang, _columns: np.ndarray, /) -> PhoneSpans:
        return PhoneSpans.of(lang, self.states.transitions)

    def save(self, folder: Path) -> dict[str, Any]:
        save_states(self.states, folder / STATES)
        shutil.copyfile(self.lexicon, folder / LEXICON)
        own = {"silence_probability": self.silence_probability, "tune_every": self.tune_every}
        return {**super().save(folder), **own}

    @staticmethod
    def open(content: Mapping[str, Any], files: Mapping[str, Path]) -> HmmSources:
        return HmmSources(
            load_states(files[STATES]),
            files[LEXICON],
            float(content["silence_probability"]),
            Search.of_json(content["search"]),
            {str(name): files[file] for name, file in content["language_models"].items()},
            int(content["tune_every"]),
        )


@dataclass(frozen=True, eq=False)
class CtcSources(GraphSources):
    """Sources of the decoding graphs of a CTC network.

    Attributes:
        lexicon: pronunciations for phone units; empty for other units.
        train_words: words of train, which "loop" and "one word" allow if the units spell.
    """

    kind, untuned_scale, best_path = "ctc", 1.0, GREEDY
    tune_every = 1
    free_scales = CTC_SEARCH.scales

    units: ctc.Units
    search: Search
    lexicon: tuple[Entry, ...] = ()
    train_words: frozenset[str] = frozenset()
    language_models: Mapping[str, Path] = field(default_factory=dict)

    @property
    def outputs_key(self) -> str:
        return hashlib.sha256(json.dumps([self.units.kind, *self.units.symbols]).encode()).hexdigest()

    def check_grammar(self, name: str, option: str) -> None:
        if name not in (*CTC_GRAMMARS, *self.language_models) and not Path(name).is_file():
            known = ", ".join(["greedy", "loop", "'one word'", *self.language_models])
            raise SettingError(f"{option}: there is no grammar {name!r}: choose {known}, or an ARPA file")

    def model_file(self, grammar: str) -> Path:
        path = self.language_models.get(grammar, Path(grammar))
        if not path.is_file():
            raise CorpusError(f"there is no grammar {grammar!r}: write greedy, loop, 'one word', or an ARPA file")
        return path

    def lang(self, model: NgramModel | None) -> Lang:
        """Words and their units: the lexicon for phones; otherwise the words of the model or of train."""
        if self.units.kind == "phone":
            return make_lang(list(self.lexicon))
        words = self.train_words if model is None else {word for word in model.words if not is_mark(word)}
        written = [word for word in words if writable(self.units, word)]
        if len(written) < len(words):
            lost = sorted(set(words).difference(written), key=str.encode)
            why = "they are of the grammar and need units that the network lacks"
            log.warning("%s", left_out("word", [(word, why) for word in lost], len(words)))
        if not written:
            raise CorpusError(f"the network's units can write none of the {counted(len(words), 'word')} of the grammar")
        return make_lang([(word, tuple(ctc.pieces(word, self.units.kind))) for word in sorted(written, key=str.encode)])

    def lang_of(self, vocabulary: Vocabulary, words: Sequence[str]) -> Lang:
        if self.units.kind == "phone":
            return make_lang(vocabulary.pronounced(words, list(self.lexicon), self.units.symbols))
        return make_lang(vocabulary.spelled(words, self.units))

    def key(self, lang: Lang, grammar: Grammar) -> str:
        content = json.dumps([FORMAT, graph_key(lang, grammar), self._tokens, self._separator]).encode()
        return hashlib.sha256(content).hexdigest()

    def build(self, lang: Lang, grammar: Grammar, tell: Tell = untold) -> DecodingGraph:
        return build_ctc_graph(lang, self._tokens, grammar, self._separator, tell)

    def spans(self, lang: Lang, columns: np.ndarray, /) -> UnitSpans:
        column = {token: number for number, token in enumerate(self._tokens)}
        spellings: dict[str, list[tuple[int, ...]]] = {}
        for pron in lang.prons:
            spellings.setdefault(pron.word, []).append(tuple(column[lang.phones[p]] for p in pron.phones))
        separator = None if self._separator is None else column[self._separator]
        return UnitSpans(columns, spellings, separator)

    def save(self, folder: Path) -> dict[str, Any]:
        if self.lexicon:
            lines = (f"{word} {' '.join(phones)}\n" for word, phones in self.lexicon)
            (folder / LEXICON).write_text("".join(lines), encoding="utf-8")
        words = sorted(self.train_words, key=str.encode)
        (folder / WORDS).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        return {**super().save(folder), "units": asdict(self.units)}

    @staticmethod
    def open(content: Mapping[str, Any], files: Mapping[str, Path]) -> CtcSources:
        units = ctc.Units(content["units"]["kind"], tuple(map(str, content["units"]["symbols"])))
        return CtcSources(
            units,
            Search.of_json(content["search"]),
            tuple(read_lexicon(files[LEXICON])) if LEXICON in files else (),
            frozenset(files[WORDS].read_text(encoding="utf-8").split()),
            {str(name): files[file] for name, file in content["language_models"].items()},
        )

    @property
    def _tokens(self) -> list[str]:
        return [BLANK_NAME, *self.units.symbols]

    @property
    def _separator(self) -> str | None:
        return " " if self.units.kind == "char" and " " in self.units.symbols else None
