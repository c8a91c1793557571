"""A model's trainable tensors as one flat vector (P,), and back.

Vectors are copies, never aliases of the parameters: cuDNN re-packs the weights of an LSTM and silently drops an alias.
The vector has the widest floating type among the tensors (bfloat16 and float16 count as float32; integers alone are
int64) and lives on the device of the first one. Tied tensors stand in it once, frozen ones are left out. Of a tensor
that is sharded over processes (a DTensor) it holds this process's own part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from murmur.core.shards import as_shard_of, is_sharded, own_part
from murmur.core.spare_vectors import SpareVectors
from murmur.core.torch_private import foreach_add_, foreach_copy_, unflatten


def is_finite(x: Tensor) -> bool:
    """True if every element is finite. Takes one pass without a copy; a second one only if the sum overflows."""
    return math.isfinite(x.sum().item()) or bool(torch.isfinite(x).all())  # finite numbers may have an infinite sum


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Leave inference mode inside the block: tensors that are made in it cannot be changed outside of it."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


PIECE_NUMEL = 1 << 16  # elements of a difference, few enough for the processor's cache


def pull(flats: Sequence[Tensor], theirs: Tensor, mine: Tensor | None, alpha: float) -> None:
    """x <- x + alpha (theirs - mine), where vectors `flats` are consecutive parts of x; piece by piece.

    The bits are those of a difference that is computed as a whole. `mine` is None if it is equal to x.
    """
    if mine is None and alpha == 0.5:  # the product is exact, so that lerp rounds as the sum does, and takes one pass
        for flat, own in zip(flats, theirs.split_with_sizes([f.numel() for f in flats]), strict=True):
            torch.lerp(own, flat, 0.5, out=flat)
        return
    most = PIECE_NUMEL if theirs.device.type == "cpu" else theirs.numel()
    room = theirs.new_empty(min(most, theirs.numel()))
    at = 0
    for flat in flats:
        for start in range(0, flat.numel(), most):
            part = flat[start : start + most]
            here = slice(at, at + part.numel())
            own = part if mine is None else mine[here]
            part.add_(torch.sub(theirs[here], own, out=room[: part.numel()]), alpha=alpha)
            at = here.stop


class Layout:
    """Positions of a list of tensors in one flat vector.

    Attributes:
        tensors: The tensors, each once.
        bounds: For each tensor, the (start, end) of its elements in the vector.
        numel: Length P of the vector.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors: list[Tensor] = list({id(t): t for t in tensors}.values())
        ends = [0]
        self._forms = [own_part(t).to("meta") if is_sharded(t) else t for t in self.tensors]  # with the shapes of parts
        for form in self._forms:
            ends.append(ends[-1] + form.numel())
        self.bounds: list[tuple[int, int]] = list(pairwise(ends))
        self.numel = ends[-1]
        wide = any(t.dtype == torch.float64 or not t.is_floating_point() for t in self.tensors)
        self.dtype = torch.float64 if wide else torch.float32
        if self.tensors and not any(t.is_floating_point() or t.is_complex() for t in self.tensors):
            self.dtype = torch.int64
        self.device = own_part(self.tensors[0]).device if self.tensors else torch.device("cpu")
        self._spare = SpareVectors(self.numel, self.dtype) if self.device.type == "cpu" else None

    @classmethod
    def trainable(cls, model: nn.Module) -> Layout:
        """Layout of the trainable parameters: the vector w of the strategies.

        Raises:
            ValueError: The model has no trainable parameter, or one that is complex or lazy, or shares memory with
                another one or with itself.
        """
        for name, p in model.named_parameters():
            if p.requires_grad and p.is_complex():
                raise ValueError(
                    f"{name} is complex, but vectors of weights are real: keep a real parameter of it"
                    " (torch.view_as_real) and use torch.view_as_complex in forward"
                )
        _check_apart([(name, p) for name, p in model.named_parameters() if p.requires_grad])
        layout = cls(p for p in model.parameters() if p.requires_grad)
        if not layout.tensors:
            raise ValueError("the model has no trainable parameter: set requires_grad on at least one")
        return layout

    @classmethod
    def buffers(cls, model: nn.Module) -> Layout:
        """Layout of the floating-point buffers; `Buffers` says which of them are averaged."""
        return cls(b for b in model.buffers() if b.is_floating_point())

    @classmethod
    def integers(cls, model: nn.Module) -> Layout:
        """Layout of the integer and boolean buffers (minibatches counted by BatchNorm)."""
        return cls(b for b in model.buffers() if not (b.is_floating_point() or b.is_complex()))

    @classmethod
    def everything(cls, model: nn.Module) -> Layout:
        """Layout of all parameters and buffers of real and complex numbers."""
        tensors: Sequence[Tensor] = [*model.parameters(), *model.buffers()]
        real = (torch.view_as_real(t.detach()) if t.is_complex() else t for t in tensors)
        return cls(t for t in real if t.is_floating_point())

    def empty(self) -> Tensor:
        """Return an uninitialised vector (P,), which may be changed outside of inference mode too."""
        with ordinary_tensors():
            if self._spare is not None:
                return self._spare.take()
            return torch.empty(self.numel, dtype=self.dtype, device=self.device)

    def check(self, flat: Tensor) -> None:
        """Raise ValueError if a tensor is not of the shape (P,)."""
        if flat.shape != (self.numel,):
            raise ValueError(f"expected a vector of {self.numel} elements, got shape {tuple(flat.shape)}")

    def views(self, flat: Tensor) -> list[Tensor]:
        """Cut `flat` (P,) into pieces with the tensors' shapes; they share its memory."""
        return list(unflatten(flat, self._forms)) if self.tensors else []  # type: ignore[no-untyped-call]

    def gather(self, out: Tensor | None = None) -> Tensor:
        """Copy the tensors into a vector (P,)."""
        flat = self.empty() if out is None else out
        if self.tensors:
            with torch.no_grad():
                foreach_copy_(self.views(flat), [own_part(t) for t in self.tensors])
        return flat

    def scatter(self, flat: Tensor) -> None:
        """Copy a vector (P,) into the tensors."""
        self.check(flat)
        if self.tensors:
            with torch.no_grad():
                foreach_copy_([own_part(t) for t in self.tensors], self.views(flat))

    @property
    def alike(self) -> bool:
        """True if all tensors have the vector's type: adding in place then rounds as adding to the vector does."""
        return all(t.dtype == self.dtype for t in self.tensors)

    @property
    def pulls(self) -> bool:
        """True if `pull_` works: the tensors are like parts of a vector, on the CPU."""
        return self.device.type == "cpu" and self.alike and all(own_part(t).is_contiguous() for t in self.tensors)

    def pull_(self, theirs: Tensor, mine: Tensor | None, alpha: float) -> None:
        """Add alpha (theirs - mine) to the tensors, in place; the vectors have the shape (P,), and None is the tensors.

        Only where `pulls` is true.
        """
        with torch.no_grad():
            pull([own_part(t).view(-1) for t in self.tensors], theirs, mine, alpha)

    def add_(self, flat: Tensor, alpha: float = 1.0) -> None:
        """Add alpha times a vector (P,) to the tensors, in place."""
        if self.tensors:
            views = self.views(flat.to(self.device))  # an optimizer may keep its counts of steps on the host
            with torch.no_grad():
                foreach_add_([own_part(t) for t in self.tensors], views, alpha=alpha)

    def gather_gradients(self, out: Tensor | None = None) -> tuple[Tensor, list[bool]]:
        """Copy the .grad fields into a vector (P,), zeros where absent; also return a list of those present."""
        flat = self.empty() if out is None else out
        fields = [t.grad for t in self.tensors]
        self.gather_from(fields, flat)
        return flat, [field is not None for field in fields]

    def gather_from(self, fields: Sequence[Tensor | None], out: Tensor) -> None:
        """Copy one tensor for each of the layout's into a vector (P,), zeros for None."""
        views = self.views(out)
        for view, field in zip(views, fields, strict=True):
            if field is None:
                view.zero_()
        pairs = [(view, own_part(field)) for view, field in zip(views, fields, strict=True) if field is not None]
        if pairs:
            with torch.no_grad():
                foreach_copy_([view for view, _ in pairs], [field for _, field in pairs])

    def hand_gradients(self, flat: Tensor, present: Sequence[bool]) -> None:
        """Set the .grad fields from a vector (P,), as views where types and strides allow; absent ones become None.

        A gradient has the strides of its tensor (channels last): fused optimizers read both in the order of memory.
        """
        for view, t, there in zip(self.views(flat), self.tensors, present, strict=True):
            part = own_part(t)
            if not there:
                t.grad = None
            elif part.is_contiguous():
                t.grad = as_shard_of(t, view.to(dtype=part.dtype, device=part.device))
            else:
                t.grad = as_shard_of(t, torch.empty_like(part).copy_(view))

    def clear_gradients(self) -> None:
        for tensor in self.tensors:
            tensor.grad = None


def _check_apart(named: Sequence[tuple[str, Tensor]]) -> None:
    """Raise ValueError if tensors share elements in memory, or one with itself: an average would count them twice."""
    spans = dict[int, list[tuple[int, int, str]]]()
    for name, t in named:
        if is_lazy(t):
            raise ValueError(f"{name} has no shape yet, as its module is lazy: call the model once before")
        part = own_part(t)
        if part.numel() == 0 or part.layout != torch.strided:
            continue
        last = sum((n - 1) * stride for n, stride in zip(part.shape, part.stride(), strict=True))
        if last + 1 < part.numel():
            raise ValueError(f"elements of {name} share memory (it is expanded): clone it, and expand it in forward")
        start = part.data_ptr()
        spans.setdefault(part.untyped_storage().data_ptr(), []).append(
            (start, start + last * part.element_size(), name)
        )
    for of_storage in spans.values():
        for (_, end, name), (start, _, other) in pairwise(sorted(of_storage)):
            if start <= end:
                raise ValueError(
                    f"{other} and {name} are views of the same memory, but not one parameter: an average would count it"
                    " twice. Tie them by assigning the same nn.Parameter, and take parts or transposes in forward"
                )
