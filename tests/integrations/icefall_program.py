"""Trainings of the program in the shape of icefall's, `examples/icefall_shape.py`, in one launch.

    icefall_program.py FOLDER '{"name of a run": {"strategy": "SyncSGD()"}, ...}'

The strategy `DDP` is PyTorch's own. Each learner writes what it has seen, and the weights at its end, to
`FOLDER/NAME/ended-RANK.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import murmur
from murmur.integrations import icefall
from murmur.integrations.base import start_group

EXAMPLE = Path(__file__).parents[2] / "examples" / "icefall_shape.py"
CLIP = 0.5


def example() -> ModuleType:
    spec = util.spec_from_file_location("icefall_shape", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Watched:
    """The example with a strategy, which notes what it does, and fails or dies at a step."""

    def __init__(self, folder: Path, strategy: str, fails_at: int, dies_at: int) -> None:
        self.folder, self.strategy, self.fails_at, self.dies_at = folder, strategy, fails_at, dies_at
        self.program = example()
        self.model = self.program.Net()
        self.seen: list[list[int]] = []
        self.validated: list[list[float]] = []
        self.frames, self.loss = self.program.Frames(), self.program.compute_loss
        self.program.Net, self.program.Frames = self.net, lambda: self
        self.program.join, self.program.compute_loss = self.join, self.loss_of

    def __getitem__(self, cuts: Any) -> Any:
        self.seen.append([int(cut.supervisions[0].id) for cut in cuts])
        return self.frames[cuts]

    def net(self) -> nn.Module:
        torch.manual_seed(42)
        for module in self.model.children():
            module.reset_parameters()
        return nn.parallel.DistributedDataParallel(self.model) if self.strategy == "DDP" else self.model

    def join(self, model: nn.Module, optimizer: torch.optim.Optimizer, params: argparse.Namespace) -> None:
        if self.strategy == "DDP":
            optimizer.register_step_pre_hook(lambda *_: void(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        else:
            icefall.join(model, optimizer, params)
        optimizer.register_step_post_hook(lambda *_: self.after(params.batch_idx_train))

    def after(self, step: int) -> None:
        mark = self.folder / "killed"
        if step == self.fails_at:
            raise OverflowError
        if step == self.dies_at and dist.get_rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def loss_of(self, model: nn.Module, batch: Any) -> Any:
        if not model.training:
            self.validated.append(weights(self.model))
        return self.loss(model, batch)


def one_run(folder: Path, strategy: str, fails_at: int = -1, dies_at: int = -1, resumes: str = "") -> None:
    """Train once; `resumes` is a run whose checkpoints this one begins with."""
    watched = Watched(folder, strategy, fails_at, dies_at)
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0 and resumes:
        shutil.copytree(folder.parent / resumes, folder)
    dist.barrier()
    run = watched.program.run.__wrapped__
    if strategy != "DDP":
        run = icefall.trains(eval(strategy, {name: getattr(murmur, name) for name in murmur.__all__}), clip=CLIP)(run)
    options = ["--exp-dir", str(folder), "--train-cuts", "120", "--num-epochs", "3", "--save-every-n", "5"]
    loss = None
    try:
        loss = run(rank, size, watched.program.parser().parse_args(options))
    except OverflowError:  # of fails_at
        dist.barrier()
    said = {"seen": watched.seen, "loss": loss, "validated": watched.validated, "weights": weights(watched.model)}
    (folder / f"ended-{rank}.json").write_text(json.dumps(said))


def void(_: object) -> None:
    """Return None, as hooks of optimizers have to."""


def weights(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


if __name__ == "__main__":
    start_group()
    for name, spec in json.loads(sys.argv[2]).items():
        one_run(Path(sys.argv[1], name), **spec)
