"""Private interfaces of PyTorch that this package uses, all of them; nothing else imports one.

| interface | used for | checked on |
|---|---|---|
| `torch._C._distributed_c10d` | process groups and stores without the global state of `torch.distributed` | 2.6, 2.13 |
| `ProcessGroupGloo._Options` | the device and the timeout of a gloo group | 2.6, 2.13 |
| `torch._utils._unflatten_dense_tensors` | views of a flat vector in the shapes of a model's tensors | 2.6, 2.13 |
| `torch._foreach_copy_`, `torch._foreach_norm` | copies and norms of many tensors by one call | 2.6, 2.13 |
| `torch._C.DisableTorchFunction` | calls of the original functions inside a `TorchFunctionMode` | 2.6, 2.13 |
| `torch.autograd.Variable._execution_engine` | callbacks at the end of a backward pass | 2.6, 2.13 |
| `torch.ops.mkldnn._is_mkldnn_bf16_supported` | whether the processor computes in bfloat16 | 2.6, 2.13 |

`make matrix` runs the tests of the core on other versions of Python and PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import DisableTorchFunction, _distributed_c10d
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch._utils import _unflatten_dense_tensors

__all__ = [
    "DisableTorchFunction",
    "HashStore",
    "PrefixStore",
    "Store",
    "TCPStore",
    "backward_engine",
    "c10d",
    "foreach_copy_",
    "foreach_norm",
    "gloo_options",
    "has_fast_bfloat16",
    "unflatten",
]

c10d = _distributed_c10d
backward_engine = torch.autograd.Variable._execution_engine
unflatten = _unflatten_dense_tensors
foreach_copy_ = torch._foreach_copy_
foreach_norm = torch._foreach_norm


def gloo_options() -> Any:
    """Options of a gloo process group, with the defaults of PyTorch."""
    return c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]


def has_fast_bfloat16() -> bool:
    """True if the processor has instructions for bfloat16."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
