"""Waveforms to log-mel or MFCC frames by lhotse's Kaldi-compatible layers; deltas; reading of audio and features.

Shapes: samples_S float32 in [-1, 1]; feats_TF float32, T frames of F values.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import kaldi_native_io as kio
import numpy as np
import soundfile
import soxr
import torch
from lhotse.audio.utils import get_audio_duration_mismatch_tolerance
from lhotse.features.kaldi.layers import Wav2LogFilterBank, Wav2MFCC
from torch import nn

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Problem, StoredFeatures, Utterance
from murmur.speech.corpus.file_content import making_sense_of
from murmur.speech.corpus.remote import sound_source
from murmur.speech.corpus.sound_file import REMEDY, UNEQUAL, Sound, is_shortened, lacks, rate_and_channels
from murmur.speech.features.augment import MelCepstra, at_speed


@dataclass(frozen=True)
class LogMel:
    """Log mel filter bank energies, like Kaldi's compute-fbank-feats without dither and with snip_edges=False.

    T = round(seconds / frame_shift_seconds), with a shift of a whole number of samples (at 22.05 kHz 220, as in Kaldi).
    The floor of an energy is float32's epsilon, of samples from -1 to 1. Kaldi's samples are 32,768 times as large, so
    that its floor is 90 dB lower. In quiet recordings many values are at the floor here, and normalisation does not
    remove that: 2 % at the level of LibriSpeech, 27 % at 30 dB less. Make quiet recordings louder.

    Attributes:
        rate_hz: sample rate of the audio; files at another rate are a problem, see `speed`.
        bins: number of mel filters, and number F of features.
        low_hz: lower edge of the filters.
        high_hz: upper edge; zero or less counts down from the Nyquist frequency.
        frame_length_seconds: length of the window.
        frame_shift_seconds: time from frame to frame.
        speed: playback speed before the analysis; 1.1 raises tempo and pitch by 1.1 (Ko et al. 2015).
    """

    rate_hz: int = 16000
    bins: int = 80
    low_hz: float = 20.0
    high_hz: float = -400.0
    frame_length_seconds: float = 0.025
    frame_shift_seconds: float = 0.01
    speed: float = 1.0

    @property
    def dims(self) -> int:
        """Values per frame."""
        return self.bins


@dataclass(frozen=True)
class Mfcc:
    """Mel frequency cepstra, like Kaldi's compute-mfcc-feats --use-energy=false --snip-edges=false without dither.

    Attributes as in `LogMel`, and `cepstra`, the number of coefficients kept, c0 first.
    """

    rate_hz: int = 16000
    cepstra: int = 13
    bins: int = 23
    low_hz: float = 20.0
    high_hz: float = 0.0
    frame_length_seconds: float = 0.025
    frame_shift_seconds: float = 0.01
    speed: float = 1.0

    @property
    def dims(self) -> int:
        """Values per frame."""
        return self.cepstra


@dataclass(frozen=True)
class Ready:
    """Features of the corpus itself (feats.scp); the number of values per frame is checked."""

    dims: int = 13
    frame_shift_seconds: float = 0.01


@dataclass(frozen=True)
class ReadyAtSpeed(Ready):
    """Mel cepstra of the corpus itself, c0 first, changed to those of the same speech at another speed.

    Attributes as in `Ready`, and:
        speed: playback speed; 1.1 raises tempo and formants by 1.1.
        analysis: the analysis that made the cepstra.
    """

    speed: float = 1.0
    analysis: MelCepstra = field(default_factory=MelCepstra)


Front = LogMel | Mfcc | Ready


def digest(front: Front) -> str:
    """Digest of the exact analysis."""
    content = json.dumps([type(front).__name__, asdict(front)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def features_of(utterance: Utterance, front: Front) -> np.ndarray:
    """feats_TF of one utterance.

    Raises:
        CorpusError: the audio or features are missing, damaged, at another rate, too short, of another number of
            columns than front.dims, or not finite.
    """
    if isinstance(front, Ready):
        if utterance.features is None:
            raise CorpusError("it has no stored features: prepare it with LogMel or Mfcc, or give feats.scp")
        feats_TF = read_stored(utterance.features)
    else:
        if utterance.audio is None:
            raise CorpusError("it has no audio: prepare it with Ready, or give wav.scp")
        feats_TF = analyse(read_audio(utterance.audio, front.rate_hz), front)
    if feats_TF.ndim != 2 or not len(feats_TF) or feats_TF.shape[1] != front.dims:
        raise CorpusError(f"its features have shape {feats_TF.shape}, expected (frames > 0, {front.dims})")
    if not np.isfinite(feats_TF).all():
        raise CorpusError(f"frame {int(np.argmin(np.isfinite(feats_TF).all(1)))} of its features is not finite")
    return at_speed(feats_TF, front.analysis, front.speed) if isinstance(front, ReadyAtSpeed) else feats_TF


def analyse(samples_S: np.ndarray, front: LogMel | Mfcc) -> np.ndarray:
    """feats_TF of samples at front.rate_hz; a CorpusError if they are shorter than one window."""
    if front.speed != 1.0:
        samples_S = soxr.resample(samples_S, front.rate_hz * front.speed, front.rate_hz)
    if len(samples_S) < front.frame_length_seconds * front.rate_hz:
        raise CorpusError(f"its {len(samples_S) / front.rate_hz:.3f} s are shorter than one analysis window")
    with torch.inference_mode():
        return _layer(replace(front, speed=1.0))(torch.from_numpy(np.ascontiguousarray(samples_S))[None])[0].numpy()


@lru_cache(maxsize=8)
def _layer(front: LogMel | Mfcc) -> nn.Module:
    common = {
        "sampling_rate": front.rate_hz,
        "frame_length": front.frame_length_seconds,
        "frame_shift": front.frame_shift_seconds,
        "num_filters": front.bins,
        "low_freq": front.low_hz,
        "high_freq": front.high_hz,
        "dither": 0.0,
    }
    layer: nn.Module = (
        Wav2MFCC(**common, num_ceps=front.cepstra) if isinstance(front, Mfcc) else Wav2LogFilterBank(**common)
    )
    # In place of abs(X)**2, a quarter of the whole analysis time: the same without the root.
    layer._to_spec = lambda X_NTB: X_NTB.real.square() + X_NTB.imag.square()  # type: ignore[assignment]
    return layer


@dataclass(frozen=True)
class RecordedAudio:
    """An open file and the stretch of one channel that is an utterance: `samples` samples from `first` on."""

    path: Path
    file: Sound
    first: int
    samples: int
    channel: int = 0

    def read(self, first: int, last: int) -> np.ndarray:
        """Samples [first, last) of the utterance; a CorpusError if the file ends before them."""
        samples_SC = self.file.read(self.first + first, self.first + last)
        if lacks(last - first, len(samples_SC), self.file.rate_hz):
            end = (self.first + first + len(samples_SC)) / self.file.rate_hz
            raise CorpusError(
                f"{self.path} ends at {end:.3f} s, before its header says: it is cut short, copy it again"
            )
        return np.ascontiguousarray(samples_SC[:, self.channel])


@contextmanager
def opened(audio: Audio, rate_hz: int) -> Iterator[RecordedAudio]:
    """One utterance, one channel of its file, checked but not yet read.

    Raises:
        CorpusError: the audio is missing, damaged, truncated, empty, not at `rate_hz`, or lacks a chosen channel.
    """
    source = _output_of(audio.command) if audio.command else sound_source(audio.path)
    try:
        with Sound(source) as file:
            if file.rate_hz != rate_hz:
                raise CorpusError(f"{audio.path} is at {file.rate_hz} Hz, not {rate_hz}: resample it or set rate_hz")
            fault = file.fault() or (None if file.is_uniform else UNEQUAL)
            if fault is not None:
                raise CorpusError(f"{audio.path} {fault}")
            _check_declared(audio, file.frames / rate_hz)
            channel = _channel(audio, file.channels)
            if audio.command is None and file.frames == 0:
                raise CorpusError(f"{audio.path} has a length of 0 s: record it again, or leave it out")
            first = round(audio.start_seconds * rate_hz)
            last = file.frames if audio.end_seconds is None else round(audio.end_seconds * rate_hz)
            # Times rounded to centiseconds may pass the end a little; Kaldi allows half a second too.
            if first >= file.frames or last > file.frames + rate_hz // 2:
                raise CorpusError(f"{audio.path} ends at {file.frames / rate_hz:.3f} s, before {last / rate_hz:.3f} s")
            yield RecordedAudio(audio.path, file, first, min(last, file.frames) - first, channel)
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(audio, error) from error


def _check_declared(audio: Audio, seconds: float) -> None:
    declared = audio.declared_seconds
    if declared is not None and abs(declared - seconds) > get_audio_duration_mismatch_tolerance():
        raise CorpusError(
            f"{audio.path} has {seconds:.3f} s, and its manifest declares {declared:.3f} s: write the manifest again"
        )


def _channel(audio: Audio, channels: int) -> int:
    if audio.channel is None and channels != 1:
        raise CorpusError(
            f"{audio.path} has {channels} channels and none is chosen: extract the one that holds the speech, or name"
            " it in reco2file_and_channel or in a lhotse manifest"
        )
    channel = audio.channel or 0
    if channel >= channels:
        raise CorpusError(f"{audio.path} has no channel {channel + 1}, it has {channels}: correct the data's channel")
    return channel


def _unreadable(audio: Audio, error: Exception) -> CorpusError:
    if audio.command is None and is_shortened(audio.path):
        return CorpusError(f"{audio.path} cannot be read: {REMEDY}, and convert it (sph2pipe -f wav FILE NEW.wav)")
    return CorpusError(f"{audio.path} cannot be read ({error}): is it missing, damaged or cut short?")


def read_audio(audio: Audio, rate_hz: int) -> np.ndarray:
    """samples_S of one utterance; raises the errors of `opened`."""
    with opened(audio, rate_hz) as recording:
        return recording.read(0, recording.samples)


def sample_rate_hz(corpus: Corpus) -> int:
    """Sample rate of a corpus, read from the header of its first recording; a CorpusError if it has none."""
    audio = corpus.utterances[0].audio if corpus.utterances else None
    if audio is None:
        raise CorpusError("the first utterance has no audio to take the sample rate from: set rate_hz yourself")
    try:
        return rate_and_channels(_output_of(audio.command) if audio.command else sound_source(audio.path))[0]
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(audio, error) from error


def _output_of(command: str) -> bytes:
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise CorpusError(f"command {command!r} failed with status {done.returncode}: {done.stderr[-300:]!r}")
    return done.stdout


def read_stored(source: StoredFeatures) -> np.ndarray:
    """feats_TF from an .npz file (array `key`) or a Kaldi archive (byte offset `key`).

    Raises:
        CorpusError: the file or the entry is missing or damaged.
    """
    where = Path(f"{source.path}:{source.key}")
    if not source.path.is_file():
        raise CorpusError(f"{where} cannot be read: there is no such file")
    with making_sense_of(where, "write the features again, with their index"):
        if source.path.suffix == ".npz":
            with np.load(source.path, allow_pickle=False) as arrays:
                return np.asarray(arrays[source.key], np.float32)
        return np.array(kio.FloatMatrix.read(str(where)), dtype=np.float32)


def deltas(feats_TF: np.ndarray, order: int = 2) -> np.ndarray:
    """Features with their time derivatives appended, (T, (order + 1) F), as Kaldi's add-deltas.

    d_t = sum_k k (x_{t+k} - x_{t-k}) / 10, k = 1, 2, with the edge frames repeated; the derivative of order n applies
    this filter n times, before any edge is repeated.
    """
    parts = [feats_TF]
    for kernel in delta_kernels(order):
        edge = len(kernel) // 2
        padded = np.pad(feats_TF, ((edge, edge), (0, 0)), mode="edge")
        windows_TFK = np.lib.stride_tricks.sliding_window_view(padded, len(kernel), axis=0)
        parts.append((windows_TFK @ kernel.astype(np.float32)).astype(np.float32))
    return np.concatenate(parts, axis=1)


def delta_kernels(order: int) -> list[np.ndarray]:
    """The filters of `deltas`, (4 n + 1,) for each order n = 1 .. `order`: weights of frames around t."""
    found = [np.ones(1)]
    for _ in range(order):
        found.append(np.convolve(found[-1], np.arange(-2, 3) / 10))
    return found[1:]


def check_readable(corpus: Corpus, rate_hz: int) -> None:
    """Check audio that is read later, such as that of test, without decoding samples or running commands.

    Raises:
        CorpusError: more than 1 % of the utterances have files that are damaged, cut short, or at another rate.
    """
    problems = []
    for utterance in corpus.utterances:
        audio = utterance.audio
        if audio is None or audio.command is not None:
            continue
        try:
            with opened(audio, rate_hz):
                pass
        except CorpusError as error:
            problems.append(Problem(utterance.id, str(audio.path), str(error)))
    corpus.without(problems)
