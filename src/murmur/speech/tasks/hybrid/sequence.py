"""Sequence training of a hybrid system's network by a lattice-free criterion, with cross-entropy beside it.

    murmur train an4 --set task.corpus=FOLDER --out runs/ce
    murmur train an4_mmi --set task.corpus=FOLDER --init runs/ce --out runs/mmi

The criterion compares the aligned phones with all phone sequences (`murmur.speech.sequence`). The trained network is
decoded like one that cross-entropy has trained.

Shapes: N chunks, T frames, F values per frame, C pdfs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.speech.features.chunks import (
    Chunk,
    ChunkBatch,
    ChunkTable,
    Frames,
    FramesInMemory,
    SomeUtterances,
    copy_name,
)
from murmur.speech.hmm import frame_classifier
from murmur.speech.sequence.denominator import Denominator
from murmur.speech.sequence.numerators import Aligned, NumeratorBuilder
from murmur.speech.tasks.chunk_learning import products_in
from murmur.speech.tasks.hybrid.config import LatticeFree, SequenceBatch
from murmur.speech.tasks.hybrid.learning import (
    FrameLearning,
    GraphLearning,
    Phones,
    denominator_of,
    frames_right,
    phones_of,
    tell_lost,
)
from murmur.speech.tasks.hybrid.system import HybridSystem


@dataclass(frozen=True, eq=False)
class SequenceData:
    """Frames and aligned phones of train and dev.

    Attributes:
        denominator: graph of the phones of train.
        train: frames and pdfs of train, at all stored speeds, of the utterances whose numerators have a path.
        train_lengths: frames of each utterance of `train`.
        train_phones: phones of each utterance of `train`.
        dev: frames and pdfs of dev, of the utterances whose phones in context occur in train, and whose numerators
            have a path.
        dev_phones: phones of each utterance of `dev`.
    """

    denominator: Denominator
    train: Frames
    train_lengths: np.ndarray
    train_phones: tuple[Aligned, ...]
    dev: FramesInMemory
    dev_phones: tuple[Aligned, ...]

    @staticmethod
    def of(system: HybridSystem, criterion: LatticeFree) -> SequenceData:
        """The data of a hybrid task, whose last Gaussian system aligns."""
        stage, frames = system.hmms.trained[-1], system.data
        train, dev = (phones_of(stage.model.transitions, system.aligned(stage, part)) for part in ("train", "dev"))
        denominator = denominator_of(criterion.ngrams, (phones for phones, _ in train.values()), stage.model.states)
        builder = criterion.builder(denominator)
        own = {name: Aligned.of(denominator, *found) for name, found in train.items()}
        origin = {copy_name(name, speed): name for speed in system.front.stored.speeds for name in own}
        pairs = zip(frames.train.names, frames.train.lengths.tolist(), strict=True)
        stretched = {name: own[origin[name]].stretched(length) for name, length in pairs}
        kept = _with_path("train", stretched, builder)
        chosen = np.array([i for i, name in enumerate(frames.train.names) if name in kept])
        found = _known(denominator, {name: dev[name] for name in frames.dev_feats})
        fitted = {name: each.fitted(len(frames.dev_feats[name])) for name, each in found.items()}
        known = _with_path("dev", fitted, builder)
        held = FramesInMemory({n: frames.dev_feats[n] for n in known}, {n: frames.dev_targets[n] for n in known})
        return SequenceData(
            denominator,
            SomeUtterances(frames.train, chosen),
            frames.train.lengths[chosen],
            tuple(kept.values()),
            held,
            tuple(known.values()),
        )


def _with_path(part: str, aligned: Mapping[str, Aligned], builder: NumeratorBuilder | None) -> dict[str, Aligned]:
    """The utterances whose phones have room in their frames; a copy at a higher speed has fewer frames."""
    if builder is None:
        return dict(aligned)
    kept = {name: each for name, each in aligned.items() if builder.has_path(each)}
    why = (
        f"their phones have no room within {builder.tolerance_frames} frames of the alignment; a larger"
        " task.criterion.tolerance_frames may keep some"
    )
    tell_lost(part, [name for name in aligned if name not in kept], why, len(aligned))
    if not kept:
        raise ValueError(
            f"no utterance of {part} has room for its phones within {builder.tolerance_frames} frames of the alignment:"
            " give a larger task.criterion.tolerance_frames"
        )
    return kept


def _known(denominator: Denominator, dev: Mapping[str, Phones]) -> dict[str, Aligned]:
    found, lost = {}, []
    for name, phones in dev.items():
        try:
            found[name] = Aligned.of(denominator, *phones)
        except KeyError:
            lost.append(name)
    tell_lost("dev", lost, "states that train lacks", len(dev))
    if not found:
        raise ValueError("every utterance of dev has a phone in context that train lacks: give more training speech")
    return found


class SequenceLearning(GraphLearning, FrameLearning):
    """Lattice-free MMI or sMBR (`murmur.speech.sequence.criteria`) on chunks of aligned frames."""

    def __init__(self, system: HybridSystem) -> None:
        super().__init__(system)
        assert isinstance(system.criterion, LatticeFree)
        self.criterion: LatticeFree = system.criterion

    def check(self) -> None:
        super().check()
        if self.system.front.draws:
            raise SettingError("task.front.perturb: numerators need stored speeds, set it to stored")
        if self.system.realigned_by is not None:
            raise SettingError("task.realigned_by: numerators are made from Gaussian alignments, set it to None")

    def make_data(self) -> None:
        super().make_data()
        _ = self.data

    @property
    def samples_per_epoch(self) -> float:
        return float(self.order.total_frames)

    def piece(self, n: int, number: int, of: int) -> SequenceBatch | None:
        batch = self.order.piece(n, number, of, self.data.train, self.system.change)
        if batch is None:
            return None
        return self._batch(batch, self.order.piece_chunks(n, number, of), self.data.train_phones)

    def dev_batches(self) -> Iterator[SequenceBatch]:
        data = self.data
        table = replace(self.order, lengths=data.dev.lengths, parts=1)
        for n in range(table.per_epoch):
            yield self._batch(table.batch(n, data.dev), table[n], data.dev_phones)

    @cached_property
    def data(self) -> SequenceData:
        return SequenceData.of(self.system, self.criterion)

    @cached_property
    def order(self) -> ChunkTable:
        return ChunkTable(self.data.train_lengths, **asdict(self.system.chunks), seed=self.system.seed)

    @cached_property
    def _builder(self) -> NumeratorBuilder | None:
        return self.criterion.builder(self.data.denominator)

    @property
    def denominator(self) -> Denominator:
        return self.data.denominator

    def _batch(self, batch: ChunkBatch, chunks: Sequence[Chunk], phones: Sequence[Aligned]) -> SequenceBatch:
        lengths_N = torch.tensor([chunk.last - chunk.first for chunk in chunks])
        places = [(phones[chunk.utterance], chunk.first, chunk.last) for chunk in chunks]
        numerators = None if self._builder is None else self._builder.batch(places)
        return SequenceBatch(batch, self.system.chunks.left_frames, lengths_N, numerators)

    def totals(self, model: nn.Module, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        device = next(model.parameters()).device
        targets_NT = batch.chunks.targets.to(device)
        with products_in(self.system.precision, device.type):
            logits_NTC = model(batch.chunks.feats.to(device))
            entropy = frame_classifier.frame_total(logits_NTC, targets_NT)
        posteriors_NTC = batch.own(logits_NTC).float().log_softmax(-1)
        scores_NTC = self.criterion.acoustic_scale * (posteriors_NTC - self.log_prior.to(device))
        found_N = self.criterion.objective(scores_NTC, batch, self.graph_on(device))
        return found_N.sum(), entropy, frames_right(logits_NTC, targets_NT)
