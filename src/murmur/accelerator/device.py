"""Streams, events, graphs and counts of GPUs; on the processor each of them does nothing or is refused.

The accelerators that murmur supports are those of `torch.cuda` (NVIDIA, and AMD by ROCm).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

KIND = "cuda"
WARMING_RUNS = 3  # of a pass, before its graph is recorded


def is_accelerator(device: str | torch.device) -> bool:
    return torch.device(device).type == KIND


def names() -> list[str]:
    return [name_of(f"{KIND}:{n}") for n in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]


def name_of(device: str) -> str:
    return torch.cuda.get_device_name(device)


def own_device(place: int) -> str:
    """Return the accelerator of the process at a place of this host, in turn; "cpu" if the host has none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"{KIND}:{place % count}" if count else "cpu"


def is_present(device: str) -> bool:
    """Return True if this host can compute on a device; the processor is always there."""
    return device == "cpu" or (device.startswith(KIND) and torch.cuda.is_available())


def seed(device: str, value: int) -> None:
    if is_accelerator(device):
        torch.cuda.manual_seed(value)


def synchronize(device: str) -> None:
    if is_accelerator(device):
        torch.cuda.synchronize()


def most_allocated_bytes() -> int:
    """Return the largest memory of the current accelerator that tensors of this process have taken."""
    return torch.cuda.max_memory_allocated()


class KernelsInOrder:
    """Context whose kernels begin after those of the context before, whatever streams their threads use.

    A lock of Python orders the launches of kernels, not the kernels. The caller holds one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: torch.cuda.Event | None = None

    def __enter__(self) -> None:
        if self._before is not None:
            torch.cuda.current_stream(self._device).wait_event(self._before)

    def __exit__(self, *_: object) -> None:
        self._before = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._before.record(torch.cuda.current_stream(self._device))


def kernels_in_order(device: torch.device) -> AbstractContextManager[None]:
    """Return a context for critical sections on a device, to be entered any number of times."""
    return KernelsInOrder(device) if is_accelerator(device) else nullcontext()


class CopyStream:
    """Copies from the host to an accelerator on a stream of their own, so that neither side waits."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def copying(self) -> Iterator[torch.cuda.Event]:
        """Context of calls of `copy`; its event is recorded after them."""
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            yield done
            done.record(self._stream)

    def copy(self, x: Tensor) -> Tensor:
        """Start the copy of a tensor, from pinned memory."""
        return x.pin_memory().to(self._device, non_blocking=True)

    def await_copies(self, done: torch.cuda.Event) -> None:
        """Make the stream of this thread, not the host, wait for copies."""
        torch.cuda.current_stream(self._device).wait_event(done)

    def use(self, x: Tensor) -> Tensor:
        """Keep the memory of a copy until the stream of this thread no longer needs it, and return the copy."""
        x.record_stream(torch.cuda.current_stream(self._device))
        return x


def recorded(compute: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return a function that repeats `compute` by one launch (a graph); on the processor `compute` itself.

    Earlier runs of `compute` allocate what libraries need (see torch.cuda.CUDAGraph).
    """
    if not is_accelerator(device):
        return compute
    aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as the products of a mapped pass
        with torch.cuda.stream(aside):
            for _ in range(WARMING_RUNS):
                compute()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compute()
    return graph.replay
