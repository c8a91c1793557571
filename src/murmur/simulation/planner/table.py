"""Ranked table of strategies on a cluster: hours, speed-up, efficiency, bottleneck, memory, cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from murmur.core.facts import Form, learners_for, training_learners
from murmur.engine.experiment import Published
from murmur.engine.record import duration
from murmur.report.terminal_table import TerminalTable
from murmur.simulation.planner.forms import form_of
from murmur.simulation.planner.measured import loss_penalty
from murmur.simulation.planner.setting import ClusterSetting, Work, seconds_alone
from murmur.worlds.virtual.cluster import Cluster

SMALL_SECONDS = 10.0  # with decimals below
SCALE = tuple(2**n for n in range(11))  # 1 .. 1024 learners


@dataclass(frozen=True)
class PlanRow:
    """One strategy on one cluster.

    Attributes:
        speed_up: Speed-up over the fastest learner of the cluster alone, by its mean seconds of a minibatch.
        memory_bytes: Bytes of a learner's vectors and optimizer, without activations.
        cost: Cost of one epoch in the unit of the price; nan without a price.
        loss: Measured loss over that of one learner, in words.
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
    loss: str


def row_of(strategy: Any, cluster: Cluster, work: Work, price: float = math.nan) -> PlanRow:
    """Return the row of a strategy on a cluster; `price` is that of a device hour."""
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
        loss=loss_penalty(shown(strategy), cluster.learners),
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
    return sorted((row_of(s, cluster, work, price) for s in strategies), key=lambda row: row.hours)


def scaled(
    strategy: Any, cluster_of: Callable[[int], Cluster], work_of: Callable[[int], Work], learners: Sequence[int] = SCALE
) -> list[PlanRow]:
    """Return the rows of one strategy for several numbers of learners, without numbers that it does not support."""
    width, serving = getattr(strategy, "node_size", 1), learners_for(strategy, 2) - 2  # one learner needs no server
    counts = [count for count in learners if count % width == 0 and (count == 1 or count > serving)]
    return [row_of(strategy, cluster_of(count), work_of(count)) for count in counts]


def readable(seconds: float) -> str:
    """Return seconds as text, such as 0.4 s, 1 min 03 s, 3 h 20 min."""
    return duration(seconds) if seconds >= SMALL_SECONDS else f"{seconds:.2g} s"


def plan_table(rows: Sequence[PlanRow], title: str) -> TerminalTable:
    several = len({row.learners for row in rows}) > 1
    numbers = ("time", "loss", "speed-up", "efficiency", "train", "binds", "rounds", "memory, MB", "cost")
    table = TerminalTable(("strategy", *(("learners",) if several else ()), *numbers), title, keys=2 if several else 1)
    for row in rows:
        table.add_row(
            row.strategy,
            *((str(row.learners),) if several else ()),
            readable(3600 * row.hours),
            row.loss,
            f"{row.speed_up:.2f}",
            f"{row.efficiency:.0%}",
            str(row.training),
            row.form.binds,
            "" if row.form.rounds is None else f"{row.form.rounds:.2f}",
            f"{row.memory_bytes / 1e6:.1f}",
            f"{row.cost:.2f}",
        )
    return table


AGREEMENT = 1.25  # factor within which a prediction agrees with a published figure


@dataclass(frozen=True)
class Prediction:
    """Predicted figures of the whole training of an experiment."""

    strategy: str
    learners: int
    hours: float
    speed_up: float


def agrees(predicted: float, published: float) -> bool:
    return 1 / AGREEMENT <= predicted / published <= AGREEMENT


def compared(published: Published, predictions: list[Prediction]) -> list[str]:
    """Lines with the predicted and the published figures for each prediction's number of learners, and the note."""
    lines = []
    for each in predictions:
        told = f"{each.strategy}, {each.learners} learners: predicted {each.hours:.3g} h, {each.speed_up:.3g}x"
        found = [
            f"published {value:g}{unit}, the prediction is {figure / value:.2f} of it: "
            + ("agrees" if agrees(figure, value) else "differs")
            for figure, value, unit in (
                (each.hours, published.hours.get(each.learners), " h"),
                (each.speed_up, published.speed_ups.get(each.learners), "x"),
            )
            if value is not None
        ]
        lines.append("; ".join([told, *(found or ["no published hours or speed-up for this number of learners"])]))
    return [*lines, f"{published.paper}: {published.note} (agreement: within a factor of {AGREEMENT:g})"]


def draw_scaling(curves: Mapping[str, Sequence[PlanRow]], path: Path, title: str) -> None:
    """Write a picture of the speed-up of several strategies; the suffix of `path` sets its format."""
    import matplotlib.figure  # noqa: PLC0415 - an optional dependency

    figure = matplotlib.figure.Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, rows in curves.items():
        axes.plot([row.learners for row in rows], [row.speed_up for row in rows], marker="o", markersize=3, label=name)
    most = max((row.learners for rows in curves.values() for row in rows), default=1)
    axes.plot([1, most], [1, most], color="gray", linewidth=0.8, linestyle=":", label="ideal")
    axes.set(xscale="log", yscale="log", xlabel="learners", ylabel="speed-up over one learner", title=title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
