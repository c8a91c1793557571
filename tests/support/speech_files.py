"""Files of speech data that programs other than murmur write: lhotse cut sets, Kaldi archives."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import kaldi_native_io as kio
import lhotse
import numpy as np

from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.recordings import Recording, read_channels


def read_recording(path: Path, rate_hz: int) -> Recording:
    """A file with its channels averaged."""
    (found,) = read_channels(path, rate_hz, "average")
    return found


def write_cuts(corpus: Corpus, manifest: Path) -> None:
    """Write a corpus of audio files as a lhotse cut set, one cut per utterance."""
    recordings: dict[Path, lhotse.Recording] = {}
    cuts = []
    for utterance in corpus.utterances:
        audio = utterance.audio
        assert audio is not None
        if audio.path not in recordings:
            recordings[audio.path] = lhotse.Recording.from_file(audio.path.absolute())
        recording = recordings[audio.path]
        end = recording.duration if audio.end_seconds is None else min(audio.end_seconds, recording.duration)
        seconds, channel = end - audio.start_seconds, audio.channel or 0
        supervision = lhotse.SupervisionSegment(
            utterance.id, recording.id, 0.0, seconds, channel, utterance.text, speaker=utterance.speaker
        )
        cut = lhotse.MonoCut(utterance.id, audio.start_seconds, seconds, channel, [supervision], recording=recording)
        cuts.append(cut)
    lhotse.CutSet.from_cuts(cuts).to_file(manifest)


def write_archive(feats: Mapping[str, np.ndarray], archive: Path) -> None:
    """Write {utterance: feats_TF} as a Kaldi archive, and its index with the suffix .scp."""
    with kio.FloatMatrixWriter(f"ark,scp:{archive},{archive.with_suffix('.scp')}") as writer:
        for name in sorted(feats, key=str.encode):
            writer.write(name, feats[name])


def write_alignments(path: Path, alignments: Mapping[str, np.ndarray]) -> None:
    """Write {utterance: integers (frames,)} as one gzipped Kaldi archive, e.g. `ali.1.gz`, in byte order."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "ali"
        with kio.Int32VectorWriter(f"ark:{plain}") as writer:
            for name in sorted(alignments, key=str.encode):
                writer.write(name, [int(v) for v in alignments[name]])
        with plain.open("rb") as source, gzip.GzipFile(path, "wb", mtime=0) as target:
            shutil.copyfileobj(source, target)


def in_memory(feats_TF: np.ndarray) -> lhotse.Features:
    """Features of a cut, at 100 frames a second, with their values."""
    return lhotse.Features(
        type="kaldi-fbank",
        num_frames=len(feats_TF),
        num_features=feats_TF.shape[1],
        frame_shift=0.01,
        sampling_rate=16000,
        start=0,
        duration=len(feats_TF) * 0.01,
        storage_type="memory_raw",
        storage_path="",
        storage_key=lhotse.features.io.MemoryRawWriter().write("", feats_TF),
        channels=0,
    )
