"""Speed of virtual time: 128 learners x 1,000 ADPSGD gradients each, timing only, with events against a bare heap.

The strategy, the clock, the network and the membership are the real ones; the weights are empty and count as 165 MB on
the wire, so that only the simulation is timed. CPU seconds of one thread. Beside it, before and after, a bare
`heapq` in two forms: 200,000 entries pushed, then popped (the form of the bar); and a heap that stays at 500 entries,
each pop with a push, which is several times faster because it stays in the cache.
"""

from __future__ import annotations

import argparse
import cProfile
import heapq
import pstats
import random
import statistics
import time

import torch

from measure import bar, close
from murmur.core.mixing import randomized_ring, ring
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies import ADPSGD
from murmur.worlds.virtual.cluster import Cluster, Link, LognormalSeconds

KIND = "bar"
HEAP = 500  # entries, about as many as in the simulation
MIXINGS = {"ring": ring, "randomized_ring": randomized_ring}


def simulate(learners: int, gradients: int, mixing: str) -> tuple[float, int, float]:
    """One run: (CPU seconds, events, virtual seconds)."""

    cluster = Cluster(learners, LognormalSeconds(0.1, 0.1), Link(50e-6, 12.5e9), message_bytes=165e6)
    begin = time.process_time()
    timing = time_strategy(ADPSGD(MIXINGS[mixing]), cluster, learners * gradients)
    return time.process_time() - begin, timing.events, timing.seconds


def filled_and_drained(entries: int = 200_000) -> float:
    """Entries per CPU second of a bare heap that is filled, then drained."""
    draw = random.Random(0)
    times = [draw.random() for _ in range(entries)]
    queue: list[tuple[float, int]] = []
    begin = time.process_time()
    for i, at in enumerate(times):
        heapq.heappush(queue, (at, i))
    while queue:
        heapq.heappop(queue)
    return entries / (time.process_time() - begin)


def kept_small(pairs: int = 300_000) -> float:
    """Pops, each with a push, per CPU second of a bare heap of `HEAP` entries."""
    draw = random.Random(0)
    queue = [(draw.random(), i) for i in range(HEAP)]
    heapq.heapify(queue)
    times = [draw.random() for _ in range(pairs)]
    begin = time.process_time()
    for i, seconds in enumerate(times):
        now, _ = heapq.heappop(queue)
        heapq.heappush(queue, (now + seconds, HEAP + i))
    return pairs / (time.process_time() - begin)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--learners", type=int, default=128)
    options.add_argument("--gradients", type=int, default=1000)
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.profile:
        with cProfile.Profile() as profile:
            simulate(given.learners, given.gradients, "ring")
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        return
    figures: dict[str, object] = {}
    bars = []
    for mixing in MIXINGS:
        seconds, shares, small = [], [], []
        for repeat in range(given.repeats):
            before = filled_and_drained()
            took, events, virtual = simulate(given.learners, given.gradients, mixing)
            heap = (before + filled_and_drained()) / 2
            seconds.append(took)
            shares.append(events / took / heap)
            small.append(events / took / kept_small())
            print(
                f"{mixing} repeat {repeat}: {took:.2f} CPU s, {events} events, {events / took:.0f} events/s, "
                f"heap {heap:.0f} entries/s, share {shares[-1]:.3f} (small {small[-1]:.3f}), {virtual:.1f} virtual s",
                flush=True,
            )
        figures[mixing] = {
            "cpu_seconds": seconds,
            "events_over_heap": shares,
            "events_over_small_heap": small,
            "events": events,
        }
        bars.append(bar(f"{mixing}: CPU seconds", statistics.median(seconds), 15.0))
        share = statistics.median(shares)
        bars.append(bar(f"{mixing}: events a second over a bare heap's", share, 0.15, at_most=False))
    close("virtual_speed", figures, bars)


if __name__ == "__main__":
    main()
