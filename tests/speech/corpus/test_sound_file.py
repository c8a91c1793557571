"""Audio files with names that soundfile does not take: each is read, or named as unusable."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("soundfile", reason="the speech libraries are not installed (pip install murmur[speech])")

import soundfile

from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError, Utterance
from murmur.speech.corpus.recordings import read_channels
from murmur.speech.features.analysis import read_audio, sample_rate_hz

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
