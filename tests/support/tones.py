"""A tiny set in Kaldi's layout whose phones are tones, and runs trained on it in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from murmur.speech.corpus.kaldi_dir import write_table

RATE = 8000
LEXICON = {"ANNA": "A N A", "BOB": "B O B", "NOB": "N O B"}
HERTZ = {"A": 500.0, "N": 1100.0, "B": 1900.0, "O": 2900.0}
HYBRID = """
from pathlib import Path
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.speech.features.chunks import Chunks
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd, HmmStages
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.features.augment import SpecAugment
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.models import Lstm
from murmur.strategies import SyncSGD


def experiment():
    task = HybridTask(
        corpus=Path({corpus!r}),
        cache=Path({cache!r}),
        front=FrontEnd(bins=12, cmvn="speaker"),
        hmm=HmmStages(
            monophone=EmConfig(gaussians=40, passes=6, grow_passes=4, align_passes=(2, 3, 4, 5, 6)), triphone=None
        ),
        network=Lstm(hidden=24, layers=1),
        chunks=Chunks(frames=40, size=8),
        augment=SpecAugment(time_masks=0, bin_masks=0),
        decoding=Decoding(network=Search(scales=(0.3,)), scored="none"),
    )
    return Experiment(task, SyncSGD(), Budget(epochs=6), Adam(lr=2e-2), evaluate_every_epochs=6.0)
"""
CTC = (
    *("task.network=Blstm(hidden=16, layers=1, stack=3)", "task.units=char", "task.augment.time_masks=0"),
    *("task.augment.bin_masks=0", "budget.epochs=24", "evaluate_every_epochs=24", "optimizer.lr=1e-2"),
)


def tones(words: list[str], seed: int) -> np.ndarray:
    """Return the words with silences around them, in faint noise."""
    rng = np.random.default_rng(seed)
    pieces = [np.zeros(RATE // 8)]
    for word in words:
        for phone in LEXICON[word].split():
            t = np.arange(int(RATE * rng.uniform(0.06, 0.1))) / RATE
            pieces.append(0.3 * np.sin(2 * np.pi * HERTZ[phone] * t))
        pieces.append(np.zeros(RATE // 10))
    samples = np.concatenate(pieces)
    return (samples + 0.003 * rng.standard_normal(len(samples))).astype(np.float32)


def make_tones(root: Path, sizes: dict[str, int]) -> Path:
    """Make utterances of one to three words, in the number given by split, of four speakers each; see `tones`."""
    rng = np.random.default_rng(7)
    for split, count in sizes.items():
        texts, paths = {}, {}
        for i in range(count):
            name = f"{split}{i % 4}-{i:03}"
            words = [list(LEXICON)[k] for k in rng.integers(3, size=1 + i % 3)]
            path = root / "wav" / f"{name}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, tones(words, i), RATE)
            texts[name], paths[name] = " ".join(words), str(path)
        folder = root / "data" / split
        folder.mkdir(parents=True)
        write_table(folder / "text", texts)
        write_table(folder / "wav.scp", paths)
        write_table(folder / "utt2spk", {name: name.split("-")[0] for name in texts})
    (root / "lexicon.txt").write_text("".join(f"{word} {phones}\n" for word, phones in LEXICON.items()))
    return root
