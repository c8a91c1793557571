"""K-step averaging: K local steps, then all learners continue from the mean.

    K times   w_i <- w_i - alpha g_i(w_i),
    then      w_i <- sum_j n_j w_j / sum_j n_j     (n_j: samples that learner j used in this round)

Zhou & Cong 2018 (arXiv 1708.01012), Cong et al. 2017. K = 1 with plain SGD is synchronous SGD. Moments of the
optimizer stay local, or are averaged too (`block_moments`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from murmur.core.learner import Learner
from murmur.strategies.block_moments import BlockMoments, Blocks, MeanMoments, check


@dataclass(frozen=True)
class KAVG(Blocks):
    """Averaging of the models every K steps.

    Attributes:
        K: Steps of each learner between two averages.
        moments: "local": each learner keeps the moments of its optimizer; "averaged": they are averaged as the models.
    """

    bitwise_alone: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = False
    in_memory: ClassVar[int] = 4
    K: int = 8
    moments: MeanMoments = "local"

    def __post_init__(self) -> None:
        if self.K < 1:
            raise ValueError(f"KAVG needs K >= 1, got {self.K}")
        check(self.moments, ("local", "averaged"))

    async def __call__(self, me: Learner) -> None:
        moments = BlockMoments(me, self.moments, self.K)
        while me.training:
            async for g in me.gradients(at_most=self.K):
                me.descend(g)
            me.weights.set_(await moments.mean())
