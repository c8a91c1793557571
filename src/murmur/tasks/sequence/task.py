"""Sequence training of a hybrid system's network by a lattice-free criterion, with cross-entropy beside it.

    murmur train an4 --set task.corpus=FOLDER --out runs/ce
    murmur train an4_mmi --set task.hybrid.corpus=FOLDER --init runs/ce --out runs/mmi

The network, its states and its alignments are those of the hybrid task; the criterion compares the aligned phones with
all phone sequences (`murmur.speech.sequence`). The trained network is decoded like one of the hybrid task.

Shapes: N chunks, T frames, F values per frame, C pdfs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.core.model_mode import evaluating
from murmur.core.setting_names import settings_under
from murmur.engine.task import Loss, Score, Unmade
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.features.chunks import IGNORED, Chunk, ChunkBatch, ChunkTable
from murmur.speech.hmm import hybrid
from murmur.speech.sequence.numerators import Aligned, NumeratorBuilder
from murmur.speech.sequence.state_graph import StateGraph
from murmur.tasks.hybrid.stage import Stage
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.precision import products_in
from murmur.tasks.prepared import Absent
from murmur.tasks.recogniser import PortableRecogniser
from murmur.tasks.sequence.criteria import Mmi, SequenceBatch, Smbr
from murmur.tasks.sequence.data import SequenceData


@dataclass(frozen=True)
class SequenceTask:
    """Lattice-free MMI or sMBR on the chunks of a hybrid task.

    The loss is -F + w L, with F the objective of `murmur.speech.sequence.criteria`, L the cross-entropy and w its
    weight, each summed over frames.

    Attributes:
        hybrid: task that provides features, alignments, network, chunks and decoding.
        criterion: Mmi() or Smbr(), with their settings.
        absent: "make" to make training data that is missing from the cache, "refuse" to end with an error.
    """

    hybrid: HybridTask = field(default_factory=HybridTask)
    criterion: Mmi | Smbr = field(default_factory=Mmi)
    absent: Absent = field(default="make", repr=False)

    def __getstate__(self) -> dict[str, object]:
        """The fields alone, like the hybrid task."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def begins_with(self) -> str:
        """The network whose training this task continues."""
        return "the same network trained by cross-entropy, such as that of murmur train an4"

    def check(self) -> None:
        """Check the hybrid task, and that its alignments are those of a Gaussian system.

        Raises:
            SettingError: the settings do not fit this criterion; CorpusError, SynthesisError: something is missing.
        """
        with settings_under("task.hybrid"):
            self.hybrid.check()
        if self.hybrid.front.draws:
            raise SettingError("task.hybrid.front.perturb: numerators need stored speeds, set it to stored")
        if self.hybrid.realigned_by is not None:
            raise SettingError("task.hybrid.realigned_by: numerators are made from Gaussian alignments, set it to None")

    @cached_property
    def _hybrid(self) -> HybridTask:
        return self.hybrid if self.absent == "make" else replace(self.hybrid, absent=self.absent)

    def unprepared(self) -> list[Unmade]:
        """Data that the hybrid task still has to prepare."""
        return self._hybrid.unprepared()

    def prepare(self) -> object:
        """Prepare the data of the hybrid task, and the graphs."""
        with settings_under("task.hybrid"):
            self._hybrid.prepare()
        return self.data

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the training frames, stored copies at other speeds included."""
        return self._table.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Frames in one pass."""
        return float(self._table.total_frames)

    def model(self) -> nn.Module:
        """A fresh network of the hybrid task."""
        return self._hybrid.model()

    def outputs_digest(self) -> str:
        """Digest of the states that the outputs stand for."""
        return self._hybrid.outputs_digest()

    @property
    def data_digest(self) -> str:
        """Digest of the data of the hybrid task."""
        return self._hybrid.data_digest

    def minibatch(self, n: int) -> SequenceBatch:
        """Minibatch n with its masks and numerators: a pure function of the task's fields and n."""
        return self._with_numerators(self._table.batch(n, self.data.train, self._hybrid.change), self._table[n])

    @property
    def most_pieces(self) -> int:
        """Chunks of a minibatch."""
        return self.hybrid.chunks.size

    def piece(self, n: int, number: int, of: int) -> SequenceBatch | None:
        """Some chunks of minibatch n, with masks of their own."""
        batch = self._table.piece(n, number, of, self.data.train, self._hybrid.change)
        return None if batch is None else self._with_numerators(batch, self._table.piece_chunks(n, number, of))

    def loss(self, model: nn.Module, minibatch: SequenceBatch) -> Loss:
        """The criterion, summed over the chunks' own frames."""
        objective, entropy, _ = self._totals(model, minibatch)
        return Loss(self.criterion.cross_entropy * entropy - objective, float(minibatch.chunks.frames))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev, per frame: "loss" (nats), "objective", "cross-entropy", and "frame accuracy"."""
        data = self.data
        table = replace(self._table, lengths=data.dev.lengths, parts=1)
        sums, frames = torch.zeros(3, dtype=torch.float64), 0
        with evaluating(model), torch.no_grad():
            for n in range(table.per_epoch):
                batch = self._batch(table.batch(n, data.dev), table[n], data.dev_phones)
                sums += torch.stack([part.double().cpu() for part in self._totals(model, batch)])
                frames += batch.chunks.frames
        objective, entropy, right = (sums / frames).tolist()
        loss = self.criterion.cross_entropy * entropy - objective
        return {"loss": loss, "objective": objective, "cross-entropy": entropy, "frame accuracy": right}

    def test(self, model: nn.Module) -> Score:
        """Error rates as the hybrid task finds them."""
        return self._hybrid.test(model)

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """`test`, with the decoding results saved in a folder and not decoded again."""
        return self._hybrid.test_in(model, kept)

    def check_grammar(self, name: str, option: str) -> None:
        """Check that the set has a grammar; `option` is the setting or option that names it."""
        with settings_under("task.hybrid"):
            self.hybrid.check_grammar(name, option)

    def recogniser(self) -> PortableRecogniser:
        """Everything besides the weights that recognition with the network needs."""
        return self._hybrid.recogniser()

    def utterances(self, part: str) -> Corpus:
        """Utterances of "train", "dev" or "test"."""
        return self._hybrid.utterances(part)

    def system_names(self) -> Sequence[str]:
        """Names of the Gaussian systems, in the order of training."""
        return self.hybrid.system_names()

    def systems(self) -> Sequence[Stage]:
        """The Gaussian systems, trained if they are not stored yet."""
        return self._hybrid.systems()

    def aligned(self, system: Stage, part: str) -> Mapping[str, np.ndarray]:
        """Alignments of "train", "dev" or "test" by a Gaussian system, {utterance: transition-ids (T,)}."""
        return self._hybrid.aligned(system, part)

    @cached_property
    def data(self) -> SequenceData:
        """Frames, denominator and aligned phones."""
        return SequenceData.of(self._hybrid, self.criterion)

    @cached_property
    def _table(self) -> ChunkTable:
        return ChunkTable(self.data.train_lengths, **asdict(self.hybrid.chunks), seed=self.hybrid.seed)

    @cached_property
    def _builder(self) -> NumeratorBuilder | None:
        return self.criterion.builder(self.data.denominator)

    @cached_property
    def _on_device(self) -> dict[torch.device, tuple[StateGraph, Tensor]]:
        """Denominator and log prior on each device that has used them."""
        return {}

    def _with_numerators(self, batch: ChunkBatch, chunks: Sequence[Chunk]) -> SequenceBatch:
        return self._batch(batch, chunks, self.data.train_phones)

    def _batch(self, batch: ChunkBatch, chunks: Sequence[Chunk], phones: Sequence[Aligned]) -> SequenceBatch:
        lengths_N = torch.tensor([chunk.last - chunk.first for chunk in chunks])
        places = [(phones[chunk.utterance], chunk.first, chunk.last) for chunk in chunks]
        numerators = None if self._builder is None else self._builder.batch(places)
        return SequenceBatch(batch, self.hybrid.chunks.left_frames, lengths_N, numerators)

    def _totals(self, model: nn.Module, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Objective, cross-entropy, and number of frames whose best pdf is the target."""
        device = next(model.parameters()).device
        if device not in self._on_device:
            self._on_device[device] = self.data.denominator.graph.to(device), self._hybrid.targets.log_prior.to(device)
        graph, log_prior_C = self._on_device[device]
        targets_NT = batch.chunks.targets.to(device)
        with products_in(self.hybrid.precision, device.type):
            logits_NTC = model(batch.chunks.feats.to(device))
            entropy = hybrid.frame_total(logits_NTC, targets_NT)
        posteriors_NTC = batch.own(logits_NTC).float().log_softmax(-1)
        scores_NTC = self.criterion.acoustic_scale * (posteriors_NTC - log_prior_C)
        found_N = self.criterion.objective(scores_NTC, batch, graph)
        right = ((logits_NTC.detach().argmax(-1) == targets_NT) & (targets_NT != IGNORED)).sum()
        return found_N.sum(), entropy, right
