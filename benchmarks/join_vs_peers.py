"""`murmur.join` against DDP, torch's PeriodicModelAverager, accelerate's LocalSGD, torchft's LocalSGD and DiLoCo.

    make peers && .venv/bin/python benchmarks/join_vs_peers.py

The same loop, network, data and work, two learners on this host, one thread each. Cells: 0.3 and 10 million weights,
steps of about 5 and 50 ms. DDP is compared with SyncSGD and ADPSGD, the periodic averagers with KAVG, DiLoCo with BMUF,
all with K = 8. A figure is the median over repeats of the ratio of steps per second; the sides of a repeat alternate.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import torch
from torch.nn.functional import cross_entropy

from measure import bar, close, interleave, median_ratio
from murmur.worlds.process.listener import listen

KIND = "bar"
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "peers"))

from run_loop import BATCH, Network, batches, work  # noqa: E402 - beside the environment of the peers

PEERS = HERE.parent / ".venv-peers" / "bin" / "python"
LEARNERS = 2
WITHOUT_EXTRAS = ("ddp", "averager")  # parts of torch


@dataclass(frozen=True)
class Comparison:
    """One of our strategies beside a peer; `least` is the smallest ratio allowed in a cell, `mean` over the cells."""

    ours: str
    theirs: str
    least: float
    mean: float = 1.0


COMPARISONS = (
    Comparison("murmur.SyncSGD", "ddp", 0.98),
    Comparison("murmur.KAVG", "averager", 0.98),
    Comparison("murmur.KAVG", "accelerate", 0.98),
    Comparison("murmur.KAVG", "torchft.LocalSGD", 0.98),
    Comparison("murmur.BMUF", "torchft.DiLoCo", 1.0),
    Comparison("murmur.ADPSGD", "ddp", 1.0),
)


@dataclass(frozen=True)
class Cell:
    """Size of the network and length of a step without optimizer and exchange."""

    million: float
    hidden: int
    milliseconds: float
    steps: int

    @property
    def name(self) -> str:
        return f"{self.million:g} million weights, {self.milliseconds:g} ms"


CELLS = (
    Cell(0.3, 512, 5.0, 240),
    Cell(0.3, 512, 50.0, 48),
    Cell(10.0, 3072, 5.0, 80),
    Cell(10.0, 3072, 50.0, 40),
)
LARGE_AND_FAST = CELLS[2].name  # where ADPSGD has to be faster than DDP


def products_for(cell: Cell) -> int:
    """Return the products of matrices that make a step of a cell as long as it says, on one thread of this machine."""
    torch.set_num_threads(1)
    net, square = Network(cell.hidden, 0), torch.full((64, 64), 1e-3)
    ((x, y),) = batches(0, 1)

    def step() -> None:
        cross_entropy(net(x), y).backward()
        net.zero_grad()

    own, one = _seconds(step), _seconds(partial(work, 100, square)) / 100
    return max(0, int((cell.milliseconds / 1e3 - own) / one))


def _seconds(run: object) -> float:
    assert callable(run)
    found = []
    for _ in range(12):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return statistics.median(found[2:])


def run(system: str, cell: Cell, products: int, losses: dict[str, float]) -> float:
    """Steps per second of the slower learner, whose clock has seen the whole run; stores the loss."""
    python = PEERS if system.startswith(("accelerate", "torchft")) else sys.executable
    with listen() as found:
        port = found.getsockname()[1]
    words = [str(python), str(HERE / "peers" / "run_loop.py"), system]
    size = [str(cell.hidden), str(products), str(cell.steps)]
    # A pipe without a reader would block its writer.
    said = [TemporaryFile("w+") for _ in range(LEARNERS)]  # noqa: SIM115 - read if a learner has failed
    learners = [
        subprocess.Popen([*words, str(r), str(port), *size], stdout=subprocess.PIPE, stderr=said[r], text=True)
        for r in range(LEARNERS)
    ]
    speeds = []
    for process, file in zip(learners, said, strict=True):
        out, _ = process.communicate(timeout=300)
        found_lines = [line.split()[1:] for line in out.splitlines() if line.startswith("result")]
        if not found_lines:
            file.seek(0)
            raise SystemExit(f"{system} failed:\n{file.read()[-2000:]}")
        speeds.append(float(found_lines[0][0]))
        losses[f"{system}, {cell.name}"] = float(found_lines[0][1])
    return min(speeds)


def bars_of(comparison: Comparison, speeds: dict[str, dict[str, list[float]]]) -> list[dict[str, object]]:
    ours, theirs = comparison.ours, comparison.theirs
    ratios = {cell: median_ratio(found, ours, theirs) for cell, found in speeds.items()}
    bars = []
    for cell, ratio in ratios.items():
        least = 1.1 if ours == "murmur.ADPSGD" and cell == LARGE_AND_FAST else comparison.least
        bars.append(bar(f"speed of {ours} over {theirs}, {cell}", ratio, least, at_most=False))
    what = f"speed of {ours} over {theirs}, mean over cells"
    return [*bars, bar(what, statistics.mean(ratios.values()), comparison.mean, at_most=False)]


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--cell", type=int, action="append", choices=range(len(CELLS)), help="only this one")
    options.add_argument("--only", action="append", help="only comparisons of this strategy of ours, such as KAVG")
    given = options.parse_args(argv)
    there = [c for c in COMPARISONS if c.theirs in WITHOUT_EXTRAS or PEERS.exists()]
    if len(there) < len(COMPARISONS):
        print("no .venv-peers: run `make peers` to compare with accelerate and torchft")
    chosen = [c for c in there if not given.only or c.ours.removeprefix("murmur.") in given.only]
    systems = sorted({c.ours for c in chosen} | {c.theirs for c in chosen})
    losses: dict[str, float] = {}
    speeds: dict[str, dict[str, list[float]]] = {}
    for cell in [CELLS[n] for n in given.cell or range(len(CELLS))]:
        products = products_for(cell)
        print(f"{cell.name}: {BATCH} samples and {products} products a step", flush=True)
        sides = {name: partial(run, name, cell, products, losses) for name in systems}
        speeds[cell.name] = interleave(sides, given.repeats)
    bars = [found for comparison in chosen for found in bars_of(comparison, speeds)]
    close("join_vs_peers", {"steps_per_second": speeds, "heldout_loss": losses}, bars)


if __name__ == "__main__":
    main()
