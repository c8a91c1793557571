"""Minibatches assigned beforehand against minibatches claimed, under a straggler: ADPSGD on the virtual cluster.

Sixteen learners of 0.1 s per gradient (log-normal, sigma 0.2), one of which is slower; 1,600 minibatches of a toy task.
Real gradients, modelled seconds. The figure goes to results/shares.svg.

    python benchmarks/shares.py
"""

from __future__ import annotations

from pathlib import Path

import torch

from measure import bar, close
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.scaling import Fixed
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, OwnShares
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.cluster import Cluster, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld

KIND = "bar"
NAME = "shares"
LEARNERS, SECONDS, MINIBATCHES = 16, 0.1, 1600
SLOWNESS = (1.0, 2.0, 4.0, 10.0, 30.0)
SIDES: dict[str, Strategy] = {"dealt out": OwnShares(ADPSGD()), "claimed": ADPSGD()}


def run(strategy: Strategy, slowness: float) -> tuple[float, int, float]:
    """Virtual seconds, the straggler's steps, held-out loss."""
    steps = [0] * LEARNERS

    def note(record: Record) -> None:
        steps[record.learner] += record.kind == "step"

    cluster = Cluster(
        LEARNERS, LognormalSeconds(SECONDS, 0.2, seed=1, factors={5: slowness}), Link(), message_bytes=8e6
    )
    world = VirtualWorld(cluster)
    task = ToyTask(samples=16, hidden=32)
    experiment = Experiment(
        task, strategy, Budget(minibatches=MINIBATCHES), SGD(0.1), evaluate_every_epochs=100.0, scaling=Fixed()
    )
    outcome = Trainer(experiment, world, observers=lambda _: (note,)).fit()
    return world.clock.now, steps[5], outcome.figures["loss"]


def draw(found: dict[str, list[tuple[float, int, float]]], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("svg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(5, 3.4), layout="constrained")
    for name, rows in found.items():
        axes.plot(SLOWNESS, [seconds for seconds, _, _ in rows], marker="o", label=name)
    best = [MINIBATCHES / ((LEARNERS - 1 + 1 / s) / SECONDS) for s in SLOWNESS]
    axes.plot(SLOWNESS, best, color="grey", linestyle=":", label="all learners always busy")
    axes.set(xscale="log", yscale="log", xlabel="one of 16 learners is so many times slower", ylabel="virtual seconds")
    axes.set_xticks(SLOWNESS, [f"{s:g}" for s in SLOWNESS])
    axes.minorticks_off()
    axes.set_yticks([10, 30, 100, 300], ["10", "30", "100", "300"])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    figure.savefig(path.with_suffix(".png"), dpi=80)
    pyplot.close(figure)


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, int, float]]] = {name: [] for name in SIDES}
    for slowness in SLOWNESS:
        for name, strategy in SIDES.items():
            found[name].append(run(strategy, slowness))
            seconds, steps, loss = found[name][-1]
            print(
                f"{slowness:4g}x  {name:10s} {seconds:8.2f} s, straggler's steps {steps:4d}, loss {loss:.4f}",
                flush=True,
            )
    draw(found, Path(__file__).parents[1] / "results" / f"{NAME}.svg")
    slow = SLOWNESS.index(10.0)
    ratio = found["dealt out"][slow][0] / found["claimed"][slow][0]
    figures = {"slowness": SLOWNESS, "seconds_steps_loss": found, "ratio_at_10": ratio}
    busy = MINIBATCHES / ((LEARNERS - 0.9) / SECONDS)
    # A straggler may begin its last gradient when everything else is done, and no other learner can take that one over.
    bound = found["claimed"][slow][0] / (busy + 10 * SECONDS)
    close(NAME, figures, [bar("claimed / (all always busy + one gradient of the straggler), at 10x", bound, 1.1)])


if __name__ == "__main__":
    main()
