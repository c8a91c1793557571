"""Private interfaces of PyTorch that this package uses, all of them; nothing else imports one.

| interface | used for | checked on |
|---|---|---|
| `torch._C._distributed_c10d` | process groups and stores without the global state of `torch.distributed` | 2.6, 2.13 |
| `ProcessGroupGloo._Options` | device, threads and timeout of a gloo group | 2.6, 2.13 |
| `torch._utils._unflatten_dense_tensors` | views of a flat vector in the shapes of a model's tensors | 2.6, 2.13 |
| `torch._foreach_copy_`, `_foreach_add_`, `_foreach_norm` | copies, sums, norms of many tensors at once | 2.6, 2.13 |
| `Tensor._version` | whether gradients were changed in place | 2.6, 2.13 |
| `torch._C.DisableTorchFunction` | calls of the original functions inside a `TorchFunctionMode` | 2.6, 2.13 |
| `torch.autograd.Variable._execution_engine` | callbacks at the end of a backward pass | 2.6, 2.13 |
| `torch._C._functorch.is_batchedtensor` | whether torch.func.vmap maps over a tensor | 2.6, 2.13 |
| `torch._C._functorch.is_functorch_wrapped_tensor` | whether a tensor belongs to a transform of torch.func | 2.13 |
| `DistributedDataParallel._active_ddp_module` | whether a module is called through DistributedDataParallel | 2.13 |
| `OptimizedModule._orig_mod` | the module that torch.compile has wrapped | 2.13 |
| `__wrapped__` of methods of `torch.optim.Optimizer` | optimizers that do not import the compiler | 2.13 |
| `parametrizations._SpectralNorm`, `Module._forward_pre_hooks` | vectors of spectral norm | 2.13 |
| `torch.distributed.rendezvous._rendezvous_handlers` | `env://` over the store of a launch | 2.6, 2.13 |
| `torch.autograd.profiler._is_profiler_enabled` | whether spans are recorded for `torch.profiler` | 2.13 |
| `torch.ops.mkldnn._is_mkldnn_bf16_supported` | whether the processor computes in bfloat16 | 2.6, 2.13 |

`make matrix` runs the tests of the core on other versions of Python and PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction, _distributed_c10d
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch._utils import _unflatten_dense_tensors
from torch.autograd import profiler
from torch.distributed.rendezvous import _rendezvous_handlers
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

__all__ = ["DisableTorchFunction", "HashStore", "PrefixStore", "Store", "TCPStore"]  # imported as they are

_F = TypeVar("_F", bound=Callable[..., Any])
c10d = _distributed_c10d
backward_engine = torch.autograd.Variable._execution_engine
unflatten = _unflatten_dense_tensors
foreach_copy_ = torch._foreach_copy_
foreach_add_ = torch._foreach_add_
foreach_norm = torch._foreach_norm
Rendezvous = Callable[..., Iterator[tuple[Store, int, int]]]


def gloo_options(device: Any, threads: int, timeout: timedelta) -> Any:
    """Options of a gloo process group.

    Args:
        device: gloo's device.
        threads: Number of threads that run its collectives.
        timeout: Time for all members to arrive.
    """
    options = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices, options._threads, options._timeout = [device], threads, timeout
    return options


def version_of(x: Tensor) -> int:
    """Number of changes of a tensor in place; it grows with every one."""
    return int(x._version)


def has_fast_bfloat16() -> bool:
    """True if the processor has instructions for bfloat16."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_mapped(x: Tensor) -> bool:
    """True inside torch.func.vmap, for a tensor over which it maps."""
    return bool(torch._C._functorch.is_batchedtensor(x))


def is_transformed(x: Tensor) -> bool:
    """True inside a transform of torch.func, for a tensor that lives only there."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def profiled(name: str) -> AbstractContextManager[object]:
    """Context of a span of this name in `torch.profiler`; it costs nothing while nothing is profiled."""
    return profiler.record_function(name) if profiler._is_profiler_enabled else nullcontext()


def is_called_through_ddp() -> bool:
    """True during a forward pass inside `DistributedDataParallel` whose gradients it will average (not `no_sync`)."""
    wrapper = nn.parallel.DistributedDataParallel._active_ddp_module
    return wrapper is not None and wrapper.require_backward_grad_sync


def compiled_from(module: nn.Module) -> nn.Module | None:
    """Return the module that `torch.compile` has wrapped in this one; None if it is no such wrapper."""
    return getattr(module, "_orig_mod", None) if type(module).__name__ == "OptimizedModule" else None


def spectral_vectors(model: nn.Module) -> set[str]:
    """Names of the buffers in which spectral norm keeps its estimates of singular vectors."""
    found = set[str]()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
        keys = ["", *(hook.name for hook in hooks)] if isinstance(module, _SpectralNorm) else [h.name for h in hooks]
        found.update(f"{prefix}{key}_{vector}" for key in keys for vector in "uv")
    return found


def without_compiler(method: _F) -> _F:
    """Return a method of an optimizer of PyTorch as it was written, without the decorators that import the compiler.

    The decorators mark where compiled code is interrupted; `step` must be given its `no_grad` again.
    """
    while hasattr(method, "__wrapped__"):
        method = cast(_F, method.__wrapped__)
    return method


def replace_rendezvous(scheme: str, change: Callable[[Rendezvous], Rendezvous]) -> None:
    """Replace the way in which the processes of `torch.distributed` meet for a scheme such as `env`.

    `torch.distributed.register_rendezvous_handler` accepts new schemes only.
    """
    _rendezvous_handlers[scheme] = change(_rendezvous_handlers[scheme])


def clone(store: Store) -> Store:
    """Return the same store over a separate connection, for another thread."""
    twin: Store = store.clone()  # type: ignore[attr-defined]
    return twin


@contextmanager
def cloned(store: Store) -> Iterator[Store]:
    """Yield the same store over a separate connection, which is closed after the block where a store can be."""
    twin = clone(store)
    try:
        yield twin
    finally:
        close = getattr(twin, "close", None)
        if close is not None:
            close()
