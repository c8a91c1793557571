"""Any strategy inside the Trainer of Lightning: `# <-` marks the one line that differs from training without murmur.

    python examples/lightning_strategy.py                           Lightning starts the second learner
    murmur launch --learners 2 examples/lightning_strategy.py       the same; a learner that fails can be restarted
    torchrun --nproc-per-node 2 examples/lightning_strategy.py      the same

Takes seconds on a CPU. Needs lightning. It writes checkpoints into runs/lightning, or into the folder that is given,
and goes on from the last one there.
"""

from __future__ import annotations

import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from murmur import KAVG
from murmur.integrations.lightning import MurmurStrategy


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return (self.layer(x).squeeze(1) - y).square().mean()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def rows(number: int, seed: int) -> TensorDataset:
    x = torch.randn(number, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sum(1))


def main() -> None:
    module = Regression()
    trainer = lightning.Trainer(
        strategy=MurmurStrategy(KAVG(K=8)),  # <- in place of "ddp"
        devices=2,
        accelerator="cpu",
        max_epochs=6,
        gradient_clip_val=5.0,
        callbacks=[ModelCheckpoint(sys.argv[1] if sys.argv[1:] else "runs/lightning", monitor="loss", save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(rows(512, 1), 8, shuffle=True), DataLoader(rows(64, 2), 8), ckpt_path="last")
    error = float((module.layer.weight.detach() - 1).abs().max())
    print(f"learner {trainer.global_rank} of {trainer.world_size}: largest error of a weight {error:.5f}")


if __name__ == "__main__":
    main()
