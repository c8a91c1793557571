"""Streams, events, graphs and counts of accelerators; on the processor each of them does nothing or is refused.

The package reaches accelerators by one interface, `Accelerator`. Those that murmur supports are those of `torch.cuda`
(NVIDIA, and AMD by ROCm). The functions and classes of this module order the work of an accelerator by the interface
alone, so that tests run them on an accelerator of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

WARMING_RUNS = 3  # of a pass, before its graph is recorded


class StreamEvent(Protocol):
    """A point in the work of a stream; before `record` it counts as reached."""

    def record(self, stream: Any) -> None: ...


class Stream(Protocol):
    """A queue of work. After a call, its later work begins when what is awaited is done; the host goes on."""

    def wait_event(self, event: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...


class Accelerator(Protocol):
    """A kind of devices that compute beside the host.

    A call of PyTorch adds work to the present stream of its thread, and returns before that is done. Other streams and
    the host may read the results after a wait; copies to the host wait, unless they are non-blocking. Memory that is
    freed may be used again at once by the stream that allocated it; `Tensor.record_stream` names other streams.
    """

    def count(self) -> int: ...
    def name(self, device: str) -> str: ...
    def seed(self, value: int) -> None: ...
    def most_allocated_bytes(self, device: Any) -> int: ...
    def synchronize(self, device: Any) -> None:
        """Let the host wait for all streams of a device."""

    def new_event(self) -> StreamEvent: ...
    def new_stream(self, device: Any) -> Stream: ...
    def present_stream(self, device: Any) -> Stream: ...
    def using(self, stream: Any) -> AbstractContextManager[object]:
        """Context in which a stream is the present one of this thread."""

    def pinned(self, x: Tensor) -> Tensor:
        """Return a tensor of the host in memory from which non-blocking copies make nothing wait."""

    def graph(self, compute: Callable[[], None]) -> Callable[[], None]:
        """Record the work of `compute` without running it; return a function that adds it to the present stream."""


class Cuda:
    """Devices of `torch.cuda`."""

    name = staticmethod(torch.cuda.get_device_name)
    seed = staticmethod(torch.cuda.manual_seed)
    most_allocated_bytes = staticmethod(torch.cuda.max_memory_allocated)
    synchronize = staticmethod(torch.cuda.synchronize)
    new_event, new_stream = torch.cuda.Event, torch.cuda.Stream
    present_stream = staticmethod(torch.cuda.current_stream)
    using = staticmethod(torch.cuda.stream)
    pinned = staticmethod(Tensor.pin_memory)

    def count(self) -> int:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def graph(self, compute: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compute()
        return graph.replay


ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType({"cuda": Cuda()})  # by the type of their devices


def _kind(device: str | torch.device) -> Accelerator:
    return ACCELERATORS[torch.device(device).type]


def is_accelerator(device: str | torch.device) -> bool:
    return torch.device(device).type in ACCELERATORS


def names() -> list[str]:
    return [name_of(f"{kind}:{n}") for kind, found in ACCELERATORS.items() for n in range(found.count())]


def name_of(device: str) -> str:
    return _kind(device).name(device)


def own_device(place: int) -> str:
    """Return the accelerator of the process at a place of this host, in turn; "cpu" if the host has none."""
    for kind, found in ACCELERATORS.items():
        if count := found.count():
            return f"{kind}:{place % count}"
    return "cpu"


def is_present(device: str) -> bool:
    """Return True if this host can compute on a device; the processor is always there."""
    return device == "cpu" or (is_accelerator(device) and _kind(device).count() > 0)


def seed(device: str, value: int) -> None:
    if is_accelerator(device):
        _kind(device).seed(value)


def synchronize(device: str) -> None:
    if is_accelerator(device):
        _kind(device).synchronize(device)


def most_allocated_bytes(device: str | torch.device) -> int:
    """Return the largest memory of an accelerator that tensors of this process have taken."""
    return _kind(device).most_allocated_bytes(device)


def pinned(x: Tensor, device: str | torch.device) -> Tensor:
    """Return a tensor of the host in memory from which copies to a device need no wait."""
    return _kind(device).pinned(x) if is_accelerator(device) else x


def keep(x: Tensor) -> Tensor:
    """Keep the memory of a tensor until the stream of this thread no longer needs it, and return the tensor."""
    x.record_stream(_kind(x.device).present_stream(x.device))  # type: ignore[arg-type]
    return x


class KernelsInOrder:
    """Context whose kernels begin after those of the context before, whatever streams their threads use.

    A lock of Python orders the launches of kernels, not the kernels. The caller holds one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._kind = device, _kind(device)
        self._before: StreamEvent | None = None

    def __enter__(self) -> None:
        if self._before is not None:
            self._kind.present_stream(self._device).wait_event(self._before)

    def __exit__(self, *_: object) -> None:
        self._before = self._kind.new_event()
        self._before.record(self._kind.present_stream(self._device))


def kernels_in_order(device: torch.device) -> AbstractContextManager[None]:
    """Return a context for critical sections on a device, to be entered any number of times."""
    return KernelsInOrder(device) if is_accelerator(device) else nullcontext()


class CopyStream:
    """Copies from the host to an accelerator on a stream of their own, so that neither side waits."""

    def __init__(self, device: str) -> None:
        self._device, self._kind = torch.device(device), _kind(device)
        self._stream = self._kind.new_stream(self._device)

    @contextmanager
    def copying(self) -> Iterator[StreamEvent]:
        """Context of calls of `copy`; its event is recorded after them."""
        done = self._kind.new_event()
        with self._kind.using(self._stream):
            yield done
            done.record(self._stream)

    def copy(self, x: Tensor) -> Tensor:
        """Start the copy of a tensor, from pinned memory."""
        return self._kind.pinned(x).to(self._device, non_blocking=True)

    def await_copies(self, done: StreamEvent) -> None:
        """Make the stream of this thread, not the host, wait for copies."""
        self._kind.present_stream(self._device).wait_event(done)


def recorded(compute: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return a function that repeats `compute` by one launch (a graph); on the processor `compute` itself.

    Earlier runs of `compute` allocate what libraries need (see torch.cuda.CUDAGraph).
    """
    if not is_accelerator(device):
        return compute
    kind = _kind(device)
    aside, here = kind.new_stream(device), kind.present_stream(device)
    aside.wait_stream(here)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as the products of a mapped pass
        with kind.using(aside):
            for _ in range(WARMING_RUNS):
                compute()
        here.wait_stream(aside)
        return kind.graph(compute)
