"""A strategy of your own, first on sixteen simulated learners, then on processes.

    python examples/new_strategy.py                                        simulated, on a modelled cluster
    murmur train examples/new_strategy.py --learners 2 --out runs/elastic  the same text on two processes

Elastic averaging (Zhang, Choromanska & LeCun 2015, arXiv 1412.6651): every K steps each learner is drawn towards a
centre z, and z towards the mean of all; learners may explore between. Written from the equations, it is 15 lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from murmur.core.learner import Learner
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.trainer import Trainer
from murmur.strategies import KAVG
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld


@dataclass(frozen=True)
class Elastic:
    """w_i <- w_i - a (w_i - z);   z <- z + b (mean_j w_j - z)."""

    K: int = 8
    a: float = 0.3
    b: float = 0.9

    async def __call__(self, me: Learner) -> None:
        z = me.weights.snapshot()
        while me.training:
            async for g in me.gradients(at_most=self.K):
                me.descend(g)
            w = me.weights.snapshot()
            mean = await me.group.mean(w, weight=me.fresh_samples)
            me.weights.add_(self.a * (z - w))
            z += self.b * (mean - z)
        me.weights.set_(z)


def experiment() -> Experiment:
    """The experiment for `murmur train`."""
    return Experiment(ToyTask(samples=16, per_epoch=400), Elastic(), Budget(epochs=4), SGD(0.1))


def simulate(learners: int = 16) -> Sequence[tuple[str, float, float]]:
    """Strategy, held-out loss and modelled seconds of a few strategies on a cluster of unequal learners."""
    rows = []
    for strategy in (KAVG(8), Elastic()):
        seen: list[Record] = []
        world = VirtualWorld(Cluster(learners=learners, compute=LognormalSeconds(sigma=0.3)))
        run = replace(experiment(), strategy=strategy)
        outcome = Trainer(run, world, observers=lambda _, see=seen.append: (see,)).fit()  # type: ignore[misc]
        rows.append((type(strategy).__name__, outcome.figures["loss"], max(record.seconds for record in seen)))
    return rows


if __name__ == "__main__":
    for name, loss, seconds in simulate():
        print(f"{name:8} held-out loss {loss:.4f} after {seconds:.1f} modelled seconds")
