"""Channels that cancel in the mean, silent channels, digital silence."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("soundfile", reason="the speech libraries are not installed (pip install murmur[speech])")

import soundfile

from murmur.speech.corpus.recordings import read_channels, read_recording, read_stream

RATE = 16000


def speechlike(seed=0, seconds=3.0):
    """Noise with the spectrum and the pauses of speech."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=int(seconds * RATE))
    spectrum = np.fft.rfft(noise) / (1 + (np.fft.rfftfreq(len(noise), 1 / RATE) / 500) ** 2)
    loudness = np.repeat(rng.uniform(0, 1, int(seconds * 5)), RATE // 5)
    signal = np.fft.irfft(spectrum, len(noise)) * loudness
    return (0.5 * signal / np.abs(signal).max()).astype(np.float32)


X, Y = speechlike(0), speechlike(1)
ZERO = np.zeros_like(X)
HALF = np.arange(len(X)) < len(X) // 2
ALONE = "taken alone, since channels cancel each other in the mean"


def mixed(path, *channels):
    soundfile.write(path, np.stack(channels, 1), RATE, subtype="FLOAT")
    from_file, from_stream = read_recording(path, RATE), read_stream(path.read_bytes(), RATE, None)[0]
    np.testing.assert_array_equal(from_file.samples, from_stream.samples)
    assert from_file.changes == from_stream.changes
    return from_file.samples, from_file.changes


@pytest.mark.parametrize(
    ("channels", "kept"),
    [
        ((X, -X), 0),
        ((0.9 * X, -X), 1),
        ((X, -0.5 * X), 0),
        ((X, -np.roll(X, 1)), 0),
        ((X, -np.roll(0.9 * X, 4)), 0),
        ((X + 0.1, -0.8 * X), 0),
        ((X, 0.9 * np.where(HALF, X, -X)), 0),
        ((X, 0.9 * X, -X), 0),
        ((X, -X, Y * 0.1), 0),
        ((ZERO, 0.7 * X, -X), 2),
        ((X, -X, 0.5 * Y, -0.5 * Y), 0),
    ],
)
def test_channels_that_cancel_are_told_and_the_loudest_is_taken(tmp_path, channels, kept):
    samples, told = mixed(tmp_path / "a.wav", *channels)
    np.testing.assert_array_equal(samples, channels[kept])
    assert told.endswith(f"channel {kept + 1} of {len(channels)} {ALONE}")
    each = read_channels(tmp_path / "a.wav", RATE, "each")
    assert [found.changes for found in each] == [""] * len(channels)
    for found, channel in zip(each, channels, strict=True):
        np.testing.assert_array_equal(found.samples, channel)


@pytest.mark.parametrize(
    "channels",
    [
        (X, X),
        (X, Y),
        (X, 0.1 * Y),
        (np.where(HALF, X, 0), np.where(HALF, 0, Y)),
        (X - 0.05 * Y, Y - 0.05 * X),
        (X, np.roll(X, 40)),
        (X, X, X, -X),
        (X, Y, speechlike(2), speechlike(3), speechlike(4), speechlike(5)),
        (ZERO, ZERO),
    ],
)
def test_other_channels_are_averaged_with_the_same_bits(tmp_path, channels):
    samples, told = mixed(tmp_path / "a.wav", *channels)
    np.testing.assert_array_equal(samples, np.stack(channels, 1).astype(np.float32).mean(1, dtype=np.float32))
    assert told == f"{len(channels)} channels averaged"


@pytest.mark.parametrize("silence", [ZERO, ZERO + 0.3, 1e-5 * Y])
def test_a_silent_channel_does_not_lower_the_level(tmp_path, silence):
    samples, told = mixed(tmp_path / "a.wav", X, silence)
    np.testing.assert_array_equal(samples, X)
    assert told == "channel 2 of 2 left out as silent"
    samples, told = mixed(tmp_path / "a.wav", silence, X, silence, Y)
    np.testing.assert_array_equal(samples, np.stack([X, Y], 1).mean(1, dtype=np.float32))
    assert told == "channel 1 and 3 of 4 left out as silent, 2 channels averaged"


@pytest.mark.parametrize("rate", [8000, 22050, 44100])
@pytest.mark.parametrize("level", [0.0, 0.5, -1.0])
@pytest.mark.parametrize("count", [1, 2, 100, 44101])
def test_a_constant_stays_one_at_another_rate(tmp_path, rate, level, count):
    soundfile.write(tmp_path / "a.wav", np.full(count, level), rate, subtype="FLOAT")
    found = read_recording(tmp_path / "a.wav", RATE)
    np.testing.assert_array_equal(found.samples, np.full(max(round(count * RATE / rate), 1), level, np.float32))
