"""Any strategy in SpeechBrain: `# <-` marks the lines for it.

    python examples/speechbrain_brain.py                          one learner
    murmur launch --learners 2 --restarts 1 examples/speechbrain_brain.py [FOLDER]

Takes seconds on a CPU. Needs speechbrain, and no audio. Checkpoints are in FOLDER, or runs/speechbrain; a call resumes
an earlier one that was stopped.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import Any

if find_spec("torchaudio") is None:  # SpeechBrain imports it, and needs it for audio only
    sys.modules["torchaudio"] = module_from_spec(ModuleSpec("torchaudio", None))

import speechbrain as sb
import torch
from speechbrain.utils.checkpoints import Checkpointer
from speechbrain.utils.epoch_loop import EpochCounter
from torch import Tensor, nn
from torch.utils.data import Dataset

from murmur.integrations.speechbrain import MurmurBrain, start_group
from murmur.strategies import KAVG


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points of a linear function."""

    def __init__(self, count: int, seed: int) -> None:
        self.x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, n: int) -> tuple[Tensor, Tensor]:
        return self.x[n], self.x[n].sum()


class Regression(MurmurBrain, sb.Brain):  # <-
    strategy = KAVG(K=8)  # <-

    def compute_forward(self, batch: Any, stage: sb.Stage) -> Tensor:
        return self.modules.layer(batch[0]).squeeze(1)

    def compute_objectives(self, predictions: Tensor, batch: Any, stage: sb.Stage) -> Tensor:
        return (predictions - batch[1]).square().mean()

    def on_stage_end(self, stage: sb.Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage == sb.Stage.VALID:
            self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])


def main(folder: str) -> None:
    place = start_group()  # <- in place of sb.utils.distributed.ddp_init_group(run_opts)
    torch.manual_seed(0)
    modules = {"layer": nn.Linear(8, 1)}
    counter = EpochCounter(4)
    brain = Regression(
        modules,
        lambda weights: torch.optim.Adam(weights, 0.05),
        hparams={},
        run_opts={"device": "cpu", "noprogressbar": True, "ckpt_interval_steps": 10},
        checkpointer=Checkpointer(folder, {**modules, "counter": counter}),
    )
    brain.fit(counter, Points(512, 1), Points(64, 2), train_loader_kwargs={"batch_size": 8})
    rank, size = (place.rank, place.size) if place else (0, 1)
    error = float((brain.modules.layer.weight.detach() - 1).abs().max())
    print(f"learner {rank} of {size}: largest error of a weight {error:.5f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/speechbrain")
