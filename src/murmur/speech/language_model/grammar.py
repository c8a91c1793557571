"""Grammars G for decoding graphs: acceptors of word sequences, from an n-gram model or a plain list of words.

Back-off arcs carry `#0` on the input side, as in Mohri, Pereira and Riley, "Speech recognition with weighted
finite-state transducers" (2008), section 3.1; n-gram models are converted by kaldilm.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import kaldifst
import kaldilm

from murmur.core.counted import counted, named
from murmur.execution.library_lines import library_lines_kept
from murmur.speech.language_model.acceptor import Acceptor
from murmur.speech.language_model.arpa import write_arpa
from murmur.speech.language_model.ngram import END, START, NgramModel
from murmur.speech.lexicon.lexicon import BACKOFF, EPSILON, Lang, write_symbols

_MARKS = frozenset({EPSILON, BACKOFF, START, END})


@dataclass(frozen=True, eq=False)
class Grammar:
    """A grammar over the word labels of one language.

    Attributes:
        fst: transducer sorted by input label; do not change it.
        removed: words of the language model that are not in the lexicon; their n-grams are not in `fst`.
        unreachable: words of the lexicon that are not in the grammar.
        digest: digest of everything that the grammar is made of.
    """

    fst: kaldifst.StdVectorFst
    removed: tuple[str, ...]
    unreachable: tuple[str, ...]
    digest: str

    def __getstate__(self) -> dict[str, object]:
        """State for pickling: the library cannot pickle transducers, but can write them."""
        with tempfile.NamedTemporaryFile(prefix="murmur-grammar-") as file:
            if not self.fst.write(file.name):
                raise OSError(f"could not write {file.name}: is the disk full?")
            return {**self.__dict__, "fst": Path(file.name).read_bytes()}

    def __setstate__(self, state: dict[str, object]) -> None:
        content = state["fst"]
        assert isinstance(content, bytes)
        with tempfile.NamedTemporaryFile(prefix="murmur-grammar-") as file:
            Path(file.name).write_bytes(content)
            self.__dict__.update({**state, "fst": kaldifst.StdVectorFst.read(file.name)})


def sayable_words(lang: Lang) -> list[str]:
    """The words that decoding may output: those of the lexicon except marks and the unknown word."""
    return [word for word in lang.words if word not in _MARKS and word != lang.unknown]


def searched_words(lang: Lang, grammar: Grammar) -> set[str]:
    """The words that a search with this grammar may output: a lexicon can have more."""
    return set(sayable_words(lang)).difference(grammar.unreachable)


def ngram_grammar(lang: Lang, model: NgramModel) -> Grammar:
    """G of a back-off model, restricted to the words of the lexicon, without the unknown word.

    Raises:
        ValueError: the model lacks `<s>` or `</s>`, or shares no word with the lexicon.
    """
    missing = [mark for mark in (START, END) if mark not in model.number_of]
    if missing:
        raise ValueError(f"the language model has no {' and no '.join(missing)}: a grammar needs sentence boundaries")
    sayable = set(sayable_words(lang))
    kept, removed = model.restricted(sayable)
    if not sayable.intersection(kept.words):
        raise ValueError(
            f"none of the {counted(len(model.words), 'word')} of the language model is in the lexicon"
            f" ({counted(len(sayable), 'word')}: {named(sorted(sayable))}): is one of them in lower case?"
        )
    with tempfile.TemporaryDirectory(prefix="murmur-grammar-") as folder:
        arpa, symbols = Path(folder, "kept.arpa"), Path(folder, "words.txt")
        # kaldilm ends the process on a bad table or a word outside it, so both files are written here.
        write_arpa(kept, arpa)
        write_symbols(lang.words, symbols)
        with library_lines_kept():
            text = kaldilm.arpa2fst(
                input_arpa=str(arpa),
                disambig_symbol=BACKOFF,
                read_symbol_table=str(symbols),
                max_order=kept.order,
                max_arpa_warnings=0,
            )
    fst = _compiled(text)
    digest = _digest(text, lang)
    return Grammar(fst, tuple(removed), tuple(sorted(sayable.difference(kept.words))), digest)


def loop_grammar(lang: Lang, probs: Mapping[str, float] | None = None) -> Grammar:
    """G of any number of words in any order; each word has the probability `probs[word]`, or all have the same.

    Raises:
        ValueError: a word of `probs` is not in the lexicon, or its probability is not in (0, 1].
    """
    return _one_choice(lang, probs, target=0)


def one_word_grammar(lang: Lang, probs: Mapping[str, float] | None = None) -> Grammar:
    """G of exactly one word, for recordings of isolated words; probabilities and errors as in `loop_grammar`."""
    return _one_choice(lang, probs, target=1)


def acceptor_grammar(lang: Lang, acceptor: Acceptor) -> Grammar:
    """G of a deterministic acceptor with words of the lexicon only.

    Raises:
        ValueError: it has words that the lexicon lacks, or arcs without a word.
    """
    sayable = set(sayable_words(lang))
    missing = sorted(set(acceptor.words).difference(sayable))
    if missing or any(arc.word is None for arc in acceptor.arcs):
        raise ValueError(f"the lexicon lacks words of the grammar: {missing[:10]}")
    # The first line names the start state.
    arcs = sorted(acceptor.arcs, key=lambda arc: arc.source)
    lines = []
    for source, word, cost, target in arcs:
        assert word is not None
        spoken = 0 if word == BACKOFF else lang.words[word]
        lines.append(f"{source}\t{target}\t{lang.words[word]}\t{spoken}\t{cost:.7g}\n")
    lines += [f"{state}\t{cost:.7g}\n" for state, cost in sorted(acceptor.finals.items())]
    text = "".join(lines)
    return Grammar(_compiled(text), (), tuple(sorted(sayable.difference(acceptor.words))), _digest(text, lang))


def _one_choice(lang: Lang, probs: Mapping[str, float] | None, target: int) -> Grammar:
    """A choice of words from state 0 to the final state `target`, which may be 0 itself."""
    sayable = sayable_words(lang)
    if probs is None:
        probs = dict.fromkeys(sayable, 1.0 / len(sayable)) if sayable else {}
    bad = {word: p for word, p in probs.items() if word not in sayable or not 0.0 < p <= 1.0}
    if bad or not probs:
        raise ValueError(
            f"the grammar needs words of the lexicon with probabilities in (0, 1]: {bad or 'no word given'}"
        )
    lines = [f"0\t{target}\t{lang.words[w]}\t{lang.words[w]}\t{-math.log(p):.7g}\n" for w, p in sorted(probs.items())]
    text = "".join([*lines, f"{target}\n"])
    return Grammar(_compiled(text), (), tuple(sorted(set(sayable).difference(probs))), _digest(text, lang))


def _compiled(text: str) -> kaldifst.StdVectorFst:
    fst = kaldifst.compile(text, acceptor=False)
    if fst is None or fst.num_states == 0:
        raise ValueError("the grammar is empty: the language model offers no sentence over the words of the lexicon")
    kaldifst.arcsort(fst, sort_type="ilabel")
    return fst


def _digest(text: str, lang: Lang) -> str:
    words = "\n".join(lang.word_of)
    return hashlib.sha256(f"{words}\n\n{text}".encode()).hexdigest()
