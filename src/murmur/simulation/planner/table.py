"""Which strategy on which cluster: hours, speed-up, efficiency, what binds, memory, cost; ranked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from murmur.simulation.planner.forms import ClusterSetting, Form, form_of
from murmur.simulation.planner.work import Work
from murmur.worlds.virtual.cluster import Cluster

SCALE = tuple(2**n for n in range(11))  # 1 .. 1024 learners


@dataclass(frozen=True)
class PlanRow:
    """One strategy on one cluster.

    Attributes:
        strategy: its repr.
        learners: how many.
        hours: of one epoch.
        speed_up: over one learner of the cluster without jitter's waiting: its own mean time a minibatch.
        efficiency: speed-up a learner.
        memory_bytes: of a learner's vectors and optimizer, without activations.
        cost: of one epoch, in the unit of the price; nan without a price.
        form: seconds a minibatch, what binds, the formula.
    """

    strategy: str
    learners: int
    hours: float
    speed_up: float
    efficiency: float
    memory_bytes: float
    cost: float
    form: Form


def row_of(strategy: Any, cluster: Cluster, work: Work, price: float = math.nan) -> PlanRow:
    """The row of a strategy on a cluster. `price`: of a device hour.

    Raises:
        ValueError: the strategy has no closed form, or the cluster's message is not as large as the model.
    """
    if cluster.message_bytes != work.model_bytes:
        raise ValueError(f"Cluster.message_bytes={cluster.message_bytes} is not Work.model_bytes={work.model_bytes}")
    setting = ClusterSetting.of(cluster)
    form = form_of(strategy, setting)
    alone = float(np.median(setting.times.mean(0)))
    hours = form.seconds * work.minibatches / 3600
    speed_up = alone / form.seconds
    return PlanRow(
        strategy=shown(strategy),
        learners=cluster.learners,
        hours=hours,
        speed_up=speed_up,
        efficiency=speed_up / cluster.learners,
        memory_bytes=form.vectors * work.model_bytes + work.optimizer_bytes,
        cost=hours * cluster.learners * price,
        form=form,
    )


def shown(strategy: Any) -> str:
    """A strategy as it is written on the command line, functions by their names."""
    parts = []
    for name in (f.name for f in fields(strategy)) if is_dataclass(strategy) else ():
        value = getattr(strategy, name)
        inner = shown(value) if hasattr(value, "__dataclass_fields__") else getattr(value, "__name__", repr(value))
        parts.append(f"{name}={inner}")
    return f"{type(strategy).__name__}({', '.join(parts)})"


def ranked(strategies: Sequence[Any], cluster: Cluster, work: Work, price: float = math.nan) -> list[PlanRow]:
    """The rows of all strategies, the fewest hours first."""
    return sorted((row_of(s, cluster, work, price) for s in strategies), key=lambda row: row.hours)


def scaled(
    strategy: Any, cluster_of: Callable[[int], Cluster], work: Work, learners: Sequence[int] = SCALE
) -> list[PlanRow]:
    """The rows of one strategy over numbers of learners; those that the strategy cannot have are left out."""
    width = getattr(strategy, "node_size", 1)
    return [row_of(strategy, cluster_of(count), work) for count in learners if count % width == 0]
