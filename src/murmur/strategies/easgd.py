"""Elastic averaging SGD, asynchronous: learners and a centre pull each other together.

    learner:   w_i <- w_i + s_i                   s_i: a step of its local optimizer (plain SGD: - alpha g_i)
    exchange:  d = rho (x - c);   c <- c + d;   w_i <- w_i - d        after every K steps, x: the weights given

rho is the moving rate. Both ends add opposite terms, so that c + sum_i w_i changes by steps alone, whatever the delays.
The centre is the model. It is cut into shards (`parameter_shards`), which learners serve beside their gradients or on
ranks of their own; exchanges run beside the gradients too. Zhang, Choromanska and LeCun 2015 (arXiv 1412.6651),
algorithm 1, where rho = beta / L with beta = 0.9 and L learners that train; with Nesterov momentum in the local
optimizer it is their EAMSGD.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from murmur.core.learner import Learner
from murmur.strategies.parameter_shards import ParameterShards, Sharded, ShardRule, check_counts

BETA = 0.9


class Elastic(ShardRule):
    """Elastic differences at a moving rate."""

    def __init__(self, me: Learner, rate: float) -> None:
        self._me, self._rate = me, rate
        self._given = me.weights.snapshot()

    def absorb(self, centre: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        told = self._me.group.as_sent(centre)  # both ends must use the same difference
        return centre + self._rate * (x - told), told

    def give(self) -> Tensor:
        return self._me.weights.snapshot()

    def gave(self, x: Tensor) -> None:
        self._given = x

    def land(self, answer: Tensor) -> None:
        self._me.weights.add_(self._given - answer, alpha=-self._rate)


@dataclass(frozen=True)
class EASGD(Sharded):
    """Elastic averaging with a centre.

    Attributes:
        K: Gradients between two exchanges.
        rate: Moving rate rho; None: 0.9 / L.
        shards, servers: Placement of the centre, as in `Sharded`.

    Raises:
        ValueError: `rate` is not in (0, 1], or a number is wrong as in `Downpour`.
        PeerLost: A learner with a shard is lost; training goes on without another one.
    """

    K: int = 4
    rate: float | None = None
    shards: int = 1
    servers: int = 0

    def __post_init__(self) -> None:
        check_counts(K=self.K)
        self.check_placement()
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ValueError(f"rate must be in (0, 1], got {self.rate}")

    async def learn(self, me: Learner) -> None:
        rate = self.rate or BETA / self.training_learners(me.group.size)
        shards = ParameterShards(me, self.shards, self.servers, Elastic(me, rate))
        if shards.serves_only:
            await shards.serve()
            return
        taken = 0
        async for g in me.claimed_gradients():
            shards.tell()
            me.descend(g)
            taken += 1
            if taken >= self.K and shards.exchange():
                taken = 0
        await shards.end()

    @property
    def exchanges(self) -> float:
        return 1 / self.K
