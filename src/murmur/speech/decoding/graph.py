"""Decoding graphs: HCLG from transition-ids to words, and T o min(det(L o G)) from CTC tokens to words.

Mohri, Pereira and Riley, "Speech recognition with weighted finite-state transducers" (2008), in Kaldi's order: LG
determinised and minimised, composed with the context C and the HMM transducer H, determinised again, disambiguation
symbols removed, minimised, self-loops added.

Miao, Gowayyed and Metze, "EESEN: end-to-end speech recognition using deep RNN models and WFST-based decoding" (2015),
section 3. Input label k + 1 is token k; token 0 is the blank. The token transducer T has two states per last token, for
its first frame and for those after it: it must not be determinised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import kaldi_hmm_gmm as khg
import kaldifst
import numpy as np

from murmur.core.counted import counted
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.language_model.grammar import Grammar
from murmur.speech.lexicon.lexicon import BACKOFF, Lang
from murmur.speech.lexicon.lexicon_fst import decoding_lexicon

Tell = Callable[[str, int, int], None]  # told each step of a construction: its name, steps done, steps in all
HCLG_STEPS = 6


def untold(_step: str, _done: int, _steps: int) -> None:
    """Take a step of a construction that is not shown."""


@dataclass(frozen=True)
class GraphOptions:
    """Weights of the HMM's transitions in HCLG: scales of the log probabilities of transitions and of self-loops."""

    transition_scale: float = 1.0
    self_loop_scale: float = 0.1


@dataclass(frozen=True)
class GraphFacts:
    """Size of a graph, and counts of its deviations.

    Attributes:
        states, arcs: size.
        dropped_by_sherpa: number of arcs with a word on an input label whose words sherpa-onnx ignores (0 and 1).
        removed_words: number of words of the language model that are not in the lexicon.
        unreachable_words: number of words of the lexicon that are not in the grammar.
    """

    states: int
    arcs: int
    dropped_by_sherpa: int
    removed_words: int
    unreachable_words: int

    @property
    def told(self) -> str:
        """Size, and the words that cannot be recognised."""
        lost = [
            f"{counted(count, 'word')} of the {where}"
            for count, where in (
                (self.removed_words, "language model not in the lexicon"),
                (self.unreachable_words, "lexicon not in the grammar"),
            )
            if count
        ]
        return "; ".join([f"{counted(self.states, 'state')}, {counted(self.arcs, 'arc')}", *lost])


@dataclass(frozen=True, eq=False)
class DecodingGraph:
    """A graph with the meaning of its labels: input label k reads column `columns[k - 1]` of a score matrix.

    Attributes:
        fst: transducer.
        words: word of each output label.
        columns: (number of input labels,) int32, the column of the score matrix (a pdf, or a CTC token) of each label.
        num_columns: number of columns of a score matrix.
        facts: sizes and counts.
    """

    fst: kaldifst.StdVectorFst
    words: tuple[str, ...]
    columns: np.ndarray
    num_columns: int
    facts: GraphFacts


def build_hclg(
    lang: Lang, transitions: Transitions, grammar: Grammar, options: GraphOptions | None = None, tell: Tell = untold
) -> DecodingGraph:
    """HCLG of a lexicon, a grammar over the same word labels, and a transition model with its decision tree.

    Raises:
        ValueError: the transition model covers other phones than the lexicon, or nothing is left after a step.
    """
    options = options or GraphOptions()
    _check_phones(lang, transitions)
    tell("lexicon and grammar", 0, HCLG_STEPS)
    lg = lexicon_and_grammar(decoding_lexicon(lang), grammar)
    tell("contexts", 1, HCLG_STEPS)
    clg, contexts = kaldifst.compose_context(
        disambig_syms=lang.disambig,
        context_width=transitions.tree.context_width,
        central_position=transitions.tree.central_position,
        ifst=lg,
    )
    del lg  # each of these is hundreds of megabytes for a trigram of 20,000 words
    kaldifst.arcsort(clg, sort_type="ilabel")
    h, disambig = khg.get_h_transducer(
        ilabel_info=contexts,
        ctx_dep=transitions.tree,
        trans_model=transitions.library,
        config=khg.HTransducerConfig(transition_scale=options.transition_scale),
    )
    tell("states", 2, HCLG_STEPS)
    hclg = kaldifst.compose(h, clg)
    del h, clg
    hclg = _with_self_loops(hclg, disambig, transitions, options, tell)
    columns = np.array(transitions.pdf_of[1:], dtype=np.int32)
    return finished_graph(hclg, lang, grammar, columns, int(columns.max()) + 1)


def _with_self_loops(
    hclg: kaldifst.StdVectorFst, disambig: Sequence[int], transitions: Transitions, options: GraphOptions, tell: Tell
) -> kaldifst.StdVectorFst:
    """H o CLG determinised, without disambiguation labels, minimised, with self-loops."""
    tell("determinising", 3, HCLG_STEPS)
    _determinize(hclg, "H o CLG")
    _relabel_as_epsilon(hclg, disambig)
    tell("minimising", 4, HCLG_STEPS)
    kaldifst.minimize_encoded(hclg)
    tell("self-loops", 5, HCLG_STEPS)
    return khg.add_self_loops(
        self_loop_scale=options.self_loop_scale,
        disambig_syms=[],
        reorder=True,
        trans_model=transitions.library,
        ifst=hclg,
    )


def lexicon_and_grammar(lexicon: kaldifst.StdVectorFst, grammar: Grammar) -> kaldifst.StdVectorFst:
    """LG: L o G, determinised in the log semiring and minimised, sorted by input label; L is sorted by output label."""
    lg = kaldifst.compose(lexicon, grammar.fst)
    _check_not_empty(lg, "L o G")
    _determinize(lg, "L o G")
    kaldifst.minimize_encoded(lg)
    kaldifst.arcsort(lg, sort_type="ilabel")
    return lg


def finished_graph(
    fst: kaldifst.StdVectorFst, lang: Lang, grammar: Grammar, columns: np.ndarray, num_columns: int
) -> DecodingGraph:
    """Check the labels of a finished transducer and count its facts.

    Raises:
        ValueError: the graph is empty, or has an input label without a column or an output label without a word.
    """
    _check_not_empty(fst, "the decoding graph")
    arcs, max_input, max_output, dropped = 0, 0, 0, 0
    for state in kaldifst.StateIterator(fst):
        for arc in kaldifst.ArcIterator(fst, state):
            arcs += 1
            max_input = max(max_input, arc.ilabel)
            max_output = max(max_output, arc.olabel)
            dropped += arc.olabel != 0 and arc.ilabel <= 1
    if max_input > len(columns) or max_output >= len(lang.words):
        raise ValueError(
            f"the graph reads labels up to {max_input} of {len(columns)} and writes words up to {max_output} of "
            f"{len(lang.words) - 1}: a disambiguation symbol is left, or lexicon and grammar do not match"
        )
    facts = GraphFacts(fst.num_states, arcs, dropped, len(grammar.removed), len(grammar.unreachable))
    return DecodingGraph(fst, lang.word_of, columns, num_columns, facts)


def with_insertion_penalty(graph: DecodingGraph, penalty: float) -> DecodingGraph:
    """A copy of the graph with an additional cost of `penalty` (natural log) for every word.

    A path writes each of its words on exactly one arc, so the best path for word sequence W costs penalty |W| more.
    """
    fst = graph.fst.copy()
    fst.start = fst.start  # the copy shares its arcs until it is first changed, and arc iterators do not unshare it
    for state in kaldifst.StateIterator(fst):
        for arc in kaldifst.ArcIterator(fst, state):
            if arc.olabel:
                arc.weight = kaldifst.TropicalWeight(arc.weight.value + penalty)
    return replace(graph, fst=fst)


def _check_phones(lang: Lang, transitions: Transitions) -> None:
    modelled = set(np.unique(transitions.phone_of[1:]).tolist())
    spoken = set(range(1, lang.num_phones + 1))
    if modelled != spoken:
        odd = sorted(modelled.symmetric_difference(spoken))[:10]
        raise ValueError(
            f"the transition model has {len(modelled)} phones, the lexicon {len(spoken)}; differing labels: {odd}: "
            "make the decoding lexicon with `Lang.with_lexicon` from the one that was trained on"
        )


def _determinize(fst: kaldifst.StdVectorFst, name: str) -> None:
    stopped_early = kaldifst.determinize_star(fst, use_log=True)
    if stopped_early:
        raise ValueError(f"determinisation of {name} stopped early: the lexicon lacks disambiguation symbols")
    _check_not_empty(fst, name)


def _check_not_empty(fst: kaldifst.StdVectorFst, name: str) -> None:
    if fst is None or fst.num_states == 0:
        raise ValueError(f"{name} is empty: do lexicon, grammar and acoustic model share their words and phones?")


def _relabel_as_epsilon(fst: kaldifst.StdVectorFst, labels: Collection[int]) -> None:
    """Set these input labels to 0, in place: the library edits arcs through its iterator."""
    labels = set(labels)
    if not labels:
        return
    for state in kaldifst.StateIterator(fst):
        for arc in kaldifst.ArcIterator(fst, state):
            if arc.ilabel in labels:
                arc.ilabel = 0


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
