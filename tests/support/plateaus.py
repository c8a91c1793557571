"""A tiny set in Kaldi's layout whose phones are plateaus of 13 values, and a hybrid experiment on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from murmur.speech.corpus.kaldi_dir import write_table

LEXICON = {"ANNA": "A N A", "BOB": "B O B", "NOB": "N O B"}
EXPERIMENT = """
from pathlib import Path
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.features.chunks import Chunks
from murmur.speech.tasks.hybrid.config import Decoding, HmmStages
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.features.augment import SpecAugment
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.models import Tdnn
from murmur.strategies import SyncSGD


def experiment():
    task = HybridTask(
        corpus=Path({corpus!r}),
        cache=Path({cache!r}),
        hmm=HmmStages(
            monophone=EmConfig(gaussians=40, passes=6, grow_passes=4, align_passes=(2, 3, 4, 5, 6)), triphone=None
        ),
        network=Tdnn(hidden=32, dropout=0.0),
        chunks=Chunks(frames=20, size=8),
        augment=SpecAugment(time_frames=3, time_masks=1, bin_masks=0),
        decoding=Decoding(network=Search(scales=(0.3, 1.0)), scored="none"),
    )
    return Experiment(task, SyncSGD(), Budget(epochs=6), Adam(lr=5e-3), evaluate_every_epochs=3.0)
"""


def make_set(root: Path, sizes: dict[str, int], noise: float = 0.25, speaker: float = 0.0) -> Path:
    """Make utterances of two to four words, with silence before, between and after, in the number given by split.

    Args:
        root: Folder of the set.
        sizes: Number of utterances by split, of four speakers in turn.
        noise: Deviation of the noise on each value.
        speaker: Deviation of the elements of each speaker's linear map from those of the identity; 0: no maps.
    """
    rng = np.random.default_rng(3)
    plateaus = {phone: rng.standard_normal((3, 13)) for phone in "ABNO"}
    quiet, feats = rng.standard_normal(13) * 0.2, {}

    def noisy(value: np.ndarray, frames: int) -> np.ndarray:
        return np.tile(value, (frames, 1)) + noise * rng.standard_normal((frames, 13))

    for split, count in sizes.items():
        texts = {}
        maps = [np.eye(13) + speaker * rng.standard_normal((13, 13)) for _ in range(4)] if speaker else [np.eye(13)] * 4
        for i in range(count):
            name, words = f"{split}{i % 4}-{i:03}", [list(LEXICON)[k] for k in rng.integers(3, size=2 + i % 3)]
            pieces = [noisy(quiet, 12)]
            for word in words:
                states = [p for phone in LEXICON[word].split() for p in plateaus[phone]]
                pieces += [noisy(state, int(rng.integers(2, 5))) for state in states]
                pieces.append(noisy(quiet, int(rng.integers(8, 14))))
            texts[name] = " ".join(words)
            feats[name] = (np.concatenate(pieces) @ maps[i % 4].T).astype(np.float32)
        folder = root / "data" / split
        write_table(folder / "text", texts)
        write_table(folder / "utt2spk", {n: n.partition("-")[0] for n in texts})
        write_table(folder / "feats.scp", {n: f"feats.npz:{n}" for n in texts})
    np.savez(root / "feats.npz", **feats)
    write_table(root / "lexicon.txt", LEXICON)
    return root


def make_experiment(root: Path) -> Path:
    """Write a file whose experiment() trains on a set made in `root`, with the cache beside it."""
    corpus = make_set(root / "set", {"train": 40, "dev": 8, "test": 8})
    file = root / "plateaus_experiment.py"
    file.write_text(EXPERIMENT.format(corpus=str(corpus), cache=str(root / "cache")))
    return file
