"""Our KAVG against accelerate's LocalSGD and torchft's: the same two learners must end with the same digits.

    make peers && .venv/bin/python benchmarks/kavg_vs_peers.py

`make peers` puts the other systems into a separate environment (.venv-peers). Without it, only our side is compared
with the plain reference.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from measure import bar, close
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss, Score
from murmur.engine.trainer import Trainer
from murmur.strategies import KAVG
from murmur.worlds.process.environment import place_of
from murmur.worlds.process.launcher import Launch
from murmur.worlds.process.listener import listen
from murmur.worlds.process.world import ProcessWorld
from murmur.worlds.virtual.world import VirtualWorld

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "peers"))
from oracle import LEARNERS, RATE, STEPS, K, batches, checksum, model  # noqa: E402

KIND = "bar"
PEERS = HERE.parent / ".venv-peers" / "bin" / "python"


@dataclass(frozen=True)
class Oracle:
    """The cross-check as a task: minibatch n belongs to learner n mod 2."""

    per_epoch: int = LEARNERS * STEPS
    samples_per_epoch: float = 32.0 * LEARNERS * STEPS

    @cached_property
    def data(self) -> list[list[tuple[Tensor, Tensor]]]:
        return [list(batches(learner)) for learner in range(LEARNERS)]

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return model()

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        return self.data[n % LEARNERS][n // LEARNERS]

    def loss(self, net: nn.Module, minibatch: tuple[Tensor, Tensor]) -> Loss:
        return Loss(cross_entropy(net(minibatch[0]), minibatch[1], reduction="sum"), 32.0)

    def evaluate(self, net: nn.Module) -> Mapping[str, float]:
        return {}

    def test(self, net: nn.Module) -> Score:
        return Score()


EXPERIMENT = Experiment(Oracle(), KAVG(K), Budget(epochs=1), SGD(RATE), scaling=Fixed())


def reference() -> float:
    """Two models in one loop, averaged after steps 8, 16, ..."""
    nets = [model() for _ in range(LEARNERS)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=RATE) for net in nets]
    streams = [batches(learner) for learner in range(LEARNERS)]
    for step in range(1, STEPS + 1):
        for net, optimizer, stream in zip(nets, optimizers, streams, strict=True):
            x, y = next(stream)
            optimizer.zero_grad()
            cross_entropy(net(x), y).backward()
            optimizer.step()
        if step % K == 0:
            with torch.no_grad():
                for group in zip(*(net.parameters() for net in nets), strict=True):
                    mean = (group[0] + group[1]) / 2
                    for p in group:
                        p.copy_(mean)
    return checksum(nets[0])


def ours_in_processes() -> list[float]:
    command = [sys.executable, __file__]
    files = [HERE.parent / "runs" / "bench" / f"kavg-{r}.txt" for r in range(LEARNERS)]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    if Launch(lambda place, resume: [*command, str(files[place.rank])], LEARNERS).run() != 0:
        raise SystemExit("our own learners failed")
    return [float(file.read_text()) for file in files]


def peer(system: str) -> list[float]:
    port = listen().getsockname()[1]
    words = [str(PEERS), str(HERE / "peers" / "run_peer.py"), system]
    learners = []
    for learner in range(LEARNERS):
        learners.append(
            subprocess.Popen(
                [*words, str(learner), str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        time.sleep(0.5)
    sums = []
    for process in learners:
        out, err = process.communicate(timeout=300)
        found = [line.split()[1] for line in out.splitlines() if line.startswith("checksum")]
        if not found:
            raise SystemExit(f"{system} failed:\n{err}")
        sums.append(float(found[0]))
    return sums


def main() -> None:
    torch.set_num_threads(1)
    place = place_of()
    if place is not None:
        outcome = Trainer(EXPERIMENT, ProcessWorld(place)).fit()
        Path(sys.argv[1]).write_text(repr(checksum(outcome.model)))
        return
    sums: dict[str, list[float]] = {
        "reference": [reference()],
        "ours, virtual": [checksum(Trainer(EXPERIMENT, VirtualWorld(LEARNERS)).fit().model)],
        "ours, processes": ours_in_processes(),
    }
    if PEERS.exists():
        sums |= {system: peer(system) for system in ("accelerate", "torchft")}
    else:
        print("no .venv-peers: run `make peers` to compare with accelerate and torchft")
    for name, values in sums.items():
        print(f"{name:16s} {'  '.join(repr(v) for v in values)}")
    own = sums["ours, processes"][0]
    bars = [
        bar(f"difference of checksums, ours against {name}", max(abs(v - own) for v in values), 0.0)
        for name, values in sums.items()
        if name != "ours, processes"
    ]
    close("kavg_vs_peers", sums, bars)


if __name__ == "__main__":
    main()
