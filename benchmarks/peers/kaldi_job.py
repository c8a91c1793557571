"""One iteration of a training job of stock Kaldi, and the job that averages; needs only numpy and PyTorch.

    kaldi_job.py train MODEL ARCHIVE SHUFFLE OUT FRAMES_PER_SECOND     prints the times of being ready and of its end
    kaldi_job.py average OUT MODEL...

As in nnet3's scripts: read the model, open an archive of examples (chunks with their context, a byte per value),
shuffle it, form minibatches, train, write the model; a separate process reads all models and writes their mean. The
step takes the time of a device (it sleeps) and then moves a real vector.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

CHUNKS_PER_MINIBATCH = 54


def train(model: Path, archive: Path, seed: int, out: Path, frames_per_second: float) -> None:
    """One job of one iteration."""
    torch.set_num_threads(1)
    w = torch.from_numpy(np.load(model)).requires_grad_()
    momentum = torch.zeros_like(w)
    feats, targets = np.load(archive.with_suffix(".feats.npy")), np.load(archive.with_suffix(".targets.npy"))
    scales = np.load(archive.with_suffix(".scales.npy"))
    order = np.random.default_rng(seed).permutation(len(feats))
    for first in range(0, len(order), CHUNKS_PER_MINIBATCH):
        own = order[first : first + CHUNKS_PER_MINIBATCH]
        minibatch = torch.from_numpy(scales[own, 0, None] + scales[own, 1, None] * feats[own])
        classes = torch.from_numpy(targets[own].astype(np.int64))
        step(w, momentum, minibatch, classes.numel() / frames_per_second)
    np.save(out, w.detach().numpy())


def step(w: torch.Tensor, momentum: torch.Tensor, minibatch: torch.Tensor, seconds: float) -> None:
    """A gradient of this duration and its step; written by hand, since torch.optim would import for a second first."""
    time.sleep(seconds)
    loss = w.square().mean() + minibatch[0, 0, 0]
    (g,) = torch.autograd.grad(loss, w)
    momentum.mul_(0.5).add_(g)
    with torch.no_grad():
        w.sub_(momentum, alpha=0.01)


def average(out: Path, models: list[Path]) -> None:
    """The mean of all models."""
    total = np.load(models[0])
    for model in models[1:]:
        total += np.load(model)
    np.save(out, total / len(models))


def main() -> None:
    ready = time.time()
    torch.set_num_threads(1)
    words = sys.argv[2:]
    if sys.argv[1] == "train":
        train(Path(words[0]), Path(words[1]), int(words[2]), Path(words[3]), float(words[4]))
    else:
        average(Path(words[0]), [Path(word) for word in words[1:]])
    print(ready, time.time())


if __name__ == "__main__":
    main()
