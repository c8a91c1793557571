"""Audio files decoded to their ends by libsndfile, and the faults that it does not report.

A file is the streams of its layout one behind the other. Codecs that libsndfile cannot seek are read in order.
libsndfile keeps silent about containers (WAV, RF64, W64, AIFF, CAF, AU) and SPHERE files that are shorter or longer
than their headers say: it reads as many samples as are there, or as are declared.
"""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import numpy as np
import soundfile

from murmur.core.whole_files import replacing
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.layout import CUT_SHORT, TOLERANCE_SECONDS, layout_of

# NIST SPHERE: a header of lines `name -type value`, and samples. libsndfile reads linear, mu-law and A-law ones; most
# telephone corpora of the LDC are compressed by shorten.
SPHERE = b"NIST_1A"
LONGEST_HEADER = 1 << 16
TO_CODING = {"ulaw": "-u", "mu-law": "-u", "alaw": "-a"}  # options of sph2pipe that keep 8-bit samples as they are
REMEDY = (
    "its samples are compressed by shorten, which only the program sph2pipe unpacks: install it"
    " (`lhotse install-sph2pipe`, then put it on the PATH)"
)


@dataclass(frozen=True)
class SphereHeader:
    """Channels, samples of each, their rate and coding, such as `pcm`, `ulaw` or `ulaw,embedded-shorten-v2.00`."""

    channels: int
    samples: int
    rate_hz: int
    coding: str

    @property
    def is_shortened(self) -> bool:
        """True if the samples are compressed by shorten."""
        return "shorten" in self.coding


def is_shortened(path: Path) -> bool:
    """True for a SPHERE file compressed by shorten, whatever its name; False for other and for missing files."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        sphere = file.read(len(SPHERE)) == SPHERE
    return sphere and sphere_header(path).is_shortened


def sphere_header(path: Path) -> SphereHeader:
    """Read the header of a SPHERE file; a missing channel_count is 1, a missing sample_coding is pcm.

    Raises:
        CorpusError: the file has no complete header.
    """
    with path.open("rb") as file:
        head = file.read(LONGEST_HEADER).partition(b"end_head")[0]
    if not head.startswith(SPHERE):
        raise CorpusError(f"{path} is no NIST SPHERE file: convert it, or copy it again")
    rows = (line.split(maxsplit=2) for line in head.decode("latin-1").splitlines()[2:])
    fields = {row[0]: row[2].strip() for row in rows if len(row) == 3}
    try:
        channels, samples = int(fields.get("channel_count", 1)), int(fields["sample_count"])
        found = SphereHeader(channels, samples, int(fields["sample_rate"]), fields.get("sample_coding", "pcm"))
    except (KeyError, ValueError) as error:
        raise CorpusError(f"{path} has a damaged SPHERE header ({error}): copy the file again") from error
    if min(found.channels, found.samples, found.rate_hz) < 1:
        raise CorpusError(f"{path} has a SPHERE header without samples, channels or rate: copy the file again")
    return found


def unpack_sphere(path: Path, target: Path) -> None:
    """Write a shortened SPHERE file as WAV with all its channels, its samples unchanged (mu-law stays mu-law).

    Raises:
        CorpusError: sph2pipe is not installed or fails.
    """
    program = shutil.which("sph2pipe")
    if program is None:
        raise CorpusError(f"{path}: {REMEDY}")
    how = TO_CODING.get(sphere_header(path).coding.partition(",")[0], "-p")
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as part:
        # Arguments instead of a shell command: the paths of corpora may hold spaces.
        done = subprocess.run([program, how, "-f", "wav", str(path), str(part)], capture_output=True, check=False)
        if done.returncode != 0 or not part.is_file():
            told = done.stderr.decode(errors="replace").strip()[-300:]
            raise CorpusError(f"{path}: sph2pipe failed with status {done.returncode}: {told or 'without a message'}")


NO_HEADER = "a .raw file holds samples without a header: convert it to WAV, or give it to murmur transcribe on -"
UNEQUAL = "has streams of different sample rates or numbers of channels: convert it (ffmpeg -i FILE NEW.wav)"
BLOCK_FRAMES = 1 << 16
FRAMES_PER_BYTE = 1 << 13  # at most, of digital silence in FLAC; a greater declared length is none
UNSEEKABLE = "DWVW"  # beginning of the names of codecs that libsndfile claims to seek
RATES_HZ = range(1000, 1_000_001)
W64_MAGIC = b"riff\x2e\x91\xcf\x11"
SAMPLES = (b"data", b"SSND", b"BODY")
CAF_EDITS = 4  # bytes of a data chunk before its samples
# Sizes that programs declare which write to a pipe: SoX the first two, FFmpeg and others the last ones.
UNKNOWN = (0x7F000000, 0x7FFFF000, 0x80000000, 0xFFFFFF00)
UNKNOWN_WITHIN = 0x1000  # bytes by which headers exceed them
SLACK = 8  # bytes; some programs count the header of the file
UNFINISHED = (
    "declares a length of 0 in its header, and samples follow: its writer did not write the length at the end,"
    " convert it (ffmpeg -i FILE NEW.wav)"
)
TOO_LONG = (
    "goes on for {} bytes behind the samples that its header declares: correct the header (sox --ignore-length FILE"
    " NEW.wav), or remove those bytes"
)


class _InOrder(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
    """A file that is read in order, since seeking fails in its codec."""

    def seekable(self) -> bool:
        """Return False."""
        return False


class _Content(io.BytesIO):
    """The content of a file, in which a damaged header can ask for a place before its beginning, as in a file."""

    def seek(self, place: int, whence: int = os.SEEK_SET, /) -> int:
        """Move, or stay where that is impossible, and return the place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: len(self.getbuffer())}[whence]
        return super().seek(start + place) if 0 <= start + place < 1 << 62 else self.tell()


class Stream:
    """One stream of a file, open; `frames` are samples of a channel."""

    def __init__(self, source: Path | bytes) -> None:
        self._source = source
        self._file = self._opened(soundfile.SoundFile)
        size = source.stat().st_size if isinstance(source, Path) else len(source)
        self.rate_hz, self.channels = int(self._file.samplerate), int(self._file.channels)
        self.frames, self.format = int(self._file.frames), str(self._file.format)
        endless = self.frames > (size + BLOCK_FRAMES) * FRAMES_PER_BYTE
        self._in_order = endless or not self._file.seekable() or self._file.subtype.startswith(UNSEEKABLE)
        if self.rate_hz not in RATES_HZ:
            self.close()
            raise soundfile.SoundFileRuntimeError(f"it declares a sample rate of {self.rate_hz} Hz")
        if self._in_order:
            self._begin_again()
        if endless:
            self.frames = self._skip(self.frames)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_all(self) -> np.ndarray:
        """All samples of all channels, (S, C), before any `read`: a decoder of MP3 that moves rounds otherwise."""
        return self.read(0, self.frames) if self._in_order else self._decoded(self.frames)

    def read(self, first: int, last: int) -> np.ndarray:
        """Samples [first, last) of all channels, (S, C); fewer if the stream ends before `last`."""
        if not self._in_order:
            self._file.seek(first)
            return self._decoded(last - first)
        if first < self._place:
            self._begin_again()
        self._skip(first)
        blocks = [self._decoded(0)]
        while self._place < last and len(block := self._decoded(min(last - self._place, BLOCK_FRAMES))):
            blocks.append(block)
        return np.concatenate(blocks)

    def _opened(self, kind: type[soundfile.SoundFile]) -> soundfile.SoundFile:
        source = self._source
        try:
            # Bytes, since soundfile encodes text as strict UTF-8, and names of files may be any bytes.
            return kind(os.fsencode(source) if isinstance(source, Path) else _Content(source))
        except TypeError as error:  # soundfile asks for the rate of each file whose name ends in .raw
            raise soundfile.SoundFileRuntimeError(NO_HEADER) from error
        except soundfile.LibsndfileError as error:
            raise soundfile.SoundFileRuntimeError(error.error_string) from error

    def _begin_again(self) -> None:
        self._file.close()
        self._file, self._place = self._opened(_InOrder), 0

    def _skip(self, end: int) -> int:
        """Decode up to `end`, or the end of the stream, and return the place."""
        while self._place < end and len(self._decoded(min(end - self._place, BLOCK_FRAMES))):
            pass
        return self._place

    def _decoded(self, count: int) -> np.ndarray:
        samples_SC: np.ndarray = self._file.read(count, dtype="float32", always_2d=True)
        if self._in_order:
            self._place += len(samples_SC)
        return samples_SC


class Sound:
    """An open file, or the content of one.

    Attributes:
        streams: its streams in order.
        rate_hz: sample rate of the first stream.
        channels: number of channels of the first stream.
        frames: number of samples of a channel in all streams.

    Raises:
        soundfile.SoundFileError: libsndfile cannot read it.
        OSError: the system cannot.
    """

    def __init__(self, source: Path | bytes) -> None:
        layout = layout_of(source)
        self._source, self._fault = source, layout.fault
        content = b"" if not layout.streams else source.read_bytes() if isinstance(source, Path) else source
        with ExitStack() as stack:
            parts: list[Path | bytes] = [*layout.contents(content)] or [source]
            self.streams = tuple(stack.enter_context(closing(Stream(part))) for part in parts)
            self._stack = stack.pop_all()
        self.rate_hz, self.channels = self.streams[0].rate_hz, self.streams[0].channels
        self.frames, self.format = sum(stream.frames for stream in self.streams), self.streams[0].format

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fault(self) -> str | None:
        """The fault of its layout or length, for a message that begins with its name; None if there is none."""
        if self._fault is not None:
            return self._fault
        if isinstance(self._source, bytes):
            return self._fault_of_length(io.BytesIO(self._source), len(self._source))
        if self.format == "NIST":
            return CUT_SHORT if sphere_header(self._source).samples > self.frames else None
        with self._source.open("rb") as file:
            return self._fault_of_length(file, self._source.stat().st_size)

    def _fault_of_length(self, file: BinaryIO, size: int) -> str | None:
        found = _samples_of(file, size)
        if found is None:
            return None
        if found.declared is None:
            return UNFINISHED if found.there > SLACK and not self.frames else None
        if found.declared > found.there + SLACK:
            return CUT_SHORT
        if found.declared == 0 and found.left > SLACK:
            # libsndfile reads AIFF to the end, as FFmpeg writes it to a pipe.
            return None if self.format == "AIFF" and self.frames else UNFINISHED
        return TOO_LONG.format(found.left) if found.left > SLACK and not found.zeros else None

    @property
    def is_uniform(self) -> bool:
        """True if all streams have the same sample rate and number of channels."""
        return all((s.rate_hz, s.channels) == (self.rate_hz, self.channels) for s in self.streams)

    def read(self, first: int, last: int) -> np.ndarray:
        """Samples [first, last) of all channels, (S, C), of a uniform file; fewer if a stream ends before."""
        found, begin = [], 0
        for stream in self.streams:
            if first < begin + stream.frames and begin < last:
                found.append(stream.read(max(first - begin, 0), min(last - begin, stream.frames)))
            begin += stream.frames
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros((0, self.channels), np.float32)


def rate_and_channels(source: Path | bytes) -> tuple[int, int]:
    """Sample rate in Hz and number of channels of a file, whose end is not looked for; raises the errors of `Sound`."""
    try:
        with closing(Stream(source)) as stream:
            return stream.rate_hz, stream.channels
    except soundfile.SoundFileError:
        with Sound(source) as sound:
            return sound.rate_hz, sound.channels


def lacks(wanted: int, found: int, rate_hz: int) -> bool:
    """True if so many samples were found, in place of those wanted, that the file has no end."""
    return wanted - found > TOLERANCE_SECONDS * rate_hz


class _Chunks(NamedTuple):
    """Form of chunks: place of the first, name and size, alignment, bytes of the header that the size counts."""

    first: int
    head: struct.Struct
    aligned: int
    own_bytes: int


RIFF = _Chunks(12, struct.Struct("<4sI"), 2, 0)
RIFX = _Chunks(12, struct.Struct(">4sI"), 2, 0)
W64 = _Chunks(40, struct.Struct("<16sq"), 8, 24)
CAF = _Chunks(8, struct.Struct(">4sq"), 1, 0)
KINDS = {b"RIFF": RIFF, b"RF64": RIFF, b"RIFX": RIFX, b"FORM": RIFX, b"caff": CAF, W64_MAGIC[:4]: W64}


@dataclass(frozen=True)
class _Samples:
    """The chunk of samples of a file, in bytes.

    Attributes:
        declared: its size by its header; None if the header says that it is unknown.
        there: bytes from its beginning to the end of the file.
        left: bytes behind it that are no chunks.
        zeros: True if those are zeros, which may fill up a file.
    """

    declared: int | None
    there: int
    left: int = 0
    zeros: bool = True


def _samples_of(file: BinaryIO, size: int) -> _Samples | None:
    """The chunk of samples of a file with `size` bytes; None if it is in no container known here, or has none."""
    file.seek(0)
    magic = file.read(8)
    if magic[:4] == b".snd" and len(magic) == 8:
        place, declared = int.from_bytes(magic[4:], "big"), int.from_bytes(file.read(4), "big")
        return _measured(file, None, place, declared, size)
    kind = KINDS.get(magic[:4])
    if kind is None or (kind is W64 and magic != W64_MAGIC):
        return None
    long_size = 0
    for name, place, length in _chunks(file, kind, kind.first):
        if name == b"ds64":
            file.seek(place + 8)
            long_size = int.from_bytes(file.read(8), "little")
        if name in SAMPLES:
            is_long = magic[:4] == b"RF64" and length == 0xFFFFFFFF
            return _measured(file, kind, place, long_size if is_long else length, size)
    return None


def _measured(file: BinaryIO, kind: _Chunks | None, place: int, declared: int, size: int) -> _Samples:
    there = max(size - place, 0)
    if kind is W64 and -W64.own_bytes <= declared < 0:  # less than the header of the chunk
        declared = 0
    if not 0 <= declared < 1 << 62 or any(0 <= declared - unknown < UNKNOWN_WITHIN for unknown in UNKNOWN):
        return _Samples(None, there)
    end = place + declared
    aligned = 1 if kind is None else kind.aligned
    left = min(_left(file, kind, begin, size) for begin in (end, end + -declared % aligned))  # not all writers align
    none = CAF_EDITS if kind is CAF else 0
    file.seek(size - left)
    zeros = not any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 16), b""))
    return _Samples(max(declared - none, 0), max(there - none, 0), left, zeros)


def _chunks(file: BinaryIO, kind: _Chunks, place: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, place of the content, and size of each chunk from a place on."""
    while True:
        file.seek(place)
        head = file.read(kind.head.size)
        if len(head) < kind.head.size:
            return
        name, length = kind.head.unpack(head)
        length -= kind.own_bytes
        yield name[:4], place + kind.head.size, length
        if length < 0:
            return
        place += kind.head.size + length + -length % kind.aligned


def _left(file: BinaryIO, kind: _Chunks | None, place: int, size: int) -> int:
    """Bytes from a place on that are no chunks."""
    for name, begin, length in () if kind is None else _chunks(file, kind, place):
        if not all(0x20 <= byte < 0x7F for byte in name) or not 0 <= length <= size - begin:
            break
        place = begin + length
    return max(size - place, 0)
