"""Settings of the criteria of sequence training.

Shapes: N chunks, T frames, C pdfs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from murmur.speech.features.chunks import ChunkBatch
from murmur.speech.sequence import criteria
from murmur.speech.sequence.denominator import Denominator
from murmur.speech.sequence.numerators import NumeratorBuilder, Numerators, check_tolerance
from murmur.speech.sequence.phone_ngrams import PhoneNgrams
from murmur.speech.sequence.state_graph import StateGraph


@dataclass(frozen=True, eq=False)
class SequenceBatch:
    """Chunks for sequence training.

    Attributes:
        chunks: features with context, and the pdfs of the chunks' own frames.
        first: index of the first own frame, the same in all chunks.
        lengths: (N,) number of own frames.
        numerators: numerators of the chunks; None for criteria without.
    """

    chunks: ChunkBatch
    first: int
    lengths: Tensor
    numerators: Numerators | None

    def own(self, x_NT: Tensor) -> Tensor:
        """The own frames of a tensor over all frames, padded to the longest chunk."""
        return x_NT[:, self.first : self.first + int(self.lengths.max())]


@dataclass(frozen=True, kw_only=True)
class LatticeFree(ABC):
    """Criterion over the paths of a phone graph.

    Attributes:
        ngrams: phone model of the denominator.
        acoustic_scale: factor k of scores k (ln p(pdf | frame) - ln p(pdf)), against which phone model and transitions
            have the weight 1.
        leak: weight of the arcs from each state of the denominator to all.
        cross_entropy: weight of the cross-entropy of the same frames.
    """

    ngrams: PhoneNgrams = field(default_factory=PhoneNgrams)
    acoustic_scale: float = 0.2
    leak: float = 1e-5
    cross_entropy: float = 0.1

    def __post_init__(self) -> None:
        factors = (self.acoustic_scale, self.leak, self.cross_entropy)
        if not (self.acoustic_scale > 0 and self.leak > 0 and self.cross_entropy >= 0 and all(map(isfinite, factors))):
            raise ValueError(
                f"acoustic_scale {self.acoustic_scale} and leak {self.leak} must be positive, cross_entropy"
                f" {self.cross_entropy} not negative, and all of them finite"
            )

    @abstractmethod
    def builder(self, denominator: Denominator) -> NumeratorBuilder | None:
        """Builder of numerators; None if the criterion has none."""

    @abstractmethod
    def objective(self, scores_NTC: Tensor, batch: SequenceBatch, graph: StateGraph) -> Tensor:
        """Objective of each chunk, summed over its own frames, (N,)."""


@dataclass(frozen=True, kw_only=True)
class Mmi(LatticeFree):
    """Maximum mutual information: log probability of the aligned phones among all phone sequences.

    Attributes:
        tolerance_frames: frames by which limits of phones may move in the numerator.
    """

    tolerance_frames: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tolerance(self.tolerance_frames)

    def builder(self, denominator: Denominator) -> NumeratorBuilder:
        """Builder of numerators with the tolerance."""
        return NumeratorBuilder(denominator, self.tolerance_frames, self.leak)

    def objective(self, scores_NTC: Tensor, batch: SequenceBatch, graph: StateGraph) -> Tensor:
        """`murmur.speech.sequence.criteria.mmi`."""
        assert batch.numerators is not None
        device = scores_NTC.device
        return criteria.mmi(scores_NTC, batch.lengths.to(device), batch.numerators.to(device), graph, self.leak)


@dataclass(frozen=True, kw_only=True)
class Smbr(LatticeFree):
    """Minimum Bayes risk of states: expected number of frames with the aligned pdf."""

    def builder(self, denominator: Denominator) -> None:
        """None: the aligned pdfs are the reference."""

    def objective(self, scores_NTC: Tensor, batch: SequenceBatch, graph: StateGraph) -> Tensor:
        """`murmur.speech.sequence.criteria.smbr`."""
        device: torch.device = scores_NTC.device
        references_NT = batch.own(batch.chunks.targets).to(device)
        return criteria.smbr(scores_NTC, references_NT, batch.lengths.to(device), graph, self.leak)
