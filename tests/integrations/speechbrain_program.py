"""A SpeechBrain training of two optimizers, one of them frozen at first; a test starts it in several ways.

    speechbrain_program.py FOLDER '{"name of a run": {"strategy": "SyncSGD()"}, ...}'

The strategy `DDP` is SpeechBrain's own training. Each learner writes what it has seen, and the weights at its end, to
`FOLDER/NAME/ended-RANK.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import speechbrain as sb
import torch
from speechbrain.utils.checkpoints import Checkpointer
from speechbrain.utils.distributed import run_on_main
from speechbrain.utils.epoch_loop import EpochCounter
from torch import Tensor, nn

import murmur
from murmur.integrations.speechbrain import MurmurBrain, start_group

ITEMS, BATCH, EPOCHS, FROZEN_STEPS = 48, 4, 3, 3


class Points(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Numbered points of a curve."""

    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
        self.y = self.x.sin().sum(1, keepdim=True)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, n: int) -> dict[str, Tensor]:
        return {"n": torch.tensor(n), "x": self.x[n], "y": self.y[n]}


class Plain(sb.Brain):
    """Brain of the test: what a user writes."""

    folder: Path
    fails_at = dies_at = -1
    seen: list[list[int]]
    losses: list[tuple[str, float]]
    validated: list[list[float]]

    def compute_forward(self, batch: dict[str, Tensor], stage: sb.Stage) -> Tensor:
        if stage == sb.Stage.TRAIN:
            self.seen.append([self.hparams.counter.current, *batch["n"].tolist()])
        return self.modules.top(self.modules.bottom(batch["x"]).tanh())

    def compute_objectives(self, out: Tensor, batch: dict[str, Tensor], stage: sb.Stage) -> Tensor:
        return (out - batch["y"]).square().mean()

    def init_optimizers(self) -> None:
        self.bottom_opt = torch.optim.SGD(self.modules.bottom.parameters(), lr=0.05, momentum=0.9)
        self.top_opt = torch.optim.Adam(self.modules.top.parameters(), lr=0.02)
        self.optimizers_dict = {"bottom": self.bottom_opt, "top": self.top_opt}
        if self.checkpointer is not None:
            self.checkpointer.add_recoverable("bottom_opt", self.bottom_opt)
            self.checkpointer.add_recoverable("top_opt", self.top_opt)

    def freeze_optimizers(self, optimizers: dict[str, Any]) -> dict[str, Any]:
        return optimizers if self.optimizer_step >= FROZEN_STEPS else {"top": optimizers["top"]}

    def on_stage_start(self, stage: sb.Stage, epoch: int | None = None) -> None:
        if stage == sb.Stage.VALID:
            self.validated.append(weights(self.modules))

    def on_fit_batch_end(self, batch: object, outputs: Tensor, loss: Tensor, should_step: bool) -> None:
        mark = self.folder / "killed"
        if self.optimizer_step == self.fails_at:
            raise OverflowError
        if self.optimizer_step == self.dies_at and torch.distributed.get_rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_stage_end(self, stage: sb.Stage, stage_loss: float, epoch: int | None = None) -> None:
        self.losses.append((stage.name, float(stage_loss)))
        if stage == sb.Stage.VALID:
            self.bottom_opt.param_groups[0]["lr"] *= 0.9
            self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])


class Trained(MurmurBrain, Plain):
    """The same with a strategy."""


def weights(modules: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in modules.parameters()]).tolist()


def one_run(
    folder: Path, strategy: str, fails_at: int = -1, dies_at: int = -1, resumes: str = "", **given: Any
) -> None:
    """Train once; `resumes` is a run whose checkpoints this one begins with."""
    run_opts = {"device": "cpu", "distributed_backend": "gloo", "noprogressbar": True, "max_grad_norm": 0.5, **given}
    run_on_main(lambda: prepare(folder, resumes))
    torch.manual_seed(0)
    modules = {"bottom": nn.Linear(3, 8), "top": nn.Linear(8, 1)}
    counter = EpochCounter(EPOCHS)
    checkpointer = Checkpointer(folder / "save", {**modules, "counter": counter})
    checkpointer.add_recoverable("writers", folder / "writers", lambda *_: None, written)
    if strategy == "DDP":
        brain = Plain(modules, None, {"counter": counter}, run_opts, checkpointer)
    else:
        hparams = {
            "counter": counter,
            "strategy": eval(strategy, {name: getattr(murmur, name) for name in murmur.__all__}),
        }
        brain = Trained(modules, None, hparams, run_opts, checkpointer)
    brain.folder, brain.fails_at, brain.dies_at = folder, fails_at, dies_at
    brain.seen, brain.losses, brain.validated, final, test = [], [], [], None, None
    try:
        brain.fit(counter, Points(ITEMS), Points(8), None, {"batch_size": BATCH}, {"batch_size": 8})
        final = weights(brain.modules)  # evaluate() loads the best checkpoint
        test = brain.evaluate(Points(8), min_key="loss", test_loader_kwargs={"batch_size": 8})
    except OverflowError:  # of fails_at
        pass
    said = {"seen": brain.seen, "losses": brain.losses, "validated": brain.validated, "test": test}
    said |= {"weights": final, "steps": brain.optimizer_step}
    (folder / f"ended-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(said))


def prepare(folder: Path, resumes: str) -> None:
    folder.mkdir(exist_ok=True)
    if resumes:
        shutil.copytree(folder.parent / resumes / "save", folder / "save")
    with (folder / "prepared").open("a") as file:
        file.write("once")


def written(writers: Path, path: Path) -> None:
    """Save hook that notes which process saves."""
    with writers.open("a") as file:
        file.write(os.environ.get("RANK", "0"))
    path.touch()


if __name__ == "__main__":
    start_group()
    for name, spec in json.loads(sys.argv[2]).items():
        one_run(Path(sys.argv[1], name), **spec)
