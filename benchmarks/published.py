"""Published times and speed-ups compared with the planner's predictions from `assumptions.toml`.

Every unknown is drawn uniformly and independently from its range; a prediction is the interval that holds the
middle 90 % of the draws. The most sensitive assumptions are those with the highest rank correlation with the
predictions. If the published figure lies outside, the draws nearest to it show which assumptions it would
require.
"""

from __future__ import annotations

import argparse
import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from measure import bar, close
from murmur.core.mixing import randomized_ring
from murmur.simulation.planner.forms import form_of
from murmur.simulation.planner.setting import ClusterSetting
from murmur.strategies import ADPSGD, ASGD, KAVG, DelayByOne, SuperLearners
from murmur.worlds.virtual.cluster import Cluster, Link

KIND = "bar"
ROWS = 48  # compute times per learner in an expectation
WIDEST = 2.0  # of an interval, as a ratio, to count as a prediction
Draw = Mapping[str, float]


def cluster(draw: Draw, learners: int, model_bytes: float, per_node: int = 1, kind: str = "hierarchical") -> Cluster:
    """The cluster of a draw."""
    return Cluster(
        learners,
        link=Link(20e-6, draw["card_bytes_per_second"]),
        message_bytes=model_bytes,
        learners_per_node=per_node,
        inside=Link(10e-6, draw.get("inside_bytes_per_second", 6e9)),
        allreduce=kind,
        copy_bytes_per_second=draw.get("copy_bytes_per_second", float("inf")),
    )


def seconds(strategy: Any, where: Cluster, step: float, sigma: float) -> float:
    """Seconds of the cluster for one minibatch of one learner."""
    draws = np.random.default_rng(0).lognormal(0.0, sigma, (ROWS, where.learners))
    return form_of(strategy, ClusterSetting(where, step * draws)).seconds


Runs = Callable[[int], tuple[Any, int]]  # node size -> strategy, learners of a node


def flat(node_size: int) -> tuple[Any, int]:  # noqa: ARG001 - every learner has a host of its own
    return ADPSGD(), 1


def hierarchy(node_size: int) -> tuple[Any, int]:
    return SuperLearners(ADPSGD(randomized_ring), node_size), node_size


def delayed(node_size: int) -> tuple[Any, int]:
    return DelayByOne(), node_size


def swb2000(learners: int, device: str, batch: float, runs: Runs) -> Callable[[Draw], float]:
    """Hours of a whole training with `batch` sequences a learner."""

    def hours(d: Draw) -> float:
        alone = d["one_p100_hours"] / (d["v100_over_p100"] if device == "V100" else 1.0)
        minibatches = d["epochs"] * d["sequences_per_epoch"] / batch
        step = alone * 3600 / minibatches * d["small_batch_loss"]
        width = max(w for w in range(1, round(d.get("node_size", 4)) + 1) if learners % w == 0)
        strategy, per_node = runs(width)
        where = cluster({"card_bytes_per_second": 5e9, **d}, learners, d["model_bytes"], per_node)
        return seconds(strategy, where, step, d["sigma"]) * minibatches / 3600 * d["overhead"]

    return hours


def whole_speed_up(d: Draw) -> float:
    """One device's hours over those of 64 V100 on Ethernet: the figure quoted as 40x."""
    return d["one_p100_hours"] / swb2000(64, "V100", 128, hierarchy)(d)


def su_chen(learners: int) -> Callable[[Draw], float]:
    """Speed-up of averaging every K minibatches on Switchboard 300 h."""

    def speed_up(d: Draw) -> float:
        size = 4 * d["weights"]
        step = 6 * d["weights"] * d["frames_per_minibatch"] / d["device_flops_reached"]
        width = 2 ** round(np.log2(d["learners_per_node"]))
        where = cluster(d, learners, size, width)
        return step / seconds(KAVG(round(d["K"])), where, step, d["sigma"])

    return speed_up


def mlhpc_kavg(d: Draw) -> float:
    """Speed-up to equal accuracy of K-averaging at 20 learners."""
    where = cluster(d, 20, d["model_bytes"], 4)
    return d["step_seconds"] / seconds(KAVG(round(d["K"])), where, d["step_seconds"], d["sigma"]) / d["more_samples"]


def mlhpc_asgd(d: Draw) -> float:
    """Speed-up in samples of a parameter server with 4 learners, without a deduction for accuracy."""
    slower = {**d, "card_bytes_per_second": min(d["card_bytes_per_second"], d["server_bytes_per_second"])}
    return d["step_seconds"] / seconds(ASGD(), cluster(slower, 5, d["model_bytes"]), d["step_seconds"], d["sigma"])


def kaldi_mpi(d: Draw) -> float:
    """Per cent of time saved per round: no start-up, loading during training, models by messages in place of files."""
    training, loading = 600e3 / d["frames_per_second"], 600e3 / d["load_frames_per_second"]
    slowest = float(np.random.default_rng(0).normal(0, d["sigma"], (500, 8)).max(1).mean())
    before = d["start_seconds"] + training * (1 + slowest) + loading + d["average_seconds"]
    exchange = 2 * 4 * d["model_bytes"] / d["card_bytes_per_second"]  # half of the learners beyond the master's card
    return 100 * (1 - (max(training * (1 + slowest), loading) + exchange) / before)


@dataclass(frozen=True)
class Claim:
    """A published figure, its tables of assumptions, and its prediction. `bounded`: inputs are known."""

    name: str
    published: float
    tables: tuple[str, ...]
    predict: Callable[[Draw], float]
    bounded: bool = False


CLAIMS = (
    Claim("ADPSGD, 16 P100, hours", 14, ("swb2000",), swb2000(16, "P100", 160, flat), True),
    Claim("HYBRID, 32 V100, hours", 11.5, ("swb2000", "swb2000.ethernet"), swb2000(32, "V100", 80, hierarchy), True),
    Claim("H-ADPSGD, 64 V100, hours", 5.2, ("swb2000", "swb2000.ethernet"), swb2000(64, "V100", 128, hierarchy), True),
    Claim("64 V100, P9, hours", 2.28, ("swb2000", "swb2000.power9"), swb2000(64, "V100", 128, hierarchy), True),
    Claim("128 V100, P9, hours", 1.98, ("swb2000", "swb2000.power9"), swb2000(128, "V100", 64, hierarchy), True),
    Claim(
        "delay-by-one, 128 V100, hours", 1.98, ("swb2000", "swb2000.power9"), swb2000(128, "V100", 64, delayed), True
    ),
    Claim("192 h or a week / 5.2 h (quoted as 40)", 36.9, ("swb2000", "swb2000.ethernet"), whole_speed_up),
    Claim("Su & Chen, speed-up at 16", 9.3, ("swb300",), su_chen(16)),
    Claim("Su & Chen, speed-up at 32", 17, ("swb300",), su_chen(32)),
    Claim("K-averaging, speed-up at 20", 6.1, ("mlhpc2017",), mlhpc_kavg),
    Claim("ASGD at 4: speed-up in samples ('poor and slow')", float("nan"), ("mlhpc2017",), mlhpc_asgd),
    Claim("kaldi-mpi, per cent saved", 54.9, ("kaldi_mpi",), kaldi_mpi),
)


def ranges(assumed: Mapping[str, Any], tables: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """The ranges of some tables; later ones add to earlier ones."""
    found: dict[str, tuple[float, float]] = {}
    for name in tables:
        table: Any = assumed
        for part in name.split("."):
            table = table[part]
        found |= {k: (float(v["range"][0]), float(v["range"][1])) for k, v in table.items() if "range" in v}
    return found


def predict(claim: Claim, assumed: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Interval, sensitive assumptions, and the assumptions of the draws nearest to the published figure."""
    spans, draw = ranges(assumed, claim.tables), random.Random(claim.name)
    draws = [{name: draw.uniform(*span) for name, span in spans.items()} for _ in range(count)]
    values = np.asarray([claim.predict(d) for d in draws])
    low, middle, high = (float(q) for q in np.quantile(values, [0.05, 0.5, 0.95]))
    order = values.argsort().argsort()
    rank = {
        name: float(np.corrcoef(np.asarray([d[name] for d in draws]).argsort().argsort(), order)[0, 1])
        for name, (a, b) in spans.items()
        if a < b
    }
    sensitive = sorted(rank, key=lambda name: -abs(rank[name]))[:3]
    nearest = np.abs(np.log(np.maximum(values, 1e-9) / claim.published)).argsort()[: max(5, count // 50)]
    needed = {name: float(np.median([draws[i][name] for i in nearest])) for name in sensitive}
    inside = None if np.isnan(claim.published) else bool(low <= claim.published <= high)
    return {
        "published": None if np.isnan(claim.published) else claim.published,
        "low": low,
        "median": middle,
        "high": high,
        "inside": inside,
        "reachable": [float(values.min()), float(values.max())],
        "sensitive": {name: rank[name] for name in sensitive},
        "would_have_to_be": {} if inside is None else needed,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draws", type=int, default=1000)
    count = options.parse_args().draws
    assumed = tomllib.loads((Path(__file__).parent / "assumptions.toml").read_text())
    figures, bars = {}, []
    for claim in CLAIMS:
        found = figures[claim.name] = predict(claim, assumed, count)
        said = "-" if found["published"] is None else f"{found['published']:g}"
        width = found["high"] / found["low"]
        names = ", ".join(f"{name} ({r:+.2f})" for name, r in found["sensitive"].items())
        print(f"{claim.name}: published {said}, predicted {found['low']:.3g} to {found['high']:.3g} (x {width:.2f})")
        print(f"    most sensitive: {names}; all draws {found['reachable'][0]:.3g} to {found['reachable'][1]:.3g}")
        if found["inside"] is False:
            wanted = ", ".join(f"{name} {value:.3g}" for name, value in found["would_have_to_be"].items())
            print(f"    outside; the nearest draws have {wanted}")
        if claim.bounded:
            good = float(bool(found["inside"]) and width <= WIDEST)
            bars.append(bar(f"{claim.name}: inside an interval no wider than {WIDEST:g}x", good, 1.0, at_most=False))
    close("published", figures, bars)


if __name__ == "__main__":
    main()
