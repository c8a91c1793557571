"""The toy recipe at a pace set by a test, with a line in a file for every gradient.

`--set task.folder=FOLDER`: FOLDER/pace holds the seconds of a minibatch and may change during the run; FOLDER/gradients
gets a line for each: number of the minibatch, host, process, time, and number of restarts of the job by Slurm.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss
from murmur.strategies import KAVG
from murmur.tasks.toy import ToyTask

PER_EPOCH, MINIBATCHES = 40, 200


@dataclass(frozen=True)
class PacedToy(ToyTask):
    """The paced toy; the folder is not part of the experiment, so runs in two folders are the same experiment."""

    per_epoch: int = PER_EPOCH
    folder: str = field(default=".", repr=False)

    def minibatch(self, n: int) -> tuple[Tensor, Tensor, int]:  # type: ignore[override]
        return *super().minibatch(n), n

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor, int]) -> Loss:  # type: ignore[override]
        *tensors, n = minibatch
        time.sleep(float((Path(self.folder) / "pace").read_text()))
        restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
        line = f"{n} {socket.gethostname()} {os.getpid()} {time.time():.3f} {restarts}\n"
        with (Path(self.folder) / "gradients").open("a") as file:  # lines of this length are appended whole
            file.write(line)
        return super().loss(model, (tensors[0], tensors[1]))


def experiment() -> Experiment:
    """K-step averaging, five epochs, a checkpoint after each."""
    return Experiment(
        PacedToy(), KAVG(K=4), Budget(minibatches=MINIBATCHES), SGD(lr=0.1, momentum=0.5), scaling=Fixed()
    )
