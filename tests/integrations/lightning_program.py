"""Trains a small module with Lightning as its settings say, and writes what each learner has found.

python -m tests.integrations.lightning_program '{"out": "folder", "strategy": "KAVG", "values": {"K": 3}}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import murmur
import murmur.integrations.lightning

ROWS, VALIDATED = 48, 22


def data(rows: int, seed: int) -> TensorDataset:
    """Return rows whose first column is their number."""
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    x[:, 0] = torch.arange(rows)
    return TensorDataset(x, x[:, 1:].sum(1))


def weights_of(module: nn.Module) -> list[list[float]]:
    """Return all weights, and all floating-point buffers."""
    return weights_in(module.state_dict())


def weights_in(state: dict[str, Tensor]) -> list[list[float]]:
    buffers = {name for name in state if "running" in name}
    kinds = [x for name, x in state.items() if name in buffers], [x for name, x in state.items() if name not in buffers]
    return [torch.cat([x.flatten() for x in kind if x.is_floating_point()]).tolist() for kind in reversed(kinds)]


def module_of(pl: Any, settings: dict[str, Any]) -> Any:  # noqa: C901 - a class of hooks
    """Return a regression with BatchNorm that notes what it meets."""

    class Net(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
            self.seen: list[list[int]] = []
            self.validated: list[dict[str, Any]] = []
            self.saved_at: list[list[float]] = []
            self.automatic_optimization = not settings.get("manual", False)

        def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return (self.net(batch[0][:, 1:]).squeeze(1).float() - batch[1]).square().mean()

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            self.seen[-1].extend(batch[0][:, 0].int().tolist())
            self.disturb()
            loss = self.loss(batch) * (float("inf") if self.overflows() else 1.0)
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.clip_gradients(optimizer, settings["clip"], "norm")
                optimizer.step()
            return loss

        def overflows(self) -> bool:
            return self.trainer.global_rank == 1 and self.trainer.global_step == settings.get("overflow_at")

        def disturb(self) -> None:
            here = self.trainer.global_rank == settings.get("learner", 1)
            if here and self.trainer.global_step == settings.get("raise_at"):
                raise ArithmeticError("asked for")
            marked = Path(settings["out"], "killed")
            if here and self.trainer.global_step == settings.get("kill_at") and not marked.exists():
                marked.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def on_train_batch_end(self, *_: Any) -> None:
            if self.trainer.global_step == settings.get("save_at"):
                self.saved_at = weights_of(self)
                self.trainer.save_checkpoint(Path(settings["out"], "middle.ckpt"))

        def on_train_epoch_start(self) -> None:
            self.seen.append([])

        def on_validation_start(self) -> None:
            self.own = weights_of(self)  # the strategy's hook comes after this one
            if self.trainer.sanity_checking:
                self.begun = self.own

        def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
            self.log("loss", self.loss(batch), sync_dist=True)
            self.log("own loss", self.loss(batch), sync_dist=False)

        def on_validation_epoch_end(self) -> None:
            if not self.trainer.sanity_checking:
                at = {"step": self.trainer.global_step, "own": self.own, "weights": weights_of(self)}
                self.validated.append(at)

        def configure_optimizers(self) -> Any:
            if settings.get("optimizers", 1) > 1:
                return [torch.optim.SGD(self.net[0].parameters(), 0.1), torch.optim.SGD(self.net[3].parameters(), 0.1)]
            optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Net()


def strategy_of(package: str, settings: dict[str, Any]) -> Any:
    if settings["strategy"] == "ddp":
        return "ddp"
    name = "murmur.integrations." + package.partition(".")[0]
    return import_module(name).MurmurStrategy(getattr(murmur, settings["strategy"])(**settings.get("values", {})))


def plugins_of(package: str, settings: dict[str, Any]) -> list[Any]:
    if not settings.get("scale"):
        return []
    precision = import_module(f"{package}.plugins.precision")
    return [precision.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=settings["scale"]))]


def main(settings: dict[str, Any]) -> None:
    package = settings.get("package", "lightning.pytorch")
    pl, out = import_module(package), Path(settings["out"])
    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    torch.manual_seed(int(os.environ.get("LOCAL_RANK", "0")))  # learners begin with weights of their own
    saved = {"dirpath": out, "filename": "best", "monitor": "loss", "save_last": True, "enable_version_counter": False}
    saving = pl.callbacks.ModelCheckpoint(**(saved | settings.get("saving", {})))
    emergency = [pl.callbacks.OnExceptionCheckpoint(out)] if settings.get("on_exception") else []
    trainer = pl.Trainer(
        strategy=strategy_of(package, settings),
        accelerator="cpu",
        devices=settings.get("devices", int(os.environ.get("WORLD_SIZE", "2"))),
        max_epochs=settings.get("epochs", 2),
        gradient_clip_val=None if settings.get("manual") else settings.get("clip"),
        accumulate_grad_batches=settings.get("accumulate", 1),
        callbacks=[saving, *emergency],
        plugins=plugins_of(package, settings),
        precision=settings.get("precision"),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module, writes = module_of(pl, settings), count_writes(trainer.strategy.checkpoint_io)
    loaders = DataLoader(data(ROWS, 1), 4, shuffle=True), DataLoader(data(VALIDATED, 2), 4)
    trainer.fit(module, *loaders, ckpt_path=settings.get("resume"))
    trainer.save_checkpoint(out / "after.ckpt")
    found = {
        "seen": module.seen,
        "validated": module.validated,
        "begun": module.begun,
        "saved at": module.saved_at,
        "weights": weights_of(module),
        "losses": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "writes": len(writes),
        "steps": trainer.global_step,
        "checkpoints": {path.stem: checkpointed(path) for path in out.glob("*.ckpt")},
    }
    (out / f"found-{trainer.global_rank}-of-{trainer.world_size}.json").write_text(json.dumps(found))


def count_writes(checkpoints: Any) -> list[str]:
    write, writes = checkpoints.save_checkpoint, list[str]()

    def counted(checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        writes.append(str(path))
        write(checkpoint, path, storage_options)

    checkpoints.save_checkpoint = counted
    return writes


def checkpointed(path: Path) -> list[list[float]]:
    return weights_in(torch.load(path, weights_only=False)["state_dict"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
