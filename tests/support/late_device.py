"""An accelerator in Python that does its work as late as the waits allow: an `Accelerator` without hardware.

A call of PyTorch on a `LateTensor` adds work to the present stream of its thread. The work runs when something waits
for it: a copy to the host, a number that is read, `synchronize`, or a stream that waits for its event and has to run
itself. With a seed, streams also run at random moments before. Until its work has run, memory holds what it held: nan
where it is new. So a read that does not wait sees old values or nan, and arithmetic on them spoils the result.

The model, from the documentation of CUDA and of PyTorch:

- A stream runs in order. Streams and the host have no order but that of events, `wait_stream` and `synchronize`.
- A copy between host and device waits for its stream, unless it is non-blocking and the memory of the host is pinned.
  The host's side of such a copy is read, or written, when the copy runs.
- A non-blocking copy from other memory of the host waits for the stream, and then reads at once.
- Memory that is freed is used again at once by the stream that allocated it: here it is filled with nan, as early as
  that stream can come to it. Memory that other streams use is spared only after `record_stream`.
- The recording of a graph runs nothing, and waits for nothing.

The type of its devices is one that PyTorch leaves free. In C++ a `LateTensor` is a tensor without memory.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from weakref import finalize

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from murmur.accelerator import device as accelerator

TYPE = "privateuseone"
DEVICE = f"{TYPE}:0"
aten = torch.ops.aten
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}  # take indices from the host
READ_BY_HOST = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default, aten.nonzero.default}


class Work:
    """One entry of a stream: a function, and work of another stream that must have run before."""

    __slots__ = ("after", "done", "run", "stream")

    def __init__(self, stream: LateStream, run: Callable[[], object], after: Work | None) -> None:
        self.stream, self.run, self.after, self.done = stream, run, after, False


class LateStream:
    def __init__(self, device: LateDevice, name: str) -> None:
        self.device, self.name, self.last = device, name, None
        self.queue: deque[Work] = deque()
        self.last: Work | None = None

    def add(self, run: Callable[[], object], after: Work | None = None) -> Work:
        with self.device.lock:
            self.device.use_freed_memory()
            work = self.last = Work(self, run, after)
            self.queue.append(work)
            self.device.wander()
            return work

    def wait_event(self, event: LateEvent) -> None:
        if event.work is not None:
            self.add(lambda: None, event.work)

    def wait_stream(self, stream: LateStream) -> None:
        if stream.last is not None:
            self.add(lambda: None, stream.last)

    def synchronize(self) -> None:
        if self.last is not None:
            self.device.finish(self.last)


class LateEvent:
    def __init__(self) -> None:
        self.work: Work | None = None

    def record(self, stream: LateStream) -> None:
        self.work = stream.add(lambda: None)


@dataclass
class Memory:
    """Allocated memory of the device: the stream that allocated it, the latest work of each stream that uses it."""

    stream: LateStream
    bytes: Any
    uses: dict[LateStream, Work] = field(default_factory=dict)
    recorded: set[LateStream] = field(default_factory=set)


class Block:
    """Shared by a tensor and its views; its end frees the memory."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        finalize(self, memory.stream.device.freed.append, memory).atexit = False


class LateDevice:
    """The accelerator; see the module. Install it for a test with `installed`.

    Args:
        seed: Seed of random earlier moments; None: all work is as late as possible.
        own_streams: True: each thread has a stream of its own from its start; False: all begin on one.
    """

    def __init__(self, seed: int | None = None, own_streams: bool = False) -> None:
        self.lock = threading.RLock()
        self.freed: deque[Memory] = deque()
        self.streams: list[LateStream] = []
        self.ran = 0  # pieces of work
        self.recording: list[Callable[[], None]] | None = None
        self._random = None if seed is None else random.Random(seed)
        self._own_streams, self._threads = own_streams, threading.local()
        self._pinned: dict[int, Tensor] = {}
        self._first = self.new_stream()

    # The interface `Accelerator`.

    def count(self) -> int:
        return 1

    def name(self, device: str) -> str:
        return "late device"

    def seed(self, value: int) -> None:
        pass  # operations that draw are refused

    def most_allocated_bytes(self, device: Any) -> int:
        return 0

    def synchronize(self, device: Any = None) -> None:
        for stream in list(self.streams):
            stream.synchronize()

    def new_event(self) -> LateEvent:
        return LateEvent()

    def new_stream(self, device: Any = None) -> LateStream:
        self.streams.append(LateStream(self, f"stream {len(self.streams)}"))
        return self.streams[-1]

    def present_stream(self, device: Any = None) -> LateStream:
        if not hasattr(self._threads, "stream"):
            self._threads.stream = self.new_stream() if self._own_streams else self._first
        return self._threads.stream

    @contextmanager
    def using(self, stream: LateStream) -> Iterator[None]:
        before, self._threads.stream = self.present_stream(), stream
        try:
            yield
        finally:
            self._threads.stream = before

    def pinned(self, x: Tensor) -> Tensor:
        made = x.clone()
        self._pinned[made.untyped_storage().data_ptr()] = made
        return made

    def graph(self, compute: Callable[[], None]) -> Callable[[], None]:
        recording = self.recording = []
        try:
            with self.using(self.new_stream()):
                compute()
        finally:
            self.recording = None
        return lambda: [self.present_stream().add(run) for run in recording] and None

    # Work.

    def launch(self, run: Callable[[], object], uses: Sequence[Memory]) -> Work:
        """Add work to the present stream; while a graph is recorded, to the graph alone."""
        if self.recording is not None:
            self.recording.append(run)
            return Work(self.present_stream(), run, None)
        work = self.present_stream().add(run)
        for memory in uses:
            memory.uses[work.stream] = work
        return work

    def finish(self, work: Work) -> None:
        """Run the streams as far as a piece of work needs."""
        with self.lock:
            due = [work]
            while due:
                if due[-1].done:
                    due.pop()
                    continue
                head = due[-1].stream.queue[0]
                if head.after is not None and not head.after.done:
                    due.append(head.after)
                else:
                    self._run(head)

    def _run(self, head: Work) -> None:
        head.stream.queue.popleft()
        head.done = True
        self.ran += 1
        with torch.no_grad(), torch.inference_mode(False):
            head.run()
        head.run = lambda: None  # its memory may go

    def wander(self) -> None:
        """Let one stream run at a random moment, as far as it can without a wait."""
        if self._random is None or self._random.random() < 0.5:
            return
        queue = self._random.choice(self.streams).queue
        for _ in range(self._random.randrange(8)):
            if queue and (queue[0].after is None or queue[0].after.done):
                self._run(queue[0])

    @property
    def pending(self) -> int:
        """Number of pieces of work that have not run."""
        return sum(len(stream.queue) for stream in self.streams)

    def use_freed_memory(self) -> None:
        """Let the streams that allocated memory that is free now use it again, if others still need it."""
        while self.freed:
            memory = self.freed.popleft()
            others = [w for s, w in memory.uses.items() if s is not memory.stream and s not in memory.recorded]
            if any(not work.done for work in others):
                memory.stream.last = spoilt = Work(memory.stream, lambda m=memory: m.bytes.fill_(0xFF), None)
                memory.stream.queue.append(spoilt)
                self.finish(spoilt)

    # Tensors.

    def empty(self, like: Tensor) -> LateTensor:
        """Allocate memory for a tensor of the size, strides and type of another one, which may be without memory."""
        here = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device="cpu")
        here.untyped_storage().fill_(0xFF)  # nan in all floating types
        return LateTensor(here, Block(Memory(self.present_stream(), here.untyped_storage())))

    def is_pinned(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self._pinned

    def of(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Do what a call of PyTorch asks for."""
        with self.lock, torch.no_grad(), torch.inference_mode(False):
            if func is aten.copy_.default:
                return self._copy_(*args, **kwargs)
            if func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
                return self._to_host(*args, **kwargs)
            if func.is_view:
                base = next(x for x in tree_flatten(args)[0] if isinstance(x, LateTensor))
                made = func(*tree_map(_here, args), **_on("cpu", kwargs))
                return tree_map(lambda x: LateTensor(x, base.block) if isinstance(x, Tensor) else x, made)
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise NotImplementedError(f"{func}: the late device draws no random numbers")
            if func in READ_BY_HOST:
                self.present_stream().synchronize()
                return func(*tree_map(_here, args), **kwargs)
            return self._compute(func, args, kwargs)

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        leaves, _ = tree_flatten((args, kwargs))
        late = [x for x in leaves if isinstance(x, LateTensor)]
        if any(type(x) is Tensor and x.dim() > 0 for x in leaves) and func not in INDEXING:
            raise RuntimeError(f"{func}: tensors of the host beside those of the device")
        args, kwargs = tree_map(_value_of_host, args), tree_map(_value_of_host, kwargs)
        written = [(r.alias_info, func._schema.arguments) for r in func._schema.returns]
        fresh = any(alias is None for alias, _ in written)
        made = (
            tree_map(self._made, func(*tree_map(_form, args), **_on("meta", tree_map(_form, kwargs)))) if fresh else ()
        )
        outs = [x.here for x in tree_flatten(made)[0] if isinstance(x, LateTensor)]
        bare, named = tree_map(_here, args), _on("cpu", tree_map(_here, kwargs))

        def run() -> None:
            found = func(*bare, **named)
            if outs:
                for out, value in zip(outs, [x for x in tree_flatten(found)[0] if isinstance(x, Tensor)], strict=True):
                    out.copy_(value)

        memories = [x.block.memory for x in (*late, *tree_flatten(made)[0]) if isinstance(x, LateTensor)]
        self.launch(run, memories)
        if fresh:
            return made
        returned = [_argument(func, alias, args, kwargs) for alias, _ in written]
        return returned[0] if len(returned) == 1 else tuple(returned) or None

    def _made(self, form: Any) -> Any:
        return self.empty(form) if isinstance(form, Tensor) else form

    def _copy_(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        ours, theirs = _here(to), _here(source)
        uses = [x.block.memory for x in (to, source) if isinstance(x, LateTensor)]
        if isinstance(to, LateTensor) and isinstance(source, LateTensor):
            self.launch(lambda: ours.copy_(theirs), uses)
            return to
        if not non_blocking:
            self.finish(self.launch(lambda: ours.copy_(theirs), uses))
        elif self.is_pinned(theirs if isinstance(to, LateTensor) else ours):
            self.launch(lambda: ours.copy_(theirs), uses)
        elif isinstance(to, LateTensor):
            self.present_stream().synchronize()
            staged = theirs.clone()
            self.launch(lambda: ours.copy_(staged), uses)
        else:
            self.finish(self.launch(lambda: ours.copy_(theirs), uses))
        return to

    def _to_host(self, x: LateTensor, dtype: Any = None, non_blocking: bool = False, **_: Any) -> Tensor:
        to = torch.empty_like(x.here, dtype=dtype)
        to.untyped_storage().fill_(0xFF)
        return self._copy_(self.pinned(to) if non_blocking else to, x, non_blocking)


class LateTensor(Tensor):
    """A tensor of the late device. `here` is its memory, which only work of the device may read."""

    here: Tensor
    block: Block

    @staticmethod
    def __new__(cls: type[LateTensor], here: Tensor, block: Block) -> LateTensor:
        made = Tensor._make_wrapper_subclass(
            cls, here.size(), here.stride(), here.storage_offset(), dtype=here.dtype, device="meta"
        )
        made.here, made.block = here, block
        return made

    def __init__(self, here: Tensor, block: Block) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        late = next(x for x in tree_flatten((args, kwargs))[0] if isinstance(x, LateTensor))
        return late.block.memory.stream.device.of(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    # nn.Module.to then keeps the parameter objects, as it does for a GPU.
    def __tensor_flatten__(self) -> Any:
        return ["here"], None

    @classmethod
    def __tensor_unflatten__(cls, *_: Any) -> Any:
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return torch.device(DEVICE)

    @property
    def data(self) -> LateTensor:
        return self.detach()

    @data.setter
    def data(self, value: LateTensor) -> None:
        self.here, self.block = value.here, value.block

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def untyped_storage(self) -> Any:
        return self.here.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def record_stream(self, stream: LateStream) -> None:
        self.block.memory.recorded.add(stream)

    def new_tensor(self, value: Any, dtype: Any = None) -> Tensor:
        return torch.tensor(value, dtype=dtype or self.dtype).to(DEVICE)

    def to(self, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        if device is None or device.type == TYPE:
            same = dtype in (None, self.dtype)
            return self if same and not copy else self.clone() if same else Tensor.to(self, dtype)
        return Tensor.to(self, device, dtype or self.dtype, non_blocking, copy)

    def as_subclass(self, cls: type) -> Any:
        return type(cls.__name__, (cls, LateTensor), {})(self.here, self.block)

    def __deepcopy__(self, memo: dict[int, Any]) -> LateTensor:
        if id(self) not in memo:
            made = self.detach().clone().requires_grad_(self.requires_grad)
            made._is_param = getattr(self, "_is_param", False)
            memo[id(self)] = made
        return memo[id(self)]

    def __repr__(self) -> str:
        return f"LateTensor({tuple(self.shape)}, {self.dtype})"


def _here(x: Any) -> Any:
    return x.here if isinstance(x, LateTensor) else x


def _form(x: Any) -> Any:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x


def _value_of_host(x: Any) -> Any:
    """A kernel gets the value that a number or an index on the host has at the call."""
    return x.clone() if type(x) is Tensor else x


def _on(device: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return {**named, "device": device} if named.get("device") is not None else named


def _argument(func: Any, alias: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the argument that a function writes and returns."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == alias.before_set:
            return args[place] if place < len(args) else kwargs[argument.name]
    raise LookupError(f"{func} returns what it was not given")


@contextmanager
def installed(seed: int | None = None, own_streams: bool = False) -> Iterator[LateDevice]:
    """Make the late device the only accelerator inside the block."""
    device = LateDevice(seed, own_streams)
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")

    def empty(size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        with device.lock, torch.inference_mode(False):
            return device.empty(torch.empty(size, dtype=dtype, device="meta"))

    def empty_strided(size: Any, stride: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        with device.lock, torch.inference_mode(False):
            return device.empty(torch.empty_strided(size, stride, dtype=dtype, device="meta"))

    library.impl("empty.memory_format", empty)
    library.impl("empty_strided", empty_strided)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, f"torch.{TYPE}", ModuleType(f"torch.{TYPE}"))
        patch.setattr(accelerator, "ACCELERATORS", {TYPE: device})
        try:
            yield device
        finally:
            library._destroy()
