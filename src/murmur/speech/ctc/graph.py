"""Decoding graphs for CTC, from tokens to words (T o min(det(L o G))).

Miao, Gowayyed and Metze, "EESEN: end-to-end speech recognition using deep RNN models and WFST-based decoding" (2015),
section 3. Input label k + 1 is token k; token 0 is the blank. The token transducer T has two states per last token, for
its first frame and for those after it: it must not be determinised.
"""

from __future__ import annotations

from collections.abc import Sequence

import kaldifst
import numpy as np

from murmur.speech.decoding.graph import DecodingGraph, Tell, finished_graph, lexicon_and_grammar, untold
from murmur.speech.language_model.grammar import Grammar
from murmur.speech.lexicon.lexicon import BACKOFF, Lang


def build_ctc_graph(
    lang: Lang, tokens: Sequence[str], grammar: Grammar, separator: str | None = None, tell: Tell = untold
) -> DecodingGraph:
    """The graph of a lexicon whose phones are tokens of a CTC model, and a grammar over the same word labels.

    `tokens` names the columns of the model's output, the blank first. `separator` is the token between two words (a
    space, for characters) if the model has one; pronunciations do not contain it. Silence of the lexicon is not used.

    Raises:
        ValueError: a pronunciation or the separator uses a token that the model lacks, or tokens repeat.
    """
    label_of = {name: k + 1 for k, name in enumerate(tokens)}
    if len(label_of) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens with {len(label_of)} different names: each column needs its own")
    used = {lang.phones[label] for pron in lang.prons for label in pron.phones}
    missing = sorted(used.union([] if separator is None else [separator]).difference(tokens[1:]))
    if missing:
        raise ValueError(f"the lexicon uses {missing[:10]}, which are not tokens of the model: {list(tokens[1:])[:40]}")
    lexicon = _lexicon(lang, label_of, separator)
    tell("lexicon and grammar", 0, 2)
    lg = lexicon_and_grammar(lexicon, grammar)
    tell("tokens", 1, 2)
    graph = kaldifst.compose(_topology(len(tokens), lang.num_disambig + 1), lg)
    kaldifst.connect(graph)
    return finished_graph(graph, lang, grammar, np.arange(len(tokens), dtype=np.int32), len(tokens))


def _arc(ilabel: int, olabel: int, target: int) -> kaldifst.StdArc:
    return kaldifst.StdArc(ilabel=ilabel, olabel=olabel, weight=0.0, nextstate=target)


def _topology(num_tokens: int, num_disambig: int) -> kaldifst.StdVectorFst:
    """Frames to tokens: repeats and blanks give no token. Disambiguation labels pass on loops that read no frame.

    The loops are at the start and at the first frame of each token alone. With loops at later frames too, a path of
    labels would be in the graph once for each frame at which it can take them, and confidences would count it as often.

    State k is the first frame of token k; 0 is the start. State num_tokens + k is a later frame of token k, of the
    blank for k = 0.
    """
    fst = kaldifst.StdVectorFst()
    for _ in range(2 * num_tokens):
        fst.set_final(fst.add_state(), 0.0)
    fst.start = 0
    for last in range(num_tokens):
        for state in (last, num_tokens + last):
            for token in range(num_tokens):
                silent = token in (0, last)
                fst.add_arc(state, _arc(token + 1, 0 if silent else token + 1, token + num_tokens * silent))
        for k in range(num_disambig):
            fst.add_arc(last, _arc(0, num_tokens + 1 + k, last))
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst


def _lexicon(lang: Lang, label_of: dict[str, int], separator: str | None) -> kaldifst.StdVectorFst:
    """Words, with one separator between two of them, and one or none behind the last.

    `#0` may stand before a word and at the end, where G may back off.
    """
    fst = kaldifst.StdVectorFst()
    before = fst.add_state()
    fst.start = before
    fst.set_final(before, 0.0)
    behind = before if separator is None else fst.add_state()
    first_disambig = len(label_of) + 1
    fst.add_arc(before, _arc(first_disambig, lang.words[BACKOFF], before))
    if separator is not None:
        end = fst.add_state()
        fst.set_final(behind, 0.0)
        fst.set_final(end, 0.0)
        fst.add_arc(behind, _arc(label_of[separator], 0, before))
        for state in (behind, end):
            fst.add_arc(state, _arc(first_disambig, lang.words[BACKOFF], end))
    for pron in lang.prons:
        labels = [label_of[lang.phones[p]] for p in pron.phones]
        labels += [first_disambig + pron.disambig] if pron.disambig else []
        word, state = lang.words[pron.word], before
        for n, label in enumerate(labels, 1):
            target = behind if n == len(labels) else fst.add_state()
            fst.add_arc(state, _arc(label, word, target))
            state, word = target, 0
    kaldifst.arcsort(fst, sort_type="olabel")
    return fst
