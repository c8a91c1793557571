"""Synthetic speech: espeak-ng through ctypes, and scripts rendered to FLAC files as if they were recorded.

The library and its voice data come from the `espeakng-loader` wheel (extra `synth`; espeak-ng itself is GPL-3 and is
loaded at run time only). The interface is espeak-ng's `speak_lib.h`. Output depends on earlier output of the same
process (the phase of the wavetable carries over, and re-initialising does not clear it), so repeatable audio needs a
fresh process, a fixed order and a fixed seed: `render` runs `python -m murmur.speech.corpus.synth FOLDER PARENT`, which
reads lines from standard input and ends with the process PARENT.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
import soxr

from murmur.execution.workers import end_with_parent
from murmur.speech.corpus import room_acoustics as room

try:
    import espeakng_loader
except ImportError:  # the extra is optional; Synthesizer reports it
    espeakng_loader = None

_SYNCHRONOUS = 2
_NEVER_EXIT = 0x8000
_UTF8 = 1
_RATE, _PITCH, _RANGE = 1, 3, 4
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class SynthesisError(ValueError):
    """espeak-ng is missing, does not know a voice, or refused a text."""


@dataclass(frozen=True)
class Voice:
    """A speaking voice.

    Attributes:
        accent: espeak-ng language, e.g. "en-us".
        variant: one of espeak-ng's voice variants, e.g. "f2".
        words_per_minute: speaking rate, 80 to 450.
        pitch: 0 to 99; 50 is the variant's own.
        pitch_range: 0 (monotone) to 99.
    """

    accent: str = "en-us"
    variant: str = "m1"
    words_per_minute: int = 175
    pitch: int = 50
    pitch_range: int = 50


def check_installed() -> None:
    """Raise a SynthesisError if espeak-ng is not installed."""
    if espeakng_loader is None:
        raise SynthesisError("espeak-ng is not installed: pip install 'murmur-asr[synth]'")


def load_espeak() -> tuple[ctypes.CDLL, int]:
    """The initialised library and its sampling rate in Hz; a SynthesisError if it or its voices are missing."""
    check_installed()
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    data = espeakng_loader.get_data_path()
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), _NEVER_EXIT)
    if rate <= 0:
        raise SynthesisError(f"espeak-ng cannot read its voices in {data}: reinstall espeakng-loader")
    return library, rate


class Synthesizer:
    """One espeak-ng engine; at most one per process, because the library's state is global."""

    def __init__(self) -> None:
        self._library, self.rate_hz = load_espeak()
        # For the noise of breathy voices, otherwise seeded by the clock.
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        self._chunks: list[np.ndarray] = []
        self._callback = _Callback(self._receive)  # C keeps a bare pointer, so the reference must live here
        self._library.espeak_SetSynthCallback(self._callback)

    def say(self, text: str, voice: Voice) -> np.ndarray:
        """int16 samples (S,) at `rate_hz` of `text` spoken by `voice`; a SynthesisError if espeak-ng refuses."""
        name = f"{voice.accent}+{voice.variant}"
        if self._library.espeak_SetVoiceByName(name.encode()) != 0:
            raise SynthesisError(
                f"espeak-ng has no voice {name!r}: take an accent such as en-us and a variant such as f2"
            )
        self._library.espeak_SetParameter(_RATE, voice.words_per_minute, 0)
        self._library.espeak_SetParameter(_PITCH, voice.pitch, 0)
        self._library.espeak_SetParameter(_RANGE, voice.pitch_range, 0)
        self._chunks.clear()
        raw = text.encode() + b"\0"
        status = self._library.espeak_Synth(raw, len(raw), 0, 1, 0, _UTF8, None, None)
        self._library.espeak_Synchronize()
        if status != 0 or not self._chunks:
            raise SynthesisError(f"espeak-ng made no sound for {text!r} (status {status}): is there a word to speak?")
        return np.concatenate(self._chunks)

    def _receive(self, samples, count: int, _events) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0


RATE_HZ = 16000
UTTERANCES_PER_SHARD = 128


@dataclass(frozen=True)
class ScriptLine:
    """One utterance to render.

    Attributes:
        id: name of the FLAC file, without suffix.
        words: words to speak.
        voice: voice of the speaker.
        snr_db: signal-to-noise ratio over the utterance.
        noise_slope: colour of the noise, 0 white to 2 brown.
        rt60_seconds: reverberation time; 0 for a dry recording.
        peak_db: level of the loudest sample relative to full scale.
        margin_seconds: noise before and after the speech.
        seed: seed of the noise and of the room response.
    """

    id: str
    words: tuple[str, ...]
    voice: Voice
    snr_db: float
    noise_slope: float
    rt60_seconds: float
    peak_db: float
    margin_seconds: tuple[float, float]
    seed: int


def render(lines: Sequence[ScriptLine], folder: Path, processes: int = 2) -> None:
    """Write `folder`/<id>.flac (16 kHz, 16 bit) for every line; shards of 128 lines, each in a fresh process.

    The bytes depend on `lines` alone, not on `processes`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = [lines[i : i + UTTERANCES_PER_SHARD] for i in range(0, len(lines), UTTERANCES_PER_SHARD)]
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(partial(_render_apart, folder), shards))


def _render_apart(folder: Path, shard: Sequence[ScriptLine]) -> None:
    command = [sys.executable, "-m", "murmur.speech.corpus.synth", str(folder), str(os.getpid())]
    script = json.dumps([asdict(line) for line in shard]).encode()
    done = subprocess.run(command, input=script, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")[-600:].strip()
        raise SynthesisError(f"rendering in {folder} failed with status {done.returncode}: {said}")


def _render_shard(lines: Iterable[ScriptLine], folder: Path) -> None:
    engine = Synthesizer()
    for line in lines:
        spoken = engine.say(" ".join(line.words).lower(), line.voice).astype(np.float32) / 32768
        clean = soxr.resample(spoken, engine.rate_hz, RATE_HZ)
        soundfile.write(folder / f"{line.id}.flac", _as_recorded(clean, line), RATE_HZ, subtype="PCM_16")


def _as_recorded(clean: np.ndarray, line: ScriptLine) -> np.ndarray:
    rng = np.random.default_rng(line.seed)
    before, after = (int(seconds * RATE_HZ) for seconds in line.margin_seconds)
    speech = np.pad(clean, (before, after))
    if line.rt60_seconds > 0:
        speech = room.reverberate(speech, RATE_HZ, line.rt60_seconds, rng)
    noise = room.coloured_noise(len(speech), line.noise_slope, rng)
    return room.at_level(room.add_noise(speech, noise, line.snr_db), line.peak_db)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    rows = json.load(sys.stdin)
    _render_shard([ScriptLine(**{**row, "voice": Voice(**row["voice"])}) for row in rows], Path(sys.argv[1]))
