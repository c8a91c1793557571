"""Connections that break while both their learners live: four learners on four hosts average without gradients.

    python benchmarks/broken_connections.py       (as root, see namespaces.py; the kernel must let `ss -K` end sockets)

At random moments `ss -K` ends the connections of messages between two hosts: their ends get an error, and what was
queued or on its way is lost. The learners start from different weights, take gradients of zero, and average in pairs.
Requirements: all learners end with status 0, no exchange stays open, and every learner ends with the mean of the
weights at the start.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from measure import bar, close
from murmur.core.facts import FactsOfInner
from murmur.core.learner import Strategy
from murmur.core.mixing import randomized_ring
from murmur.strategies import ADPSGD, SuperLearners
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.process.store_server import StoreClient
from murmur.worlds.process.world import ProcessWorld
from namespaces import Network, hosts, refusal
from trouble import Troubled, troubled

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.averaging_only import Averaging, Still

KIND = "bar"
SIZE, WIDTH, MINIBATCHES, GRADIENT_SECONDS, BITS = 4, 20_000, 4000, 0.005, 1e9
EVERY_SECONDS = 0.1  # mean time between two cuts
PATIENCE_SECONDS, TOLERANCE = 120.0, 1e-10
STRATEGIES: dict[str, Strategy] = {
    "ADPSGD": ADPSGD(),
    "ADPSGD randomized ring": ADPSGD(randomized_ring),
    "SuperLearners(ADPSGD, 2)": SuperLearners(ADPSGD(), 2),
}


def start_of(strategy: Strategy) -> torch.Tensor:
    """Weights of the learners at the start, shape (SIZE, WIDTH); members of a super-learner begin alike."""
    start = torch.randn(SIZE, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return start[::2].repeat_interleave(2, 0) if isinstance(strategy, FactsOfInner) else start


class Slow(Still):
    """Gradients of zero that take some time."""

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Any:
        time.sleep(GRADIENT_SECONDS)
        return super().draw(n, before_backward)


def take_part(name: str, folder: Path) -> None:
    """Average as one of the learners, and write the largest distance of a weight from the mean of all at the start."""
    place = place_of()
    assert place is not None
    torch.set_num_threads(1)
    start = start_of(STRATEGIES[name])
    program = Averaging(STRATEGIES[name], start, MINIBATCHES, Slow)
    (me,) = ProcessWorld(place, timeout_seconds=60, lease_seconds=30).run(program)
    distance = float((me.weights.snapshot() - start.mean(0)).abs().max())
    (folder / f"{place.rank}.json").write_text(json.dumps(distance))


def ports_of(running: Troubled) -> dict[int, tuple[str, int]]:
    """Addresses at which the learners listen for messages."""
    prefix = Place(0, SIZE, 0, "", 0).prefix
    with closing(StoreClient(*running.store)) as line:
        found = {r: line.wait([f"{prefix}mail/{r}"], PATIENCE_SECONDS).decode() for r in range(SIZE)}
    return {r: (text.rpartition(":")[0], int(text.rpartition(":")[2])) for r, text in found.items()}


def cut(network: Network, at: int, to: tuple[str, int]) -> int:
    """End a host's connections to a learner elsewhere; return their number.

    `ss` fails if a connection closes while it looks at it.
    """
    words = ["ss", "-K", "-H", "-t", "state", "established", "dst", to[0], "dport", "=", f":{to[1]}"]
    done = subprocess.run(network.inside(at, words), check=False, capture_output=True, text=True)
    return len(done.stdout.splitlines())


def cutting(network: Network, ports: Mapping[int, tuple[str, int]], over: Event, counted: list[int]) -> None:
    """Cut connections at random moments until `over` is set."""
    draw = random.Random(0)
    while not over.wait(draw.uniform(0.0, 2 * EVERY_SECONDS)):
        at, to = draw.sample(range(SIZE), 2)
        counted.append(cut(network, at, ports[to]))


def measure(network: Network, name: str) -> dict[str, Any]:
    """Run a strategy while its connections break."""
    with tempfile.TemporaryDirectory() as place:
        words = [sys.executable, str(Path(__file__).resolve()), "--learner", name, place]
        with troubled(network, SIZE, lambda _: words) as running:
            ports = ports_of(running)
            over, counted = Event(), list[int]()
            thread = Thread(target=cutting, args=(network, ports, over, counted))
            began = time.monotonic()
            thread.start()
            try:
                codes = running.wait(range(SIZE), PATIENCE_SECONDS)
            finally:
                over.set()
                thread.join()
            seconds = time.monotonic() - began
        distances = [json.loads(file.read_text()) for file in sorted(Path(place).glob("*.json"))]
    return {"broken": sum(counted), "statuses": list(codes.values()), "seconds": seconds, "distances": distances}


def figures() -> Iterator[tuple[str, dict[str, Any]]]:
    """Figures of every strategy."""
    with hosts(SIZE, BITS) as network:
        for name in STRATEGIES:
            found = measure(network, name)
            print(f"{name}: {found}", flush=True)
            yield name, found


def main() -> None:
    """Measure all strategies, or be one of the learners."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--learner", nargs=2, metavar=("STRATEGY", "FOLDER"), help="be one of the learners")
    asked = options.parse_args()
    if asked.learner:
        return take_part(asked.learner[0], Path(asked.learner[1]))
    if reason := refusal():
        print(f"broken_connections cannot run: {reason}")
        print(json.dumps({"benchmark": "broken_connections", "figures": {}, "bars": [], "cannot_run": reason}))
        return None
    found = dict(figures())
    bars = []
    for name, each in found.items():
        bars += [
            bar(f"{name}: connections broken", each["broken"], 50, at_most=False),
            bar(f"{name}: learners that ended well", each["statuses"].count(0), SIZE, at_most=False),
            bar(f"{name}: largest distance from the mean", max(each["distances"], default=float("inf")), TOLERANCE),
        ]
    return close("broken_connections", found, bars)


if __name__ == "__main__":
    main()
