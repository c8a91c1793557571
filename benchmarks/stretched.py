"""A task whose gradients are real, each stretched by sleep to the pace of a slower device.

    t0                  the gradient begins
    t0 + p s / 3        the forward pass ends
    t0 + p s            the backward pass ends; parts of the gradient appear in proportion to their elements

p: pace in seconds, s: slowness of the learner. The processor's time, and the time that the gradient waits for a core,
are part of these seconds: only the rest is slept, outside Python's lock, so that other threads average meanwhile. A
gradient that is not ready in time counts as late.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from murmur.core.mean_gradient import FIRST_BUCKET_BYTES
from murmur.engine.task import Loss, Score, outputs_of, test_in
from murmur.speech.features.chunks import ChunkBatch, ChunkTable
from murmur_papers.tasks.declared import DeclaredTask

FORWARD = 1 / 3  # of a gradient's seconds: a backward pass costs about two forward passes
LATE = 1.02  # times its seconds: a gradient that takes longer was short of a core


@dataclass
class Stopwatch:
    """Times of the gradients of one process.

    Attributes:
        first: moment at which the first one began; 0 before it.
        gradients: number of gradients that have ended.
        processor_seconds: of the thread that computes them.
        late: number of gradients that took longer than their seconds.
        behind: seconds of all gradients between the end of the first bucket and the end of the backward pass.
        seconds: seconds of all gradients.
        bucket: number of tensors of the model in the first bucket.
    """

    bucket: int = 0
    first: float = 0.0
    gradients: int = 0
    processor_seconds: float = 0.0
    late: int = 0
    behind: float = 0.0
    seconds: float = 0.0
    _began: float = field(default=0.0, repr=False)
    _used: float = field(default=0.0, repr=False)
    _arrived: int = field(default=0, repr=False)
    _waiting: int = field(default=0, repr=False)  # tensors of the first bucket without a gradient yet
    _bucket: float = field(default=0.0, repr=False)

    def begin(self) -> None:
        self._began, self._used = time.monotonic(), time.thread_time()
        self._arrived, self._waiting = 0, self.bucket
        self.first = self.first or self._began

    def sleep_until(self, seconds: float) -> float:
        """Sleep until so many seconds after the beginning; return the seconds since then."""
        left = self._began + seconds - time.monotonic()
        if left > 0:
            time.sleep(left)
        return time.monotonic() - self._began

    def arrive(self, numel: int, total: int, in_bucket: bool, seconds: float) -> None:
        """Delay a part of the gradient; the last of its `total` elements ends the gradient, after `seconds`."""
        self._arrived += numel
        whole = self._arrived >= total
        used = time.thread_time() - self._used if whole else 0.0
        at = self.sleep_until(seconds * (FORWARD + (1 - FORWARD) * self._arrived / total))
        self._waiting -= in_bucket
        if in_bucket and self._waiting == 0:
            self._bucket = at
        if whole:
            self.gradients += 1
            self.processor_seconds += used
            self.late += at > LATE * seconds
            self.behind += at - self._bucket
            self.seconds += at

    def told(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}


@dataclass(frozen=True)
class Stretched:
    """A task that is cut in pieces, with gradients that take `seconds`, times `slowness` on this learner.

    Attributes:
        inner: the task.
        watch: times of the gradients of this process.
    """

    inner: Any
    seconds: float
    slowness: float = field(default=1.0, repr=False)  # not part of what all learners must have alike
    watch: Stopwatch = field(default_factory=Stopwatch, repr=False, compare=False)

    @property
    def own_seconds(self) -> float:
        return self.seconds * self.slowness

    @property
    def per_epoch(self) -> int:
        return int(self.inner.per_epoch)

    @property
    def samples_per_epoch(self) -> float:
        return float(self.inner.samples_per_epoch)

    @property
    def most_pieces(self) -> int:
        return int(self.inner.most_pieces)

    def prepare(self) -> None:
        self.inner.prepare()

    def outputs_digest(self) -> str:
        return outputs_of(self.inner)

    def model(self) -> nn.Module:
        """The model, each of whose parameters delays its gradient."""
        model: nn.Module = self.inner.model()
        parameters = [p for p in model.parameters() if p.requires_grad]
        total, bucket = sum(p.numel() for p in parameters), first_bucket(parameters)
        self.watch.bucket = len(bucket)
        for number, parameter in enumerate(parameters):
            parameter.register_hook(partial(self._delay, parameter.numel(), total, number in bucket))
        return model

    def _delay(self, numel: int, total: int, in_bucket: bool, gradient: Tensor) -> None:
        self.watch.arrive(numel, total, in_bucket, self.own_seconds)

    def minibatch(self, n: int) -> Any:
        self.watch.begin()
        return self.inner.minibatch(n)

    def piece(self, n: int, number: int, of: int) -> Any:
        self.watch.begin()
        return self.inner.piece(n, number, of)

    def loss(self, model: nn.Module, minibatch: Any) -> Loss:
        found: Loss = self.inner.loss(model, minibatch)
        self.watch.sleep_until(self.own_seconds * FORWARD)
        return found

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        found: Mapping[str, float] = self.inner.evaluate(model)
        return found

    def test(self, model: nn.Module) -> Score:
        return test_in(self.inner, model, None)

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        return test_in(self.inner, model, kept)


def first_bucket(parameters: list[nn.Parameter]) -> set[int]:
    """Positions of the tensors whose gradients are summed first, from the last one (`MeanBehindBackward`)."""
    found, held = set[int](), 0
    for number in reversed(range(len(parameters))):
        found.add(number)
        held += parameters[number].numel() * parameters[number].element_size()
        if held >= FIRST_BUCKET_BYTES:
            break
    return found


@dataclass(frozen=True)
class GeneratedPieces(DeclaredTask):
    """Generated frames whose minibatches are cut among learners."""

    @cached_property
    def order(self) -> ChunkTable:
        return self._tables[0]

    @property
    def most_pieces(self) -> int:
        return self.chunks.size

    def piece(self, n: int, number: int, of: int) -> ChunkBatch | None:
        return self.order.piece(n, number, of, self.stores[0])
