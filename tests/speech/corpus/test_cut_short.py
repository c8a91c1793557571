"""Files that are shorter than their headers say are refused in every format, by training and by recognition."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile

from murmur.speech.corpus.corpus import Audio, CorpusError
from murmur.speech.corpus.recordings import read_recording, read_stream
from murmur.speech.features.analysis import read_audio

RATE = 16000
NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, RATE).astype(np.float32)
FORMATS = [
    ("WAV", "PCM_16"),
    ("WAV", "FLOAT"),
    ("WAVEX", "PCM_16"),
    ("WAVEX", "PCM_24"),
    ("RF64", "PCM_16"),
    ("W64", "PCM_16"),
    ("AIFF", "PCM_16"),
    ("AU", "PCM_16"),
    ("NIST", "PCM_16"),
    ("FLAC", "PCM_16"),
    ("MP3", "MPEG_LAYER_III"),
]


def readers():
    return (lambda path: read_audio(Audio(path), RATE), lambda path: read_recording(path, RATE).samples)


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
def test_a_half_of_a_file_is_refused_and_the_whole_is_read(tmp_path, kind, subtype):
    path = tmp_path / "a.snd"
    soundfile.write(path, NOISE, RATE, format=kind, subtype=subtype)
    for read in readers():
        assert len(read(path)) == RATE
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    for read in readers():
        with pytest.raises(CorpusError, match=r"a\.snd"):
            read(path)


def changed(content, riff, data):
    return content[:4] + struct.pack("<I", riff) + content[8:40] + struct.pack("<I", data) + content[44:]


@pytest.mark.parametrize(
    "sizes",
    [
        (0xFFFFFFFF, 0xFFFFFFFF),  # FFmpeg, into a pipe
        (0x7FFFF024, 0x7FFFF000),  # SoX, into a pipe
        (2 * RATE + 44, 2 * RATE),  # with the first eight bytes of the file
    ],
)
def test_whole_files_with_other_sizes_in_their_headers_are_read(tmp_path, sizes):
    path = tmp_path / "a.wav"
    soundfile.write(path, NOISE, RATE)
    path.write_bytes(changed(path.read_bytes(), *sizes))
    for read in readers():
        np.testing.assert_allclose(read(path), NOISE, atol=1e-4)


@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
@pytest.mark.parametrize("riff", [0, 36, 72])
@pytest.mark.parametrize("samples", [NOISE, np.zeros(RATE, np.float32)])
def test_samples_after_a_declared_length_of_0_are_named(tmp_path, kind, riff, samples):
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, RATE, format=kind, subtype="PCM_16")
    head, data, rest = path.read_bytes().partition(b"data")
    path.write_bytes(head[:4] + struct.pack("<I", riff) + head[8:] + data + bytes(4) + rest[4:])
    for read in (*readers(), lambda path: read_stream(path.read_bytes(), RATE, None)):
        with pytest.raises(CorpusError, match="declares a length of 0 in its header, and samples follow"):
            read(path)


def test_a_file_without_samples_is_empty_and_not_cut_short(tmp_path):
    for kind in ("WAV", "WAVEX"):
        empty = io.BytesIO()
        soundfile.write(empty, NOISE[:0], RATE, format=kind, subtype="PCM_16")
        (tmp_path / "a.wav").write_bytes(empty.getvalue())
        assert read_recording(tmp_path / "a.wav", RATE).seconds == 0
        assert read_stream(empty.getvalue(), RATE, None)[0].seconds == 0


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_ogg_that_ends_inside_a_page_is_refused(tmp_path, subtype):
    path = tmp_path / "a.ogg"
    soundfile.write(path, np.tile(NOISE, 5), RATE, format="OGG", subtype=subtype)
    content = path.read_bytes()
    for read in readers():
        assert len(read(path)) == 5 * RATE
    last = content.rfind(b"OggS")
    for end in (len(content) // 2, last + 20, len(content) - 1):
        path.write_bytes(content[:end])
        for read in readers():
            with pytest.raises(CorpusError, match=r"a\.ogg ends inside a page: it is cut short"):
                read(path)
    path.write_bytes(content + b"TAG" + bytes(125))
    for read in readers():
        assert len(read(path)) == 5 * RATE
    path.write_bytes(content[:last])  # whole pages, as a recorder that is stopped leaves them
    for read in readers():
        assert 0 < len(read(path)) < 5 * RATE
