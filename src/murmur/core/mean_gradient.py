"""Mean of gradients over learners, summed bucket by bucket behind the backward pass.

g = sum_i w_i g_i / sum_i w_i, where w_i are samples. Gradients appear from the last layer to the first. As soon as a
bucket of the flat vector is complete, its sum over the learners starts while earlier layers are still computing. The
head of the buffer holds the learner's weight and one flag per tensor: a tensor without a gradient on every learner has
none in the mean either, which keeps momentum and weight decay away from it exactly as in a plain loop.

Where the members share memory, each writes its gradient there as it appears, and the sum follows the backward pass: it
takes less time than the messages of a sum behind it.

A backward pass may fail when parts of its gradient have been sent. Its learner sends the rest with a weight of nan, and
all learners add up their gradients once more: those of the others are the same.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from weakref import WeakMethod, finalize

import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.group import Group, SumInPlace
from murmur.core.shards import own_part
from murmur.core.world import drive

BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default, for fair comparisons
FIRST_BUCKET_BYTES = 1 << 20  # small, so that the first sum starts early
ALIGNMENT = 16  # elements


class MeanBehindBackward:
    """Sum of gradients over `group` while the backward pass runs. One instance serves one learner for a whole run.

    Attributes:
        broken: True if a member of the latest sum had weights that are not finite.
    """

    def __init__(self, layout: Layout, group: Group, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.layout, self.group = layout, group
        self._flags = len(layout.tensors)
        self._head = -(-(self._flags + 2) // ALIGNMENT) * ALIGNMENT
        numel, dtype = self._head + layout.numel, layout.dtype
        self._in_place = group.sum_in_place(torch.empty(numel, dtype=dtype, device="meta"))
        zeros = partial(torch.zeros, numel, dtype=dtype, device=layout.device)
        self._buffer = zeros() if self._in_place is None else self._in_place.next()
        self._views = layout.views(self._buffer[self._head :])
        self._buckets, self._bucket_of = self._plan(bucket_bytes // self._buffer.element_size())
        self._missing: list[int] = []
        self._sums: list[Awaitable[Tensor]] = []
        self._seen: list[bool] = []
        self._weight = 0.0
        self._armed = self.broken = False
        # The garbage collector does not see references from hooks: strong ones would keep the group open for ever.
        hook = partial(_pass_on, WeakMethod(self._arrived))
        for i, tensor in enumerate(layout.tensors):
            handle = tensor.register_post_accumulate_grad_hook(partial(hook, i))  # type: ignore[no-untyped-call]
            finalize(self, handle.remove)

    def _plan(self, bucket_numel: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Return the buckets, from the end of the buffer to its start, and the bucket of each tensor."""
        buckets: list[tuple[int, int]] = []
        bucket_of = [0] * self._flags
        end = self._buffer.numel()
        limit = min(bucket_numel, FIRST_BUCKET_BYTES // self._buffer.element_size())
        for i in reversed(range(self._flags)):
            bucket_of[i] = len(buckets)
            start = self._head + self.layout.bounds[i][0]
            if end - start >= limit and i > 0:
                buckets.append((start, end))
                end, limit = start, bucket_numel
        buckets.append((0, end))
        return buckets, bucket_of

    def start(self, weight: float) -> None:
        """Arm for one backward pass of a minibatch of `weight` samples; nan: the pass under way has failed.

        Another pass may follow that in its place.
        """
        if math.isnan(weight):
            self._armed = False
            return
        if self._sums:
            drive(self._void())
        self._arm(weight)

    def _arm(self, weight: float) -> None:
        self._weight = weight
        self._seen = [False] * self._flags
        self._missing = [0] * len(self._buckets)
        for b in self._bucket_of:
            self._missing[b] += 1
        self._sums = []
        self._armed = True

    def _arrived(self, i: int, tensor: Tensor) -> None:
        if not self._armed or tensor.grad is None:
            return
        if self._seen[i]:
            raise RuntimeError("a tensor got two gradients in one backward pass: their mean cannot overlap that pass")
        view, gradient = self._views[i], own_part(tensor.grad)
        if (gradient.dtype, gradient.device) == (view.dtype, view.device):
            torch.mul(gradient, self._weight, out=view)
        else:  # widened first: a product in a narrow type would be rounded
            view.copy_(gradient).mul_(self._weight)
        self._seen[i] = True
        self._missing[self._bucket_of[i]] -= 1
        # The last bucket carries the flags and waits for finish(); the order of starts is the same on all learners.
        while (
            self._in_place is None and len(self._sums) < len(self._buckets) - 1 and self._missing[len(self._sums)] == 0
        ):
            self._launch()

    def _launch(self) -> None:
        start, end = self._buckets[len(self._sums)]
        self._sums.append(self.group.start_sum(self._buffer[start:end]))

    async def finish(self, broken: bool = False) -> tuple[Tensor, list[bool]]:
        """Return the mean gradient (P,), valid until the next start(), and a list of the tensors with one.

        Args:
            broken: True if this learner's weights are not finite; all members are then told.
        """
        if self._in_place is not None:
            return await self._finish_in_place(self._in_place, broken)
        while not await self._added(broken):
            self._arm(self._weight)  # another learner's pass had failed, and it has a gradient only now
        present = [flag > 0 for flag in self._buffer[: self._flags].tolist()]
        self.group.total_weight, others = self._buffer[self._flags : self._flags + 2].tolist()
        self.broken = others > 0
        g = self._buffer[self._head :]
        if self.group.total_weight > 0:
            g.div_(self.group.total_weight)
        return g, present

    async def _finish_in_place(self, sums: SumInPlace, broken: bool) -> tuple[Tensor, list[bool]]:
        self._complete()
        flags = [float(seen) for seen in self._seen]
        said = await self.group.share_numbers(self._buffer[:0], [self._weight, float(broken), *flags])
        self.group.total_weight = sum(weight for weight, *_ in said)
        self.broken = any(others > 0 for _, others, *_ in said)
        mean = sums.total(self.group.total_weight or 1.0)
        return mean[self._head :], [any(row[2 + i] > 0 for row in said) for i in range(self._flags)]

    async def _void(self) -> None:
        """End the sums of a pass that has failed, so that no learner uses them."""
        self._weight = math.nan
        await self._added(broken=False)

    async def _added(self, broken: bool) -> bool:
        """Add up all gradients that are there; return False if the sums do not count."""
        self._complete()
        flags = [1.0 if seen else 0.0 for seen in self._seen]
        head = [*flags, self._weight, float(broken)]
        self._buffer[: self._flags + 2] = torch.tensor(head, dtype=self._buffer.dtype)
        while len(self._sums) < len(self._buckets):
            self._launch()
        for total in self._sums:
            await total
        self._sums = []
        return not math.isnan(float(self._buffer[self._flags]))

    def _complete(self) -> None:
        """Fill what no hook has: gradients of an earlier pass that have been accumulated, zeros for absent ones."""
        for i, tensor in enumerate(self.layout.tensors):
            if not self._seen[i]:
                self._arrived(i, tensor)
        self._armed = False
        for view, seen in zip(self._views, self._seen, strict=True):
            if not seen:
                view.zero_()


def _pass_on(to: WeakMethod[Callable[[int, Tensor], None]], i: int, tensor: Tensor) -> None:
    """Tell a mean, while it is in use, that a tensor has its gradient."""
    arrived = to()
    if arrived is not None:
        arrived(i, tensor)
