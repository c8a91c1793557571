"""Recordings from files and streams: formats, channels, rates, damage; cuts in silence."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("soundfile", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.recordings import cut_at_silences, read_channels, read_stream
from tests.support.speech_files import read_recording
from tests.support.sphere_files import write_sphere

RATE = 8000
CORPORA = Path(__file__).parents[4] / "shared" / "corpora"


def tone(seconds, hz=440.0, rate=RATE):
    return (0.4 * np.sin(2 * np.pi * hz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def only(found):
    (one,) = found
    return one


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg"])
def test_files_are_read_whole(tmp_path, suffix):
    path = tmp_path / f"a b.{suffix}"
    soundfile.write(path, tone(0.5), RATE)
    got = read_recording(path, RATE)
    assert (got.channels, got.changes) == (1, "")
    assert got.seconds == pytest.approx(0.5, abs=0.01)
    assert np.abs(got.samples - tone(0.5)[: len(got.samples)]).max() < (0.1 if suffix == "ogg" else 1e-3)


def test_channels_are_averaged_and_rates_changed(tmp_path):
    path = tmp_path / "stereo.wav"
    left = tone(1.0, rate=16000)
    soundfile.write(path, np.stack([1.5 * left, 0.5 * left], 1), 16000)
    got = read_recording(path, RATE)
    assert got.changes == "2 channels averaged, resampled from 16000 to 8000 Hz"
    inside = slice(400, -400)
    np.testing.assert_allclose(got.samples[inside], tone(1.0)[inside], atol=0.01)


@pytest.mark.parametrize("kind", ["wav", "sph"])
def test_each_channel_is_a_recording(tmp_path, kind):
    sides = [tone(1.0), tone(1.0, 900.0)]
    path = tmp_path / f"call.{kind}"
    if kind == "sph":
        write_sphere(path, *sides)
    else:
        soundfile.write(path, np.stack(sides, 1), RATE)
    for found in (
        read_channels(path, 2 * RATE, "each"),
        read_stream(path.read_bytes(), 2 * RATE, None, channels="each"),
    ):
        assert [(f.channel, f.channels, f.changes) for f in found] == [
            (n, 2, "resampled from 8000 to 16000 Hz") for n in (0, 1)
        ]
        for hertz, side in zip((440.0, 900.0), found, strict=True):
            np.testing.assert_allclose(side.samples[800:-800], tone(1.0, hertz, 2 * RATE)[800:-800], atol=0.02)
    soundfile.write(tmp_path / "one.wav", sides[0], RATE)
    (alone,) = read_channels(tmp_path / "one.wav", RATE, "each")
    assert (alone.channel, alone.changes) == (None, "")


def test_sphere_files_that_cannot_be_read(tmp_path):
    write_sphere(tmp_path / "packed.sph", tone(1.0), tone(1.0), shortened=True)
    with pytest.raises(CorpusError, match=r"packed\.sph cannot be read: .*sph2pipe"):
        read_recording(tmp_path / "packed.sph", RATE)
    write_sphere(tmp_path / "cut.sph", tone(1.0), tone(1.0))
    (tmp_path / "cut.sph").write_bytes((tmp_path / "cut.sph").read_bytes()[:5000])
    with pytest.raises(CorpusError, match=r"cut\.sph is shorter than its header says"):
        read_recording(tmp_path / "cut.sph", RATE)


def test_streams_with_and_without_header():
    wav = io.BytesIO()
    soundfile.write(wav, tone(0.3), RATE, format="WAV")
    content = wav.getvalue()
    assert len(only(read_stream(content, RATE, None)).samples) == 2400
    endless = content[:4] + b"\xff" * 4 + content[8:40] + b"\xff" * 4 + content[44:]  # as ffmpeg writes to a pipe
    np.testing.assert_allclose(only(read_stream(endless, RATE, None)).samples, tone(0.3), atol=1e-3)
    raw = (tone(0.3) * 32767).astype("<i2").tobytes()
    np.testing.assert_allclose(only(read_stream(raw, RATE, RATE)).samples, tone(0.3), atol=1e-3)
    assert only(read_stream(raw, 2 * RATE, RATE)).seconds == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize("rate_hz", [8000, 11025, 16000, 24000, 32000, 44100, 48000])
@pytest.mark.parametrize("raw_hz", [None, 8000])
def test_mp3_without_a_tag_is_known_by_its_frames(rate_hz, raw_hz):
    wanted = tone(1.0, rate=rate_hz)
    for mode in ("CONSTANT", "VARIABLE"):
        mp3 = io.BytesIO()
        soundfile.write(mp3, wanted, rate_hz, format="MP3", bitrate_mode=mode)
        content = mp3.getvalue()
        assert content[0] == 0xFF
        got = only(read_stream(content, rate_hz, raw_hz))
        assert "resampled" not in got.changes
        assert got.seconds == pytest.approx(1.0, abs=0.1)
        assert np.abs(got.samples).max() == pytest.approx(0.4, abs=0.1)


def test_raw_samples_that_begin_as_mp3_stay_raw():
    frame = b"\xff\xfb\x90\x00"
    for raw in (b"\xff" * 4000, frame + bytes(4000), frame * 1000, frame + b"\xff" * 4000, frame):
        assert len(only(read_stream(raw, RATE, RATE)).samples) == len(raw) // 2


def test_what_cannot_be_read_is_said(tmp_path):
    good = tmp_path / "good.flac"
    soundfile.write(good, tone(2.0), RATE)
    cases = {
        "no such file": tmp_path / "missing.wav",
        "is not a file": tmp_path,
        "cannot be read as audio": tmp_path / "text.wav",
        "cut short": tmp_path / "short.wav",
        "not a number at 0.500 s": tmp_path / "nan.wav",
    }
    cases["cannot be read as audio"].write_text("hello")
    soundfile.write(cases["cut short"], tone(2.0), RATE)
    cases["cut short"].write_bytes(cases["cut short"].read_bytes()[:9000])
    wrong = tone(1.0)
    wrong[RATE // 2] = np.nan
    soundfile.write(cases["not a number at 0.500 s"], wrong, RATE, subtype="FLOAT")
    for said, path in cases.items():
        with pytest.raises(CorpusError, match=said):
            read_recording(path, RATE)
    (tmp_path / "cut.flac").write_bytes(good.read_bytes()[:4000])
    with pytest.raises(CorpusError):
        read_recording(tmp_path / "cut.flac", RATE)
    with pytest.raises(CorpusError, match="give --rate"):
        read_stream(b"\x01\x02", RATE, None)
    with pytest.raises(CorpusError, match="not a whole number"):
        read_stream(b"\x01\x02\x03", RATE, RATE)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.2, 2.5), st.floats(0.0, 0.6)), max_size=8), st.floats(1.0, 4.0))
def test_pieces_cover_everything_and_none_is_too_long(parts, longest):
    pieces = [np.concatenate([tone(loud), np.zeros(int(quiet * RATE), np.float32)]) for loud, quiet in parts]
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    found = cut_at_silences(samples, RATE, longest)
    assert found[0][0] == 0
    assert found[-1][1] == len(samples)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))
    assert all(0 < end - first <= longest * RATE for first, end in found if len(samples))


def test_cuts_are_in_the_middle_of_pauses():
    samples = np.concatenate([tone(3.0), np.zeros(RATE // 2, np.float32), tone(3.0)])
    (first, second) = cut_at_silences(samples, RATE, 4.0)
    assert first[1] == second[0]
    assert 3.05 * RATE < first[1] < 3.45 * RATE


@pytest.mark.skipif(not CORPORA.is_dir(), reason="the recorded corpora are not beside this checkout")
def test_real_speech_is_cut_where_it_is_quiet():
    files = sorted((CORPORA / "librispeech_mini_s" / "wav").glob("4680/*.flac"))[:6]
    recordings = [read_recording(path, 16000) for path in files]
    samples = np.concatenate([r.samples for r in recordings])
    found = cut_at_silences(samples, 16000, 20.0)
    assert len(found) > 2
    whole = np.sqrt(np.square(samples).mean())
    for _, end in found[:-1]:
        assert np.sqrt(np.square(samples[end - 800 : end + 800]).mean()) < 0.25 * whole


def test_pieces_of_any_length_are_one():
    samples_S = tone(3.0)
    assert cut_at_silences(samples_S, RATE, float("inf")) == [(0, len(samples_S))]
    assert cut_at_silences(samples_S[:0], RATE, float("inf")) == [(0, 0)]


@pytest.mark.parametrize("raw_hz", [None, 8000])
def test_an_empty_stream_is_no_silence(raw_hz):
    with pytest.raises(CorpusError, match="standard input is empty"):
        read_stream(b"", RATE, raw_hz)


WIDE_RATE = 16000


def speechlike(seed=0, seconds=3.0):
    """Noise with the spectrum and the pauses of speech."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=int(seconds * WIDE_RATE))
    spectrum = np.fft.rfft(noise) / (1 + (np.fft.rfftfreq(len(noise), 1 / WIDE_RATE) / 500) ** 2)
    loudness = np.repeat(rng.uniform(0, 1, int(seconds * 5)), WIDE_RATE // 5)
    signal = np.fft.irfft(spectrum, len(noise)) * loudness
    return (0.5 * signal / np.abs(signal).max()).astype(np.float32)


X, Y = speechlike(0), speechlike(1)
ZERO = np.zeros_like(X)
HALF = np.arange(len(X)) < len(X) // 2
ALONE = "taken alone, since channels cancel each other in the mean"


def mixed(path, *channels):
    soundfile.write(path, np.stack(channels, 1), WIDE_RATE, subtype="FLOAT")
    from_file, from_stream = read_recording(path, WIDE_RATE), read_stream(path.read_bytes(), WIDE_RATE, None)[0]
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
    each = read_channels(tmp_path / "a.wav", WIDE_RATE, "each")
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
    found = read_recording(tmp_path / "a.wav", WIDE_RATE)
    np.testing.assert_array_equal(found.samples, np.full(max(round(count * WIDE_RATE / rate), 1), level, np.float32))
