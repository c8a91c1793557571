"""Lexicon transducers L, from phones to words.

Mohri, Pereira and Riley, "Speech recognition with weighted finite-state transducers" (2008), section 3.2; the optional
silence follows Kaldi. Weights are -log probabilities; all pronunciations of a word are equally likely.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import kaldifst

from murmur.speech.lexicon.lexicon import BACKOFF, SILENCE_ID, Lang


def training_lexicon(lang: Lang) -> kaldifst.StdVectorFst:
    """L without disambiguation symbols, with optional silence around words, for training graphs."""
    return _word_loop(lang, (SILENCE_ID,), (), ((pron.phones, lang.words[pron.word]) for pron in lang.prons))


def decoding_lexicon(lang: Lang) -> kaldifst.StdVectorFst:
    """L with all disambiguation symbols and the loop #0:#0, which passes back-off arcs of the grammar."""
    words = (
        (pron.phones + ((lang.backoff + pron.disambig,) if pron.disambig else ()), lang.words[pron.word])
        for pron in lang.prons
    )
    return _word_loop(lang, (SILENCE_ID, lang.disambig[-1]), ((lang.backoff, lang.words[BACKOFF]),), words)


def _word_loop(
    lang: Lang,
    silence: Sequence[int],
    passed: Iterable[tuple[int, int]],
    words: Iterable[tuple[Sequence[int], int]],
) -> kaldifst.StdVectorFst:
    """A loop of words with an optional silence on each way back, and arcs `passed` that stay in the loop."""
    fst = kaldifst.StdVectorFst()
    loop, pause, start = fst.add_state(), fst.add_state(), fst.add_state()
    fst.start = start
    fst.set_final(loop, 0.0)
    # The two ways after a word: straight back to the loop, or through silence.
    ways = ((loop, -math.log(1.0 - lang.silence_probability)), (pause, -math.log(lang.silence_probability)))

    def arc(source: int, phone: int, word: int, cost: float, target: int) -> None:
        fst.add_arc(source, kaldifst.StdArc(ilabel=phone, olabel=word, weight=cost, nextstate=target))

    def chain(source: int, labels: Sequence[int], word: int, ends: Iterable[tuple[int, float]]) -> None:
        """Follow labels over new states to the ends; the word is emitted on the first arc."""
        for label in labels[:-1]:
            target = fst.add_state()
            arc(source, label, word, 0.0, target)
            source, word = target, 0
        for end, cost in ends:
            arc(source, labels[-1], word, cost, end)

    for state, cost in ways:
        arc(start, 0, 0, cost, state)
    chain(pause, silence, 0, [(loop, 0.0)])
    for phone, word in passed:
        arc(loop, phone, word, 0.0, loop)
    for labels, word in words:
        chain(loop, labels, word, ways)
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst
