"""Layout of a compressed audio file: its streams one behind the other, and the bytes that libsndfile needs for each.

libsndfile reads the first stream of a file alone, and as many samples as are declared. Players read to the end, and
many writers count on it: recorders that begin a new stream after a pause, programs that join files by their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from murmur.speech.corpus import flac, mp3, ogg
from murmur.speech.corpus.tags import is_filling, tag_bytes

TOLERANCE_SECONDS = 0.1  # by which a length that was declared may be wrong: more than a frame of MP3
CUT_SHORT = "is shorter than its header says: it is cut short, copy it again"
NO_SOUND = "is damaged at byte {}: {} bytes there are no sound, copy it again, or convert it (ffmpeg -i FILE NEW.wav)"
LOOKED_AT = 8192  # bytes in which MP3 must begin: recorders of a broadcast begin inside a frame
FILES = 4096  # whose layouts are kept: utterances of one recording are read one after the other

Piece = bytes | tuple[int, int]  # bytes, or a range of those of the file


@dataclass(frozen=True)
class Layout:
    """The streams of a file.

    Attributes:
        streams: the pieces that make a file of each stream; empty if libsndfile reads the file as it is.
        fault: the fault of the file, for a message that begins with its name; None if there is none.
    """

    streams: tuple[tuple[Piece, ...], ...] = ()
    fault: str | None = None

    def contents(self, content: bytes) -> list[bytes]:
        """The content of a file of each stream."""
        return [
            b"".join(piece if isinstance(piece, bytes) else content[slice(*piece)] for piece in pieces)
            for pieces in self.streams
        ]


def layout_of(source: Path | bytes) -> Layout:
    """The layout of a file; the default one if it is none of MP3, Ogg, FLAC.

    Raises:
        OSError: the file cannot be read.
    """
    if isinstance(source, bytes):
        return _layout(source)
    found = source.stat()
    return _of_file(source, found.st_ino, found.st_size, found.st_mtime_ns)


@lru_cache(FILES)
def _of_file(path: Path, _inode: int, _size: int, _changed: int) -> Layout:
    """The layout of a file, kept as long as the file does not change."""
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
    if head.startswith((flac.MAGIC, ogg.MAGIC, b"ID3")) or mp3.has_frames(head):
        return _layout(path.read_bytes())
    return Layout()


def _layout(content: bytes) -> Layout:
    first = 0
    while content.startswith(b"ID3", first) and (tag := tag_bytes(content, first)):
        first += tag
    if content.startswith(flac.MAGIC, first):
        return _of_flac(content, first)
    if content.startswith(ogg.MAGIC):
        return _of_ogg(content)
    if first or mp3.has_frames(content[:LOOKED_AT]):
        return _of_mp3(content)
    return Layout()


def _of_flac(content: bytes, first: int) -> Layout:
    streams = flac.streams_in(content, first)
    if not streams:
        return Layout()
    pieces: list[tuple[Piece, ...]] = []
    right = len(streams) == 1
    for stream in streams:
        found = flac.samples_to_the_end(content, stream)
        if found is not None and found < stream.declared:
            return Layout(fault=CUT_SHORT)
        if found is None or found == stream.declared:
            pieces.append(((stream.first, stream.end),))
        else:
            pieces.append(tuple(flac.with_length(content, stream, found)))
            right = False
    return Layout() if right else Layout(tuple(pieces))


def _of_ogg(content: bytes) -> Layout:
    links, fault = ogg.links_in(content)
    streams: list[tuple[Piece, ...]] = []
    right = len(links) == 1
    for link in links:
        spans = ogg.flac_spans(content, link)
        streams.append((link.span,) if spans is None else tuple(spans))
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
    return Layout(tuple(_pieces(stream) for stream in streams), fault)


def _pieces(stream: mp3.Stream) -> tuple[Piece, ...]:
    """The frames of a stream, behind one that counts them."""
    return (mp3.NO_TAG if stream.counted else mp3.beginning(stream.kind, stream.frames), *stream.spans)
