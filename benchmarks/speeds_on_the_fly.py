"""Cost of speeds and noise on the fly: CPU time of minibatches from stored frames, and from audio.

Chunks of 100 frames with 12 of context on both sides, 24 a minibatch, 40 log-mel bins, one thread. Rounds alternate;
milliseconds are those of the thread, not of the wall clock.

    python benchmarks/speeds_on_the_fly.py DATA_DIR [--rounds 12]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from measure import close
from murmur.speech.corpus.kaldi_dir import read_data_dir
from murmur.speech.features.analysis import LogMel, features_of, sample_rate_hz
from murmur.speech.features.chunks import ChunkTable, FramesInMemory
from murmur.speech.features.speed_and_noise import Noise, NoiseSource, SpeedChunks

KIND = "study"
NAME = "speeds_on_the_fly"
UTTERANCES = 150
SPEEDS = {"stored": (1.0,), "0.9, 1.0, 1.1": (0.9, 1.0, 1.1), "0.9, 1.1": (0.9, 1.1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("data_dir", type=Path, help="Kaldi data directory with audio files")
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    corpus = read_data_dir(arguments.data_dir)
    front, own = LogMel(rate_hz=sample_rate_hz(corpus), bins=40), corpus.utterances[:UTTERANCES]
    feats = {u.id: features_of(u, front) for u in own}
    stored = FramesInMemory(feats, {name: np.zeros(len(feats_TF), int) for name, feats_TF in feats.items()})
    audio, raw = [u.audio for u in own], (np.empty(0, np.int32), np.empty((0, 2, 40), np.float32))
    drawn = {
        what: SpeedChunks(stored, np.array(stored.lengths), audio, front, speeds, *raw)
        for what, speeds in SPEEDS.items()
    }
    noise = NoiseSource(Noise(share=1.0), front.rate_hz)
    drawn["noise on every chunk"] = replace(drawn["stored"], noise=noise)
    table = ChunkTable(stored.lengths, 100, 12, 12, 24)
    spent: dict[str, list[float]] = {what: [] for what in drawn}
    for n in range(arguments.rounds):
        for what, versions in drawn.items():
            began = time.thread_time()
            table.batch(n, stored, versions=versions)
            spent[what].append(1e3 * (time.thread_time() - began))
    for what, milliseconds in spent.items():
        print(f"{what}: {', '.join(f'{value:.2f}' for value in milliseconds)} ms of CPU a minibatch")
    close(NAME, {what: round(median(milliseconds), 2) for what, milliseconds in spent.items()}, [])


if __name__ == "__main__":
    main()
