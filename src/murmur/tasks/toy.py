"""A toy problem with every property that makes means difficult: ragged minibatches, several layers, optional dropout.

Ten classes, 64 inputs, labels from a fixed random linear map; a multi-layer perceptron.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from murmur.engine.prefetch import to_device
from murmur.engine.task import Loss, Score, seed_of


@dataclass(frozen=True)
class ToyTask:
    """Classify random vectors.

    Attributes:
        samples: number of samples in a full minibatch.
        ragged: make every third minibatch half as large.
        hidden: width of the hidden layer.
        dropout: probability of dropping a hidden unit.
        per_epoch: number of minibatches in an epoch.
        seed: seed of the data.
    """

    samples: int = 32
    ragged: bool = False
    hidden: int = 128
    dropout: float = 0.0
    per_epoch: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.samples, self.hidden, self.per_epoch) < 1:
            raise ValueError(f"samples, hidden and per_epoch of {self} must be at least 1")

    @cached_property
    def samples_per_epoch(self) -> float:
        return float(sum(self._size(n) for n in range(self.per_epoch)))

    def prepare(self) -> None:
        """Do nothing: minibatches are drawn on request."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, self.hidden), nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(self.hidden, 10)
        )

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        return self._draw(n % self.per_epoch, self._size(n))

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor]) -> Loss:
        tensors, samples = self.tensors(minibatch)
        return Loss(self.total(model, *tensors), samples)

    @property
    def most_pieces(self) -> int:
        return self.samples

    def piece(self, n: int, number: int, of: int) -> tuple[Tensor, Tensor] | None:
        x, y = (rows.tensor_split(of)[number] for rows in self.minibatch(n))
        return (x, y) if len(y) else None

    def tensors(self, minibatch: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, ...], float]:
        return minibatch, float(len(minibatch[1]))

    def total(self, model: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        x, y = tensors
        return cross_entropy(model(x), y, reduction="sum")

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        x, y = self._heldout(-1, model)
        logits = model(x)
        return {"loss": float(cross_entropy(logits, y)), "accuracy": float((logits.argmax(1) == y).float().mean())}

    def test(self, model: nn.Module) -> Score:
        x, y = self._heldout(-2, model)
        with torch.no_grad():
            accuracy = float((model(x).argmax(1) == y).float().mean())
        return Score({"accuracy": accuracy}, (f"accuracy {accuracy:.3f}",))

    def _size(self, n: int) -> int:
        return self.samples // 2 if self.ragged and n % 3 == 2 else self.samples

    def _heldout(self, n: int, model: nn.Module) -> tuple[Tensor, Tensor]:
        x, y = to_device(self._draw(n, 1000), str(next(model.parameters()).device))
        return x, y

    def _draw(self, n: int, size: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed_of(self.seed, "toy data", n))
        truth = torch.randn(64, 10, generator=torch.Generator().manual_seed(seed_of(self.seed, "toy labels")))
        x = torch.randn(size, 64, generator=draw)
        return x, (x @ truth).argmax(1)
