"""Lexicon transducers L, from phones to words.

Mohri, Pereira and Riley, "Speech recognition with weighted finite-state transducers" (2008), section 3.2; the optional
silence follows Kaldi. Weights are -log probabilities; all pronunciations of a word are equally likely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import kaldifst

from .lexicon import BACKOFF, SILENCE_ID, Lang


def training_lexicon(lang: Lang) -> kaldifst.StdVectorFst:
    """L without disambiguation symbols, with optional silence around words, for training graphs."""
    builder = _LexiconFst(lang)
    builder.add_optional_silence(())
    for pron in lang.prons:
        builder.add_word(pron.phones, lang.words[pron.word])
    return builder.finish()


def decoding_lexicon(lang: Lang) -> kaldifst.StdVectorFst:
    """L with all disambiguation symbols and the loop #0:#0, which passes back-off arcs of the grammar."""
    builder = _LexiconFst(lang)
    builder.add_optional_silence((lang.disambig[-1],))
    builder.add_loop(lang.backoff, lang.words[BACKOFF])
    for pron in lang.prons:
        ending = (lang.backoff + pron.disambig,) if pron.disambig else ()
        builder.add_word(pron.phones + ending, lang.words[pron.word])
    return builder.finish()


class _LexiconFst:
    """Builds a word loop with an optional silence on each way back. Weights are -log probabilities."""

    def __init__(self, lang: Lang) -> None:
        self._fst = kaldifst.StdVectorFst()
        self._loop = self._fst.add_state()
        self._silence = self._fst.add_state()
        start = self._fst.add_state()
        self._fst.start = start
        self._fst.set_final(self._loop, 0.0)
        # The two ways after a word: straight back to the loop, or through silence.
        self._ways = (
            (self._loop, -math.log(1.0 - lang.silence_probability)),
            (self._silence, -math.log(lang.silence_probability)),
        )
        for state, cost in self._ways:
            self._arc(start, 0, 0, cost, state)

    def _arc(self, source: int, phone: int, word: int, cost: float, target: int) -> None:
        self._fst.add_arc(source, kaldifst.StdArc(ilabel=phone, olabel=word, weight=cost, nextstate=target))

    def _chain(self, source: int, labels: Sequence[int], word: int) -> int:
        """Follow labels over new states; the word is emitted on the first arc. Returns the last state."""
        for label in labels:
            target = self._fst.add_state()
            self._arc(source, label, word, 0.0, target)
            source, word = target, 0
        return source

    def add_optional_silence(self, behind: Sequence[int]) -> None:
        labels = (SILENCE_ID, *behind)
        self._arc(self._chain(self._silence, labels[:-1], 0), labels[-1], 0, 0.0, self._loop)

    def add_loop(self, phone: int, word: int) -> None:
        self._arc(self._loop, phone, word, 0.0, self._loop)

    def add_word(self, labels: Sequence[int], word: int) -> None:
        last = self._chain(self._loop, labels[:-1], word)
        for target, cost in self._ways:
            self._arc(last, labels[-1], word if len(labels) == 1 else 0, cost, target)

    def finish(self) -> kaldifst.StdVectorFst:
        kaldifst.arcsort(self._fst, sort_type="olabel")
        return self._fst
