"""Log-mel features to disk: `murmur.speech.features.shards.prepare` beside lhotse's `kaldi-fbank`, on the same files.

Both sides compute 80 log-mel bins of the same audio on one thread and leave float32 arrays on disk: here as shards
with checksums, there through `CutSet.compute_and_store_features` with the `numpy_files` writer. Rounds alternate.
Seconds are processor time, so that other work on the machine affects neither side.

    python benchmarks/features_to_disk.py [DATA_DIR] [--rounds 5]

Without DATA_DIR 300 utterances of the embedded digits are synthesised first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import lhotse
import torch

from measure import bar, close
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.digits import Digits, make_digits
from murmur.speech.corpus.kaldi_dir import read_data_dir
from murmur.speech.features.analysis import LogMel, sample_rate_hz
from murmur.speech.features.feature_store import prepare

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.speech_files import write_cuts

KIND = "bar"
NAME = "features_to_disk"


def ours_seconds(corpus: Corpus, rate_hz: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        prepare(corpus, LogMel(rate_hz=rate_hz), Path(folder))
        return time.process_time() - start


def lhotse_seconds(manifest: Path, rate_hz: int) -> float:
    extractor = lhotse.Fbank(lhotse.FbankConfig(sampling_rate=rate_hz, num_mel_bins=80))
    with tempfile.TemporaryDirectory() as folder:
        cuts = lhotse.CutSet.from_file(manifest).to_eager()
        start = time.process_time()
        cuts.compute_and_store_features(extractor, folder, num_jobs=1, storage_type=lhotse.NumpyFilesWriter)
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("data_dir", type=Path, nargs="?", help="Kaldi data directory with audio")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        data_dir = arguments.data_dir or make_digits(Path(scratch), Digits(train=300, dev=1, test=1)) / "data/train"
        corpus = read_data_dir(data_dir)
        rate_hz, manifest = sample_rate_hz(corpus), Path(scratch) / "cuts.jsonl"
        write_cuts(corpus, manifest)
        audio_seconds = sum(cut.duration for cut in lhotse.CutSet.from_file(manifest))
        speeds = []
        for number in range(arguments.rounds):
            ours = audio_seconds / ours_seconds(corpus, rate_hz)
            theirs = audio_seconds / lhotse_seconds(manifest, rate_hz)
            speeds.append((ours, theirs))
            print(f"round {number}: murmur {ours:.0f} x real time, lhotse {theirs:.0f} x, ratio {ours / theirs:.2f}")
    ratios = sorted(ours / theirs for ours, theirs in speeds)
    median = ratios[len(ratios) // 2]
    figures = {"audio_seconds": audio_seconds, "murmur_and_lhotse_times_real_time": speeds, "median_ratio": median}
    close(NAME, figures, [bar("features to disk, murmur / lhotse kaldi-fbank", median, 1.0, at_most=False)])


if __name__ == "__main__":
    main()
