"""Audio files that are shorter or longer than their headers say: libsndfile reads many of them without an error.

It rejects a truncated FLAC, keeps silent about containers and SPHERE, and reads as many samples as are there, or as are
declared.
"""

from __future__ import annotations

import io
from typing import BinaryIO

from murmur.speech.corpus.containers import samples_of
from murmur.speech.corpus.layout import CUT_SHORT, TOLERANCE_SECONDS
from murmur.speech.corpus.sound_file import Sound
from murmur.speech.corpus.sphere import read_header

SLACK = 8  # bytes; some programs count the header of the file
UNFINISHED = (
    "declares a length of 0 in its header, and samples follow: its writer did not write the length at the end,"
    " convert it (ffmpeg -i FILE NEW.wav)"
)
TOO_LONG = (
    "goes on for {} bytes behind the samples that its header declares: correct the header (sox --ignore-length FILE"
    " NEW.wav), or remove those bytes"
)


def fault_of(sound: Sound) -> str | None:
    """The fault of the length of an open file, for a message that begins with its name; None if there is none."""
    if sound.fault is not None:
        return sound.fault
    if isinstance(sound.source, bytes):
        return _fault_of_sizes(sound, io.BytesIO(sound.source), len(sound.source))
    if sound.format == "NIST":
        return CUT_SHORT if read_header(sound.source).samples > sound.frames else None
    with sound.source.open("rb") as file:
        return _fault_of_sizes(sound, file, sound.source.stat().st_size)


def _fault_of_sizes(sound: Sound, file: BinaryIO, size: int) -> str | None:
    found = samples_of(file, size)
    if found is None:
        return None
    if found.declared is None:
        return UNFINISHED if found.there > SLACK and not sound.frames else None
    if found.declared > found.there + SLACK:
        return CUT_SHORT
    if found.declared == 0 and found.left > SLACK:
        # libsndfile reads AIFF to the end, as FFmpeg writes it to a pipe.
        return None if sound.format == "AIFF" and sound.frames else UNFINISHED
    return TOO_LONG.format(found.left) if found.left > SLACK and not found.zeros else None


def lacks(wanted: int, found: int, rate_hz: int) -> bool:
    """True if so many samples were found, in place of those wanted, that the file has no end."""
    return wanted - found > TOLERANCE_SECONDS * rate_hz
