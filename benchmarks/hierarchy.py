"""Super-learners against flat rings on a virtual cluster: 16 nodes of 8 V100 on 100 Gb/s Ethernet, 165 MB, 0.07 s.

Seconds that all 128 learners take for one minibatch each, in the long run: the difference of two runs of unequal
length, so that start and end cancel. No gradient of a flat ring waits for its averaging, which then has fewer rounds;
the seconds *with one round a gradient* are those divided by the rounds that the network carries
(`murmur.simulation.planner.rounds`).

    python benchmarks/hierarchy.py
"""

from __future__ import annotations

from typing import Any

from measure import bar, close
from murmur.core.mixing import randomized_ring, ring
from murmur.simulation.planner.forms import form_of
from murmur.simulation.planner.setting import ClusterSetting
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies import ADPSGD, SuperLearners
from murmur.worlds.virtual.cluster import Cluster, ComputeTime, ConstantSeconds, LognormalSeconds
from murmur.worlds.virtual.presets import preset

KIND = "bar"
LEARNERS, NODE_SIZE, BYTES, SECONDS, JITTER = 128, 8, 165e6, 0.07, 0.1
SHORT, LONG = 40, 140  # minibatches of a learner
COMPUTE: dict[str, ComputeTime] = {
    "no jitter": ConstantSeconds(SECONDS),
    "10 % jitter": LognormalSeconds(SECONDS, JITTER),
}
STRATEGIES = {
    "flat ring": ADPSGD(ring),
    "flat randomised ring": ADPSGD(randomized_ring),
    "super-learners, ring": SuperLearners(ADPSGD(ring), NODE_SIZE),
    "super-learners, randomised ring": SuperLearners(ADPSGD(randomized_ring), NODE_SIZE),
}


def measured(strategy: Any, cluster: Cluster) -> dict[str, float]:
    """Simulated and planned seconds of a minibatch of every learner, rounds a gradient, seconds with one round."""
    short, long = (time_strategy(strategy, cluster, LEARNERS * count).seconds for count in (SHORT, LONG))
    form = form_of(strategy, ClusterSetting.of(cluster))
    simulated = (long - short) / (LONG - SHORT)
    rounds = float(form.rounds or 1.0)
    one_round = simulated / min(1.0, rounds)
    return {"simulated": simulated, "planned": form.seconds * LEARNERS, "rounds": rounds, "one round": one_round}


def main() -> None:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for what, compute in COMPUTE.items():
        cluster = preset("v100-ethernet").cluster(LEARNERS, compute, BYTES)
        found[what] = {name: measured(strategy, cluster) for name, strategy in STRATEGIES.items()}
        for name, figures in found[what].items():
            print(f"{what}, {name}: " + "  ".join(f"{k} {v:.4g}" for k, v in figures.items()), flush=True)
    equal, jitter = found["no jitter"], found["10 % jitter"]
    bars = [
        bar(
            "no jitter, one round a gradient: seconds of super-learners on a ring / a flat ring",
            equal["super-learners, ring"]["one round"] / equal["flat ring"]["one round"],
            1.0,
        ),
        bar(
            "no jitter, one round a gradient, the cards bind (randomised rings): seconds flat / super-learners",
            equal["flat randomised ring"]["one round"] / equal["super-learners, randomised ring"]["one round"],
            1.2,
            at_most=False,
        ),
        bar(
            "10 % jitter: seconds of super-learners / a flat ring that averages as seldom as its cards allow",
            jitter["super-learners, randomised ring"]["simulated"] / jitter["flat randomised ring"]["simulated"],
            1.16,
        ),
    ]
    close("hierarchy", {"seconds": found}, bars)


if __name__ == "__main__":
    main()
