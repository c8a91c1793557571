"""Room acoustics and recording conditions: reverberation, background noise, level.

All functions take samples (S,) as float32 in [-1, 1] and a numpy Generator, and are pure functions of both.
"""

from __future__ import annotations

import numpy as np


def reverberate(samples: np.ndarray, rate_hz: int, rt60_seconds: float, rng: np.random.Generator) -> np.ndarray:
    """Convolve with a synthetic room response, cut to the length of the input.

    The response is a direct path of 1 followed, after 4 ms, by Gaussian noise under exp(-6.9 t / RT60) (energy falls
    by 60 dB in RT60: Polack's statistical model), whose energy is a quarter of the direct path's at RT60 = 0.25 s and
    grows in proportion to RT60.
    """
    t = np.arange(int(rt60_seconds * rate_hz)) / rate_hz
    tail = rng.standard_normal(len(t)) * np.exp(-6.9 * t / rt60_seconds)
    tail[: int(0.004 * rate_hz)] = 0.0
    response = tail * np.sqrt(rt60_seconds / np.sum(tail**2))
    response[0] = 1.0
    size = 1 << (len(samples) + len(response) - 1).bit_length()
    wet = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(response, size), size)
    return wet[: len(samples)].astype(np.float32)


def coloured_noise(length: int, slope: float, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise (length,) of unit power whose power spectrum falls as f**-slope (0 white, 1 pink, 2 brown)."""
    spectrum = np.fft.rfft(rng.standard_normal(1 << (length - 1).bit_length()))  # a power of two: fast for any length
    spectrum *= np.maximum(np.arange(len(spectrum)), 1) ** (-slope / 2)
    spectrum[0] = 0.0
    noise = np.fft.irfft(spectrum)[:length]
    return (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)


def add_noise(speech: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """speech + g noise with g such that power(speech) / power(g noise) is `snr_db` decibels over the whole length."""
    power = float(np.mean(np.square(speech, dtype=np.float64)))
    gain = np.sqrt(power / np.mean(np.square(noise, dtype=np.float64)) / 10 ** (snr_db / 10))
    return (speech + gain * noise).astype(np.float32)


def at_level(samples: np.ndarray, peak_db: float) -> np.ndarray:
    """Scaled so that the largest magnitude is `peak_db` decibels below or above full scale."""
    return (samples * (10 ** (peak_db / 20) / np.max(np.abs(samples)))).astype(np.float32)
