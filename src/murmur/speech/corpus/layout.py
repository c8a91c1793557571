"""Layout of a compressed audio file: its streams one behind the other, and the bytes that libsndfile needs for each.

libsndfile reads the first stream of a file alone, and as many samples as are declared. Players read to the end, and
many writers count on it: recorders that begin a new stream after a pause, programs that join files by their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from murmur.speech.corpus import mp3
from murmur.speech.corpus.mp3 import is_filling, tag_bytes

TOLERANCE_SECONDS = 0.1  # by which a length that was declared may be wrong: more than a frame of MP3
CUT_SHORT = "is shorter than its header says: it is cut short, copy it again"
NO_SOUND = "is damaged at byte {}: {} bytes there are no sound, copy it again, or convert it (ffmpeg -i FILE NEW.wav)"
LOOKED_AT = 8192  # bytes in which MP3 must begin: recorders of a broadcast begin inside a frame
FILES = 4096  # whose layouts are kept: utterances of one recording are read one after the other

Piece = bytes | tuple[int, int]  # bytes, or a range of those of the file


@dataclass(frozen=True)
class Layout:
    """The pieces that make a file of each stream, none if libsndfile reads the file as it is, and the file's fault."""

    streams: tuple[tuple[Piece, ...], ...] = ()
    fault: str | None = None

    def contents(self, content: bytes) -> list[bytes]:
        """The content of a file of each stream."""
        return [
            b"".join(piece if isinstance(piece, bytes) else content[slice(*piece)] for piece in pieces)
            for pieces in self.streams
        ]


def layout_of(source: Path | bytes) -> Layout:
    """The layout of a file; the default one if it is none of MP3, Ogg, FLAC."""
    if isinstance(source, bytes):
        return _layout(source)
    found = source.stat()
    return _of_file(source, found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(FILES)
def _of_file(path: Path, _inode: int, _size: int, _changed: int) -> Layout:
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
    if head.startswith((FLAC, OGG, b"ID3")) or mp3.has_frames(head):
        return _layout(path.read_bytes())
    return Layout()


def _layout(content: bytes) -> Layout:
    first = 0
    while content.startswith(b"ID3", first) and (tag := tag_bytes(content, first)):
        first += tag
    if content.startswith(FLAC, first):
        return _of_flac(content, first)
    if content.startswith(OGG):
        return _of_ogg(content)
    if first or mp3.has_frames(content[:LOOKED_AT]):
        return _of_mp3(content)
    return Layout()


def _of_flac(content: bytes, first: int) -> Layout:
    streams = _flac_streams(content, first)
    if not streams:
        return Layout()
    pieces: list[tuple[Piece, ...]] = []
    right = len(streams) == 1
    for stream in streams:
        found = _samples_to_the_end(content, stream)
        if found is not None and found < stream.declared:
            return Layout(fault=CUT_SHORT)
        if found is None or found == stream.declared:
            pieces.append(((stream.first, stream.end),))
        else:
            pieces.append(tuple(_with_length(content, stream, found)))
            right = False
    return Layout() if right else Layout(tuple(pieces))


def _of_ogg(content: bytes) -> Layout:
    links, fault = _links_in(content)
    streams: list[tuple[Piece, ...]] = []
    right = len(links) == 1
    for link in links:
        spans = _flac_spans(content, link)
        streams.append(((link[0].first, link[-1].end),) if spans is None else tuple(spans))
        right = right and spans is None
    return Layout((), fault) if right else Layout(tuple(streams), fault)


def _of_mp3(content: bytes) -> Layout:
    streams, junk = mp3.streams_in(content)
    if not streams:
        return Layout()  # not MP3, or of a kind that is left to libsndfile
    lost = [(a, b) for a, b in junk if not is_filling(content, a, b)]
    whole = sum(end - first for stream in streams for first, end in stream.spans)
    seconds_per_byte = sum(stream.seconds for stream in streams) / whole
    fault = next((NO_SOUND.format(a, b - a) for a, b in lost if (b - a) * seconds_per_byte > TOLERANCE_SECONDS), None)
    if any((s.counted or 0) - s.frames > TOLERANCE_SECONDS * s.kind[1] / s.frame_samples for s in streams):
        fault = fault or CUT_SHORT
    (first, *others) = streams
    if not others and first.counted and len(first.spans) == 1 and not junk and content.startswith(b"ID3"):
        return Layout((), fault)
    heads = (mp3.NO_TAG if stream.counted else mp3.beginning(stream.kind, stream.frames) for stream in streams)
    return Layout(tuple((head, *stream.spans) for head, stream in zip(heads, streams, strict=True)), fault)


# FLAC: a magic, blocks of metadata with STREAMINFO first, and frames. A writer to a pipe declares no length, 0; the
# last frame tells it, by the number of its first sample or its own number.
FLAC = b"fLaC"
INFO_BYTES = 34
INFO_AT = 8  # place of the content of STREAMINFO behind the magic and the header of its block
LONGEST_HEADER = 16
TRIED = 3  # headers from the end of a stream: in a damaged one, each frame has one
LONGEST_FRAME = 1 << 20  # bytes from the end in which the last frame is looked for
BLOCKS = {1: 192, **{n: 576 << n - 2 for n in range(2, 6)}, **{n: 256 << n - 8 for n in range(8, 16)}}


class _FlacStream(NamedTuple):
    """A stream: the range of its bytes, and the number of samples that it declares, 0 if it declares none."""

    first: int
    end: int
    declared: int


def _flac_streams(content: bytes, first: int) -> list[_FlacStream]:
    """The streams of a file whose first one begins at `first`."""
    begins = []
    place = first
    while place >= 0:
        if _is_stream(content, place):
            begins.append(place)
        place = content.find(FLAC, place + 1)
    at = INFO_AT + 13  # 36 bits
    declared = [int.from_bytes(content[a + at : a + at + 5], "big") & 0xFFFFFFFFF for a in begins]
    return [_FlacStream(*each) for each in zip(begins, (*begins[1:], len(content)), declared, strict=False)]


def _with_length(content: bytes, stream: _FlacStream, samples: int) -> list[bytes | tuple[int, int]]:
    """Pieces of a file of the stream that declares `samples`."""
    at = stream.first + INFO_AT + 13
    upper = content[at] & 0xF0 | samples >> 32 & 0xF
    return [(stream.first, at), bytes((upper,)) + (samples & 0xFFFFFFFF).to_bytes(4, "big"), (at + 5, stream.end)]


def _samples_to_the_end(content: bytes, stream: _FlacStream) -> int | None:
    """Number of samples up to the end of the last frame; None if no whole frame is at the end of the stream."""
    begin = max(stream.first + INFO_AT + INFO_BYTES, stream.end - LONGEST_FRAME)
    tail = content[begin : stream.end]
    block = int.from_bytes(content[stream.first + INFO_AT + 2 : stream.first + INFO_AT + 4], "big")
    place, tried = len(tail), 0
    while tried < TRIED and (place := tail.rfind(b"\xff", 0, place)) >= 0:
        end = _frame_end(tail, place, block)
        # One header in 2^23 bytes is found by chance: where lengths differ, the check of a frame's bytes decides.
        if end is not None and (end == stream.declared or _remainder(tail[place:], 0x8005, 16) == 0):
            return end
        tried += end is not None
    return None


def _is_stream(content: bytes, place: int) -> bool:
    """True if magic, STREAMINFO and a sample rate stand at a place."""
    head = content[place : place + INFO_AT + INFO_BYTES]
    if len(head) < INFO_AT + INFO_BYTES or head[4] & 0x7F or int.from_bytes(head[5:8], "big") != INFO_BYTES:
        return False
    return bool(int.from_bytes(head[INFO_AT + 10 : INFO_AT + 13], "big") >> 4)


def _frame_end(tail: bytes, place: int, block: int) -> int | None:
    """Number of samples up to the end of the frame whose header is at a place; None if there is no header."""
    head = tail[place : place + LONGEST_HEADER]
    if len(head) < 6 or head[1] & 0xFE != 0xF8:
        return None
    number, used = _coded(head[4:])
    size, rate = head[2] >> 4, head[2] & 0xF
    extra = {6: 1, 7: 2}.get(size, 0)
    length = 4 + used + extra + {12: 1, 13: 2, 14: 2}.get(rate, 0)
    if not used or length >= len(head) or _remainder(head[:length], 0x07, 8) != head[length]:
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


def _remainder(content: bytes, polynomial: int, bits: int) -> int:
    """The CRC of content."""
    mask, top, value = (1 << bits) - 1, 1 << bits - 1, 0
    for byte in content:
        value ^= byte << bits - 8
        for _ in range(8):
            value = (value << 1 ^ polynomial if value & top else value << 1) & mask
    return value


# Ogg (RFC 3533): a page is a header of 27 bytes, a table of the lengths of its segments, and the segments. Pages that
# begin a stream stand together at the beginning of a link of a chain.
OGG = b"OggS\0"
OGG_HEADER = struct.Struct("<4sBBqIIIB")
BEGINS = 2  # flag of a page
OGG_FLAC = b"\x7fFLAC"
OGG_FLAC_PREFIX = 9  # bytes of the first packet of a FLAC stream before the magic of a FLAC file


class _Page(NamedTuple):
    """A page: the range of its bytes, its place in its stream, the lengths of its segments."""

    first: int
    end: int
    flags: int
    granule: int
    stream: int
    number: int
    lengths: bytes


def _links_in(content: bytes) -> tuple[list[list[_Page]], str | None]:
    """The pages of each link of a chain, which is a file of its own, and the fault of the content."""
    pages, fault = _pages(content)
    links: list[list[_Page]] = []
    for page in pages:
        if not links or (page.flags & BEGINS and not links[-1][-1].flags & BEGINS):
            links.append([])
        links[-1].append(page)
    return links, fault or next((lost for link in links if (lost := _lost(link))), None)


def _flac_spans(content: bytes, link: Sequence[_Page]) -> list[tuple[int, int]] | None:
    """Ranges of bytes that make a FLAC file of a link; None if it is of another codec."""
    first = link[0]
    begin = first.end - sum(first.lengths)
    if content[begin : begin + len(OGG_FLAC)] != OGG_FLAC:
        return None
    spans = [(begin + OGG_FLAC_PREFIX, first.end)]
    return spans + [(p.end - sum(p.lengths), p.end) for p in link[1:] if p.stream == first.stream]


def _pages(content: bytes) -> tuple[list[_Page], str | None]:
    found: list[_Page] = []
    place = 0
    while place < len(content):
        page = _page(content, place)
        if page is not None and page.end <= len(content):
            found.append(page)
            place = page.end
            continue
        following = content.find(OGG, place + 1)
        if following < 0:
            inside = content[place : place + len(OGG)] == OGG[: len(content) - place]
            return found, "ends inside a page: it is cut short, copy it again" if inside else None
        if not tag_bytes(content, place) and content[place:following].strip(b"\0"):
            return found, f"is damaged at byte {place}: no page of Ogg begins there, copy it again"
        place = following
    return found, None


def _page(content: bytes, place: int) -> _Page | None:
    head = content[place : place + OGG_HEADER.size]
    if len(head) < OGG_HEADER.size or not head.startswith(OGG):
        return None
    _, _, flags, granule, stream, number, _, segments = OGG_HEADER.unpack(head)
    lengths = content[place + OGG_HEADER.size : place + OGG_HEADER.size + segments]
    if len(lengths) < segments:
        return None
    return _Page(place, place + OGG_HEADER.size + segments + sum(lengths), flags, granule, stream, number, lengths)


def _lost(link: Sequence[_Page]) -> str | None:
    """The fault of a link that lacks pages between two with sound; those behind the headers may be left out."""
    last: dict[int, _Page] = {}
    for page in link:
        before = last.get(page.stream)
        if before is not None and before.granule > 0 and page.number != before.number + 1:
            return f"is damaged at byte {page.first}: pages of Ogg are missing before it, copy it again"
        last[page.stream] = page
    return None
