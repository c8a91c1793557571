"""Any strategy inside the Trainer of Lightning: one callback, and each learner's part of the data.

    murmur launch --learners 2 examples/lightning_callback.py

Takes seconds on a CPU. Needs lightning. Clipping, accumulation and schedules stay the Trainer's, which believes that it
is alone; the rate follows the number of learners; modules with one optimizer and automatic optimization.
"""

from __future__ import annotations

from contextlib import ExitStack

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import murmur
from murmur.core.learner import Strategy
from murmur.strategies import KAVG
from murmur.worlds.process.launch.environment import Place


class Murmur(lightning.Callback):
    """Replaces the optimizer's steps by the strategy's, from the first step to the last."""

    def __init__(self, strategy: Strategy, place: Place | None) -> None:
        self.strategy, self.place = strategy, place
        self.block = ExitStack()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        size = self.place.size if self.place else 1
        steps = int(trainer.estimated_stepping_batches) * size
        plan = murmur.Plan(total_steps=steps, scaling=murmur.scaling(self.strategy))
        optimizer = trainer.optimizers[0]
        me = self.block.enter_context(murmur.join(self.strategy, pl_module, optimizer, plan, seat=self.place))
        self.block.enter_context(murmur.routed(me))

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.block.close()  # waits for the others; the model is then the mean of all

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        self.block.__exit__(type(exception), exception, exception.__traceback__)  # tells the others


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return (self.layer(x).squeeze(1) - y).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def main() -> None:
    place = murmur.take_place()  # before Lightning finds it and starts DDP
    rank, size = (place.rank, place.size) if place else (0, 1)
    torch.manual_seed(0)
    x = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))[rank::size]
    loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=8, shuffle=True)
    module = Regression()
    trainer = lightning.Trainer(
        max_epochs=6,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=5.0,
        callbacks=[Murmur(KAVG(K=8), place)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    error = float((module.layer.weight.detach() - 1).abs().max())
    print(f"learner {rank} of {size}: largest error of a weight {error:.5f}")


if __name__ == "__main__":
    main()
