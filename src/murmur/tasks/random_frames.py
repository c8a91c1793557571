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

from murmur.engine.seeds import seed_of
from murmur.engine.task import Loss, Score, Unmade
from murmur.speech.models import Dnn
from murmur.tasks.hybrid.task import HybridTask


@dataclass(frozen=True)
class FrameTask:
    """Frame classification by a `Dnn`, B random frames a minibatch.

    Attributes:
        supervised: hybrid task that provides data, network and decoding.
        frames: number of frames B in a minibatch.
        seed: seed of the order of the frames.
        parts: above 1, number of parts into which the utterances are cut, in their order, with about equally many
            frames. Minibatch n then holds only frames of part n mod parts, so that with as many lock-step learners each
            sees its own part alone, like hosts with data of their own.
    """

    supervised: HybridTask = field(default_factory=HybridTask)
    frames: int = 128
    seed: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.supervised.network, Dnn) or min(self.frames, self.parts) < 1:
            raise ValueError(f"FrameTask needs a Dnn, and at least one frame a minibatch and one part, got {self}")

    def outputs_digest(self) -> str:
        """Digest of the states that the outputs stand for."""
        return self.supervised.outputs_digest()

    @property
    def data_digest(self) -> str:
        """Digest of the data of the supervised task."""
        return self.supervised.data_digest

    def __getstate__(self) -> dict[str, object]:
        """The fields alone."""
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
        """Whole minibatches in one pass, equally many of each part."""
        return self.parts * (min(map(len, self._shares)) // self.frames)

    @cached_property
    def _shares(self) -> list[Tensor]:
        """Numbers of the frames of each part; an utterance belongs to the part of its middle frame."""
        store = self.supervised.data.train
        lengths = torch.tensor([len(np.asarray(store.targets(u))) for u in range(len(store))])
        ends = lengths.cumsum(0)
        part_of = ((ends - lengths / 2) * self.parts / ends[-1]).long()
        return [(part_of.repeat_interleave(lengths) == part).nonzero()[:, 0] for part in range(self.parts)]

    @property
    def samples_per_epoch(self) -> float:
        """Frames in one pass, without those left out."""
        return float(self.per_epoch * self.frames)

    def check(self) -> None:
        """Check the supervised task."""
        self.supervised.check()

    def unprepared(self) -> list[Unmade]:
        """Data that the supervised task still has to prepare."""
        return self.supervised.unprepared()

    def prepare(self) -> object:
        """Prepare the supervised task."""
        return self.supervised.prepare()

    def model(self) -> nn.Module:
        """A fresh network of the supervised task."""
        return self.supervised.model()

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        """Spliced frames (B, (2 context + 1) F) and their states (B,)."""
        return self._spliced(self._chosen(n))

    def _chosen(self, n: int) -> Tensor:
        epoch, within = divmod(n, self.per_epoch)
        turn, part = divmod(within, self.parts)
        return self._order(epoch)[part][turn * self.frames : (turn + 1) * self.frames]

    def _spliced(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        x, at, y = self._data
        offsets = torch.arange(-self._network.context, self._network.context + 1)
        return x[at[chosen][:, None] + offsets].flatten(1), y[chosen]

    @property
    def most_pieces(self) -> int:
        """Frames of a minibatch."""
        return self.frames

    def piece(self, n: int, number: int, of: int) -> tuple[Tensor, Tensor] | None:
        """Some frames of minibatch n."""
        chosen = self._chosen(n).tensor_split(of)[number]
        return self._spliced(chosen) if len(chosen) else None

    def _order(self, epoch: int) -> list[Tensor]:
        """The permuted frames of each part in a pass; the latest few are cached, as learners may differ in theirs."""
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[min(self._orders)]
            draw = torch.Generator().manual_seed(seed_of(self.seed, "order of frames", epoch))
            self._orders[epoch] = [own[torch.randperm(len(own), generator=draw)] for own in self._shares]
        return self._orders[epoch]

    @cached_property
    def _orders(self) -> dict[int, list[Tensor]]:
        return {}

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor]) -> Loss:
        """Cross-entropy, summed over frames."""
        tensors, samples = self.tensors(minibatch)
        return Loss(self.total(model, *tensors), samples)

    def tensors(self, minibatch: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, ...], float]:
        """Spliced frames, their states, and the number of frames."""
        return minibatch, float(len(minibatch[1]))

    def total(self, model: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """The total of `loss`, for many networks at once."""
        x, y = tensors
        return functional.cross_entropy(model(x), y, reduction="sum")

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """Figures of the supervised task on dev."""
        return self.supervised.evaluate(model)

    def test(self, model: nn.Module) -> Score:
        """Error rates of the supervised task."""
        return self.supervised.test(model)

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """`test`, with the decoding results saved in a folder and not decoded again."""
        return self.supervised.test_in(model, kept)

    def loss_of_priors(self) -> float:
        """Held-out cross-entropy of the states' frequencies alone, nats per frame."""
        log_prior: Any = self.supervised.targets.log_prior
        states = np.concatenate([np.asarray(s) for s in self.supervised.data.dev_targets.values()])
        return -float(log_prior[torch.from_numpy(states.astype(np.int64))].mean())
