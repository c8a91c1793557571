"""A gradient vector that stays in the .grad fields of its tensors until a strategy reads it as a vector.

A strategy with local steps passes its gradient on to the optimizer, which reads the .grad fields: no copy is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from murmur.core.flat import Layout, is_finite
from murmur.core.shards import own_part
from murmur.core.torch_private import DisableTorchFunction

SMALL_NUMEL = 1 << 15  # below it a call takes longer than the copy of a tensor
FEW = 16  # small tensors on a CPU for which as many calls take less time than preparing their copy


class GradientInFields(Tensor):
    """Vector (P,) over the .grad fields of a layout's tensors. Its first use in any operation copies it from there.

    It belongs to one learner and is used again for each gradient.

    Attributes:
        applied: True once the optimizer has taken its step for the fields.
        of_layout, copied_to: The layout, and the vector to which the fields are copied.
        fields: The .grad fields that it stands for; None once they have been copied.
        gone: True if it was not read in time.
    """

    applied: bool
    of_layout: Layout
    copied_to: Tensor
    fields: list[Tensor | None] | None
    gone: bool

    @classmethod
    def over(cls, layout: Layout, flat: Tensor) -> GradientInFields:
        """Make one that is copied to `flat` (P,) when it is read."""
        made = flat.as_subclass(cls)
        made.of_layout, made.copied_to, made.fields = layout, flat, None
        made.applied = made.gone = False
        return made

    def begin(self) -> None:
        """Stand for the present .grad fields."""
        self.fields, self.applied, self.gone = [t.grad for t in self.of_layout.tensors], False, False

    @property
    def unread(self) -> bool:
        """True if the fields hold the gradient, and no operation has read or changed it as a vector."""
        return self.fields is not None

    def end(self) -> None:
        """Release the fields, which are about to be cleared; copy them if the optimizer has taken no step for them."""
        if self.fields is None:
            return
        if not self.applied:
            self.read()
        self.gone, self.fields = self.applied, None

    def read(self) -> Tensor:
        """Return the vector.

        Raises:
            RuntimeError: It was not read in time; it is valid until the next gradient.
        """
        if self.gone:
            raise RuntimeError("this gradient is no longer there: copy it (g.clone()) before the next one is taken")
        fields, self.fields = self.fields, None
        if fields is not None:
            self.of_layout.gather_from(fields, self.copied_to)
        return self.copied_to

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with DisableTorchFunction():
            return func(*_plain(args), **{name: _plain(value) for name, value in (kwargs or {}).items()})


def _plain(value: Any) -> Any:
    if isinstance(value, GradientInFields):
        return value.read()
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return value


class FinitenessOfFields:
    """Check that all .grad fields of a layout are finite: one pass without a copy of large ones."""

    def __init__(self, layout: Layout) -> None:
        small = [t for t in layout.tensors if own_part(t).numel() < SMALL_NUMEL]
        self._small = Layout(() if len(small) <= FEW and layout.device.type == "cpu" else small)
        self._large = [t for t in layout.tensors if not any(t is each for each in self._small.tensors)]
        self._copied = self._small.empty()

    def holds(self) -> bool:
        large = [own_part(t.grad) for t in self._large if t.grad is not None]
        total = sum(float(g.sum()) for g in large)
        if self._small.tensors:
            self._small.gather_gradients(self._copied)
        copied = not self._small.tensors or is_finite(self._copied)
        if math.isfinite(total) and copied:
            return True
        return copied and all(is_finite(g) for g in large)  # finite numbers may have an infinite sum
