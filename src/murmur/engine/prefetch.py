"""Prefetching of minibatches: a bounded number is made in the background, with the same bits.

A minibatch is a pure function of its number, so it may be made by any thread at any time. A minibatch that was
prefetched and is not needed is dropped; one that was not prefetched is made when it is needed. On a GPU the background
thread also copies it, from pinned memory on a separate stream, so that neither the host nor the device waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from threading import Lock
from typing import Any

from torch import Tensor

from murmur.accelerator.device import CopyStream, is_accelerator, keep

REMEMBERED = 8  # number of minibatches whose times are kept


class Prefetch:
    """Makes minibatches in one background thread, at most `ahead` of them at a time, and copies them to a device.

    Args:
        make: Function that returns minibatch n; called in the background and in the learner's thread, possibly at once.
        ahead: Largest number of minibatches in progress or ready; 0 makes each when it is needed.
        device: Device to which they are copied.
    """

    def __init__(self, make: Callable[[int], Any], ahead: int, device: str = "cpu") -> None:
        self._make, self.ahead = make, ahead
        self._copies = CopyStream(device) if is_accelerator(device) else None
        self._coming: dict[int, Future[Any]] = {}
        self._changing = Lock()
        self._seconds: deque[float] = deque([0.0], maxlen=REMEMBERED)
        self._thread = ThreadPoolExecutor(1, "minibatches ahead") if ahead else None

    def get(self, n: int) -> Any:
        """Return minibatch n on the device; waits if it is not ready, and makes it here if no thread has begun it.

        An error that was raised when it was made, possibly earlier in the background, is raised here.
        """
        with self._changing:
            waiting = self._coming.pop(n, None)
        sent = self._sent(n) if waiting is None or waiting.cancel() else waiting.result()
        if self._copies is None:
            return sent
        moved, done = sent
        self._copies.await_copies(done)  # on the computing stream: the host does not wait
        return each_tensor(moved, keep)

    def expect(self, numbers: Sequence[int]) -> None:
        """Prefetch these minibatches, in this order; drops all others, and those beyond `ahead`."""
        wanted = numbers[: self.ahead]
        with self._changing:
            for n in [n for n in self._coming if n not in wanted]:
                self._coming.pop(n).cancel()
            for n in wanted:
                self._begin(n)

    def begin(self, n: int) -> None:
        """Prefetch one more minibatch, from any thread; drops the oldest one if there are too many."""
        with self._changing:
            self._begin(n)
            while len(self._coming) > self.ahead:
                self._coming.pop(next(iter(self._coming))).cancel()

    def _begin(self, n: int) -> None:
        if self._thread is not None and n not in self._coming:
            self._coming[n] = self._thread.submit(self._sent, n)

    @property
    def seconds(self) -> float:
        """Longest time to make one of the latest minibatches; 0 before the first, and without prefetching."""
        return max(self._seconds) if self.ahead else 0.0

    def close(self) -> None:
        with self._changing:
            self._coming.clear()
            thread, self._thread = self._thread, None  # a claim may still arrive from another thread
        if thread is not None:
            thread.shutdown(cancel_futures=True)

    def _sent(self, n: int) -> Any:
        began = time.monotonic()
        sent = self._make(n)
        if self._copies is not None:
            with self._copies.copying() as done:
                sent = each_tensor(sent, self._copies.copy), done
        self._seconds.append(time.monotonic() - began)
        return sent


def each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to all tensors of a minibatch: tensors, tuples, lists, dicts and dataclasses of them."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        changed = [each_tensor(v, change) for v in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if isinstance(value, dict):
        return {k: each_tensor(v, change) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: each_tensor(getattr(value, f.name), change) for f in fields(value) if f.init})
    return value


def to_device(value: Any, device: str) -> Any:
    return value if device == "cpu" else each_tensor(value, lambda t: t.to(device, non_blocking=True))
