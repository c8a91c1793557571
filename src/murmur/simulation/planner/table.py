"""Ranked table of strategies on a cluster: hours, speed-up, efficiency, bottleneck, memory, cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from murmur.core.facts import learners_for, training_learners
from murmur.simulation.planner.forms import form_of
from murmur.simulation.planner.setting import ClusterSetting, Form, seconds_alone
from murmur.simulation.planner.work import Work
from murmur.worlds.virtual.cluster import Cluster

SCALE = tuple(2**n for n in range(11))  # 1 .. 1024 learners


@dataclass(frozen=True)
class PlanRow:
    """One strategy on one cluster.

    Attributes:
        strategy: Text of the strategy.
        learners: Number of learners.
        hours: Hours of one epoch.
        speed_up: Speed-up over the fastest learner of the cluster alone, by its mean seconds of a minibatch.
        efficiency: Speed-up per learner.
        memory_bytes: Bytes of a learner's vectors and optimizer, without activations.
        cost: Cost of one epoch in the unit of the price; nan without a price.
        form: Seconds per minibatch, bottleneck, formula.
        training: Number of learners that take gradients.
    """

    strategy: str
    learners: int
    hours: float
    speed_up: float
    efficiency: float
    memory_bytes: float
    cost: float
    form: Form
    training: int


def row_of(strategy: Any, cluster: Cluster, work: Work, price: float = math.nan) -> PlanRow:
    """Return the row of a strategy on a cluster; `price` is that of a device hour.

    Raises:
        ValueError: the strategy has no closed form, or the size of the cluster's messages is not that of the model.
    """
    if cluster.message_bytes != work.model_bytes:
        raise ValueError(f"Cluster.message_bytes={cluster.message_bytes} is not Work.model_bytes={work.model_bytes}")
    setting = ClusterSetting.of(cluster, work.frames_per_minibatch)
    form = form_of(strategy, setting)
    hours = form.seconds * work.minibatches / 3600
    speed_up = seconds_alone(setting.times) / form.seconds
    return PlanRow(
        strategy=shown(strategy),
        learners=cluster.learners,
        hours=hours,
        speed_up=speed_up,
        efficiency=speed_up / cluster.learners,
        memory_bytes=form.vectors * work.model_bytes + work.optimizer_bytes,
        cost=hours * cluster.learners * price,
        form=form,
        training=training_learners(strategy, cluster.learners),
    )


def shown(strategy: Any) -> str:
    """Return a strategy as written on the command line, with functions by name, without choices at their default."""
    parts = []
    for name, default in ((f.name, f.default) for f in fields(strategy)) if is_dataclass(strategy) else ():
        value = getattr(strategy, name)
        if isinstance(value, str) and value == default:
            continue
        inner = shown(value) if hasattr(value, "__dataclass_fields__") else getattr(value, "__name__", repr(value))
        parts.append(f"{name}={inner}")
    return f"{type(strategy).__name__}({', '.join(parts)})"


def ranked(strategies: Sequence[Any], cluster: Cluster, work: Work, price: float = math.nan) -> list[PlanRow]:
    """Return the rows of all strategies, the fewest hours first."""
    return sorted((row_of(s, cluster, work, price) for s in strategies), key=lambda row: row.hours)


def scaled(
    strategy: Any, cluster_of: Callable[[int], Cluster], work_of: Callable[[int], Work], learners: Sequence[int] = SCALE
) -> list[PlanRow]:
    """Return the rows of one strategy for several numbers of learners, without numbers that it does not support."""
    width, serving = getattr(strategy, "node_size", 1), learners_for(strategy, 2) - 2  # one learner needs no server
    counts = [count for count in learners if count % width == 0 and (count == 1 or count > serving)]
    return [row_of(strategy, cluster_of(count), work_of(count)) for count in counts]
