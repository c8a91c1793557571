"""A network on existing frames and classes: prepared corpora of any origin.

    murmur prepare data/train --alignments exp/tri/pdfs --storage uint8 --out runs/train
    murmur prepare data/dev --alignments exp/tri/pdfs_dev --out runs/dev
    murmur train frames --set task.train=runs/train/frames-... --set task.dev=runs/dev/frames-...

Features and alignments of an existing Kaldi system, or lhotse Shar shards, are used without a new extraction. There
is no lexicon and no decoding: the figures are frame accuracy and cross-entropy.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import nn

from murmur.core.errors import SettingError
from murmur.engine.task import Score
from murmur.speech.corpus.remote import bytes_of, is_remote, location
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import ChunkBatch, Chunks, ChunkTable
from murmur.speech.features.shards import MANIFEST, FrameStore, open_store
from murmur.speech.features.staging import Staging
from murmur.speech.hmm import frame_classifier
from murmur.speech.models import Network, Tdnn
from murmur.speech.tasks.chunk_learning import ChunkLearning, Precision
from murmur.speech.tasks.prepared import digest_of


@dataclass(frozen=True)
class FramesTask(ChunkLearning):
    """Frame classification on prepared corpora.

    Attributes:
        train: folder of the prepared training corpus, or its URL (s3://, gs://, https://).
        dev: folder of the prepared held-out corpus, or its URL.
        classes: number of outputs of the network; None takes one more than the greatest class in either corpus, which
            must be local.
        network: type and size of the network.
        chunks: options for cutting utterances.
        augment: changes of every training chunk, without tempo, which would move frames away from their targets.
        precision: number format of the network's matrix products in training.
        seed: seed of the order of chunks and of the masks.
        staging: local copies of the shards of corpora at URLs.
    """

    train: Path = Path("runs/train")
    dev: Path = Path("runs/dev")
    classes: int | None = None
    network: Network = field(default_factory=Tdnn)
    chunks: Chunks = field(default_factory=Chunks)
    augment: SpecAugment = field(default_factory=SpecAugment)
    precision: Precision = "float32"
    seed: int = 0
    staging: Staging = field(default_factory=Staging)

    def __post_init__(self) -> None:
        for name in ("train", "dev"):
            object.__setattr__(self, name, location(getattr(self, name)))
        if self.augment.tempo or self.network.stack != 1:
            raise ValueError(
                f"augment.tempo = {self.augment.tempo}, network.stack = {self.network.stack}: every frame has a target,"
                " so they must be 0 and 1"
            )

    def __getstate__(self) -> dict[str, object]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self) -> None:
        for name in ("train", "dev"):
            folder: Path = getattr(self, name)
            if is_remote(folder):
                if self.classes is None:
                    raise SettingError(
                        f"task.{name} is {folder}, of which all targets would be read: give task.classes"
                    )
                bytes_of(folder / MANIFEST)  # names it if it cannot be read
            elif not folder.is_dir():
                raise SettingError(
                    f"task.{name}: there is no folder {folder}: make it with murmur prepare DATA --alignments, and name"
                    " the folder that it prints"
                )

    @cached_property
    def stores(self) -> tuple[FrameStore, FrameStore]:
        return open_store(self.train, self.staging), open_store(self.dev, self.staging)

    @cached_property
    def outputs(self) -> int:
        if self.classes is not None:
            return self.classes
        return 1 + max(int(store.targets(u).max()) for store in self.stores for u in range(len(store)))

    @cached_property
    def order(self) -> ChunkTable:
        return ChunkTable(self.stores[0].lengths, **asdict(self.chunks), seed=self.seed)

    def prepare(self) -> None:
        """Open the corpora, so that missing data is reported once."""
        _ = self.order

    def model(self) -> nn.Module:
        return self.network.build(self.stores[0].dims, self.outputs)

    @cached_property
    def data_digest(self) -> str:
        """Digest of the checksums of both corpora."""
        shards = (store.manifest["shards"] for store in self.stores)
        return digest_of(*([(json.dumps(shard, sort_keys=True),) for shard in part] for part in shards))

    def minibatch(self, n: int) -> ChunkBatch:
        self.stores[0].stage(chunk.utterance for chunk in self.order[n])
        return self.order.batch(n, self.stores[0], self.augment)

    def piece(self, n: int, number: int, of: int) -> ChunkBatch | None:
        self.stores[0].stage(chunk.utterance for chunk in self.order.piece_chunks(n, number, of))
        return self.order.piece(n, number, of, self.stores[0], self.augment)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev, per frame: "loss" (cross-entropy, nats) and "frame accuracy"."""
        found = frame_classifier.frame_figures(model, *self._dev)
        return {"loss": found["loss"], "frame accuracy": found["accuracy"]}

    def test(self, model: nn.Module) -> Score:
        """The figures of dev again: there is no other held-out set."""
        figures = self.evaluate(model)
        return Score(figures, (f"frame accuracy {figures['frame accuracy']:.4f}, loss {figures['loss']:.4f} on dev",))

    @cached_property
    def _dev(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        dev = self.stores[1]
        names = dev.names
        return (
            {name: dev.feats(u) for u, name in enumerate(names)},
            {name: dev.targets(u) for u, name in enumerate(names)},
        )
