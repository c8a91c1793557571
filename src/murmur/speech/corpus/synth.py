"""espeak-ng through ctypes: samples from a text and a voice.

The library and its voice data come from the `espeakng-loader` wheel (extra `synth`; espeak-ng itself is GPL-3 and is
loaded at run time only). The interface is espeak-ng's `speak_lib.h`. Output depends on earlier output of the same
process (the phase of the wavetable carries over, and re-initialising does not clear it), so repeatable audio needs a
fresh process, a fixed order and a fixed seed: see `murmur.speech.corpus.render`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

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
    """Check that espeak-ng is installed, without loading it.

    Raises:
        SynthesisError: the extra `synth` is not installed.
    """
    if espeakng_loader is None:
        raise SynthesisError("espeak-ng is not installed: pip install 'murmur[synth]'")


def load_espeak() -> tuple[ctypes.CDLL, int]:
    """The initialised library and its sampling rate in Hz.

    Raises:
        SynthesisError: the extra `synth` is not installed, or the library finds no voice data.
    """
    check_installed()
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    data = espeakng_loader.get_data_path()
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), _NEVER_EXIT)
    if rate <= 0:
        raise SynthesisError(f"espeak-ng cannot read its voices in {data}: reinstall espeakng-loader")
    return library, rate


class Synthesizer:
    """One espeak-ng engine; at most one per process, because the library's state is global.

    Raises:
        SynthesisError: the extra `synth` is not installed, or the library finds no voice data.
    """

    def __init__(self) -> None:
        self._library, self.rate_hz = load_espeak()
        self._library.espeak_ng_SetRandSeed(
            ctypes.c_long(1)
        )  # for the noise of breathy voices, otherwise seeded by the clock
        self._chunks: list[np.ndarray] = []
        self._callback = _Callback(self._receive)  # C keeps a bare pointer, so the reference must live here
        self._library.espeak_SetSynthCallback(self._callback)

    def say(self, text: str, voice: Voice) -> np.ndarray:
        """int16 samples (S,) at `rate_hz` of `text` spoken by `voice`.

        Raises:
            SynthesisError: the voice is unknown, the text is refused, or there is no output.
        """
        name = f"{voice.accent}+{voice.variant}"
        if self._library.espeak_SetVoiceByName(name.encode()) != 0:
            raise SynthesisError(
                f"espeak-ng has no voice {name!r}: take an accent such as en-us and a variant such as f2"
            )
        settings = ((_RATE, voice.words_per_minute), (_PITCH, voice.pitch), (_RANGE, voice.pitch_range))
        for parameter, value in settings:
            self._library.espeak_SetParameter(parameter, value, 0)
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
