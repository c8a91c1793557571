"""Any strategy in the Trainer of Hugging Face's transformers: `# <-` marks the two lines that are not the Trainer's.

    murmur launch --learners 2 --restarts 1 examples/transformers_attach.py runs/attached
    torchrun --nproc-per-node 2 examples/transformers_attach.py runs/attached

Takes seconds on a CPU, offline. Needs transformers and accelerate. The folder gets the Trainer's checkpoints; the same
command goes on with the newest one, as a restart after a failure does. docs/transformers.md tells the rest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from murmur.integrations.transformers import attach  # <-
from murmur.strategies import KAVG


class Regression(nn.Module):
    """A model in the Trainer's form, which returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layer(x).squeeze(1) - labels).square().mean()}


def data(count: int) -> list[dict[str, Tensor]]:
    """Points of a linear function."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return [{"x": row, "labels": row.sum()} for row in x]


def main(folder: str) -> None:
    points = data(576)
    arguments = TrainingArguments(
        folder,
        num_train_epochs=4,
        per_device_train_batch_size=8,
        learning_rate=0.05,
        save_strategy="epoch",
        eval_strategy="epoch",
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(Regression(), arguments, train_dataset=points[:512], eval_dataset=points[512:])
    attach(trainer, KAVG(K=8))  # <-
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if Path(folder).exists() else None)
    weights = trainer.model.layer.weight.detach().flatten()
    error = float((weights - 1).abs().max())
    print(f"learner {arguments.process_index} of {arguments.world_size}: largest error of a weight {error:.5f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/attached")
