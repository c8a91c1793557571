"""A loop of accelerate. Its word is a JSON list of runs; each process writes its results of each."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import murmur.strategies
from murmur.integrations.accelerate import local
from murmur.integrations.base import saved_learners

Given = Mapping[str, Any]


def net() -> nn.Sequential:
    draw = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    return model


def rows() -> TensorDataset:
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True), torch.arange(48))


def flat(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@contextmanager
def joined(given: Given, *prepared: Any) -> Iterator[Any]:
    if not given.get("strategy"):
        with nullcontext() as nothing:
            yield nothing
        return
    name, *letters = given["strategy"]
    with local(*prepared, getattr(murmur.strategies, name)(*letters), timeout_seconds=60.0) as learner:
        yield learner


def run(given: Given) -> None:
    out = Path(given["out"])
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=given.get("accumulate", 1),
        mixed_precision=given.get("precision", "no"),
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=5),
    )
    if given.get("scaler"):
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=given["scaler"], growth_interval=1000)
    bare = net()
    optimizer = torch.optim.SGD(bare.parameters(), 0.05, momentum=0.9)
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n / 20))
    loader = DataLoader(rows(), 4, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(bare, optimizer, loader, schedule)
    saved, seen, skipped = {}, [], []
    folder = Path(given.get("checkpoints", out / "checkpoints"))
    with joined(given, accelerator, model, optimizer) as learner:
        begin = newest(folder) if given.get("resume") else 0
        if begin:
            accelerator.load_state(str(folder / str(begin)))
        per_epoch = len(loader)
        for epoch in range(begin // per_epoch, given.get("epochs", 2)):
            loader.set_epoch(epoch)
            behind = begin - epoch * per_epoch if epoch == begin // per_epoch else 0
            n = epoch * per_epoch + behind
            for x, y, number in accelerator.skip_first_batches(loader, behind) if behind else loader:
                with accelerator.accumulate(model):
                    loss = (model(x).float() - y).square().mean()
                    bad = n == given.get("overflow_at") and accelerator.process_index == 1
                    accelerator.backward(loss * (float("inf") if bad else 1.0))
                    if "clip" in given and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), given["clip"])
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                skipped.append(optimizer.step_was_skipped)
                seen += number.tolist()
                n += 1
                if n % 4 == 0 and given.get("save"):
                    saved[n] = flat(bare)
                    accelerator.save_state(str(folder / str(n)))
                    (folder / str(n) / "done").touch()
                kill(given, out, n, accelerator.process_index)
        results = {"mean": of_consensus(accelerator, learner, bare)} if learner else {}
        accelerator.save_model(model, str(out / "during"))
    accelerator.save_model(model, str(out / "final"))
    own = torch.tensor([float(accelerator.process_index)])
    results |= {
        "size": accelerator.num_processes,
        "weight": flat(bare),
        "saved": saved,
        "seen": seen,
        "calls": len(calls),
        "skipped": skipped,
        "rate": optimizer.param_groups[0]["lr"],
        "gathered": accelerator.gather(own).tolist(),
        "reduced": accelerator.reduce(own, "mean").item(),
        "states": saved_learners(folder / "4"),
    }
    accelerator.backward(model(x).square().mean())
    optimizer.step()  # behind the block it is accelerate's again
    results["after"] = flat(bare)
    (out / f"{accelerator.process_index}.json").write_text(json.dumps(results))


def kill(given: Given, out: Path, n: int, rank: int) -> None:
    killed = out / "killed"
    if n == given.get("kill_at") and rank == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def of_consensus(accelerator: Accelerator, learner: Any, bare: nn.Module) -> list[list[float]]:
    """Return each learner's own weights, then those in consensus()."""
    own = flat(bare)
    with learner.consensus() as mean:
        assert mean is bare
        return [*accelerator.gather(torch.tensor([own])).tolist(), flat(bare)]


def newest(folder: Path) -> int:
    """Return the step of the newest complete checkpoint."""
    return max((int(path.parent.name) for path in folder.glob("*/done")), default=0)


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        run(each)
