"""Decoding graphs HCLG, from transition-ids to words.

Mohri, Pereira and Riley, "Speech recognition with weighted finite-state transducers" (2008), in Kaldi's order: LG
determinised and minimised, composed with the context C and the HMM transducer H, determinised again, disambiguation
symbols removed, minimised, self-loops added.
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
from murmur.speech.lexicon.lexicon import Lang
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
        max_input_label: largest input label; the score matrix must reach it.
        dropped_by_sherpa: number of arcs with a word on an input label whose words sherpa-onnx ignores (0 and 1).
        removed_words: number of words of the language model that are not in the lexicon.
        unreachable_words: number of words of the lexicon that are not in the grammar.
    """

    states: int
    arcs: int
    max_input_label: int
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
    facts = GraphFacts(fst.num_states, arcs, max_input, dropped, len(grammar.removed), len(grammar.unreachable))
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
