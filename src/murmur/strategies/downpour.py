"""Downpour SGD: a parameter server that absorbs the steps of learners which train at their own copies.

    learner:   w_i <- w_i + s_i                   s_i: a step of its local optimizer (plain SGD: - alpha g_i)
    push:      c <- c + u_i                       u_i: the learner's steps since its latest push
    pull:      w_i <- c + (steps that it has not pushed)

With push = pull = 1 this is ASGD with steps in place of gradients, and with answers that land a gradient later. The
server is cut into shards (`parameter_shards`), which learners serve beside their gradients or on ranks of their own;
pushes and pulls run beside the gradients too. Dean et al. 2012, Large scale distributed deep networks, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from murmur.core.learner import Learner
from murmur.strategies.parameter_shards import ParameterShards, Sharded, ShardRule, check_counts

BASE = "base"


class Pushed(ShardRule):
    """Sums of steps that are added to the centre.

    `base` is the centre at this learner's latest pull, plus what it has pushed since: w_i - base is not pushed yet.
    """

    def __init__(self, me: Learner) -> None:
        self._me = me
        self._asked: Tensor | None = None  # `base` when the latest exchange began

    def begin(self) -> None:
        if BASE not in self._me.outer:
            self._me.outer[BASE] = self._me.weights.snapshot()

    def absorb(self, centre: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return (new := centre + x), new

    def give(self) -> Tensor:
        self.begin()
        return self._me.weights.snapshot() - self._me.outer[BASE]

    def gave(self, x: Tensor) -> None:
        self._me.outer[BASE] = self._me.outer[BASE] + x  # what a compression has lost is pushed later

    def ask(self) -> None:
        self._asked = self._me.outer[BASE]

    def restart_at(self, centre: Tensor) -> None:
        self._me.outer[BASE] = centre.clone()

    def land(self, answer: Tensor) -> None:
        assert self._asked is not None
        change = answer - self._asked
        self._me.weights.add_(change)
        self._me.outer[BASE] = self._me.outer[BASE] + change


@dataclass(frozen=True)
class Downpour(Sharded):
    """Steps of `push` gradients go to the server, whose weights come back every `pull` gradients.

    Attributes:
        push, pull: Gradients between two pushes, and between two pulls.
        shards, servers: Placement of the server, as in `Sharded`.

    Raises:
        ValueError: A number is too small, or both `shards` and `servers` are given; at the start of a run, that all
            learners would serve.
        PeerLost: A learner with a shard is lost; training goes on without another one.
    """

    adds_steps: ClassVar[bool] = True
    push: int = 1
    pull: int = 1
    shards: int = 1
    servers: int = 0

    def __post_init__(self) -> None:
        check_counts(push=self.push, pull=self.pull)
        self.check_placement()

    async def learn(self, me: Learner) -> None:
        rule = Pushed(me)
        shards = ParameterShards(me, self.shards, self.servers, rule)
        if shards.serves_only:
            await shards.serve()
            return
        pushed = pulled = 0  # gradients since then
        async for g in me.claimed_gradients():
            shards.tell()
            rule.begin()
            me.descend(g)
            pushed, pulled = pushed + 1, pulled + 1
            give, take = pushed >= self.push, pulled >= self.pull
            if (give or take) and shards.exchange(give, take):
                pushed, pulled = 0 if give else pushed, 0 if take else pulled
        await shards.end()

    @property
    def exchanges(self) -> float:
        return (1 / self.push + 1 / self.pull) / 2
