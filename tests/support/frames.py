"""Frames of the wire format with headers that the encoder would not write."""

from __future__ import annotations

import zlib

from murmur.worlds.process.wire_format import ALIGNMENT, LENGTHS_AT, PREFIX


def sealed(raw: bytes, payload_bytes: int = 0) -> bytes:
    """The bytes of a frame before its payload, with any bytes as its header: padded, and with a valid checksum."""
    raw = raw.ljust(-(-len(raw) // ALIGNMENT) * ALIGNMENT)
    covered = PREFIX.pack(0, len(raw), payload_bytes)[LENGTHS_AT:] + raw
    return zlib.crc32(covered).to_bytes(LENGTHS_AT, "little") + covered
