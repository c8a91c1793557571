"""Audio files that are shorter than their headers say: libsndfile reads many of them without an error.

It rejects a truncated FLAC, notes in a log the sizes that differ in WAV, WAVEX, RF64, W64, AIFF and AU, keeps silent
about SPHERE, and reads as many samples of a compressed file as there are.
"""

from __future__ import annotations

import re
from pathlib import Path

import soundfile

from murmur.speech.corpus.sphere import read_header

# Samples of WAV, AIFF and AU; whole files of W64 and RF64, in whose logs the sizes of samples are not compared.
_SIZES = re.compile(r"^\s*(?:data|SSND|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
UNKNOWN = 0x7FFFF000  # programs that write to a pipe declare such sizes: SoX this one, FFmpeg 0xFFFFFFFF
SLACK = 8  # bytes; some programs count the header of the file
TOLERANCE_SECONDS = 0.1  # by which the length that a compressed file declares may be wrong: more than a frame of MP3


def is_cut_short(path: Path, file: soundfile.SoundFile) -> bool:
    """True if an open audio file is shorter than its header says.

    Headers of files that were written to a pipe declare no length. They are never cut short.
    """
    if file.format == "NIST":
        return read_header(path).samples > int(file.frames)
    sizes = [(int(declared), int(real)) for declared, real in _SIZES.findall(file.extra_info)]
    return any(real + SLACK < declared < UNKNOWN for declared, real in sizes)


def lacks(wanted: int, found: int, rate_hz: int) -> bool:
    """True if so many samples were found, in place of those wanted, that the file has no end."""
    return wanted - found > TOLERANCE_SECONDS * rate_hz
