"""A training program in the shape of icefall's recipes: `# <-` marks the lines for strategies.

    python examples/icefall_shape.py --exp-dir runs/shape                                one learner
    python examples/icefall_shape.py --exp-dir runs/shape --world-size 2                 two, by mp.spawn
    murmur launch --learners 2 --restarts 1 examples/icefall_shape.py --exp-dir runs/shape

Takes seconds on a CPU. Needs lhotse. k2 is not needed: the criterion is PyTorch's CTC, and the cuts are drawn matrices,
in which each token is a vector of its own with noise. docs/icefall.md says which lines change in a real recipe.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from lhotse import CutSet, MonoCut, SupervisionSegment
from lhotse.dataset import DynamicBucketingSampler
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from murmur.integrations.icefall import join, newest, on_consensus, sampler_state, saves, trains
from murmur.strategies import KAVG

TOKENS, FEATURES, FRAMES = 6, 8, 6  # tokens with the blank, features of a frame, frames of a token
FRAME_SECONDS = 0.01


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--exp-dir", type=Path, required=True)
    options.add_argument("--world-size", type=int, default=1)
    options.add_argument("--master-port", type=int, default=12354)
    options.add_argument("--num-epochs", type=int, default=6)
    options.add_argument("--save-every-n", type=int, default=10)
    options.add_argument("--keep-last-k", type=int, default=3)
    options.add_argument("--train-cuts", type=int, default=200)
    return options


def drawn_cuts(count: int, first: int) -> CutSet:
    """Cuts of 3 to 9 tokens, numbered from `first`; their features are drawn when they are read."""
    cuts = []
    for n in range(first, first + count):
        draw = torch.Generator().manual_seed(n)
        tokens = torch.randint(1, TOKENS, (int(torch.randint(3, 10, (), generator=draw)),), generator=draw)
        seconds = len(tokens) * FRAMES * FRAME_SECONDS
        text = " ".join(map(str, tokens.tolist()))
        segment = SupervisionSegment(f"{n}", f"{n}", 0.0, seconds, text=text)
        cuts.append(MonoCut(f"{n}", 0.0, seconds, 0, supervisions=[segment]))
    return CutSet.from_cuts(cuts).repeat(times=1, preserve_id=True)  # lazy, as from a manifest


class Frames(Dataset[dict[str, Any]]):
    """Batches of frames (N, T, F), their lengths (N,), and the tokens of each cut."""

    def __init__(self) -> None:
        self.codes = torch.randn(TOKENS, FEATURES, generator=torch.Generator().manual_seed(0))

    def __getitem__(self, cuts: CutSet) -> dict[str, Any]:
        tokens = [torch.tensor([int(token) for token in cut.supervisions[0].text.split()]) for cut in cuts]
        frames = [self.codes[t].repeat_interleave(FRAMES, 0) for t in tokens]
        draws = [torch.Generator().manual_seed(int(cut.supervisions[0].id)) for cut in cuts]
        noisy = [x + 0.5 * torch.randn(x.shape, generator=draw) for x, draw in zip(frames, draws, strict=True)]
        lengths = torch.tensor([len(x) for x in noisy])
        return {"inputs": nn.utils.rnn.pad_sequence(noisy, batch_first=True), "lengths": lengths, "tokens": tokens}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Conv1d(FEATURES, 32, 5, padding=2)
        self.out = nn.Conv1d(32, TOKENS, 1)

    def forward(self, frames_NTF: Tensor) -> Tensor:
        scores_NVT = self.out(self.hidden(frames_NTF.transpose(1, 2)).relu())
        return scores_NVT.permute(2, 0, 1).log_softmax(2)


def compute_loss(model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
    """Return the sum of the CTC losses of a batch, and the number of its tokens."""
    counts = torch.tensor([len(tokens) for tokens in batch["tokens"]])
    scores_TNV = model(batch["inputs"])
    loss = nn.functional.ctc_loss(scores_TNV, torch.cat(batch["tokens"]), batch["lengths"], counts, reduction="sum")
    return loss, int(counts.sum())


@on_consensus  # <-
def compute_validation_loss(model: nn.Module, valid_dl: DataLoader[Any], world_size: int) -> float:
    """Return the loss per token over the parts of all learners."""
    model.eval()
    total = torch.zeros(2)
    with torch.no_grad():
        for batch in valid_dl:
            loss, tokens = compute_loss(model, batch)
            total += torch.tensor([float(loss), float(tokens)])
    model.train()
    if world_size > 1:
        torch.distributed.all_reduce(total)
    return float(total[0] / total[1])


@saves  # <-
def save_checkpoint(params: argparse.Namespace, name: str, rank: int, **parts: Any) -> None:
    if rank == 0:
        state = {what: part.state_dict() for what, part in parts.items()}
        position = {"batch_idx_train": params.batch_idx_train, "cur_epoch": params.cur_epoch}
        torch.save({**state, **position}, params.exp_dir / f"{name}.pt")


def train_one_epoch(
    params: argparse.Namespace,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    train_dl: DataLoader[Any],
    rank: int,
) -> None:
    model.train()
    for batch in train_dl:
        params.batch_idx_train += 1
        loss, tokens = compute_loss(model, batch)
        scaler.scale(loss / tokens).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if params.batch_idx_train % params.save_every_n == 0:
            name = f"checkpoint-{params.batch_idx_train}"
            save_checkpoint(params, name, rank, model=model, optimizer=optimizer, sampler=train_dl.sampler)


def load_checkpoint(params: argparse.Namespace, model: nn.Module) -> dict[str, Any]:
    """Load the newest checkpoint into the model and the position, if there is one."""
    params.batch_idx_train, params.cur_epoch = newest(params.exp_dir), 1
    if params.batch_idx_train == 0:
        return {}
    saved: dict[str, Any] = torch.load(params.exp_dir / f"checkpoint-{params.batch_idx_train}.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    params.cur_epoch = saved["cur_epoch"]
    return saved


def loader(cuts: CutSet, shuffle: bool, rank: int, world_size: int) -> DataLoader[Any]:
    sampler = DynamicBucketingSampler(
        cuts,
        max_duration=4.0,
        num_buckets=3,
        shuffle=shuffle,
        drop_last=False,
        sync_buckets=False,  # batches come in the same order for any number of learners
        rank=rank,
        world_size=world_size,
    )
    return DataLoader(Frames(), sampler=sampler, batch_size=None)


@trains(KAVG(K=8), clip=5.0)  # <-
def run(rank: int, world_size: int, args: argparse.Namespace) -> float:
    params = argparse.Namespace(**vars(args))
    params.exp_dir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(42)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    saved = load_checkpoint(params, model)
    train_dl = loader(drawn_cuts(params.train_cuts, 0), True, rank, world_size)
    valid_dl = loader(drawn_cuts(40, 10000), False, rank, world_size)
    if saved:
        optimizer.load_state_dict(saved["optimizer"])
        train_dl.sampler.load_state_dict(sampler_state(saved["sampler"], world_size))
    join(model, optimizer, params)  # <-
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    loss = float("nan")
    for epoch in range(params.cur_epoch, params.num_epochs + 1):
        params.cur_epoch = epoch
        train_dl.sampler.set_epoch(epoch - 1)
        train_one_epoch(params, model, optimizer, scaler, train_dl, rank)
        loss = compute_validation_loss(model, valid_dl, world_size)
        save_checkpoint(params, f"epoch-{epoch}", rank, model=model)
        if rank == 0:
            print(f"epoch {epoch} of {world_size} learners: {loss:.3f} nats a token", flush=True)
    return loss


def main() -> None:
    args = parser().parse_args()
    if args.world_size > 1:
        mp.spawn(run, args=(args.world_size, args), nprocs=args.world_size, join=True)
    else:
        run(rank=0, world_size=1, args=args)


if __name__ == "__main__":
    main()
