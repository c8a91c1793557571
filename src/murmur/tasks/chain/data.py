"""Data of chain models: states, denominator, and the utterances with their numerators.

Shapes: T frames, U output frames, F values per frame.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.left_out import left_out
from murmur.speech.hmm.grow import TreeConfig, grow_tree
from murmur.speech.hmm.lower_rate import lower_rate_stats, lower_rate_windows, pdfs_of
from murmur.speech.hmm.questions import derive_questions
from murmur.speech.hmm.states import HmmStates
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.lexicon.lexicon import Lang, split_known
from murmur.speech.sequence.denominator import Denominator
from murmur.speech.sequence.numerators import NumeratorBuilder
from murmur.speech.sequence.phone_hmms import phone_hmms
from murmur.speech.sequence.transcripts import PhoneGraph, TranscriptNumerator, drawn_phones
from murmur.tasks.chain.criterion import ChainMmi
from murmur.tasks.chain.supervision import ByAlignment, ByTranscript, Supervision, aligned_phones
from murmur.tasks.hybrid.hmm import HmmHalf

log = logging.getLogger(__name__)
Arrays = Mapping[str, np.ndarray]
PARTS = ("train", "dev")
NAMED = 10  # missing words in a message


@dataclass(frozen=True, eq=False)
class Utterances:
    """Utterances of a part.

    Attributes:
        names: their names.
        feats: (T, F) features of each.
        supervision: numerators of them.
        targets: (U,) aligned pdfs of each utterance that has them, for each shift of the frames; 0 among them.
    """

    names: tuple[str, ...]
    feats: tuple[np.ndarray, ...]
    supervision: Supervision
    targets: Mapping[int, Arrays]


@dataclass(frozen=True, eq=False)
class ChainData:
    """States, denominator and utterances."""

    states: HmmStates
    denominator: Denominator
    train: Utterances
    dev: Utterances

    @staticmethod
    def of(half: HmmHalf, states: HmmStates, criterion: ChainMmi, step: int, shifts: Sequence[int]) -> ChainData:
        """The data of a set, with targets from its last Gaussian system if the states are of phones in context.

        Raises:
            ValueError: a part has no utterance with a numerator.
        """
        flat = states.tree.width == 1
        parts = {name: getattr(half.material, name) for name in PARTS}
        texts = {name: _known_texts(name, states.lang, part) for name, part in parts.items()}
        tids = {name: {} if flat else _aligned(half, part) for name, part in parts.items()}
        phones = _drawn(states.lang, texts["train"], criterion.draws) if flat else _phones(half, tids["train"])
        model = criterion.ngrams.train(phones)
        denominator = Denominator.of(model, phone_hmms(states), states.tree.num_pdfs)
        graph = denominator.graph
        log.info("denominator: %d n-grams, %d states, %d arcs", model.ngrams, graph.states, graph.arcs)

        def utterances(name: str) -> Utterances:
            feats = half.network_features(parts[name])
            known = {u: text for u, text in texts[name].items() if u in feats and (flat or u in tids[name])}

            def windows(shift: int) -> Arrays:
                return {
                    u: lower_rate_windows(half.trained[-1].model.transitions, tids[name][u], len(feats[u]), step, shift)
                    for u in known
                    if not flat
                }

            targets = {
                shift: {u: pdfs_of(states.tree, found) for u, found in windows(shift).items()} for shift in {0, *shifts}
            }
            if criterion.tolerance_frames is None:
                names, supervision = _by_transcript(denominator, states.lang, known, feats, step)
            else:
                builder = NumeratorBuilder(denominator, criterion.tolerance_frames, criterion.leak)
                names, supervision = _by_alignment(builder, windows(0))
            _tell_lost(name, sorted(set(texts[name]) - set(known)), "no features" if flat else "no alignment")
            _tell_lost(name, sorted(set(known) - set(names)), "too few frames, or phones in an order that train lacks")
            return Utterances(names, tuple(feats[u] for u in names), supervision, targets)

        return ChainData(states, denominator, *map(_not_empty, PARTS, map(utterances, PARTS)))


def chain_states(half: HmmHalf, tree: TreeConfig | None, step: int) -> HmmStates:
    """States of the chain topology; with a tree from alignments, or of monophones, which need none."""
    lang = replace(half.lang, topology="chain")
    grown = monophone_tree(lang)
    if tree is not None:
        stage = half.trained[-1]
        stats = lower_rate_stats(stage.model.transitions, stage.tids, half.train_feats, step)
        grown = grow_tree(lang, stats, derive_questions(lang, stats), tree)
    return HmmStates(lang, grown, make_transitions(lang, grown).log_probs)


def _aligned(half: HmmHalf, part: Corpus) -> Arrays:
    stage = half.trained[-1]
    return stage.tids if part is half.material.train else half.alignment(stage, part)


def _drawn(lang: Lang, texts: Mapping[str, str], draws: int) -> Iterable[list[int]]:
    draw = random.Random(0)
    return [drawn_phones(lang, text, draw) for text in texts.values() for _ in range(draws)]


def _phones(half: HmmHalf, tids: Arrays) -> Iterable[list[int]]:
    transitions = half.trained[-1].model.transitions
    return [transitions.phone_of[tids_T[transitions.arcs.starts(tids_T)]].tolist() for tids_T in tids.values()]


def _by_transcript(
    denominator: Denominator, lang: Lang, texts: Mapping[str, str], feats: Arrays, step: int
) -> tuple[tuple[str, ...], Supervision]:
    made = {name: TranscriptNumerator.of(denominator, PhoneGraph.of(lang, text)) for name, text in texts.items()}
    found = {name: n for name, n in made.items() if n is not None and n.fewest <= -(-len(feats[name]) // step)}
    return tuple(found), ByTranscript(tuple(found.values()))


def _by_alignment(builder: NumeratorBuilder, windows: Arrays) -> tuple[tuple[str, ...], Supervision]:
    made = {name: aligned_phones(builder.denominator, own) for name, own in windows.items()}
    found = {name: aligned for name, aligned in made.items() if aligned is not None}
    return tuple(found), ByAlignment(builder, tuple(found.values()))


def _not_empty(part: str, found: Utterances) -> Utterances:
    if not found.names:
        raise ValueError(f"no utterance of {part} has a path through the denominator: give more training speech")
    return found


def _known_texts(name: str, lang: Lang, part: Corpus) -> Mapping[str, str]:
    """Transcripts of a part whose words are in the lexicon."""
    found = split_known(lang, part.texts)
    missing = sorted({word for words in found.refused.values() for word in words})
    more = " ..." if len(missing) > NAMED else ""
    _tell_lost(name, list(found.refused), f"words that the lexicon lacks: {' '.join(missing[:NAMED])}{more}")
    return found.texts


def _tell_lost(part: str, lost: Sequence[str], why: str) -> None:
    if lost:
        log.warning("%s: %s", part, left_out("utterance", [(name, why) for name in lost]))
