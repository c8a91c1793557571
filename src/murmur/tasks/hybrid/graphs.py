"""Sources of HCLG: HMM states, pronunciations, language models, and the settings of the search."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from murmur.core.errors import SettingError
from murmur.speech.decoding.graph import DecodingGraph, GraphOptions, Tell, build_hclg, untold
from murmur.speech.decoding.graph_store import graph_key, outputs_key
from murmur.speech.decoding.recogniser import PhoneSpans
from murmur.speech.decoding.word_times import WordTimer
from murmur.speech.hmm.states import HmmStates
from murmur.speech.hmm.storage import load_states, save_states
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.grammar import Grammar, loop_grammar, ngram_grammar, one_word_grammar
from murmur.speech.language_model.ngram import NgramModel
from murmur.speech.lexicon.lexicon import Lang, read_lexicon
from murmur.tasks.hybrid.config import LOOP, ONE_WORD, Decoding, Search
from murmur.tasks.language_models import copied_models, search_of_json, search_to_json
from murmur.tasks.vocabulary import Vocabulary

STATES, LEXICON = "states.npz", "lexicon.txt"
CHAIN_SCALES = (0.5, 0.7, 1.0, 1.4)


def check_named(name: str, language_models: Collection[str], option: str) -> None:
    """Check that a set with these language models has a grammar; `option` is the setting or option that names it.

    Raises:
        SettingError: there is none of this name.
    """
    known = [LOOP, ONE_WORD, *language_models]
    if name not in known:
        raise SettingError(
            f"{option}: this set has no grammar {name!r}; choose one of {', '.join(known)}, or give a file: JSGF "
            "by --grammar, ARPA by --lm, words by --words"
        )


@dataclass(frozen=True, eq=False)
class HmmSources:
    """Sources of the decoding graphs of a hybrid system (see `GraphSources`).

    Attributes:
        states: phones, tying and transitions.
        lexicon: file of pronunciations over the phones of training.
        silence_probability: probability of a silence before the first word and after each word.
        search: own grammar, and the settings that tuning tries.
        language_models: ARPA files by name.
        tune_every: every n-th dev utterance is used for tuning.
    """

    kind: ClassVar[str] = "hmm"
    untuned_scale: ClassVar[None] = None
    units: ClassVar[None] = None
    best_path: ClassVar[None] = None

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
        return CHAIN_SCALES if self._is_chain else Decoding().network.scales

    @property
    def _options(self) -> GraphOptions:
        """Chain models count transition probabilities in full, as in their training."""
        return GraphOptions(self_loop_scale=1.0) if self._is_chain else GraphOptions()

    @property
    def outputs_key(self) -> str:
        """Digest of phones, topology and tree: which state of which phone in context each column scores."""
        return outputs_key(self.states.lang, self.states.transitions)

    def check_grammar(self, name: str, option: str) -> None:
        """Check that there is a grammar of this name; `option` is the setting or option that gives the name.

        Raises:
            SettingError: there is none.
        """
        check_named(name, self.language_models, option)

    def words(self, grammar: str | Vocabulary) -> tuple[Lang, Grammar]:
        """The vocabulary of decoding over the phones of training, and the grammar: one by name, or the user's.

        Raises:
            ValueError: there is no such grammar, or words cannot be pronounced; the message says what to do.
        """
        base, trained = read_lexicon(self.lexicon), self.states.lang
        if isinstance(grammar, Vocabulary):
            words, grammar_over = grammar.content
            lang = trained.with_lexicon(grammar.pronounced(words, base, trained.phones))
            lang = lang.with_silence_probability(self.silence_probability)
            return lang, grammar_over(lang)
        lang = trained.with_lexicon(base).with_silence_probability(self.silence_probability)
        return lang, self._grammar(lang, grammar)

    def language_model(self, grammar: str | Vocabulary) -> NgramModel | None:
        """The n-gram model that a grammar is made of; None for other grammars."""
        if isinstance(grammar, Vocabulary):
            return grammar.language_model
        return read_arpa(self.language_models[grammar]) if grammar in self.language_models else None

    def key(self, lang: Lang, grammar: Grammar) -> str:
        """Digest of everything that the graph is made of."""
        return graph_key(lang, grammar, self.states.transitions, self._options)

    def build(self, lang: Lang, grammar: Grammar, tell: Tell = untold) -> DecodingGraph:
        """HCLG."""
        return build_hclg(lang, self.states.transitions, grammar, self._options, tell)

    def spans(self, lang: Lang, _columns: np.ndarray, /) -> PhoneSpans:
        """Rule that divides the phones of a path among the words."""
        return PhoneSpans(WordTimer.of(lang, self.states.transitions))

    def save(self, folder: Path) -> dict[str, Any]:
        """Write states, lexicon and language models; return the other values."""
        save_states(self.states, folder / STATES)
        shutil.copyfile(self.lexicon, folder / LEXICON)
        return {
            "silence_probability": self.silence_probability,
            "search": search_to_json(self.search),
            "language_models": copied_models(self.language_models, folder),
            "tune_every": self.tune_every,
        }

    @staticmethod
    def open(content: Mapping[str, Any], files: Mapping[str, Path]) -> HmmSources:
        """Read what `save` wrote; `files` maps names to verified files.

        Raises:
            LookupError, TypeError, ValueError: the content has another form.
        """
        return HmmSources(
            load_states(files[STATES]),
            files[LEXICON],
            float(content["silence_probability"]),
            search_of_json(content["search"]),
            {str(name): files[file] for name, file in content["language_models"].items()},
            int(content["tune_every"]),
        )

    def _grammar(self, lang: Lang, name: str) -> Grammar:
        if name == LOOP:
            return loop_grammar(lang)
        if name == ONE_WORD:
            return one_word_grammar(lang)
        if name not in self.language_models:
            known = ", ".join([LOOP, ONE_WORD, *self.language_models])
            raise ValueError(f"there is no grammar {name!r} for this set: choose one of {known}")
        return ngram_grammar(lang, read_arpa(self.language_models[name]))
