"""Any strategy in a loop of accelerate, in place of its LocalSGD: `# <-` marks the lines that are not accelerate's.

    murmur launch --learners 2 --restarts 1 examples/accelerate_local.py runs/local
    torchrun --nproc-per-node 2 examples/accelerate_local.py runs/local

Takes seconds on a CPU. Needs accelerate. The folder gets a state after each epoch; the same command goes on with it, as
a restart after a failure does. docs/accelerate.md tells the rest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from murmur.integrations.accelerate import local  # <-
from murmur.strategies import KAVG

EPOCHS = 8


def main(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(576, 8, generator=torch.Generator().manual_seed(1))
    data, held_out = TensorDataset(x[:512], x[:512].sum(1)), TensorDataset(x[512:], x[512:].sum(1))
    model: nn.Module = nn.Linear(8, 1)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), 0.02)
    model, optimizer, loader, tests = accelerator.prepare(
        model, optimizer, DataLoader(data, 8, shuffle=True), DataLoader(held_out, 8)
    )
    with local(accelerator, model, optimizer, KAVG(K=8)) as learner:  # <-
        begin = max((int(path.parent.name) for path in folder.glob("*/complete")), default=0)
        if begin:
            accelerator.load_state(str(folder / str(begin)))
        for epoch in range(begin, EPOCHS):
            for points, y in loader:
                accelerator.backward((model(points).squeeze(1) - y).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            with learner.consensus(), torch.no_grad():  # <-
                errors = [(model(points).squeeze(1) - y).square() for points, y in tests]
                loss = accelerator.gather_for_metrics(torch.cat(errors)).mean()
            accelerator.print(f"epoch {epoch + 1}: loss {loss:.5f}")
            accelerator.save_state(str(folder / str(epoch + 1)))
            (folder / str(epoch + 1) / "complete").touch()
    error = float((accelerator.unwrap_model(model).weight.detach() - 1).abs().max())
    rank, size = accelerator.process_index, accelerator.num_processes
    print(f"learner {rank} of {size}: largest error of a weight {error:.5f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/local"))
