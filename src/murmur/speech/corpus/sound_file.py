"""Opening of audio files by libsndfile: whatever is wrong with one is an error of soundfile or of the system."""

from __future__ import annotations

import io
import os
from pathlib import Path

import soundfile

NO_HEADER = "a .raw file holds samples without a header: convert it to WAV, or give it to murmur transcribe on -"


def open_sound(source: Path | io.BytesIO) -> soundfile.SoundFile:
    """Open a file or the content of one.

    Raises:
        soundfile.SoundFileError: libsndfile cannot read it.
        OSError: the system cannot.
    """
    try:
        # Bytes, since soundfile encodes text as strict UTF-8, and names of files may be any bytes.
        return soundfile.SoundFile(os.fsencode(source) if isinstance(source, Path) else source)
    except TypeError as error:  # soundfile asks for the rate of each file whose name ends in .raw
        raise soundfile.SoundFileRuntimeError(NO_HEADER) from error
