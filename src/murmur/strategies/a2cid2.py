"""A2CiD2: asynchronous averaging with a continuous momentum, which spreads weights faster over sparse graphs.

    between events    (w_i, z_i)  <-  exp(dt eta [[-1, 1], [1, -1]]) (w_i, z_i)         dt: elapsed time in gradients
    gradient          w_i <- w_i + s_i,                z_i <- z_i + s_i                 s_i: the local optimizer's step
    exchange with j   w_i <- w_i + T_ij (x_j - x_i),   z_i <- z_i + (alpha~ / alpha) T_ij (x_j - x_i)

    eta = 1 / (2 sqrt(chi_1 chi_2)),   alpha = 1/2,   alpha~ = 1/2 sqrt(chi_1 / chi_2)

x: snapshots of w that both ends exchange (`core/pairwise.py`). Lambda = sum_ij lambda_ij (e_i - e_j)(e_i - e_j)' is the
Laplacian of the graph, lambda_ij the exchanges of an edge per gradient. chi_1 is the inverse of its second smallest
eigenvalue, chi_2 half the largest effective resistance (e_i - e_j)' Lambda^+ (e_i - e_j) of an edge. Nabli, Belilovsky
and Oyallon 2023 (arXiv 2306.08289); the dynamic, eta, alpha~ and chi are those of the paper and of the authors' code.

In the paper an exchange is one of pairs with T_ij = 1/2, as with `mixing=pairwise`. Here any mixing is taken in the
mean, Lambda = 2 mean_k (I - T_k), and eta is multiplied by the exchanges that a learner completes over those of its
rounds: without this factor, which is 1 where exchanges are faster than gradients, slow links made the weights diverge.
`pairwise` needs exchanges that take less than a gradient, because two at a time with T_ij = 1/2 are not stable.

Both ends of an exchange add opposite terms to w and to z, and the mixing keeps w_i + z_i. The mean of (w_i + z_i) / 2
therefore moves by steps alone. It is the consensus that is evaluated, and the model at the end. With eta = 0 it is
ADPSGD.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from murmur.core.facts import Form, Planner, mixing_vectors
from murmur.core.learner import Learner
from murmur.core.mixing import Mixing, matrix, ring

Z = "z"  # name of the second vector among the vectors of a checkpoint
ROUNDS = 100  # of a mixing, over which its Laplacian is a mean
MEMORY = 16  # rounds of the running means of exchanges
FEWEST = 1e-9  # exchanges of a round without neighbours, so that a mixing without any gives a finite quotient
CONNECTED = 1e-9  # smallest second eigenvalue of the Laplacian of a connected graph, up to rounding


@lru_cache(maxsize=64)  # all learners of a process ask for the same graph
def graph_constants(mixing: Mixing, learners: int) -> tuple[float, float]:
    """Return chi_1 and chi_2 of a mixing's graph; both infinite if it is not connected or has a single learner."""
    identity = torch.eye(learners, dtype=torch.float64)
    view = range(learners)
    laplacian = sum((identity - matrix(mixing, k, view) for k in range(ROUNDS)), 0 * identity) * 2 / ROUNDS
    eigenvalues = torch.linalg.eigvalsh(laplacian)
    if learners == 1 or eigenvalues[1] < CONNECTED:
        return math.inf, math.inf
    inverse = torch.linalg.pinv(laplacian, hermitian=True)
    own = inverse.diagonal()
    resistances = own[:, None] + own - 2 * inverse
    return float(1 / eigenvalues[1]), float(resistances[laplacian < -CONNECTED].max() / 2)


class CoupledWeights:
    """A learner's weights w and their companion z. Pairwise averaging reads w and changes both.

    Every change first brings both vectors to the present moment. The vectors of `Learner.outer` are replaced, never
    changed in place, so that a checkpoint may hold them while training goes on.

    Args:
        me: The learner.
        eta: Rate of mixing; None: that of the graph.
    """

    def __init__(self, me: Learner, eta: float | None) -> None:
        self._me, self._given = me, eta
        self._eta, self._ratio = 0.0, 1.0
        self._since = me.seat.now
        self._latest: tuple[int, int] | None = None  # exchanges completed, and neighbours, when the latest round began
        self._carried = self._due = 1.0  # running means over rounds: exchanges completed, and exchanges of the mixing
        me.outer.setdefault(Z, me.weights.snapshot())

    def begin_round(self, neighbours: int) -> None:
        """Count the exchanges since the latest round; the round that begins has a number of neighbours."""
        exchanges = self._me.averager.exchanges
        if self._latest is not None:
            before, due = self._latest
            self._carried += (exchanges - before - self._carried) / MEMORY
            self._due += (max(due, FEWEST) - self._due) / MEMORY
        self._latest = exchanges, neighbours

    def follow(self, mixing: Mixing, learners: int) -> None:
        """Take the constants of the graph of a number of live learners."""
        chi_1, chi_2 = graph_constants(mixing, learners)
        with self._me.outer.steady:
            self._mix()
            of_graph = 0.5 / math.sqrt(chi_1 * chi_2) * self._carried / self._due
            self._eta = of_graph if self._given is None else self._given
            self._ratio = math.sqrt(chi_1 / chi_2) if math.isfinite(chi_1) else 1.0

    def _mix(self) -> None:
        """Mix w and z for the time since the latest change."""
        me, now = self._me, self._me.seat.now
        pace = me.averager.pace_seconds
        elapsed, self._since = (now - self._since) / pace if pace > 0 else 0.0, now
        share = -math.expm1(-2 * self._eta * elapsed) / 2
        if share > 0:
            moved = share * (me.outer[Z] - me.weights.snapshot())
            me.weights.add_(moved)
            me.outer[Z] = me.outer[Z] - moved

    def descend(self, g: Tensor) -> None:
        with self._me.outer.steady:
            self._mix()
            before = self._me.weights.snapshot()
            self._me.descend(g)
            self._me.outer[Z] = self._me.outer[Z] + (self._me.weights.snapshot() - before)

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        with self._me.outer.steady:
            self._mix()
            return self._me.weights.snapshot(out)

    def pull_(self, theirs: Tensor, mine: Tensor, alpha: float) -> None:
        delta = theirs - mine
        with self._me.outer.steady:
            self._mix()
            self._me.weights.add_(delta, alpha)
            self._me.outer[Z] = self._me.outer[Z].add(delta, alpha=alpha * self._ratio)

    def set_(self, w: Tensor) -> None:
        with self._me.outer.steady:
            self._me.weights.set_(w)
            self._me.outer[Z] = w.clone()

    def middle(self) -> Tensor:
        """Return (w + z) / 2, which only steps and exchanges change, shape (P,); w where the two never mix."""
        with self._me.outer.steady:
            w = self._me.weights.snapshot()
            return w if self._eta == 0 else w + (self._me.outer[Z] - w) / 2


@dataclass(frozen=True)
class A2CiD2:
    """Asynchronous averaging with neighbours and a continuous momentum.

    Attributes:
        mixing: Neighbours and weights of a round, as in `ADPSGD`; its graph is that of all rounds together.
        eta: Rate per gradient at which w and z mix; None: that of the mixing's graph; 0: `ADPSGD`.

    Raises:
        ValueError: `eta` is negative or not finite.
    """

    lock_step: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True
    accepts_new_learners: ClassVar[bool] = True
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    mixing: Mixing = ring
    eta: float | None = None

    def __post_init__(self) -> None:
        if self.eta is not None and not 0 <= self.eta < math.inf:
            raise ValueError(f"A2CiD2 needs 0 <= eta < infinity, got {self}")

    async def __call__(self, me: Learner) -> None:
        coupled = CoupledWeights(me, self.eta)
        coupled.follow(self.mixing, len(me.view))
        me.averager.exchanged, me.averager.shown = coupled, coupled.middle
        averaging = me.spawn(self.average(me, coupled), "averaging")
        async for g in me.claimed_gradients():
            coupled.descend(g)
        await averaging
        me.weights.set_(coupled.middle())
        coupled.set_(await me.consensus())

    async def average(self, me: Learner, coupled: CoupledWeights) -> None:
        async for k in me.rounds():
            view = me.view
            row = self.mixing(k, view, me.group.rank)
            coupled.begin_round(len(row) - 1)
            coupled.follow(self.mixing, len(view))
            me.gossip(row)

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return mixing_vectors(self.mixing, learners)  # for equally fast learners

    def planned(self, planner: Planner) -> Form:
        return planner.pairwise(self.mixing, more_vectors=1)
