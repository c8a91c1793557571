"""Files of several streams, and files that declare no length or a wrong one, are decoded to their ends."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess

import numpy as np
import pytest

pytest.importorskip("soundfile", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

import soundfile

from murmur.speech.corpus.corpus import Audio, CorpusError
from murmur.speech.corpus.mp3 import streams_in
from murmur.speech.corpus.recordings import read_channels, read_stream
from murmur.speech.corpus.sound_file import Sound
from murmur.speech.features.analysis import opened, read_audio
from tests.support.speech_files import read_recording

RATE = 16000
ID3V2 = b"ID3\3\0\0\0\0\0\x14" + bytes(20)
ID3V1 = b"TAG" + b"a title".ljust(125, b"\0")
APE = b"APETAGEX" + struct.pack("<IIII", 2000, 2000, 0, 1 << 31 | 1 << 29) + bytes(8) + bytes(range(256)) * 8
APE = APE[: 32 + 2000 - 32] + b"APETAGEX" + struct.pack("<IIII", 2000, 2000, 0, 1 << 31) + bytes(8)
KINDS = [("OGG", "VORBIS"), ("OGG", "OPUS"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("MP3", "MPEG_LAYER_III")]


def chirp(seconds, rate=RATE, seed=0):
    """A signal whose bit rate changes: a rising tone, then noise."""
    t = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).uniform(-0.2, 0.2, len(t))
    return np.where(t < seconds / 2, 0.3 * np.sin(2 * np.pi * (200 + 500 * t) * t), noise).astype(np.float32)


def written(samples, kind, subtype, rate=RATE, **more):
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind, subtype=subtype, **more)
    return out.getvalue()


def mp3(samples, rate=RATE, mode="VARIABLE"):
    """An MP3 without the frame that counts the others."""
    content = written(samples, "MP3", "MPEG_LAYER_III", rate, bitrate_mode=mode)
    place = 1
    while streams_in(content[place:])[1]:  # bytes before a frame
        place = content.index(content[:2], place + 1)
    return content[place:]


def frames_of(content):
    """The samples of a file that libsndfile reads whole."""
    samples, _ = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    return samples[:, 0]


def everywhere(tmp_path, content):
    """The samples of a file by each reader, which agree but for the rounding of a decoder of MP3 that moves."""
    path = tmp_path / "a.snd"
    path.write_bytes(content)
    found = read_audio(Audio(path), RATE)
    np.testing.assert_allclose(read_recording(path, RATE).samples, found, atol=1e-7)
    np.testing.assert_allclose(read_stream(content, RATE, None)[0].samples, found, atol=1e-7)
    np.testing.assert_array_equal(read_audio(Audio(path, command=f"cat {path}"), RATE), found)
    with opened(Audio(path), RATE) as audio:
        assert audio.samples == len(found)
    return found


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
@pytest.mark.parametrize("count", [2, 3])
def test_streams_one_behind_the_other_are_joined(tmp_path, kind, subtype, count):
    contents = [written(chirp(0.7 + n / 5, seed=n), kind, subtype) for n in range(count)]
    wanted = np.concatenate([frames_of(each) for each in contents])
    np.testing.assert_array_equal(everywhere(tmp_path, b"".join(contents)), wanted)
    np.testing.assert_array_equal(read_audio(Audio(tmp_path / "a.snd", 0.5, 1.2), RATE), wanted[8000:19200])
    assert read_recording(tmp_path / "a.snd", RATE).changes == f"{count} streams joined"


@pytest.mark.parametrize(
    "between", [ID3V1, ID3V2, ID3V1 + ID3V2, APE, APE + ID3V1 + ID3V2, b"\x17junk" * 20, bytes(99)]
)
@pytest.mark.parametrize("kind", ["MP3", "FLAC"])
def test_tags_and_a_little_else_may_be_between_streams_and_behind_them(tmp_path, between, kind):
    contents = [written(chirp(0.8 + n / 5, seed=n), kind, None) for n in range(2)]
    wanted = np.concatenate([frames_of(each) for each in contents])
    content = ID3V2 + contents[0] + between + contents[1] + between
    np.testing.assert_array_equal(everywhere(tmp_path, content), wanted)


@pytest.mark.parametrize("kind", ["MP3", "FLAC", "OGG"])
def test_streams_of_different_rates_and_channels_are_joined_or_refused(tmp_path, kind):
    stereo = np.stack([chirp(1.0, 44100), 0.5 * chirp(1.0, 44100)], 1)
    path = tmp_path / "a.snd"
    path.write_bytes(written(chirp(1.0), kind, None) + written(stereo, kind, None, 44100))
    found = read_recording(path, RATE)
    assert found.seconds == pytest.approx(2.0, abs=0.15)
    assert found.changes == "2 streams joined, 2 channels averaged, resampled from 44100 to 16000 Hz"
    with pytest.raises(CorpusError, match=r"a\.snd has streams with different numbers of channels"):
        read_channels(path, RATE, "each")
    with pytest.raises(CorpusError, match=r"a\.snd has streams of different sample rates"):
        read_audio(Audio(path), RATE)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
@pytest.mark.parametrize("reverse", [False, True])
def test_mp3_without_a_count_of_frames_is_read_to_its_end(tmp_path, rate, reverse):
    samples = chirp(6.0, rate)[:: -1 if reverse else 1]
    content = mp3(np.ascontiguousarray(samples), rate)
    estimated = frames_of(ID3V2 + content)
    (stream,), junk = streams_in(content)
    assert (junk, stream.counted) == ([], None)
    for head, tail in ((b"", b""), (ID3V2, b""), (ID3V2, ID3V1), (b"", APE + ID3V1)):
        path = tmp_path / "a.mp3"
        path.write_bytes(head + content + tail)
        with Sound(path) as sound:
            found = sound.read(0, sound.frames)[:, 0]
            assert len(found) == sound.frames == stream.frames * stream.frame_samples
        both = min(len(found), len(estimated))
        np.testing.assert_array_equal(found[:both], estimated[:both])  # libsndfile's length is an estimate
        assert len(found) == pytest.approx(6.0 * rate, abs=0.2 * rate)


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_mp3_that_lacks_frames_or_holds_a_hole_is_refused(tmp_path, mode):
    content = written(chirp(4.0), "MP3", "MPEG_LAYER_III", bitrate_mode=mode)
    path = tmp_path / "a.mp3"
    for wrong, what in (
        (content[: len(content) // 2], "is shorter than its header says"),
        (content[:5000] + bytes(9000) + content[5000:], "9[0-9]{3} bytes there are no sound"),
        (content + b"\x11" * 9000 + content, "9000 bytes there are no sound"),
    ):
        path.write_bytes(wrong)
        for read in (lambda: read_recording(path, RATE), lambda: read_audio(Audio(path), RATE)):
            with pytest.raises(CorpusError, match=rf"a\.mp3 .*{what}"):
                read()


def without_length(flac, samples=0):
    """A FLAC that declares so many samples in the 36 bits of its header."""
    return flac[:21] + bytes((flac[21] & 0xF0,)) + struct.pack(">I", samples) + flac[26:]


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24"])
@pytest.mark.parametrize("declared", [0, 1, 5000])
@pytest.mark.parametrize("seconds", [0.01, 0.5, 3.3])
def test_flac_is_as_long_as_its_frames(tmp_path, subtype, declared, seconds):
    content = written(chirp(seconds), "FLAC", subtype)
    wanted = frames_of(content)
    for wrong in (without_length(content, min(declared, len(wanted) - 1)), ID3V2 + without_length(content)):
        np.testing.assert_array_equal(everywhere(tmp_path, wrong), wanted)
    second = written(chirp(0.4, seed=3), "FLAC", subtype)
    wanted = np.concatenate([wanted, frames_of(second)])
    np.testing.assert_array_equal(everywhere(tmp_path, without_length(content) + without_length(second)), wanted)


@pytest.mark.parametrize("declared", [0, None, 60000])
def test_flac_without_its_end_is_refused(tmp_path, declared):
    content = written(chirp(3.0), "FLAC", "PCM_16")
    wrong = content if declared is None else without_length(content, declared)
    for cut in (wrong[: len(wrong) // 2], wrong[:-1], *([wrong] if declared else [])):
        (tmp_path / "a.flac").write_bytes(cut)
        for read in (read_recording, lambda path, rate: read_audio(Audio(path), rate)):
            with pytest.raises(CorpusError, match=r"a\.flac"):
                read(tmp_path / "a.flac", RATE)


def in_ogg(flac, serial):
    """A FLAC as a stream of Ogg, with pages of 500 bytes in place of pages of whole frames."""
    info = b"\x7fFLAC\1\0\0\0" + flac[:4] + b"\0" + flac[5:42]
    rest = flac[42:]
    parts = [info, *(rest[n : n + 500] for n in range(0, len(rest), 500))]
    pages = []
    for number, part in enumerate(parts):
        lengths = bytes([255] * (len(part) // 255) + [len(part) % 255])
        flags = 2 if not number else 4 if number == len(parts) - 1 else 0
        pages.append(
            struct.pack("<4sBBqIIIB", b"OggS", 0, flags, number, serial, number, 0, len(lengths)) + lengths + part
        )
    return pages


def test_flac_in_ogg_is_read_with_and_without_a_length(tmp_path):
    contents = [written(chirp(0.5 + n, seed=n), "FLAC", "PCM_16") for n in range(3)]
    links = [b"".join(in_ogg(without_length(each) if n else each, n)) for n, each in enumerate(contents)]
    for count in (1, 2, 3):
        wanted = np.concatenate([frames_of(each) for each in contents[:count]])
        np.testing.assert_array_equal(everywhere(tmp_path, b"".join(links[:count])), wanted)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_ogg_that_lacks_pages_is_refused(tmp_path, subtype):
    content = written(np.tile(chirp(4.0), 4), "OGG", subtype)
    places = [n for n in range(len(content)) if content.startswith(b"OggS\0", n)]
    assert len(places) > 5
    for wrong in (
        content[: places[3]] + content[places[4] :] + content,
        content + content[: places[3]] + content[places[4] :],
        content[: places[4] - 300] + content,
        content[: places[3]] + b"\x07" * 5000 + content[places[3] :],
    ):
        (tmp_path / "a.ogg").write_bytes(wrong)
        for read in (read_recording, lambda path, rate: read_audio(Audio(path), rate)):
            with pytest.raises(CorpusError, match=r"a\.ogg is damaged at byte [0-9]+"):
                read(tmp_path / "a.ogg", RATE)


CODECS = [("AU", "G721_32"), ("AU", "G723_24"), ("AU", "G723_40"), ("WAV", "GSM610"), ("AIFF", "GSM610")]
CODECS += [("W64", "GSM610"), ("WAV", "NMS_ADPCM_32"), ("AIFF", "DWVW_16"), ("WAV", "IMA_ADPCM"), ("WAV", "MS_ADPCM")]


@pytest.mark.parametrize(("kind", "subtype"), CODECS)
def test_codecs_without_seeking_are_read_in_order(tmp_path, kind, subtype):
    signal = 0.3 * np.sin(np.arange(3 * RATE) / 20).astype(np.float32)
    content = written(signal, kind, subtype)
    found = everywhere(tmp_path, content)
    assert len(signal) <= len(found) < len(signal) + 1100  # the last block may be filled
    assert np.abs(found[1000 : len(signal)] - signal[1000:]).max() < 0.1
    path = tmp_path / "a.snd"
    np.testing.assert_array_equal(read_audio(Audio(path, 1.0, 2.0), RATE), found[RATE : 2 * RATE])
    with opened(Audio(path), RATE) as audio:
        np.testing.assert_array_equal(audio.read(20000, 30000), found[20000:30000])
        np.testing.assert_array_equal(audio.read(0, 20000), found[:20000])
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorpusError, match=r"a\.snd is shorter than its header says"):
        read_recording(path, RATE)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg, the other decoder, is not installed")
@pytest.mark.parametrize(
    "how",
    [
        "-q:a 4 -write_xing 0 x.mp3",
        "-q:a 9 -ar 8000 x.mp3",
        "-b:a 64k -write_xing 0 -ar 44100 -ac 2 x.mp3",
        "-c:a flac -f ogg x.oga",
        "-c:a flac x.flac",
    ],
)
@pytest.mark.parametrize("piped", [False, True])
def test_another_decoder_finds_the_same_samples(tmp_path, how, piped):
    soundfile.write(tmp_path / "a.wav", chirp(7.0), RATE)
    *options, name = how.split()
    path = tmp_path / name
    target = f"-f {'ogg' if name == 'x.oga' else path.suffix[1:]} - | cat > {path}" if piped else str(path)
    subprocess.run(f"ffmpeg -v error -i {tmp_path}/a.wav {' '.join(options)} {target}", shell=True, check=True)
    with Sound(path) as sound:
        found = sound.read(0, sound.frames)
    done = subprocess.run(["ffmpeg", "-v", "quiet", "-i", path, "-f", "f32le", "-"], capture_output=True, check=True)
    wanted = np.frombuffer(done.stdout, "<f4").reshape(-1, found.shape[1])
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-4)
