"""Chain models: a network trained by lattice-free MMI alone, with outputs at a third of the frame rate.

    murmur train an4_chain --set task.corpus=FOLDER --out runs/chain
    murmur train an4_chain --set task.corpus=FOLDER --set 'task.criterion.tree=TreeConfig()' --out runs/chain_tree

The numerator of an utterance holds all paths of its transcript (`murmur.speech.sequence.transcripts`), or the aligned
phones with limits that may move. A flat start needs no Gaussian system; a tree is grown on the alignments of one, which
also give targets for a cross-entropy beside the criterion. Povey et al., "Purely sequence-trained neural networks for
ASR based on lattice-free MMI", Interspeech 2016; Hadian et al., "End-to-end speech recognition using lattice-free MMI",
Interspeech 2018.

Shapes: N utterances, T frames, U = ceil(T / stack) output frames, F values per frame, C pdfs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.features.batching import UtteranceBatches, pad
from murmur.speech.features.chunks import IGNORED
from murmur.speech.hmm import frame_classifier
from murmur.speech.hmm.grow import TreeConfig, derive_questions, grow_tree, lower_rate_stats, lower_rate_windows
from murmur.speech.hmm.model import HmmStates
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import IntArray, monophone_tree
from murmur.speech.lexicon.lexicon import Lang, split_known
from murmur.speech.sequence import criteria
from murmur.speech.sequence.denominator import Denominator
from murmur.speech.sequence.numerators import Aligned, NumeratorBuilder, Numerators
from murmur.speech.sequence.transcripts import PhoneGraph, TranscriptNumerator, drawn_phones, joined
from murmur.speech.tasks.chunk_learning import products_in
from murmur.speech.tasks.graph_sources import CHAIN_SCALES
from murmur.speech.tasks.hybrid.config import ChainMmi
from murmur.speech.tasks.hybrid.hmm import HmmHalf
from murmur.speech.tasks.hybrid.learning import GraphLearning, denominator_of, frames_right, phones_of, tell_lost
from murmur.speech.tasks.hybrid.system import HybridSystem
from murmur.speech.tasks.prepared import digest_of, rows_of

Arrays = Mapping[str, np.ndarray]
Batch = Callable[[Sequence[int], Sequence[int]], Numerators]
PARTS = ("train", "dev")
NAMED = 10  # missing words in a message
SHORTEST_PHONE = 3  # frames of an aligned phone with three states
EVALUATED = 16  # utterances of dev that are evaluated together


def aligned_phones(denominator: Denominator, windows_U4: IntArray) -> Aligned | None:
    """Phones of the windows of `lower_rate_windows`; None if the denominator has no such phone in a context."""
    starts = np.flatnonzero(windows_U4[:, 3] == 0)
    try:
        return Aligned.of(denominator, windows_U4[starts, 1].tolist(), [*starts.tolist(), len(windows_U4)])
    except KeyError:
        return None


@dataclass(frozen=True, eq=False)
class Utterances:
    """Utterances of a part.

    Attributes:
        feats: (T, F) features of each.
        numerators: function from the numbers of some utterances, and their output frames, to their numerators: all
            paths of the transcripts, or the aligned phones, whose limits may move by a tolerance.
        targets: (U,) aligned pdfs of each utterance that has them, for each shift of the frames; 0 among them.
    """

    names: tuple[str, ...]
    feats: tuple[np.ndarray, ...]
    numerators: Batch
    targets: Mapping[int, Arrays]


@dataclass(frozen=True, eq=False)
class ChainData:
    """States, denominator and utterances."""

    states: HmmStates
    denominator: Denominator
    train: Utterances
    dev: Utterances

    @staticmethod
    def of(system: HybridSystem, states: HmmStates, criterion: ChainMmi, step: int) -> ChainData:
        """The data of a set, with targets from its last Gaussian system if the states are of phones in context.

        Raises:
            ValueError: a part has no utterance with a numerator.
        """
        half, flat, shifts = system.hmms, states.tree.width == 1, {0, *criterion.shifts}
        parts = {name: getattr(half.material, name) for name in PARTS}
        texts = {name: _known_texts(name, states.lang, part) for name, part in parts.items()}
        tids: dict[str, Arrays] = {name: {} if flat else system.aligned(half.trained[-1], name) for name in PARTS}
        if flat:
            phones = _drawn(states.lang, texts["train"], criterion.draws)
        else:
            phones = [own for own, _ in phones_of(half.trained[-1].model.transitions, tids["train"]).values()]
        denominator = denominator_of(criterion.ngrams, phones, states)

        def utterances(name: str) -> Utterances:
            feats = dict(half.network_features(parts[name]))
            known = {u: text for u, text in texts[name].items() if u in feats and (flat or u in tids[name])}

            def windows(shift: int) -> Arrays:
                return {
                    u: lower_rate_windows(half.trained[-1].model.transitions, tids[name][u], len(feats[u]), step, shift)
                    for u in known
                    if not flat
                }

            targets = {
                shift: {u: states.tree.pdfs_of(found) for u, found in windows(shift).items()} for shift in shifts
            }
            if criterion.tolerance_frames is None:
                names, numerators = _by_transcript(denominator, states.lang, known, feats, step)
            else:
                builder = NumeratorBuilder(denominator, criterion.tolerance_frames, criterion.leak)
                names, numerators = _by_alignment(builder, windows(0))
            tell_lost(name, sorted(set(texts[name]) - set(known)), "no features" if flat else "no alignment")
            tell_lost(name, sorted(set(known) - set(names)), "too few frames, or phones in an order that train lacks")
            return Utterances(names, tuple(feats[u] for u in names), numerators, targets)

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


def _drawn(lang: Lang, texts: Mapping[str, str], draws: int) -> list[Sequence[int]]:
    draw = random.Random(0)
    return [drawn_phones(lang, text, draw) for text in texts.values() for _ in range(draws)]


def _by_transcript(
    denominator: Denominator, lang: Lang, texts: Mapping[str, str], feats: Arrays, step: int
) -> tuple[tuple[str, ...], Batch]:
    made = {name: TranscriptNumerator.of(denominator, PhoneGraph.of(lang, text)) for name, text in texts.items()}
    found = {name: n for name, n in made.items() if n is not None and n.fewest <= -(-len(feats[name]) // step)}
    numerators = tuple(found.values())
    return tuple(found), lambda chosen, frames: joined([numerators[i] for i in chosen], frames)


def _by_alignment(builder: NumeratorBuilder, windows: Arrays) -> tuple[tuple[str, ...], Batch]:
    made = {name: aligned_phones(builder.denominator, own) for name, own in windows.items()}
    found = {name: aligned for name, aligned in made.items() if aligned is not None}
    phones = tuple(found.values())

    def batch(chosen: Sequence[int], frames: Sequence[int]) -> Numerators:
        return builder.batch([(phones[i], 0, last) for i, last in zip(chosen, frames, strict=True)])

    return tuple(found), batch


def _not_empty(part: str, found: Utterances) -> Utterances:
    if not found.names:
        raise ValueError(f"no utterance of {part} has a path through the denominator: give more training speech")
    return found


def _known_texts(name: str, lang: Lang, part: Corpus) -> Mapping[str, str]:
    """Transcripts of a part whose words are in the lexicon."""
    texts, refused = split_known(lang, part.texts)
    missing = sorted({word for words in refused.values() for word in words})
    more = " ..." if len(missing) > NAMED else ""
    tell_lost(name, list(refused), f"words that the lexicon lacks: {' '.join(missing[:NAMED])}{more}")
    return texts


@dataclass(frozen=True, eq=False)
class ChainBatch:
    """Whole utterances.

    Attributes:
        feats: (N, T, F) features, with zeros after the end of each utterance.
        lengths: (N,) frames.
        targets: (N, U) aligned pdfs; `IGNORED` where there are none.
        numerators: numerators of the utterances.
        frames: output frames of all utterances.
    """

    feats: Tensor
    lengths: Tensor
    targets: Tensor
    numerators: Numerators
    frames: int


class ChainLearning(GraphLearning):
    """Lattice-free MMI on whole utterances; `chunks.size` is the number of utterances in a minibatch."""

    criterion: ChainMmi

    def __init__(self, system: HybridSystem) -> None:
        super().__init__(system)
        assert isinstance(system.criterion, ChainMmi)
        self.criterion, self.step = system.criterion, system.network.stack

    def check(self) -> None:
        """Check that features are those of speed 1, and that decoding tries the scale of training."""
        self._check_utterances()
        front, scales = self.system.front, self.system.decoding.network.scales
        if front.draws or tuple(front.speeds) != (1.0,):
            raise SettingError("task.front.speeds: chain models take the recordings as they are, set (1.0,)")
        if front.input.of_speakers:
            raise SettingError(
                "task.front.input: chain models take the spectrum alone, since a flat start has no Gaussian"
                " system: leave fmllr and ivector out"
            )
        if self.system.realigned_by is not None:
            raise SettingError("task.realigned_by: numerators are made from Gaussian alignments, set it to None")
        if not min(scales) <= 1 <= max(scales):
            raise SettingError(
                f"task.decoding.network.scales: {scales} are scales of posteriors; the outputs of a chain model"
                f" are log-likelihoods, whose scale is near 1: set it to {CHAIN_SCALES}"
            )

    def _check_utterances(self) -> None:
        step, shifts = self.step, self.criterion.shifts
        if self.system.chunks.parts != 1:
            raise SettingError("task.chunks.parts: chain models take whole utterances of all parts, set it to 1")
        if max(map(abs, shifts)) >= step:
            raise SettingError(
                f"task.criterion.shifts: {shifts} with an output for every {step} frames (task.network.stack): a shift"
                f" of {step} or more takes the frames of another output again"
            )
        if self.criterion.aligned and step > SHORTEST_PHONE:
            raise SettingError(
                f"task.network.stack: {step} with a tree: aligned phones of {SHORTEST_PHONE} frames would have no"
                f" output, set it to {SHORTEST_PHONE} or less"
            )

    def make_states(self) -> None:
        _ = self.states

    def make_data(self) -> None:
        _ = self.data

    @cached_property
    def states(self) -> HmmStates:
        return chain_states(self.system.hmms, self.criterion.tree, self.step)

    @cached_property
    def data(self) -> ChainData:
        return ChainData.of(self.system, self.states, self.criterion, self.step)

    @cached_property
    def data_digest(self) -> str:
        pairs = ((self.data.train, self.system.material.train), (self.data.dev, self.system.material.dev))
        return digest_of(*(rows_of(part, dict(zip(own.names, own.feats, strict=True))) for own, part in pairs))

    @property
    def samples_per_epoch(self) -> float:
        return float(sum(-(-len(feats_TF) // self.step) for feats_TF in self.data.train.feats))

    def piece(self, n: int, number: int, of: int) -> ChainBatch | None:
        chosen, rng = self.order.piece(n, number, of)
        if not chosen:
            return None
        train, shift = self.data.train, self.criterion.shifts[n // self.order.per_epoch % len(self.criterion.shifts)]
        feats = [self.system.augment(shifted(train.feats[i], shift), rng) for i in chosen]
        return self._batch(train, chosen, feats, shift)

    @cached_property
    def order(self) -> UtteranceBatches:
        lengths = tuple(map(len, self.data.train.feats))
        return UtteranceBatches(lengths, self.system.chunks.size, self.system.seed)

    def dev_batches(self) -> Iterator[ChainBatch]:
        dev = self.data.dev
        for group in UtteranceBatches(tuple(map(len, dev.feats)), EVALUATED).in_order():
            yield self._batch(dev, group, [dev.feats[i] for i in group], 0)

    def _batch(self, part: Utterances, chosen: Sequence[int], feats: Sequence[np.ndarray], shift: int) -> ChainBatch:
        feats_NTF, lengths_N = pad(feats)
        outputs = [-(-len(feats_TF) // self.step) for feats_TF in feats]
        targets_NU = torch.full((len(outputs), max(outputs)), IGNORED)
        for row_U, i in zip(targets_NU, chosen, strict=True):
            pdfs_U = part.targets.get(shift, {}).get(part.names[i])
            if pdfs_U is not None:
                row_U[: len(pdfs_U)] = torch.from_numpy(pdfs_U)
        numerators = part.numerators(chosen, outputs)
        return ChainBatch(feats_NTF, lengths_N, targets_NU, numerators, sum(outputs))

    def totals(self, model: nn.Module, batch: ChainBatch) -> tuple[Tensor, Tensor, Tensor]:
        device = next(model.parameters()).device
        lengths_N, targets_NU = batch.lengths.to(device), batch.targets.to(device)
        with products_in(self.system.precision, device.type):
            outputs_NUC = model(batch.feats.to(device), lengths_N)
        outputs_NUC = outputs_NUC.float()
        frames_N = (lengths_N + self.step - 1) // self.step
        objective_N = criteria.mmi(
            outputs_NUC, frames_N, batch.numerators.to(device), self.graph_on(device), self.criterion.leak
        )
        entropy = frame_classifier.frame_total(outputs_NUC, targets_NU)
        return objective_N.sum(), entropy, frames_right(outputs_NUC, targets_NU)

    @property
    def denominator(self) -> Denominator:
        return self.data.denominator


def shifted(feats_TF: np.ndarray, shift: int) -> np.ndarray:
    """x_{t + shift} for all t, the edge frames repeated."""
    return feats_TF[(np.arange(len(feats_TF)) + shift).clip(0, len(feats_TF) - 1)]
