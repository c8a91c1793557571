"""Training of a network by one criterion: the protocol of all, and cross-entropy of aligned frames."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.core.model_mode import evaluating
from murmur.engine.task import Loss
from murmur.speech.corpus.corpus import left_out
from murmur.speech.features.analysis import LogMel
from murmur.speech.features.batching import UtteranceBatches
from murmur.speech.features.chunks import IGNORED, ChunkBatch, Chunks, ChunkTable
from murmur.speech.hmm import frame_classifier
from murmur.speech.hmm.model import HmmStates
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.models import Network
from murmur.speech.sequence.denominator import Denominator, PhoneNgrams, phone_hmms
from murmur.speech.sequence.state_graph import StateGraph
from murmur.speech.tasks.chunk_learning import ChunkLearning
from murmur.speech.tasks.hybrid.config import ChainMmi, LatticeFree
from murmur.speech.tasks.hybrid.data import HybridData, noise_source
from murmur.speech.tasks.hybrid.system import HybridSystem
from murmur.speech.tasks.prepared import digest_of, rows_of
from murmur.speech.tasks.speaker_inputs import AdaptedGaussians

log = logging.getLogger(__name__)
Phones = tuple[Sequence[int], Sequence[int]]  # labels; first frames, and the number of frames
STATES = 100  # of the network that is built for the check; the real number is not known yet


def check_network(network: Network, inputs: int, bins: int | None, chunks: Chunks) -> None:
    """Build the network without memory, compare its bins with those of the input, and its context with the chunks'.

    Args:
        network: configuration.
        inputs: values per frame.
        bins: mel bins of the input; None if it is not made of them.
        chunks: chunks of training; a warning tells if they have less context than the network.
    """
    front = getattr(network, "front", None)
    if front is not None and bins is not None and front.bins != bins:
        raise SettingError(
            f"task.network.front.bins = {front.bins} with {bins} mel bins in the input (task.front.bins): convolutions"
            " over frequencies need the number of bins of a spectrum"
        )
    with torch.device("meta"):
        network.build(inputs, STATES)
    for side in ("left_frames", "right_frames"):
        needed, there = getattr(network, side, 0), getattr(chunks, side)
        if needed > there:
            log.warning(
                "chunks have %d frames of context on one side and the network takes %d: frames at their ends see"
                " repeated frames, which decoding does not have; chunks with %s=%d have enough",
                *(there, needed, side, needed),
            )


class Learning(ABC):
    """Training of a network by one criterion: states of its outputs, minibatches, loss and held-out figures."""

    def __init__(self, system: HybridSystem) -> None:
        self.system = system

    @abstractmethod
    def check(self) -> None:
        """Check the settings of the system against the criterion; reads no data."""

    @abstractmethod
    def make_states(self) -> None:
        """Make what is missing of all that the search graphs are made from: Gaussian systems, and alignments."""

    @abstractmethod
    def make_data(self) -> None:
        """Make the data of the minibatches that is missing."""

    @property
    @abstractmethod
    def states(self) -> HmmStates:
        """The states that the network's outputs stand for."""

    @property
    def log_prior(self) -> Tensor | None:
        """(C,) ln p(pdf), subtracted from log posteriors in decoding; None for outputs that are log-likelihoods."""
        return None

    @property
    def gaussians(self) -> AdaptedGaussians | None:
        """Speaker-adapted Gaussian system with the same states; None if there is none."""
        return None

    @property
    @abstractmethod
    def data_digest(self) -> str:
        """Digest of utterances, texts and numbers of frames."""

    @property
    @abstractmethod
    def order(self) -> ChunkTable | UtteranceBatches:
        """The chunks or utterances in the order of training."""

    @property
    @abstractmethod
    def samples_per_epoch(self) -> float:
        """Frames in one pass."""

    @abstractmethod
    def piece(self, n: int, number: int, of: int) -> Any:
        """Piece `number` of `of` pieces of minibatch n, with masks of its own; None if it has no samples."""

    @abstractmethod
    def loss(self, model: nn.Module, minibatch: Any) -> Loss:
        """The criterion, summed over frames."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Figures on dev, per frame."""


class FrameLearning(Learning):
    """Training on frames that a Gaussian system, or an earlier network, has aligned with its states."""

    def check(self) -> None:
        model = self.system.realigned_by
        if model is not None and not model.with_suffix(".safetensors").is_file():
            raise SettingError(f"task.realigned_by: there is no model {model}.safetensors")

    def make_states(self) -> None:
        system, half = self.system, self.system.hmms
        noise_source(half)  # its errors before the Gaussian systems, which take hours
        bins = system.front.bins if isinstance(half.network_front(system.material.train), LogMel) else None
        check_network(system.network, half.network_dims, bins, system.chunks)
        _ = system.targets

    def make_data(self) -> None:
        HybridData.prepare(self.system.hmms, self.system.targets)

    @property
    def states(self) -> HmmStates:
        return self.system.hmms.trained[-1].model.states

    @property
    def log_prior(self) -> Tensor:
        return self.system.targets.log_prior

    @property
    def gaussians(self) -> AdaptedGaussians | None:
        return self.system.hmms.adapted_gaussians

    @cached_property
    def data_digest(self) -> str:
        material, data = self.system.material, self.system.data
        lengths = ((frames,) for frames in data.train.lengths.tolist())
        return digest_of(rows_of(material.train), lengths, rows_of(material.dev, data.dev_targets))


class CrossEntropyLearning(ChunkLearning, FrameLearning):
    """Training by the cross-entropy of the aligned pdf of each frame."""

    def __init__(self, system: HybridSystem) -> None:
        super().__init__(system)
        self.precision, self.chunks = system.precision, system.chunks

    @cached_property
    def order(self) -> ChunkTable:
        return ChunkTable(self.system.data.train.lengths, **asdict(self.chunks), seed=self.system.seed)

    def piece(self, n: int, number: int, of: int) -> ChunkBatch | None:
        data = self.system.data
        return self.order.piece(n, number, of, data.train, self.system.change, data.versions)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev, per frame: "loss" (cross-entropy, nats), "logprob" (its negative) and "frame accuracy"."""
        found = frame_classifier.frame_figures(model, self.system.data.dev_feats, self.system.data.dev_targets)
        return {"loss": found["loss"], "logprob": -found["loss"], "frame accuracy": found["accuracy"]}


class GraphLearning(Learning):
    """Training by an objective over the paths of a phone graph.

    The loss is -F + w L, with F the objective, L the cross-entropy of the aligned pdfs and w its weight, each summed
    over frames.
    """

    criterion: LatticeFree | ChainMmi

    @property
    @abstractmethod
    def denominator(self) -> Denominator:
        """Graph of all phone sequences."""

    def graph_on(self, device: torch.device) -> StateGraph:
        """The graph of the denominator, copied once to each device."""
        if device not in self._graphs:
            self._graphs[device] = self.denominator.graph.to(device)
        return self._graphs[device]

    @cached_property
    def _graphs(self) -> dict[torch.device, StateGraph]:
        return {}

    @abstractmethod
    def totals(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Objective, cross-entropy, and number of frames whose best pdf is the target."""

    @abstractmethod
    def dev_batches(self) -> Iterator[Any]:
        """Minibatches of dev, each with its number of `frames`."""

    def loss(self, model: nn.Module, minibatch: Any) -> Loss:
        objective, entropy, _ = self.totals(model, minibatch)
        return Loss(self.criterion.cross_entropy * entropy - objective, float(minibatch.frames))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev, per frame: "loss" (nats), "objective"; with alignments "cross-entropy", "frame accuracy"."""
        sums, frames = torch.zeros(3, dtype=torch.float64), 0
        with evaluating(model), torch.no_grad():
            for batch in self.dev_batches():
                sums += torch.stack([part.double().cpu() for part in self.totals(model, batch)])
                frames += batch.frames
        objective, entropy, right = (sums / frames).tolist()
        figures = {"loss": self.criterion.cross_entropy * entropy - objective, "objective": objective}
        return {**figures, "cross-entropy": entropy, "frame accuracy": right} if self.criterion.aligned else figures


def frames_right(outputs_NTC: Tensor, targets_NT: Tensor) -> Tensor:
    return ((outputs_NTC.detach().argmax(-1) == targets_NT) & (targets_NT != IGNORED)).sum()


def denominator_of(ngrams: PhoneNgrams, phones: Iterable[Sequence[int]], states: HmmStates) -> Denominator:
    """The denominator over the states, from a phone model of these sequences."""
    model = ngrams.train(phones)
    found = Denominator.of(model, phone_hmms(states), states.tree.num_pdfs)
    log.info("denominator: %d n-grams, %d states, %d arcs", model.ngrams, found.graph.states, found.graph.arcs)
    return found


def phones_of(transitions: Transitions, tids: Mapping[str, np.ndarray]) -> dict[str, Phones]:
    """Phones of alignments, and the frames at which they begin."""
    found: dict[str, Phones] = {}
    for name, tids_T in tids.items():
        starts = transitions.arcs.starts(tids_T)
        found[name] = (transitions.phone_of[tids_T[starts]].tolist(), [*starts.tolist(), len(tids_T)])
    return found


def tell_lost(part: str, lost: Sequence[str], why: str, count: int | None = None) -> None:
    """Log the utterances of a part that are left out for one reason."""
    if lost:
        log.warning("%s: %s", part, left_out("utterance", [(name, why) for name in lost], count))
