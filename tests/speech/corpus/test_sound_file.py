"""Audio files: names that soundfile does not take, and lengths that headers declare wrongly."""

from __future__ import annotations

import io
import os
import struct

import numpy as np
import pytest
import soundfile

pytest.importorskip("soundfile", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Utterance
from murmur.speech.corpus.recordings import read_channels, read_stream
from murmur.speech.features.analysis import read_audio, sample_rate_hz
from tests.support.speech_files import read_recording

RATE = 8000
TONE = (0.4 * np.sin(np.arange(RATE) / 3)).astype(np.float32)


def readers():
    return (
        lambda path: read_channels(path, RATE, "average"),
        lambda path: read_audio(Audio(path), RATE),
        lambda path: sample_rate_hz(Corpus((Utterance("u1", "s", (), Audio(path)),))),
    )


@pytest.mark.parametrize("reader", range(3))
def test_raw_samples_are_named_with_the_remedy(tmp_path, reader):
    path = tmp_path / "talk.raw"
    path.write_bytes((TONE * 32767).astype("<i2").tobytes())
    with pytest.raises(CorpusError, match=r"talk\.raw cannot be read.*without a header: convert it to WAV"):
        readers()[reader](path)


@pytest.mark.parametrize("reader", range(3))
def test_names_that_are_not_utf8_are_read(tmp_path, reader):
    path = tmp_path / os.fsdecode(b"caf\xe9.wav")
    try:
        path.touch()
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    soundfile.write(tmp_path / "utf8.wav", TONE, RATE)
    (tmp_path / "utf8.wav").replace(path)
    readers()[reader](path)
    path.write_text("no audio")
    with pytest.raises(CorpusError, match="cannot be read"):
        readers()[reader](path)


RATE_HZ = 16000
NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, RATE_HZ).astype(np.float32)
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


def sample_readers():
    return (lambda path: read_audio(Audio(path), RATE_HZ), lambda path: read_recording(path, RATE_HZ).samples)


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
def test_a_half_of_a_file_is_refused_and_the_whole_is_read(tmp_path, kind, subtype):
    path = tmp_path / "a.snd"
    soundfile.write(path, NOISE, RATE_HZ, format=kind, subtype=subtype)
    for read in sample_readers():
        assert len(read(path)) == RATE_HZ
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    for read in sample_readers():
        with pytest.raises(CorpusError, match=r"a\.snd"):
            read(path)


def changed(content, riff, data):
    return content[:4] + struct.pack("<I", riff) + content[8:40] + struct.pack("<I", data) + content[44:]


@pytest.mark.parametrize(
    "sizes",
    [
        (0xFFFFFFFF, 0xFFFFFFFF),  # FFmpeg, into a pipe
        (0x7FFFF024, 0x7FFFF000),  # SoX, into a pipe
        (2 * RATE_HZ + 44, 2 * RATE_HZ),  # with the first eight bytes of the file
    ],
)
def test_whole_files_with_other_sizes_in_their_headers_are_read(tmp_path, sizes):
    path = tmp_path / "a.wav"
    soundfile.write(path, NOISE, RATE_HZ)
    path.write_bytes(changed(path.read_bytes(), *sizes))
    for read in sample_readers():
        np.testing.assert_allclose(read(path), NOISE, atol=1e-4)


@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
@pytest.mark.parametrize("riff", [0, 36, 72])
@pytest.mark.parametrize("samples", [NOISE, np.zeros(RATE_HZ, np.float32)])
def test_samples_after_a_declared_length_of_0_are_named(tmp_path, kind, riff, samples):
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, RATE_HZ, format=kind, subtype="PCM_16")
    head, data, rest = path.read_bytes().partition(b"data")
    path.write_bytes(head[:4] + struct.pack("<I", riff) + head[8:] + data + bytes(4) + rest[4:])
    for read in (*sample_readers(), lambda path: read_stream(path.read_bytes(), RATE_HZ, None)):
        with pytest.raises(CorpusError, match="declares a length of 0 in its header, and samples follow"):
            read(path)


def test_a_file_without_samples_is_empty_and_not_cut_short(tmp_path):
    for kind in ("WAV", "WAVEX"):
        empty = io.BytesIO()
        soundfile.write(empty, NOISE[:0], RATE_HZ, format=kind, subtype="PCM_16")
        (tmp_path / "a.wav").write_bytes(empty.getvalue())
        assert read_recording(tmp_path / "a.wav", RATE_HZ).seconds == 0
        assert read_stream(empty.getvalue(), RATE_HZ, None)[0].seconds == 0


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_ogg_that_ends_inside_a_page_is_refused(tmp_path, subtype):
    path = tmp_path / "a.ogg"
    soundfile.write(path, np.tile(NOISE, 5), RATE_HZ, format="OGG", subtype=subtype)
    content = path.read_bytes()
    for read in sample_readers():
        assert len(read(path)) == 5 * RATE_HZ
    last = content.rfind(b"OggS")
    for end in (len(content) // 2, last + 20, len(content) - 1):
        path.write_bytes(content[:end])
        for read in sample_readers():
            with pytest.raises(CorpusError, match=r"a\.ogg ends inside a page: it is cut short"):
                read(path)
    path.write_bytes(content + b"TAG" + bytes(125))
    for read in sample_readers():
        assert len(read(path)) == 5 * RATE_HZ
    path.write_bytes(content[:last])  # whole pages, as a recorder that is stopped leaves them
    for read in sample_readers():
        assert 0 < len(read(path)) < 5 * RATE_HZ


def sized(kind, samples=NOISE, riff=None, data=None):
    """A file with other sizes in its header: of the file, and of the samples."""
    out = io.BytesIO()
    soundfile.write(out, samples, RATE_HZ, format=kind, subtype="PCM_16")
    content = bytearray(out.getvalue())
    if kind == "AU":
        content[8:12] = struct.pack(">I", data)
        return bytes(content)
    order = ">" if kind in ("AIFF", "CAF") else "<"
    long = kind in ("CAF", "W64")
    place = content.index({"AIFF": b"SSND"}.get(kind, b"data")) + (16 if kind == "W64" else 4)
    form = order + ("q" if long else "I")
    content[place : place + struct.calcsize(form)] = struct.pack(form, data)
    if riff is not None and kind != "CAF":
        at = 16 if kind == "W64" else 4
        content[at : at + struct.calcsize(form)] = struct.pack(form, riff)
    return bytes(content)


@pytest.mark.parametrize(
    ("kind", "riff", "data"),
    [
        ("AIFF", 0x7F000050, 0x7F000008),  # SoX, into a pipe
        ("AIFF", 0, 0),  # FFmpeg, into a pipe
        ("AU", None, 0xFFFFFFFF),
        ("W64", -1, 0x7FFFFFFFFFFFFFFF),
        ("WAV", 0x7FFFFFFF, 0x7FFFFFDB),
        ("WAV", 0x80000024, 0x80000000),
        ("WAVEX", 0xFFFFFFFF, 0xFFFFFFFF),
    ],
)
def test_lengths_that_programs_declare_which_write_to_a_pipe_are_none(tmp_path, kind, riff, data):
    path = tmp_path / "a.snd"
    path.write_bytes(sized(kind, riff=riff, data=data))
    for read in (*sample_readers(), lambda path: read_stream(path.read_bytes(), RATE_HZ, None)[0].samples):
        np.testing.assert_allclose(read(path), NOISE, atol=1e-4)


@pytest.mark.parametrize("kind", ["WAV", "WAVEX", "AIFF", "AU", "W64", "CAF"])
@pytest.mark.parametrize("riff", [None, 20000])
def test_samples_behind_those_that_a_header_declares_are_named(tmp_path, kind, riff):
    path = tmp_path / "a.snd"
    path.write_bytes(sized(kind, riff=riff, data=20000))
    for read in (*sample_readers(), lambda path: read_stream(path.read_bytes(), RATE_HZ, None)):
        with pytest.raises(
            CorpusError, match=r"goes on for 12[0-9]{3} bytes behind the samples that its header declares"
        ):
            read(path)


@pytest.mark.parametrize(("kind", "data"), [("CAF", 4), ("RF64", 0), ("W64", 24), ("W64", 23)])
def test_a_declared_length_of_0_is_named_in_other_containers(tmp_path, kind, data):
    content = sized(kind if kind != "RF64" else "WAV", data=data if kind != "RF64" else 0)
    if kind == "RF64":  # as FFmpeg writes it to a pipe
        content = b"RF64" + b"\xff" * 4 + b"WAVEds64" + struct.pack("<I", 28) + bytes(28) + content[12:40] + b"\xff" * 4
        content += (NOISE * 32767).astype("<i2").tobytes()
    path = tmp_path / "a.snd"
    path.write_bytes(content)
    for read in (*sample_readers(), lambda path: read_stream(path.read_bytes(), RATE_HZ, None)):
        with pytest.raises(CorpusError, match="declares a length of 0 in its header, and samples follow"):
            read(path)


@pytest.mark.parametrize("kind", ["WAV", "AIFF", "W64", "CAF", "AU"])
def test_chunks_and_zeros_may_follow_the_samples(tmp_path, kind):
    out = io.BytesIO()
    soundfile.write(out, NOISE, RATE_HZ, format=kind, subtype="PCM_16")
    chunk = {
        "WAV": b"LIST" + struct.pack("<I", 12) + b"INFOICMTaaaa",
        "AIFF": b"ANNO" + struct.pack(">I", 4) + b"aaaa",
        "W64": b"list" + bytes(12) + struct.pack("<q", 32) + bytes(8),
        "CAF": b"info" + struct.pack(">q", 4) + bytes(4),
        "AU": b"",
    }[kind]
    path = tmp_path / "a.snd"
    for behind in (chunk, chunk + bytes(5000), bytes(5000)):
        path.write_bytes(out.getvalue() + behind)
        for read in (*sample_readers(), lambda path: read_stream(path.read_bytes(), RATE_HZ, None)[0].samples):
            np.testing.assert_allclose(read(path)[:RATE_HZ], NOISE, atol=1e-4)


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
def test_a_half_of_a_stream_is_refused(kind, subtype):
    if kind == "NIST":
        pytest.skip("its header is read from files alone")
    out = io.BytesIO()
    soundfile.write(out, NOISE, RATE_HZ, format=kind, subtype=subtype)
    content = out.getvalue()
    with pytest.raises(CorpusError, match="standard input"):
        read_stream(content[: len(content) // 2], RATE_HZ, None)
