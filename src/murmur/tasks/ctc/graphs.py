"""Sources of the decoding graphs of a CTC network: units, pronunciations or words of train, grammars.

Miao, Gowayyed and Metze, "EESEN: end-to-end speech recognition using deep RNN models and WFST-based decoding" (2015).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.left_out import left_out
from murmur.speech.ctc import criterion as ctc
from murmur.speech.ctc.graph import build_ctc_graph
from murmur.speech.decoding.graph import DecodingGraph, Tell, untold
from murmur.speech.decoding.graph_store import graph_key
from murmur.speech.decoding.recogniser import UnitSpans
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.grammar import Grammar, loop_grammar, ngram_grammar, one_word_grammar
from murmur.speech.language_model.ngram import NgramModel
from murmur.speech.lexicon.lexicon import Entry, Lang, make_lang, read_lexicon
from murmur.tasks.ctc.decode import GREEDY, CtcDecoding
from murmur.tasks.hybrid.config import LOOP, ONE_WORD, Search
from murmur.tasks.language_models import copied_models, search_of_json, search_to_json
from murmur.tasks.vocabulary import Vocabulary, is_mark, writable

log = logging.getLogger(__name__)
BLANK_NAME = "<blk>"
FORMAT = 2  # of the token transducer; graphs of another one have another key
LEXICON, WORDS = "lexicon.txt", "words.txt"


def units_digest(units: ctc.Units) -> str:
    """Digest of the units, in the order of the columns."""
    return hashlib.sha256(json.dumps([units.kind, *units.symbols]).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class CtcSources:
    """Sources of the decoding graphs of a CTC network (see `GraphSources`).

    Attributes:
        units: output units of the network.
        search: own grammar ("greedy": the best unit of each frame), and the settings that tuning tries.
        lexicon: pronunciations for phone units; empty for other units.
        train_words: words of train, which "loop" and "one word" allow if the units spell.
        language_models: ARPA files by name.
    """

    kind: ClassVar[str] = "ctc"
    free_scales: ClassVar[tuple[float, ...]] = CtcDecoding().scales
    untuned_scale: ClassVar[float] = 1.0
    tune_every: ClassVar[int] = 1
    best_path: ClassVar[str] = GREEDY

    units: ctc.Units
    search: Search
    lexicon: tuple[Entry, ...] = ()
    train_words: frozenset[str] = frozenset()
    language_models: Mapping[str, Path] = field(default_factory=dict)

    @property
    def outputs_key(self) -> str:
        """Digest of the units, in the order of the columns."""
        return units_digest(self.units)

    def check_grammar(self, name: str, option: str) -> None:
        """Check that there is a grammar of this name; `option` is the setting or option that gives the name.

        Raises:
            SettingError: there is none.
        """
        if name not in (GREEDY, LOOP, ONE_WORD, *self.language_models) and not Path(name).is_file():
            known = ", ".join(["greedy", "loop", "'one word'", *self.language_models])
            raise SettingError(f"{option}: there is no grammar {name!r}: choose {known}, or an ARPA file")

    def words(self, grammar: str | Vocabulary) -> tuple[Lang, Grammar]:
        """The vocabulary in the network's units, and the grammar over it.

        Raises:
            ValueError: no such grammar, or words that the units cannot write.
        """
        if not isinstance(grammar, Vocabulary):
            model = self._model(grammar)
            lang = make_lang(self._entries(model))
            return lang, self._grammar(lang, grammar, model)
        words, grammar_over = grammar.content
        if self.units.kind == "phone":
            lang = make_lang(grammar.pronounced(words, list(self.lexicon), self.units.symbols))
        else:
            lang = make_lang(grammar.spelled(words, self.units))
        return lang, grammar_over(lang)

    def language_model(self, grammar: str | Vocabulary) -> NgramModel | None:
        """The n-gram model that a grammar is made of; None for other grammars."""
        if isinstance(grammar, Vocabulary):
            return grammar.language_model
        return None if grammar == GREEDY else self._model(grammar)

    def key(self, lang: Lang, grammar: Grammar) -> str:
        """Digest of everything that the graph is made of."""
        content = json.dumps([FORMAT, graph_key(lang, grammar), self._tokens, self._separator]).encode()
        return hashlib.sha256(content).hexdigest()

    def build(self, lang: Lang, grammar: Grammar, tell: Tell = untold) -> DecodingGraph:
        """Graph of the units."""
        return build_ctc_graph(lang, self._tokens, grammar, self._separator, tell)

    def spans(self, lang: Lang, columns: np.ndarray, /) -> UnitSpans:
        """Rule that finds the units of each word on a path."""
        separator = None if self._separator is None else self._tokens.index(self._separator)
        return UnitSpans(columns, self.spellings(lang), separator)

    def spellings(self, lang: Lang) -> dict[str, list[tuple[int, ...]]]:
        """The spellings of each word, as output columns."""
        column = {token: number for number, token in enumerate(self._tokens)}
        found: dict[str, list[tuple[int, ...]]] = {}
        for pron in lang.prons:
            found.setdefault(pron.word, []).append(tuple(column[lang.phones[p]] for p in pron.phones))
        return found

    def save(self, folder: Path) -> dict[str, Any]:
        """Write lexicon, words of train and language models; return the other values."""
        if self.lexicon:
            lines = (f"{word} {' '.join(phones)}\n" for word, phones in self.lexicon)
            (folder / LEXICON).write_text("".join(lines), encoding="utf-8")
        words = sorted(self.train_words, key=str.encode)
        (folder / WORDS).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        return {
            "units": {"kind": self.units.kind, "symbols": list(self.units.symbols)},
            "search": search_to_json(self.search),
            "language_models": copied_models(self.language_models, folder),
        }

    @staticmethod
    def open(content: Mapping[str, Any], files: Mapping[str, Path]) -> CtcSources:
        """Read what `save` wrote; `files` maps names to verified files.

        Raises:
            LookupError, TypeError, ValueError: the content has another form.
        """
        units = ctc.Units(content["units"]["kind"], tuple(map(str, content["units"]["symbols"])))
        return CtcSources(
            units,
            search_of_json(content["search"]),
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

    def _model(self, name: str) -> NgramModel | None:
        if name in (LOOP, ONE_WORD):
            return None
        path = self.language_models.get(name, Path(name))
        if not path.is_file():
            raise CorpusError(f"there is no grammar {name!r}: write greedy, loop, 'one word', or an ARPA file")
        return read_arpa(path)

    def _grammar(self, lang: Lang, name: str, model: NgramModel | None) -> Grammar:
        if model is not None:
            return ngram_grammar(lang, model)
        return loop_grammar(lang) if name == LOOP else one_word_grammar(lang)

    def _entries(self, model: NgramModel | None) -> list[Entry]:
        """Words and their units: the lexicon for phones; otherwise the words of the grammar or of train."""
        if self.units.kind == "phone":
            return list(self.lexicon)
        words = self.train_words if model is None else {word for word in model.words if not is_mark(word)}
        written = [word for word in words if writable(self.units, word)]
        if len(written) < len(words):
            lost = sorted(set(words).difference(written), key=str.encode)
            why = "they are of the grammar and need units that the network lacks"
            log.warning("%s", left_out("word", [(word, why) for word in lost], len(words)))
        if not written:
            raise CorpusError(f"the network's units can write none of the {counted(len(words), 'word')} of the grammar")
        return [(word, tuple(ctc.pieces(word, self.units.kind))) for word in sorted(written, key=str.encode)]
