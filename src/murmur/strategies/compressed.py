"""Any strategy with compressed vectors: bfloat16 and float16 take half the bytes, int8 a quarter.

    mean_i x_i        ->  mean_i D(x_i + e_i),       e_i <- x_i + e_i - D(x_i + e_i)
    w_i + T (x_j - x_i)  ->  w_i + T (D(x_j) - D(x_i))

D(x) is x as it arrives; see `murmur.core.compression`. Evaluation, checkpoints and the first and last exchange of a run
keep full precision, but a mean that trained the models has been through the compression. At one learner nothing is
rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from murmur.core.compression import COMPRESSIONS, CompressedGroup
from murmur.core.facts import FactsOfInner, check_only_layer, vectors_of
from murmur.core.learner import Learner, Strategy
from murmur.strategies.kavg import KAVG


@dataclass(frozen=True)
class Compressed(FactsOfInner):
    """`strategy` over a group with vectors in `compression`: float32, bfloat16, float16 or int8."""

    strategy: Strategy = field(default_factory=KAVG)
    compression: str = "bfloat16"

    def __post_init__(self) -> None:
        check_only_layer(self)
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"there is no compression {self.compression!r}; there are {', '.join(COMPRESSIONS)}")

    async def __call__(self, me: Learner) -> None:
        me.group = CompressedGroup(me.group, COMPRESSIONS[self.compression], me.outer)
        await self.strategy(me)
        me.group = me.group.plain  # the group of leaders, if the strategy has formed super-learners

    @property
    def inner(self) -> Strategy:
        return self.strategy

    def vectors_sent(self, learners: int, samples: float) -> float:
        return vectors_of(self.strategy, learners, samples)
