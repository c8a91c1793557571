"""A model's trainable tensors as one flat vector (P,), and back.

Vectors are copies, never aliases of the parameters: cuDNN re-packs the weights of an LSTM and silently drops an alias.
The vector has the widest floating type among the tensors (bfloat16 and float16 count as float32, integers as float64,
which holds them exactly) and lives on the device of the first one. Tied tensors stand in it once, frozen ones are left
out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from murmur.core.torch_private import foreach_add_, foreach_copy_, unflatten


def is_finite(x: Tensor) -> bool:
    """True if every element is finite. Takes one pass without a copy; a second one only if the sum overflows."""
    return math.isfinite(x.sum().item()) or bool(torch.isfinite(x).all())  # finite numbers may have an infinite sum


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
        for t in self.tensors:
            ends.append(ends[-1] + t.numel())
        self.bounds: list[tuple[int, int]] = list(pairwise(ends))
        self.numel = ends[-1]
        wide = any(t.dtype == torch.float64 or not t.is_floating_point() for t in self.tensors)
        self.dtype = torch.float64 if wide else torch.float32
        self.device = self.tensors[0].device if self.tensors else torch.device("cpu")

    @classmethod
    def trainable(cls, model: nn.Module) -> Layout:
        """Layout of the trainable parameters: the vector w of the strategies.

        Raises:
            ValueError: The model has no trainable parameter, or a complex one.
        """
        for name, p in model.named_parameters():
            if p.requires_grad and p.is_complex():
                raise ValueError(
                    f"{name} is complex, but vectors of weights are real: keep a real parameter of it"
                    " (torch.view_as_real) and use torch.view_as_complex in forward"
                )
        layout = cls(p for p in model.parameters() if p.requires_grad)
        if not layout.tensors:
            raise ValueError("the model has no trainable parameter: set requires_grad on at least one")
        return layout

    @classmethod
    def buffers(cls, model: nn.Module) -> Layout:
        """Layout of the floating-point buffers (running statistics of BatchNorm), averaged at consensus only."""
        return cls(b for b in model.buffers() if b.is_floating_point())

    @classmethod
    def integers(cls, model: nn.Module) -> Layout:
        """Layout of the integer and boolean buffers (minibatches counted by BatchNorm), with values below 2^53."""
        return cls(b for b in model.buffers() if not (b.is_floating_point() or b.is_complex()))

    @classmethod
    def everything(cls, model: nn.Module) -> Layout:
        """Layout of all parameters and buffers of real and complex numbers, which learner 0 sends at the start."""
        tensors: Sequence[Tensor] = [*model.parameters(), *model.buffers()]
        real = (torch.view_as_real(t.detach()) if t.is_complex() else t for t in tensors)
        return cls(t for t in real if t.is_floating_point())

    @classmethod
    def whole_numbers(cls, model: nn.Module) -> Layout:
        """Layout of all integer and boolean parameters and buffers, which learner 0 sends at the start."""
        tensors: Sequence[Tensor] = [*model.parameters(), *model.buffers()]
        return cls(t for t in tensors if not (t.is_floating_point() or t.is_complex()))

    def empty(self) -> Tensor:
        """Return an uninitialised vector (P,)."""
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Cut `flat` (P,) into pieces with the tensors' shapes; they share its memory."""
        return list(unflatten(flat, self.tensors)) if self.tensors else []  # type: ignore[no-untyped-call]

    def gather(self, out: Tensor | None = None) -> Tensor:
        """Copy the tensors into a vector (P,)."""
        flat = self.empty() if out is None else out
        if self.tensors:
            with torch.no_grad():
                foreach_copy_(self.views(flat), [t.detach() for t in self.tensors])
        return flat

    def scatter(self, flat: Tensor) -> None:
        """Copy a vector (P,) into the tensors."""
        if flat.shape != (self.numel,):
            raise ValueError(f"expected a vector of {self.numel} elements, got shape {tuple(flat.shape)}")
        if self.tensors:
            with torch.no_grad():
                foreach_copy_([t.detach() for t in self.tensors], self.views(flat))

    @property
    def alike(self) -> bool:
        """True if all tensors have the vector's type: adding in place then rounds as adding to the vector does."""
        return all(t.dtype == self.dtype for t in self.tensors)

    def add_(self, flat: Tensor, alpha: float = 1.0) -> None:
        """Add alpha times a vector (P,) to the tensors, in place."""
        if self.tensors:
            views = self.views(flat.to(self.device))  # an optimizer may keep its counts of steps on the host
            with torch.no_grad():
                foreach_add_([t.detach() for t in self.tensors], views, alpha=alpha)

    def gather_gradients(self, out: Tensor | None = None) -> tuple[Tensor, list[bool]]:
        """Copy the .grad fields into a vector (P,), zeros where absent; also return a list of those present."""
        flat = self.empty() if out is None else out
        present = [t.grad is not None for t in self.tensors]
        views = self.views(flat)
        for view, there in zip(views, present, strict=True):
            if not there:
                view.zero_()
        pairs = [(v, t.grad) for v, t in zip(views, self.tensors, strict=True) if t.grad is not None]
        if pairs:
            foreach_copy_([v for v, _ in pairs], [g for _, g in pairs])
        return flat, present

    def hand_gradients(self, flat: Tensor, present: Sequence[bool]) -> None:
        """Set the .grad fields from a vector (P,), as views where types allow; absent ones become None."""
        for view, t, there in zip(self.views(flat), self.tensors, present, strict=True):
            t.grad = view.to(dtype=t.dtype, device=t.device) if there else None
