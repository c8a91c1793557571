"""A program of transformers' Trainer. Its word is a JSON list of runs; each process writes its results of each."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import murmur.strategies
from murmur.integrations.transformers import attach

Given = Mapping[str, Any]


class Net(nn.Module):
    """Model in the Trainer's form, which keeps the numbers of its training samples."""

    def __init__(self, tokens: bool) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.layer = nn.Linear(6, 1)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(1, 6, generator=draw))
            self.layer.bias.zero_()
        self.seen: list[int] = []
        self.types = set[str]()
        if tokens:
            self.forward = self.of_tokens  # type: ignore[method-assign, assignment]

    def forward(self, x: Tensor, labels: Tensor, n: Tensor) -> dict[str, Tensor]:
        out = self.layer(x)
        if self.training:
            self.seen += n.tolist()
            self.types.add(str(out.dtype))
        return {"loss": (out.float().squeeze(-1) - labels).square().mean(), "y": out.detach().squeeze(-1)}

    def of_tokens(self, x: Tensor, labels: Tensor, n: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        """Return the loss as language models do: its sum over tokens that are not masked, over their number."""
        self.seen += n.tolist() if self.training else []
        square = ((self.layer(x).squeeze(-1) - labels).square() * (labels != -100)).sum()
        return {"loss": square / kwargs.get("num_items_in_batch", (labels != -100).sum())}


def data(count: int, tokens: bool) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    rows = []
    for n in range(count):
        x = torch.randn(*((5, 6) if tokens else (6,)), generator=draw)
        labels = x.sum(-1) + 0.1 * n / count
        if tokens:
            labels[1 + n % 4 :] = -100
        rows.append({"x": x, "labels": labels, "n": torch.tensor(n)})
    return rows


class Watch(TrainerCallback):
    """Keeps the weights of a learner at its checkpoints, and stops or kills it in mid-run."""

    def __init__(self, given: Given, out: Path) -> None:
        self.given, self.out = given, out
        self.weights: dict[int, list[float]] = {}
        self.logs = 0

    def on_save(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.weights[state.global_step] = found["model"].layer.weight.detach().flatten().tolist()

    def on_log(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        self.logs += state.is_world_process_zero

    def on_step_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        killed, now = self.out / "killed", state.global_step == self.given.get("kill_at")
        if now and args.process_index == 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if state.global_step == self.given.get("stop_at"):
            control.should_training_stop = True


USUAL = {"num_train_epochs": 2, "learning_rate": 0.02, "max_grad_norm": 0.0, "seed": 7, "save_strategy": "no"}


def run(given: Given) -> None:
    out, tokens = Path(given["out"]), given.get("tokens", False)
    arguments = TrainingArguments(
        given.get("checkpoints", str(out / "checkpoints")),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **USUAL | given.get("arguments", {}),
    )
    model, watch, rows = Net(tokens), Watch(given, out), data(48, tokens)
    trainer = Trainer(
        model,
        arguments,
        train_dataset=rows,  # type: ignore[arg-type]
        eval_dataset=rows[:10],  # type: ignore[arg-type]
        callbacks=[watch],
        compute_metrics=None if tokens else lambda found: {"bias": float((found.predictions - found.label_ids).mean())},
    )
    if given.get("strategy"):
        name, *letters = given["strategy"]
        attach(trainer, getattr(murmur.strategies, name)(*letters), timeout_seconds=60.0)
    done = trainer.train(resume_from_checkpoint=newest(Path(arguments.output_dir)) if given.get("resume") else None)
    trainer.save_model(str(out / "final"))
    results = {
        "size": arguments.world_size,
        "weight": model.layer.weight.detach().flatten().tolist(),
        "seen": model.seen,
        "types": sorted(model.types),
        "steps": done.global_step,
        "rate": trainer.lr_scheduler.get_last_lr()[0],
        "wrapped": type(trainer.model_wrapped).__name__,
        "saved": watch.weights,
        "logs": watch.logs,
        "history": trainer.state.log_history,
    }
    (out / f"{arguments.process_index}.json").write_text(json.dumps(results))


def newest(folder: Path) -> str | None:
    """Return the newest complete checkpoint."""
    found = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(found, key=lambda path: int(path.name.rpartition("-")[2]))) if found else None


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        run(each)
