"""One learner of torchft's LocalSGD in `faults.py`: torchft_faults.py LEARNER PORT MINIBATCHES SECONDS SEED FOLDER.

The same regression, pace, step and schedule as ours. It has no common list of minibatches: every learner has its own
share, in turn, and a lost learner's share is not taken over. Two learners are enough for an average. A failed
average is lost, with the updates of up to K steps of all learners.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

import torch
from torchft_manager import managed

BENCHMARKS = Path(__file__).parents[1]
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "src")]

from trouble import PacedRegression, slowness_of  # noqa: E402 - found only now

SIZE, K, RATE, ENOUGH = 4, 8, 0.2, 1


def train(learner: int, port: int, task: PacedRegression, folder: Path) -> None:
    from torchft.local_sgd import LocalSGD

    torch.manual_seed(task.seed)
    net = task.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    steps = task.per_epoch // SIZE
    with (
        (folder / f"{learner}.steps").open("a", buffering=1) as log,
        managed(net, learner, ENOUGH, port) as manager,
        LocalSGD(manager, net, optimizer, sync_every=K),
    ):
        together(folder, learner)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = RATE * (1 + math.cos(math.pi * step / steps)) / 2
            loss = task.loss(net, task.minibatch(step * SIZE + learner))
            optimizer.zero_grad()
            (loss.total / loss.samples).backward()
            optimizer.step()
            log.write(f"{time.monotonic():.4f} {step * SIZE + learner} {manager.num_participants()}\n")
        if learner == 0:
            with torch.no_grad():
                (folder / "figures.json").write_text(json.dumps(dict(task.evaluate(net))))


def together(folder: Path, learner: int) -> None:
    """Wait for all others: an average of two would form as soon as two are there."""
    (folder / f"{learner}.ready").touch()
    while len(list(folder.glob("*.ready"))) < SIZE:
        time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    own, lighthouse, minibatches, seconds, seed, place = sys.argv[1:]
    slow = slowness_of(Path(place), int(own))
    train(int(own), int(lighthouse), PacedRegression(float(seconds), int(minibatches), int(seed), slow), Path(place))
    sys.stdout.flush()
    os._exit(0)  # its threads never end
