"""Timelines of strategies: swim-lanes of short timed runs on the virtual clock."""

from __future__ import annotations

import math
from collections.abc import Mapping

from murmur.core.errors import SettingError
from murmur.core.facts import Facts
from murmur.core.group import PeerLost
from murmur.core.learner import Strategy
from murmur.core.trace import Span, Transfer
from murmur.report.swim_lanes import Lanes, swim_lanes
from murmur.simulation.planner.timing import Timed
from murmur.worlds.virtual.clock import Deadlock, Livelock
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld

MOST_GRADIENTS = 200
MARGIN = 2  # gradients of each learner after the drawn ones, so that the end of the run is not drawn


def strategy_timeline(
    strategies: Mapping[str, Strategy],
    cluster: Cluster,
    gradients: int,
    start: float = 0.0,
    seconds: float | None = None,
) -> str:
    """Return the swim-lanes of strategies on a cluster, below each other, as an SVG element.

    Args:
        strategies: Strategies by the names that the picture shows.
        gradients: Length of the picture, in gradients of the fastest learner.
        start: Seconds of the run at which the picture begins.
        seconds: Length of the picture, in place of `gradients`.

    Raises:
        SettingError: The picture is too long, or a run cannot end.
    """
    pace = min(cluster.compute(learner, 0) for learner in range(cluster.learners))
    length = gradients * pace if seconds is None else seconds
    if length > MOST_GRADIENTS * pace:
        raise SettingError(
            f"a picture holds at most {MOST_GRADIENTS} gradients of the fastest learner: draw less of it"
        )
    end = start + length
    minibatches = (math.ceil(end / pace) + MARGIN) * cluster.learners
    groups = [lanes_of(name, strategy, cluster, minibatches) for name, strategy in strategies.items()]
    title = f"Timeline of {', '.join(strategies)}"
    return swim_lanes(title, groups, start, end, _note(strategies, cluster, pace))


def lanes_of(name: str, strategy: Strategy, cluster: Cluster, minibatches: int) -> Lanes:
    """Run a strategy without gradients for a number of minibatches of all learners; return all that it did.

    Raises:
        SettingError: The run cannot end.
    """
    spans: list[Span] = []
    transfers: list[Transfer] = []
    world = VirtualWorld(cluster, sink=spans.append, transfers=transfers.append)
    try:
        world.run(Timed(strategy, minibatches, cluster.learners, 1.0))
    except (PeerLost, Deadlock, Livelock) as error:
        raise SettingError(f"{name}: the run cannot end: {error}") from error
    return Lanes(name, spans, transfers)


def _note(strategies: Mapping[str, Strategy], cluster: Cluster, pace: float) -> str:
    factors, size = getattr(cluster.compute, "factors", {}), cluster.message_bytes or 0.0
    slow = "".join(f"; one of learner {i} takes {times:g} times as long" for i, times in sorted(factors.items()))
    moved = f"A vector has {size / 1e6:.3g} MB: {cluster.link.seconds(size):.3g} s from node to node."
    told = f"A gradient takes {pace:.3g} s{slow}. {moved}"
    adaptive = [name for name, strategy in strategies.items() if Facts.of(strategy).follows_losses]
    return told + "".join(f" {name} follows losses, which are 0 here." for name in adaptive)
