"""Asynchronous SGD with a parameter server: first come, first served.

    learner:  push g(phi), pull w;     server:  w <- w - alpha d(age) g,     age: updates between pull and push

d = 1 is plain ASGD; d = 1 / age is staleness-aware (Zhang et al. 2016, arXiv 1511.05950). The server takes no
gradients; a single learner is its own server. Dean et al. 2012; the baseline of Cong et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from murmur.core.facts import Planner
from murmur.core.flat import is_finite
from murmur.core.learner import Learner


def undamped(age: int) -> float:  # noqa: ARG001 - old gradients count like new ones
    return 1.0


def by_age(age: int) -> float:
    return 1 / max(1, age)


@dataclass(frozen=True)
class ASGD:
    """Parameter server on rank 0; `damping` is the factor d on a gradient by its age: `undamped` or `by_age`."""

    lock_step: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True  # of workers; without its server the run ends
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    damping: Callable[[int], float] = undamped

    async def __call__(self, me: Learner) -> None:
        me.averager.holders = me.averager.takers = (0,)
        answers = me.spawn(me.answer(), "answers")
        await (self.serve(me) if me.group.rank == 0 < me.group.size - 1 else self.learn(me))
        await answers
        me.weights.set_(await me.consensus())

    async def learn(self, me: Learner) -> None:
        pulled = await self.push_and_pull(me, me.weights.snapshot()[:0], ()) if me.group.rank else 0
        async for g in me.claimed_gradients():
            if me.group.rank:
                pulled = await self.push_and_pull(me, g, (pulled, me.progress.loss, me.latest.start, me.latest.stop))
            else:
                me.descend(g)

    async def push_and_pull(self, me: Learner, g: Tensor, header: Sequence[float]) -> float:
        me.group.post(g, 0, "gradient", header)
        w, _, (updates,) = await me.group.recv(0, "model")
        if len(w) == 0:  # the server's weights are not finite: it needs this learner's
            if not is_finite(me.weights.snapshot()):
                raise FloatingPointError(
                    "neither the server's weights nor this learner's are finite: training diverged"
                )
            return await self.push_and_pull(me, me.weights.snapshot(), ())
        me.weights.set_(w)
        return updates

    async def serve(self, me: Learner) -> None:
        updates = 0
        async for g, who, header in me.messages("gradient"):
            if header:
                pulled, loss, start, stop = header
                me.credit(range(int(start), int(stop)), loss)
                me.descend(g.mul_(self.damping(updates - int(pulled))), staleness=updates - int(pulled))
                updates += 1
            elif len(g) and not is_finite(me.weights.snapshot()):
                me.weights.set_(g)
            w = me.weights.snapshot()
            me.group.post(w if is_finite(w) else w[:0], who, "model", (updates,))

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return 2.0 if learners > 1 else 0.0

    def planned(self, planner: Planner) -> Any:
        return planner.served()
