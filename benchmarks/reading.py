"""Frames per second from a prepared corpus, compared with an LSTM 3x256, lhotse's sampler and torch's loader.

A synthetic corpus of some hours, every frame with a class. One reader on one core makes minibatches of 24 chunks of 100
frames with context, from 1 and 2 bytes per value, with and without SpecAugment; a training step of the LSTM on one core
takes the same minibatches; lhotse's DynamicBucketingSampler and a torch DataLoader over chunks read
the same utterances. Also measured: the remaining wait for data when two minibatches are prepared ahead, and the memory
of the index of 2,000 hours (with sparse files in place of 29 GB). Files are in the page cache.

    python benchmarks/reading.py [--hours 4]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import lhotse
import numpy as np
import torch
from lhotse.dataset import DynamicBucketingSampler
from lhotse.dataset.collation import collate_features
from torch.utils.data import DataLoader, Dataset

from measure import bar, close, interleave
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.scaling import Fixed
from murmur.engine.trainer import Trainer
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import AlignedFrames, Chunk, Chunks, ChunkTable, Frames
from murmur.speech.features.shards import FORMAT, MANIFEST, FrameStore, make, npy_header, open_store
from murmur.speech.models import Lstm
from murmur.speech.tasks.frames import FramesTask
from murmur.strategies import SyncSGD
from murmur.worlds.threads import ThreadWorld

KIND = "bar"
NAME = "reading"
BINS, CLASSES, REPEATS = 40, 500, 5
CHUNKS = Chunks(frames=100, left_frames=12, right_frames=12, size=24)
PLAIN = SpecAugment(time_masks=0, bin_masks=0)
MASKED = SpecAugment(warp=0.1)
UTTERANCES_PER_SHARD, LONG_HOURS, LONG_FRAMES = 128, 2000, 1200


@dataclass(frozen=True)
class Synthetic:
    """A shard of random utterances of 4 to 20 s."""

    seed: int

    def utterances(self) -> Iterator[AlignedFrames]:
        rng = np.random.default_rng(self.seed)
        for n in range(UTTERANCES_PER_SHARD):
            frames = int(rng.integers(400, 2000))
            feats = rng.standard_normal((frames, BINS), dtype=np.float32)
            yield AlignedFrames(f"u{self.seed:04}-{n:03}", feats, rng.integers(0, CLASSES, frames))


def table_of(store: FrameStore) -> ChunkTable:
    return ChunkTable(store.lengths, **asdict(CHUNKS))


def ours(store: FrameStore, augment: SpecAugment | None, minibatches: int = 60) -> Callable[[], float]:
    """Frames with a target that one reader makes per second."""
    table, start = table_of(store), iter(range(0, 10**9, 1000))

    def run() -> float:
        first, frames, began = next(start), 0, time.perf_counter()
        for n in range(first, first + minibatches):
            frames += table.batch(n, store, augment).frames
        return frames / (time.perf_counter() - began)

    return run


def training(store: FrameStore, minibatches: int = 3) -> Callable[[], float]:
    """Frames that an LSTM 3x256 trains on per second, with minibatches made beforehand."""
    model = Lstm(hidden=256, layers=3).build(BINS, CLASSES)
    task, table = FramesTask(), table_of(store)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = [table.batch(n, store) for n in range(minibatches)]

    def run() -> float:
        began = time.perf_counter()
        for batch in batches:
            loss = task.loss(model, batch)
            (loss.total / loss.samples).backward()
            optimizer.step()
            optimizer.zero_grad()
        return sum(batch.frames for batch in batches) / (time.perf_counter() - began)

    return run


class Collated(Dataset):  # type: ignore[type-arg]
    """Lhotse's padded features of a minibatch of cuts."""

    def __getitem__(self, cuts: lhotse.CutSet) -> tuple[torch.Tensor, torch.Tensor]:
        return collate_features(cuts)


def lhotse_side(store: FrameStore, folder: Path, utterances: int) -> Callable[[], float]:
    """Whole padded utterances by lhotse's bucketing sampler, one process; frames without the padding."""
    cuts = []
    with lhotse.NumpyFilesWriter(folder) as writer:
        for u in range(utterances):
            feats, name = store.feats(u), f"u{u}"
            seconds = len(feats) / 100
            key = writer.write(name, feats)
            features = lhotse.Features(
                "kaldi-fbank", len(feats), BINS, 0.01, 16000, 0, seconds, writer.name, str(folder), key, channels=0
            )
            cuts.append(lhotse.MonoCut(name, 0, seconds, 0, features=features))
    whole = lhotse.CutSet.from_cuts(cuts)

    def run() -> float:
        sampler = DynamicBucketingSampler(whole, max_duration=24, num_buckets=5, shuffle=True)
        frames, began = 0, time.perf_counter()
        for _, lengths in DataLoader(Collated(), sampler=sampler, batch_size=None, num_workers=0):
            frames += int(lengths.sum())
        return frames / (time.perf_counter() - began)

    return run


class ChunksOneByOne(Dataset):  # type: ignore[type-arg]
    """The usual map-style dataset: item i is chunk i with its context and targets."""

    def __init__(self, corpus: Frames, table: ChunkTable, chunks: int) -> None:
        self.corpus, self.cut = corpus, table.cut(np.arange(chunks))
        self.width = CHUNKS.left_frames + CHUNKS.frames + CHUNKS.right_frames

    def __len__(self) -> int:
        return len(self.cut)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        chunk: Chunk = self.cut[i]
        feats = np.empty((self.width, BINS), np.float32)
        self.corpus.read(chunk.utterance, chunk.first - CHUNKS.left_frames, feats)
        labels = np.full(self.width, -100, np.int64)
        own = slice(CHUNKS.left_frames, CHUNKS.left_frames + chunk.last - chunk.first)
        labels[own] = self.corpus.targets(chunk.utterance, chunk.first, chunk.last)
        return torch.from_numpy(feats), torch.from_numpy(labels)


def torch_side(store: FrameStore, workers: int, chunks: int = 1440) -> Callable[[], float]:
    """torch's DataLoader, shuffled, over our mapped frames chunk by chunk, with our reading and torch's loop."""
    dataset = ChunksOneByOne(store, table_of(store), chunks)

    def run() -> float:
        frames, began = 0, time.perf_counter()
        for _, labels in DataLoader(dataset, CHUNKS.size, shuffle=True, num_workers=workers):
            frames += int((labels >= 0).sum())
        return frames / (time.perf_counter() - began)

    return run


def waiting_share(train: Path, prefetch: int, minibatches: int = 24) -> float:
    """Time that steps waited for masked minibatches, as a share of all seconds of steps but the first two."""
    steps: list[Record] = []
    task = Unevaluated(train, train, CLASSES, Lstm(hidden=256, layers=3), CHUNKS, MASKED)
    experiment = Experiment(
        task, SyncSGD(), Budget(minibatches=minibatches), SGD(0.01), prefetch=prefetch, scaling=Fixed()
    )
    Trainer(experiment, ThreadWorld(1), observers=lambda _: (steps.append,)).fit()
    rest = [step for step in steps if step.kind == "step"][2:]
    waited = sum(step.data_seconds for step in rest)
    return waited / (waited + sum(step.compute_seconds for step in rest))


class Unevaluated(FramesTask):
    """The task without evaluation."""

    def evaluate(self, model: torch.nn.Module) -> dict[str, float]:
        return {}


def hollow(folder: Path) -> None:
    """Make a prepared corpus of 2,000 hours in sparse files: all sizes are right, all values are 0."""
    shards, per_shard = [], 1024
    for number in range(LONG_HOURS * 360_000 // LONG_FRAMES // per_shard):
        shard, frames = f"{number:05}", per_shard * LONG_FRAMES
        files = {}
        for what, descr, shape in (
            ("feats", "|u1", (frames, BINS)),
            ("scales", "<f4", (per_shard, 2, BINS)),
            ("targets", "<u2", (frames,)),
            ("lengths", "<i4", (per_shard,)),
        ):
            path, head = folder / f"{shard}.{what}.npy", npy_header(descr, shape)
            with path.open("wb") as file:
                file.write(head)
                file.truncate(len(head) + int(np.prod(shape)) * np.dtype(descr).itemsize)
                if what == "lengths":
                    file.write(np.full(per_shard, LONG_FRAMES, "<i4").tobytes())
            files[path.name] = [path.stat().st_size, ""]
        facts = {"name": shard, "utterances": per_shard, "frames": frames, "columns": BINS, "problems": []}
        shards.append({**facts, "files": files})
    content = {"format": FORMAT, "storage": "uint8", "columns": BINS, "shards": shards}
    (folder / MANIFEST).write_text(json.dumps(content))


def memory() -> dict[str, float]:
    """Megabytes of a separate process before and after opening 2,000 hours and drawing 300 minibatches."""
    with tempfile.TemporaryDirectory() as folder:
        hollow(Path(folder))
        command = [sys.executable, __file__, "--index", folder]
        found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        index = sum(path.stat().st_size for path in Path(folder).glob("*.lengths.npy"))
        return {**found, "index_bytes": index, "manifest_bytes": (Path(folder) / MANIFEST).stat().st_size}


def open_index(folder: Path) -> None:
    """The other side of `memory`."""
    imported = memory_of("RssAnon")
    began = time.perf_counter()
    store = open_store(folder)
    table = table_of(store)
    first = table[0]
    opened = time.perf_counter() - began
    began = time.perf_counter()
    for n in range(0, 300_000, 1000):
        table.batch(n, store)
    assert len(first) == CHUNKS.size
    own, mapped = memory_of("RssAnon"), memory_of("RssFile")
    facts = {"own_megabytes": own, "own_before_megabytes": imported, "mapped_megabytes": mapped, "open_seconds": opened}
    facts |= {"hours": float(store.lengths.sum(dtype=np.int64)) / 360_000, "utterances": float(len(store))}
    print(json.dumps({**facts, "chunks": table.chunks, "minibatch_seconds": (time.perf_counter() - began) / 300}))


def memory_of(kind: str) -> float:
    """Megabytes of this process: RssAnon is private, RssFile is mapped files, shared with others."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(kind)).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--index", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.index is not None:
        open_index(arguments.index)
        return
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        parts = [Synthetic(seed) for seed in range(1, 1 + round(arguments.hours * 3600 / 12 / UTTERANCES_PER_SHARD))]
        stores = {storage: make(root / storage, parts, storage) for storage in ("uint8", "float16")}
        sides = {
            "LSTM 3x256": training(stores["float16"]),
            "float16": ours(stores["float16"], None),
            "uint8": ours(stores["uint8"], None),
            "float16 masked": ours(stores["float16"], MASKED),
            "lhotse": lhotse_side(stores["float16"], root / "lhotse", 200),
            "DataLoader": torch_side(stores["float16"], 0),
            "DataLoader, 1 worker": torch_side(stores["float16"], 1),
        }
        speeds = interleave(sides, REPEATS)
        shares = interleave({f"ahead {k}": lambda k=k: waiting_share(root / "float16", k) for k in (0, 2)}, 3)
    found = memory()
    print(f"memory: {found}")
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratios = [a / b for a, b in zip(speeds["float16"], speeds["LSTM 3x256"], strict=True)]
    waited = {name: statistics.median(values) for name, values in shares.items()}
    figures = {"frames_per_second": speeds, "medians": medians, "waiting_shares": shares, "memory": found}
    bars = [
        bar("frames a second, one reader / LSTM 3x256 on one core", statistics.median(ratios), 100, at_most=False),
        bar("megabytes of a process with 2,000 hours open, libraries included", found["own_megabytes"], 300),
        bar("share of waiting for masked minibatches, two ahead", waited["ahead 2"], 0.01),
    ]
    close(NAME, figures, bars)


if __name__ == "__main__":
    main()
