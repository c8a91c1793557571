"""Single frames with their context, drawn at random, so that every minibatch has exactly B frames.

Data, states, dev and test are those of a hybrid task with a sigmoid network on spliced frames; only the order
differs: every pass over the training frames is a permutation of its own, cut into minibatches. A pass leaves out the
frames that do not fill a minibatch.

Shapes: B frames, F values a frame, C states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.engine.task import Loss, Score, Unmade, seed_of
from murmur.speech.models import Dnn
from murmur.speech.tasks.hybrid.task import HybridTask


@dataclass(frozen=True)
class FrameTask:
    """Frame classification by a `Dnn`, B = `frames` random frames a minibatch; the rest is that of a hybrid task.

    `seed` is that of the order of the frames.
    """

    supervised: HybridTask = field(default_factory=HybridTask)
    frames: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.supervised.network, Dnn) or self.frames < 1:
            raise ValueError(f"FrameTask needs a Dnn, and at least one frame a minibatch, got {self}")

    def outputs_digest(self) -> str:
        return self.supervised.outputs_digest()

    @property
    def data_digest(self) -> str:
        return self.supervised.data_digest

    def __getstate__(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def _data(self) -> tuple[Tensor, Tensor, Tensor]:
        """All training frames in a row, every utterance with repeated edges, (P, F); the places of the trained frames,
        (M,); their states, (M,).
        """
        store, context = self.supervised.data.train, self._network.context
        feats, places, states, begun = [], [], [], 0
        for u in range(len(store)):
            feats_TF = np.asarray(store.feats(u))
            feats.append(np.pad(feats_TF, ((context, context), (0, 0)), mode="edge"))
            places.append(begun + context + np.arange(len(feats_TF)))
            states.append(np.asarray(store.targets(u)).astype(np.int64))
            begun += len(feats[-1])
        whole = (np.concatenate(parts) for parts in (feats, places, states))
        x, at, y = (torch.from_numpy(part) for part in whole)
        return x.float(), at, y

    @property
    def _network(self) -> Dnn:
        assert isinstance(self.supervised.network, Dnn)
        return self.supervised.network

    @property
    def per_epoch(self) -> int:
        """Whole minibatches in one pass."""
        return len(self._data[2]) // self.frames

    @property
    def samples_per_epoch(self) -> float:
        """Frames in one pass, without those left out."""
        return float(self.per_epoch * self.frames)

    def check(self) -> None:
        self.supervised.check()

    def unprepared(self) -> list[Unmade]:
        return self.supervised.unprepared()

    def prepare(self) -> None:
        self.supervised.prepare()

    def model(self) -> nn.Module:
        return self.supervised.model()

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        """Spliced frames (B, (2 context + 1) F) and their states (B,)."""
        return self._spliced(self._chosen(n))

    def _chosen(self, n: int) -> Tensor:
        epoch, within = divmod(n, self.per_epoch)
        return self._order(epoch)[within * self.frames : (within + 1) * self.frames]

    def _spliced(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        x, at, y = self._data
        offsets = torch.arange(-self._network.context, self._network.context + 1)
        return x[at[chosen][:, None] + offsets].flatten(1), y[chosen]

    @property
    def most_pieces(self) -> int:
        return self.frames

    def piece(self, n: int, number: int, of: int) -> tuple[Tensor, Tensor] | None:
        chosen = self._chosen(n).tensor_split(of)[number]
        return self._spliced(chosen) if len(chosen) else None

    def _order(self, epoch: int) -> Tensor:
        """The permuted frames of a pass; the latest few are cached, as learners may differ in theirs."""
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[min(self._orders)]
            draw = torch.Generator().manual_seed(seed_of(self.seed, "order of frames", epoch))
            self._orders[epoch] = torch.randperm(len(self._data[2]), generator=draw)
        return self._orders[epoch]

    @cached_property
    def _orders(self) -> dict[int, Tensor]:
        return {}

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor]) -> Loss:
        tensors, samples = self.tensors(minibatch)
        return Loss(self.total(model, *tensors), samples)

    def tensors(self, minibatch: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, ...], float]:
        return minibatch, float(len(minibatch[1]))

    def total(self, model: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        x, y = tensors
        return functional.cross_entropy(model(x), y, reduction="sum")

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return self.supervised.evaluate(model)

    def test(self, model: nn.Module) -> Score:
        return self.supervised.test(model)

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        return self.supervised.test_in(model, kept)

    def loss_of_priors(self) -> float:
        """Held-out cross-entropy of the states' frequencies alone, nats per frame."""
        log_prior: Any = self.supervised.targets.log_prior
        states = np.concatenate([np.asarray(s) for s in self.supervised.data.dev_targets.values()])
        return -float(log_prior[torch.from_numpy(states.astype(np.int64))].mean())
