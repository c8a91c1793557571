"""Messages between learners as frames: a tag, a vector and header numbers. The bytes are defined in `wire_format`.

On a connection a vector is sent from its own memory and received into place. MPI carries the same bytes as one block.
Elements have the order of bytes of the host, little-endian.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from murmur.worlds.process.wire_format import (
    ELEMENT_BYTES,
    MESSAGE,
    MessageHead,
    fill,
    receive_head,
    split_block,
)

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ELEMENT_BYTES}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
Encoded = tuple[bytes, memoryview]  # header and payload of a frame
Decoded = tuple[str, Tensor, tuple[float, ...]]  # tag, vector, header numbers


class Closed(EOFError):
    """The sender has sent all its messages."""


def encode(x: Tensor, tag: str, numbers: Sequence[float]) -> Encoded:
    """Return a message as the two parts of a frame; the payload is the memory of x, a vector on the CPU.

    Raises:
        ValueError: A reader would refuse the message, for example for the type of x.
    """
    payload = memoryview(x.contiguous().view(-1).view(torch.uint8).numpy().data if x.numel() else b"")
    return MessageHead(tag, NAMES.get(x.dtype, str(x.dtype)), tuple(numbers)).encode(len(payload)), payload


def receive(line: socket.socket) -> tuple[MessageHead, Tensor]:
    """Receive a message: its header and its vector, which is empty if it is lent.

    Raises:
        Closed: There will be no more messages.
        EOFError, ValueError: As for every frame.
    """
    fields, payload_bytes = receive_head(line, MESSAGE)
    if not fields and not payload_bytes:
        raise Closed("it has sent all and closed the connection")
    head = MessageHead.of(fields, payload_bytes)
    # The system allocates pages at their first write: an announced vector that never arrives takes no memory.
    try:
        raw = np.empty(payload_bytes, np.uint8)
    except MemoryError as error:
        raise ValueError(f"a vector of {payload_bytes} bytes, more than there is memory") from error
    fill(line, raw.data)
    return head, _vector(raw, head.dtype)


def to_block(x: Tensor, tag: str, numbers: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    head, payload = encode(x, tag, numbers)
    block = np.empty(len(head) + len(payload), np.uint8)
    block[: len(head)] = np.frombuffer(head, np.uint8)
    block[len(head) :] = np.frombuffer(payload, np.uint8)
    return block


def from_block(block: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Decoded:
    """Return the message in a block of bytes; the vector shares its memory."""
    fields, payload = split_block(block.data, MESSAGE)
    head = MessageHead.of(fields, len(payload))
    return head.tag, _vector(np.frombuffer(payload, np.uint8), head.dtype), head.numbers


def _vector(raw: np.ndarray[tuple[int], np.dtype[np.uint8]], dtype: str) -> Tensor:
    return torch.from_numpy(raw).view(DTYPES[dtype]) if raw.size else torch.empty(0, dtype=DTYPES[dtype])
