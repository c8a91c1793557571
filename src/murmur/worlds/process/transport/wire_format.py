"""Wire format of the store server and its clients: frames, and the fields of their headers. Standard library only.

A frame is the lengths of a JSON header and of a value, the header {"do", "key", ...}, and the value's bytes.
Any deviation is a ValueError, and the request is ignored.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from typing import Any

Head = dict[str, Any]
LENGTHS = struct.Struct("<II")  # of the header and of the value
HEAD_BYTES, VALUE_BYTES = 1 << 20, 1 << 26  # bounds
PIECE_BYTES = 1 << 16  # memory grows with the received bytes, not with the announced ones
MOST_SECONDS = 1e6  # bound on waits, below the overflow of system clocks


def send_frame(line: socket.socket, head: Head, value: bytes) -> None:
    """Send a header and a value."""
    words = json.dumps(head).encode()
    line.sendall(LENGTHS.pack(len(words), len(value)) + words + value)


def receive_frame(line: socket.socket) -> tuple[Head, bytes]:
    """Receive a header and a value.

    Raises:
        EOFError: The other side has closed the connection.
        ValueError: The frame is malformed.
    """
    words, value = LENGTHS.unpack(exactly(line, LENGTHS.size))
    if words > HEAD_BYTES or value > VALUE_BYTES:
        raise ValueError(f"a frame of {words} + {value} bytes")
    return parse_head(exactly(line, words)), exactly(line, value)


def parse_head(raw: bytes | bytearray) -> Head:
    """Parse the header of a frame.

    Raises:
        ValueError: It is not a JSON object.
    """
    try:
        head = json.loads(raw)
    except RecursionError as error:
        raise ValueError("a header with too many nested brackets") from error
    if not isinstance(head, dict):
        raise ValueError("a frame without a header")
    return head


def exactly(line: socket.socket, count: int) -> bytes:
    """Receive exactly `count` bytes.

    Raises:
        EOFError: The connection closed before.
    """
    data = bytearray()
    while len(data) < count:
        piece = line.recv(min(PIECE_BYTES, count - len(data)))
        if not piece:
            raise EOFError("the other side has closed the connection")
        data += piece
    return bytes(data)


def text(head: Head, name: str) -> str:
    """Return a string field of a header."""
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
    """Return an integer field within bounds."""
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
