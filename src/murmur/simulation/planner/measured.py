"""Held-out losses of strategies over that of one learner at equal samples, as measured.

Source: results/bench/equal_samples_*.json (docs/scaling.md): digits, AN4 and a part of LibriSpeech, Adam, the minibatch
of all learners stays that of one, best of two rates, one to three seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

# Lowest and highest mean ratio of the sets, by strategy and learners. Those of AdaptiveKAVG belong to the schedule of
# the study and are left out.
LOSSES: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "A2CiD2(mixing=ring, eta=None)": {8: (1.019, 1.036)},
    "ADPSGD(mixing=randomized_ring)": {8: (1.024, 1.033)},
    "ADPSGD(mixing=randomized_ring, moments='averaged')": {4: (1.007, 1.029), 8: (1.012, 1.022)},
    "BMUF(K=8, eta=0.5, zeta=1.0, nesterov=True)": {8: (1.056, 1.077)},
    "BMUF(K=8, eta=0.5, zeta=1.0, nesterov=True, moments='at_outer')": {8: (1.060, 1.111)},
    "BMUF(K=8, eta=0.5, zeta=1.0, nesterov=True, moments='averaged')": {4: (1.052, 1.061), 8: (1.046, 1.093)},
    "DelayByOne(mixing=uniform)": {8: (1.004, 1.024)},
    "DelayByOne(mixing=uniform, moments='averaged')": {4: (1.002, 1.031), 8: (1.008, 1.014), 16: (1.027, 1.041)},
    "DiLoCo(K=8, rate=0.7, mu=0.9)": {8: (1.069, 1.084)},
    "GossipPGA(H=8, mixing=ring)": {8: (1.010, 1.020)},
    "GossipPGA(H=8, mixing=ring, moments='averaged')": {8: (1.006, 1.017)},
    "KAVG(K=2, moments='averaged')": {8: (1.003, 1.011)},
    "KAVG(K=8)": {8: (1.075, 1.093)},
    "KAVG(K=8, moments='averaged')": {4: (1.026, 1.046), 8: (1.054, 1.087)},
    "SlowMo(K=8, beta=0.5, alpha=1.0)": {8: (1.070, 1.104)},
    "SlowMo(K=8, beta=0.5, alpha=1.0, moments='averaged')": {8: (1.057, 1.080)},
    "StreamingDiLoCo(K=8, fragments=2, tau=2, rate=0.7, mu=0.9, alpha=0.5)": {8: (1.091, 1.130)},
    "SuperLearners(outer=ADPSGD(mixing=randomized_ring), node_size=2)": {8: (1.020, 1.029)},
    "SuperLearners(outer=ADPSGD(mixing=randomized_ring, moments='averaged'), node_size=2)": {
        4: (1.006, 1.021),
        8: (1.006, 1.018),
        16: (1.021, 1.038),
    },
    "SyncSGD()": {8: (1.000, 1.014)},
}


def loss_penalty(strategy: str, learners: int) -> str:
    """Return the range of a strategy's losses over one learner's, at the measured number that is nearest."""
    found = LOSSES.get(strategy)
    if found is None:
        return "not measured"
    nearest = min(found, key=lambda count: abs(math.log(count / learners)))
    low, high = (f"{100 * (ratio - 1):+.1f}" for ratio in found[nearest])
    return f"{low} to {high} % at {nearest}"
