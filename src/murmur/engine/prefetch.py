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
from typing import Any, Protocol

import torch
from torch import Tensor

REMEMBERED = 8  # number of minibatches whose times are kept


class Lane(Protocol):
    """Transfer of minibatches to the learner's device."""

    def send(self, minibatch: Any) -> Any:
        """Start the transfer; called by the thread that made the minibatch."""

    def receive(self, sent: Any) -> Any:
        """Return the minibatch on the device, ready for the computing stream; called in the learner's thread."""


class HostLane:
    """Transfer to the CPU, which copies nothing."""

    def send(self, minibatch: Any) -> Any:
        """Return the minibatch unchanged."""
        return minibatch

    def receive(self, sent: Any) -> Any:
        """Return the minibatch unchanged."""
        return sent


class CudaLane:
    """Transfer from pinned memory on a separate CUDA stream."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def send(self, minibatch: Any) -> Any:
        """Start the copies, and record an event after them."""
        with torch.cuda.stream(self._stream):
            moved = each_tensor(minibatch, lambda t: t.pin_memory().to(self._device, non_blocking=True))
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        return moved, done

    def receive(self, sent: Any) -> Any:
        """Make the computing stream, not the host, wait for the copies, and keep their memory until then."""
        moved, done = sent
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(done)

        def keep(tensor: Tensor) -> Tensor:
            tensor.record_stream(computing)
            return tensor

        return each_tensor(moved, keep)


def lane_to(device: str) -> Lane:
    """Return the lane to a device."""
    return CudaLane(device) if device.startswith("cuda") else HostLane()


class Prefetch:
    """Makes minibatches in one background thread, at most `ahead` of them at a time.

    Args:
        make: Function that returns minibatch n; called in the background and in the learner's thread, possibly at once.
        ahead: Largest number of minibatches in progress or ready; 0 makes each when it is needed.
        lane: Transfer to the device.

    Raises:
        ValueError: `ahead` is negative.
    """

    def __init__(self, make: Callable[[int], Any], ahead: int, lane: Lane) -> None:
        if ahead < 0:
            raise ValueError(f"at least 0 minibatches can be prepared ahead, not {ahead}")
        self._make, self.ahead, self._lane = make, ahead, lane
        self._coming: dict[int, Future[Any]] = {}
        self._changing = Lock()
        self._seconds: deque[float] = deque([0.0], maxlen=REMEMBERED)
        self._thread = ThreadPoolExecutor(1, "minibatches ahead") if ahead else None

    def get(self, n: int) -> Any:
        """Return minibatch n on the device; waits if it is not ready, and makes it here if no thread has begun it.

        Raises:
            Exception: Any exception that was raised when the minibatch was made, possibly earlier in the background.
        """
        with self._changing:
            waiting = self._coming.pop(n, None)
        sent = self._sent(n) if waiting is None or waiting.cancel() else waiting.result()
        return self._lane.receive(sent)

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
        """End the thread after the minibatch in progress."""
        with self._changing:
            self._coming.clear()
            thread, self._thread = self._thread, None  # a claim may still arrive from another thread
        if thread is not None:
            thread.shutdown(cancel_futures=True)

    def _sent(self, n: int) -> Any:
        began = time.monotonic()
        sent = self._lane.send(self._make(n))
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
    """Copy the tensors of a minibatch to a device, in this thread."""
    return value if device == "cpu" else each_tensor(value, lambda t: t.to(device, non_blocking=True))
