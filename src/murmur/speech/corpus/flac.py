"""Streams of FLAC, one behind the other in a file, and their true lengths, found without decoding.

A stream is the magic `fLaC`, blocks of metadata with STREAMINFO first, and frames. A writer to a pipe declares no
length, 0. The last frame tells it: its header has the number of its first sample or its own number.
"""

from __future__ import annotations

from typing import NamedTuple

MAGIC = b"fLaC"
INFO_BYTES = 34
INFO = 8  # place of the content of STREAMINFO behind the magic and the header of its block
LONGEST_HEADER = 16
TRIED = 3  # headers from the end of a stream: in a damaged one, each frame has one
LONGEST_FRAME = 1 << 20  # bytes from the end in which the last frame is looked for
BLOCKS = {1: 192, **{n: 576 << n - 2 for n in range(2, 6)}, **{n: 256 << n - 8 for n in range(8, 16)}}


class FlacStream(NamedTuple):
    """A stream: the range of its bytes, and the number of samples that it declares, 0 if it declares none."""

    first: int
    end: int
    declared: int


def streams_in(content: bytes, first: int) -> list[FlacStream]:
    """The streams of a file whose first one begins at `first`."""
    begins = []
    place = first
    while place >= 0:
        if _is_stream(content, place):
            begins.append(place)
        place = content.find(MAGIC, place + 1)
    ends = (*begins[1:], len(content))
    return [FlacStream(a, b, _declared(content, a)) for a, b in zip(begins, ends, strict=False)]


def with_length(content: bytes, stream: FlacStream, samples: int) -> list[bytes | tuple[int, int]]:
    """Pieces of a file of the stream that declares `samples`."""
    at = stream.first + INFO + 13
    upper = content[at] & 0xF0 | samples >> 32 & 0xF
    return [(stream.first, at), bytes((upper,)) + (samples & 0xFFFFFFFF).to_bytes(4, "big"), (at + 5, stream.end)]


def samples_to_the_end(content: bytes, stream: FlacStream) -> int | None:
    """Number of samples up to the end of the last frame; None if no whole frame is at the end of the stream."""
    begin = max(stream.first + INFO + INFO_BYTES, stream.end - LONGEST_FRAME)
    tail = content[begin : stream.end]
    block = int.from_bytes(content[stream.first + INFO + 2 : stream.first + INFO + 4], "big")
    place, tried = len(tail), 0
    while tried < TRIED and (place := tail.rfind(b"\xff", 0, place)) >= 0:
        end = _frame_end(tail, place, block)
        # One header in 2^23 bytes is found by chance: where lengths differ, the check of a frame's bytes decides.
        if end is not None and (end == stream.declared or _crc16(tail[place:]) == 0):
            return end
        tried += end is not None
    return None


def _is_stream(content: bytes, place: int) -> bool:
    """True if magic, STREAMINFO and a sample rate stand at a place."""
    head = content[place : place + INFO + INFO_BYTES]
    if len(head) < INFO + INFO_BYTES or head[4] & 0x7F or int.from_bytes(head[5:8], "big") != INFO_BYTES:
        return False
    return bool(int.from_bytes(head[INFO + 10 : INFO + 13], "big") >> 4)


def _declared(content: bytes, place: int) -> int:
    return int.from_bytes(content[place + INFO + 13 : place + INFO + 18], "big") & 0xFFFFFFFFF


def _frame_end(tail: bytes, place: int, block: int) -> int | None:
    """Number of samples up to the end of the frame whose header is at a place; None if there is no header."""
    head = tail[place : place + LONGEST_HEADER]
    if len(head) < 6 or head[1] & 0xFE != 0xF8:
        return None
    number, used = _coded(head[4:])
    size, rate = head[2] >> 4, head[2] & 0xF
    extra = {6: 1, 7: 2}.get(size, 0)
    length = 4 + used + extra + {12: 1, 13: 2, 14: 2}.get(rate, 0)
    if not used or length >= len(head) or _crc8(head[:length]) != head[length]:
        return None
    samples = int.from_bytes(head[4 + used : 4 + used + extra], "big") + 1 if extra else BLOCKS.get(size, 0)
    return (number if head[1] & 1 else number * block) + samples


def _coded(content: bytes) -> tuple[int, int]:
    """A number in the code of UTF-8, up to 36 bits, and its bytes; 0 bytes if there is none."""
    ones = 8 - (content[0] ^ 0xFF).bit_length()
    if ones == 0:
        return content[0], 1
    if ones in (1, 8) or len(content) < ones:
        return 0, 0
    number = content[0] & 0x7F >> ones
    for byte in content[1:ones]:
        if byte >> 6 != 2:
            return 0, 0
        number = number << 6 | byte & 0x3F
    return number, ones


def _crc8(content: bytes) -> int:
    return _remainder(content, 0x07, 8)


def _crc16(content: bytes) -> int:
    return _remainder(content, 0x8005, 16)


def _remainder(content: bytes, polynomial: int, bits: int) -> int:
    """The check value of content: the remainder of its bits by a polynomial."""
    mask, top, value = (1 << bits) - 1, 1 << bits - 1, 0
    for byte in content:
        value ^= byte << bits - 8
        for _ in range(8):
            value = (value << 1 ^ polynomial if value & top else value << 1) & mask
    return value
