"""Wire format of the store and of messages between learners, over TCP and MPI. Standard library only.

Everything is a frame, whose numbers are in little-endian order:

    checksum       4 bytes    CRC-32 of the lengths and the header
    header length  4 bytes
    payload length 8 bytes
    header                    JSON object in UTF-8, with spaces up to a multiple of 16 bytes
    payload                   bytes

A request to the store, and its answer, have the header {"do", "key", ...} and a key's value as payload. A message
between learners has the header {"tag", "dtype", "numbers"} and the elements of a vector as payload, which begins at a
multiple of 16 bytes, so that it can be used where it lies. Between learners of one host, the header may also hold an
"offer" of memory where vectors lie, or, in place of the payload, a "loan" of one of them and its number of elements
(`lent_vectors.py`). The frame `END` ends a stream of messages.

A reader refuses a frame with a ValueError if a length exceeds its limit, the header's length is not a multiple of 16,
the header does not fit the checksum or is no JSON object, a field is missing or has another type, or the payload is no
whole number of elements. A frame that is cut off is an EOFError on a connection, and a ValueError in one block. The
payload has no checksum: TCP and MPI have their own.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

Head = dict[str, Any]
PREFIX = struct.Struct("<IIQ")  # checksum, lengths of the header and of the payload
LENGTHS_AT = 4  # start of the lengths, which the checksum covers
ALIGNMENT = 16  # bytes; the prefix is as long
PIECE_BYTES = 1 << 16  # memory grows with the received bytes, not with the announced ones
MOST_SECONDS = 1e6  # bound on waits, below the overflow of system clocks
ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "uint8": 1}  # by dtype


@dataclass(frozen=True)
class Limits:
    """Largest header and payload that a reader accepts, in bytes."""

    head_bytes: int
    payload_bytes: int

    def check(self, head_bytes: int, payload_bytes: int) -> None:
        """Check the lengths of a frame."""
        if not 0 < head_bytes <= self.head_bytes or not 0 <= payload_bytes <= self.payload_bytes:
            raise ValueError(f"a frame of {head_bytes} + {payload_bytes} bytes")
        if head_bytes % ALIGNMENT:
            raise ValueError(f"a header of {head_bytes} bytes, not a multiple of {ALIGNMENT}")


REQUEST, MESSAGE = Limits(1 << 20, 1 << 26), Limits(1 << 16, 1 << 36)


def encode_head(head: Head, payload_bytes: int, limits: Limits) -> bytes:
    """Return the bytes of a frame before its payload; refuses what a reader with these limits would refuse."""
    raw = json.dumps(head).encode()
    raw = raw.ljust(-(-len(raw) // ALIGNMENT) * ALIGNMENT)
    limits.check(len(raw), payload_bytes)
    covered = PREFIX.pack(0, len(raw), payload_bytes)[LENGTHS_AT:] + raw
    return struct.pack("<I", zlib.crc32(covered)) + covered


END = encode_head({}, 0, MESSAGE)


def decode_lengths(prefix: bytes, limits: Limits) -> tuple[int, int]:
    """Return the lengths of the header and of the payload that a prefix announces."""
    _, head_bytes, payload_bytes = PREFIX.unpack(prefix)
    limits.check(head_bytes, payload_bytes)
    return head_bytes, payload_bytes


def decode_head(prefix: bytes, raw: bytes) -> Head:
    """Return the header of a frame."""
    checksum, _, _ = PREFIX.unpack(prefix)
    if zlib.crc32(prefix[LENGTHS_AT:] + raw) != checksum:
        raise ValueError("a header that does not fit its checksum")
    try:
        head = json.loads(raw.decode())
    except RecursionError as error:
        raise ValueError("a header with too many nested brackets") from error
    if not isinstance(head, dict):
        raise ValueError("a header that is no object")
    return head


def send_frame(line: socket.socket, head: bytes, payload: bytes | memoryview) -> None:
    """Send a frame, whose head is from `encode_head`; a large payload is sent from its own memory."""
    if len(payload) <= PIECE_BYTES:
        line.sendall(head + payload)  # in one packet, if there is room
    else:
        line.sendall(head)
        line.sendall(payload)


def receive_frame(line: socket.socket, limits: Limits) -> tuple[Head, bytes]:
    """Receive a header and a payload."""
    head, payload_bytes = receive_head(line, limits)
    return head, exactly(line, payload_bytes)


def read_frame(limits: Limits) -> Generator[int, bytes, tuple[Head, bytes]]:
    """Read a frame without IO: yields how many bytes are needed next, which are sent into the generator."""
    prefix = yield PREFIX.size
    head_bytes, payload_bytes = decode_lengths(prefix, limits)
    head = decode_head(prefix, (yield head_bytes))
    return head, (yield payload_bytes)


def receive_head(line: socket.socket, limits: Limits) -> tuple[Head, int]:
    """Receive a header and the number of bytes of the payload, which follows."""
    prefix = exactly(line, PREFIX.size)
    head_bytes, payload_bytes = decode_lengths(prefix, limits)
    return decode_head(prefix, exactly(line, head_bytes)), payload_bytes


def split_block(block: memoryview, limits: Limits) -> tuple[Head, memoryview]:
    """Return the header and the payload of a block that is one frame; the payload shares its memory."""
    if len(block) < PREFIX.size:
        raise ValueError(f"a frame cut off after {len(block)} bytes")
    prefix = bytes(block[: PREFIX.size])
    head_bytes, payload_bytes = decode_lengths(prefix, limits)
    start = PREFIX.size + head_bytes
    if start + payload_bytes != len(block):
        raise ValueError(f"a frame of {start + payload_bytes} bytes in a block of {len(block)}")
    return decode_head(prefix, bytes(block[PREFIX.size : start])), block[start:]


def exactly(line: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = line.recv(min(PIECE_BYTES, count - len(data)))
        if not piece:
            raise EOFError("the other side has closed the connection")
        data += piece
    return bytes(data)


def fill(line: socket.socket, view: memoryview) -> None:
    while view:
        got = line.recv_into(view)
        if got == 0:
            raise EOFError("the other side has closed the connection in the middle of a vector")
        view = view[got:]


class MemoryOffer(NamedTuple):
    """Memory of a process in which vectors for others of its host lie."""

    process: int
    descriptor: int
    network: int
    token: int
    slot_bytes: int


class Loan(NamedTuple):
    """A vector in the memory with a token; its reader writes `number` into a cell when it has finished."""

    token: int
    slot: int
    cell: int
    number: int


@dataclass(frozen=True)
class MessageHead:
    """Header of a message between learners.

    Attributes:
        tag: Tag.
        dtype: Type of the elements.
        numbers: Numbers, also nan and infinite ones.
        offer: Memory in which the vector also lies; None: in none that others can map.
        loan: Where the vector lies, in place of a payload; None: in the payload.
        elements: Number of elements of a lent vector.
    """

    tag: str
    dtype: str
    numbers: tuple[float, ...]
    offer: MemoryOffer | None = None
    loan: Loan | None = None
    elements: int = 0

    def encode(self, payload_bytes: int) -> bytes:
        """Return the bytes of a message before its elements; refuses what a reader would refuse."""
        head: Head = {"tag": self.tag, "dtype": self.dtype, "numbers": list(self.numbers)}
        if self.offer is not None:
            head["offer"] = list(self.offer)
        if self.loan is not None:
            head |= {"loan": list(self.loan), "elements": self.elements}
        _check_elements(self.dtype, payload_bytes)
        return encode_head(head, payload_bytes, MESSAGE)

    @classmethod
    def of(cls, head: Head, payload_bytes: int) -> MessageHead:
        found = cls(text(head, "tag"), text(head, "dtype"), tuple(_numbers(head.get("numbers"))))
        _check_elements(found.dtype, payload_bytes)
        if "offer" in head:
            found = replace(found, offer=MemoryOffer(*_exact(head, "offer", len(MemoryOffer._fields))))
        if "loan" in head:
            elements = whole(head, "elements", 0, MESSAGE.payload_bytes)
            found = replace(found, loan=Loan(*_exact(head, "loan", len(Loan._fields))), elements=elements)
        return found


def _exact(head: Head, name: str, count: int) -> list[int]:
    found = wholes(head, name, 0, (1 << 63) - 1)
    if len(found) != count:
        raise ValueError(f"{name} has {len(found)} numbers, not {count}")
    return found


def text(head: Head, name: str) -> str:
    found = head.get(name)
    if not isinstance(found, str):
        raise ValueError(f"{name} is {found!r}, not a string")
    return found


def texts(head: Head, name: str) -> list[str]:
    """Return a field that is a list of at least one string."""
    found = head.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{name} is {found!r}, not a list of strings")
    return found


def whole(head: Head, name: str, least: int, most: int) -> int:
    return _whole(head.get(name), name, least, most)


def wholes(head: Head, name: str, least: int, most: int) -> list[int]:
    """Return a field that is a list of integers within bounds."""
    found = head.get(name)
    if not isinstance(found, list):
        raise ValueError(f"{name} is {found!r}, not a list")
    return [_whole(each, name, least, most) for each in found]


def seconds(head: Head, name: str) -> float:
    """Return a field of seconds, neither negative nor too large."""
    found = head.get(name)
    if not isinstance(found, int | float) or not math.isfinite(found) or found < 0:
        raise ValueError(f"{name} is {found!r}, not a number of seconds")
    return min(float(found), MOST_SECONDS)


def _whole(found: object, name: str, least: int, most: int) -> int:
    if not isinstance(found, int) or not least <= found <= most:
        raise ValueError(f"{name} is {found!r}, not an integer from {least} to {most}")
    return found


def _numbers(found: object) -> Sequence[float]:
    if not isinstance(found, list) or not all(isinstance(each, int | float) for each in found):
        raise ValueError(f"the numbers {found!r} are not a list of numbers")
    try:
        return [float(each) for each in found]
    except OverflowError as error:
        raise ValueError("a number that is too large for a float") from error


def _check_elements(dtype: str, payload_bytes: int) -> None:
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"a vector of {dtype!r}, not of {', '.join(ELEMENT_BYTES)}")
    if payload_bytes % ELEMENT_BYTES[dtype]:
        raise ValueError(f"{payload_bytes} bytes are no whole number of elements of {dtype}")
