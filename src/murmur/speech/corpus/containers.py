"""Sizes of samples that the headers of WAV, RF64, W64, AIFF, CAF and AU declare, and the bytes that are there."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

W64_MAGIC = b"riff\x2e\x91\xcf\x11"
SAMPLES = (b"data", b"SSND", b"BODY")
CAF_EDITS = 4  # bytes of a data chunk before its samples
# Sizes that programs declare which write to a pipe: SoX the first two, FFmpeg and others the last ones.
UNKNOWN = (0x7F000000, 0x7FFFF000, 0x80000000, 0xFFFFFF00)
UNKNOWN_WITHIN = 0x1000  # bytes by which headers exceed them


class Kind(NamedTuple):
    """Form of chunks: place of the first, name and size, alignment, bytes before the content that the size counts."""

    first: int
    head: struct.Struct
    name_bytes: int
    aligned: int
    own_bytes: int


RIFF = Kind(12, struct.Struct("<4sI"), 4, 2, 0)
RIFX = Kind(12, struct.Struct(">4sI"), 4, 2, 0)
W64 = Kind(40, struct.Struct("<16sq"), 16, 8, 24)
CAF = Kind(8, struct.Struct(">4sq"), 4, 1, 0)
KINDS = {b"RIFF": RIFF, b"RF64": RIFF, b"RIFX": RIFX, b"FORM": RIFX, b"caff": CAF, W64_MAGIC[:4]: W64}


@dataclass(frozen=True)
class Samples:
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


def samples_of(file: BinaryIO, size: int) -> Samples | None:
    """The chunk of samples of a file with `size` bytes; None if it is in no container known here, or has none."""
    file.seek(0)
    magic = file.read(8)
    if magic[:4] == b".snd" and len(magic) == 8:
        place, declared = int.from_bytes(magic[4:], "big"), int.from_bytes(file.read(4), "big")
        return _samples(file, None, place, declared, size)
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
            return _samples(file, kind, place, long_size if is_long else length, size)
    return None


def _samples(file: BinaryIO, kind: Kind | None, place: int, declared: int, size: int) -> Samples:
    there = max(size - place, 0)
    if kind is W64 and -W64.own_bytes <= declared < 0:  # less than the header of the chunk
        declared = 0
    if not 0 <= declared < 1 << 62 or any(0 <= declared - unknown < UNKNOWN_WITHIN for unknown in UNKNOWN):
        return Samples(None, there)
    end = place + declared
    aligned = 1 if kind is None else kind.aligned
    left = min(_left(file, kind, begin, size) for begin in (end, end + -declared % aligned))  # not all writers align
    none = CAF_EDITS if kind is CAF else 0
    file.seek(size - left)
    zeros = not any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 16), b""))
    return Samples(max(declared - none, 0), max(there - none, 0), left, zeros)


def _chunks(file: BinaryIO, kind: Kind, place: int) -> Iterator[tuple[bytes, int, int]]:
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


def _left(file: BinaryIO, kind: Kind | None, place: int, size: int) -> int:
    """Bytes from a place on that are no chunks."""
    for name, begin, length in () if kind is None else _chunks(file, kind, place):
        if not all(0x20 <= byte < 0x7F for byte in name) or not 0 <= length <= size - begin:
            break
        place = begin + length
    return max(size - place, 0)
