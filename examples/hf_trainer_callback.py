"""Any strategy inside the Trainer of Hugging Face's transformers: one callback, and each learner's part of the data.

    murmur launch --learners 2 examples/hf_trainer_callback.py

Takes seconds on a CPU, offline. Needs transformers and accelerate. Clipping, accumulation and schedules stay the
Trainer's; the rate follows the number of learners. Where it evaluates or saves in the middle, it does so with this
learner's own weights.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import murmur
from murmur.core.learner import Strategy
from murmur.strategies import KAVG
from murmur.worlds.process.launch.environment import Place


class Murmur(TrainerCallback):
    """Replaces the optimizer's steps by the strategy's, from the first step to the last."""

    def __init__(self, strategy: Strategy, place: Place | None) -> None:
        self.strategy, self.place = strategy, place
        self.block = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        optimizer = getattr(found["optimizer"], "optimizer", found["optimizer"])  # accelerate wraps it
        size = self.place.size if self.place else 1
        plan = murmur.Plan(total_steps=state.max_steps * size, scaling=murmur.scaling(self.strategy))
        me = self.block.enter_context(murmur.join(self.strategy, found["model"], optimizer, plan, seat=self.place))
        self.block.enter_context(murmur.routed(me))

    def on_train_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.block.close()  # waits for the others; the model is then the mean of all


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


def main() -> None:
    place = murmur.take_place()  # before the Trainer finds it and starts DDP
    rank, size = (place.rank, place.size) if place else (0, 1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=4,
            per_device_train_batch_size=8,
            learning_rate=0.1,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        part = data(512)[rank::size]
        trainer = Trainer(Regression(), arguments, train_dataset=part, callbacks=[Murmur(KAVG(K=8), place)])
        trainer.train()
    weights = trainer.model.layer.weight.detach().flatten()
    print(f"learner {rank} of {size}: largest error of a weight {float((weights - 1).abs().max()):.5f}")


if __name__ == "__main__":
    main()
