"""A training program that gets everything from a configuration, as ESPnet3 and NeMo do; it does not name murmur.

    python examples/lightning_hydra.py [trainer.strategy.strategy.K=4 ...]

Takes seconds on a CPU. Needs lightning and hydra-core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import lightning
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Optimizers = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Regression(lightning.LightningModule):
    def __init__(self, model: nn.Module, optimizer: Optimizers) -> None:
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return (self.model(x).squeeze(1) - y).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


def main() -> None:
    file = OmegaConf.load(Path(__file__).with_suffix(".yaml"))
    config = OmegaConf.merge(file, OmegaConf.from_dotlist(sys.argv[1:]))
    x = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, x.sum(1)), 8, shuffle=True)
    module = Regression(instantiate(config.model), instantiate(config.optimizer))
    trainer = instantiate(config.trainer)
    trainer.fit(module, loader)
    error = float((module.model.weight.detach() - 1).abs().max())
    print(f"learner {trainer.global_rank} of {trainer.world_size}: largest error of a weight {error:.5f}")


if __name__ == "__main__":
    main()
