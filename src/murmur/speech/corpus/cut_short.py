"""Audio files that are shorter than their headers say: libsndfile reads many of them without an error.

It rejects a truncated FLAC, notes in a log the sizes that differ in WAV, WAVEX, RF64, W64, AIFF and AU, keeps silent
about SPHERE, and reads as many samples of a compressed file as there are. It finds no samples in a WAV file whose
writer did not write the length at the end of the recording.
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
CUT_SHORT = "is shorter than its header says: it is cut short, copy it again"
UNFINISHED = (
    "declares a length of 0 in its header, and samples follow: its writer did not write the length at the end,"
    " convert it (ffmpeg -i FILE NEW.wav)"
)
_LENGTHS = re.compile(r"^Length : (\d+)$\s^RIF[FX] : (\d+)", re.MULTILINE)  # of the file, and declared
PAGE = b"OggS\0"  # how a page of Ogg begins; the numbers below count from its end
HEADER_OF_PAGE, LONGEST_PAGE = 22, 65_307
TOLERANCE_SECONDS = 0.1  # by which the length that a compressed file declares may be wrong: more than a frame of MP3


def fault_of(file: soundfile.SoundFile, path: Path | None) -> str | None:
    """The fault of the length of an open file, for a message that begins with its name; None if there is none.

    Args:
        file: the open file.
        path: the same file; None for a stream, in which only the samples after a declared length of 0 are noticed.
    """
    if file.frames == 0 and _goes_on(file):
        return UNFINISHED
    if path is not None and file.format == "OGG" and not _ends_with_a_page(path):
        return "ends inside a page: it is cut short, copy it again"
    return CUT_SHORT if path is not None and _is_cut_short(file, path) else None


def _is_cut_short(file: soundfile.SoundFile, path: Path) -> bool:
    """True if a file is shorter than its header says.

    Headers of files that were written to a pipe declare no length. They are never cut short.
    """
    if file.format == "NIST":
        return read_header(path).samples > int(file.frames)
    sizes = [(int(declared), int(real)) for declared, real in _SIZES.findall(file.extra_info)]
    return any(real + SLACK < declared < UNKNOWN for declared, real in sizes)


def _goes_on(file: soundfile.SoundFile) -> bool:
    """True if a WAV file without samples has more bytes than its header declares."""
    found = _LENGTHS.search(file.extra_info)
    return found is not None and int(found[1]) > int(found[2]) + 2 * SLACK


def _ends_with_a_page(path: Path) -> bool:
    """True if the last page of an Ogg file is complete.

    Its flag for the end of the stream does not count: recorders that are stopped leave it out, and all samples are
    there.
    """
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 2 * LONGEST_PAGE, 0))
        last = file.read().rpartition(PAGE)[2]
    if len(last) < HEADER_OF_PAGE:
        return False
    lengths = last[HEADER_OF_PAGE : HEADER_OF_PAGE + last[HEADER_OF_PAGE - 1]]
    return len(last) >= HEADER_OF_PAGE + last[HEADER_OF_PAGE - 1] + sum(lengths)


def lacks(wanted: int, found: int, rate_hz: int) -> bool:
    """True if so many samples were found, in place of those wanted, that the file has no end."""
    return wanted - found > TOLERANCE_SECONDS * rate_hz
