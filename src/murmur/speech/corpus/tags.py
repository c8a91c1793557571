"""Tags in audio files: descriptions of a title, in front of, behind or between streams of samples."""

from __future__ import annotations

import struct

ID3_HEADER, ID3_BYTES, EXTENDED_ID3_BYTES, APE_BYTES = 10, 128, 227, 32
APE_IS_HEADER = 1 << 29
LYRICS_END = (b"LYRICS200", b"LYRICSEND")


def tag_bytes(content: bytes, place: int) -> int:
    """Length of the tag at a place of the content (ID3, APE, Lyrics3); 0 if there is none."""
    head = content[place : place + APE_BYTES]
    if head[:3] == b"ID3" and len(head) >= ID3_HEADER and max(head[6:10]) < 0x80:
        size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
        return ID3_HEADER * (2 if head[5] & 0x10 else 1) + size
    if head[:3] == b"TAG":
        return EXTENDED_ID3_BYTES if head[3:4] == b"+" else ID3_BYTES
    if head[:8] == b"APETAGEX" and len(head) == APE_BYTES:
        size, _, flags = struct.unpack_from("<III", head, 12)
        return int(size) + APE_BYTES if flags & APE_IS_HEADER else APE_BYTES
    if head[:11] == b"LYRICSBEGIN":
        ends = [content.find(end, place) for end in LYRICS_END]
        return min((end for end in ends if end >= 0), default=len(content)) + len(LYRICS_END[0]) - place
    return 0


def is_filling(content: bytes, first: int, end: int) -> bool:
    """True if bytes between streams hold no sound: zeros at the ends of a file, or an APE tag without a header."""
    at_an_end = end == len(content) or not content[:first].strip(b"\0")
    if at_an_end and not content[first:end].strip(b"\0"):
        return True
    footer = content[end : end + APE_BYTES]
    return (
        footer[:8] == b"APETAGEX"
        and len(footer) == APE_BYTES
        and struct.unpack_from("<I", footer, 12)[0] >= end - first
    )
