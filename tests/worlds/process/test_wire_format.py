"""Frames: what is written is read back, and every truncated or altered frame is refused."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.worlds.process.wire_format import (
    ALIGNMENT,
    ELEMENT_BYTES,
    END,
    MESSAGE,
    PREFIX,
    REQUEST,
    Head,
    Limits,
    MessageHead,
    encode_head,
    receive_frame,
    send_frame,
    split_block,
)
from tests.support.frames import sealed

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
HEADS = st.dictionaries(st.text(), JSON, max_size=4)
SMALL = Limits(64, 100)


def over_a_connection(data: bytes, limits: Limits) -> tuple[Head, bytes]:
    """Receive bytes on a connection that then closes."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(data)
        there.shutdown(socket.SHUT_WR)
        return receive_frame(here, limits)


def in_a_block(data: bytes, limits: Limits) -> tuple[Head, bytes]:
    head, payload = split_block(memoryview(data), limits)
    return head, bytes(payload)


READERS = pytest.mark.parametrize("read", [over_a_connection, in_a_block])
Read = Callable[[bytes, Limits], tuple[Head, bytes]]


@settings(deadline=None)
@given(HEADS, st.binary(max_size=2000))
def test_frames_come_back_as_they_went(head: dict[str, Any], payload: bytes) -> None:
    start = encode_head(head, len(payload), REQUEST)
    assert len(start) % ALIGNMENT == 0
    assert in_a_block(start + payload, REQUEST) == (head, payload)
    here, there = socket.socketpair()
    with here, there:
        send_frame(here, start, payload)
        assert receive_frame(there, REQUEST) == (head, payload)


def test_consecutive_frames_stay_apart() -> None:
    here, there = socket.socketpair()
    with here, there:
        for n in range(3):
            send_frame(here, encode_head({"n": n}, n, REQUEST), bytes(n))
        assert [receive_frame(there, REQUEST) for _ in range(3)] == [({"n": n}, bytes(n)) for n in range(3)]


@READERS
def test_every_truncated_frame_is_refused(read: Read) -> None:
    whole = MessageHead("tag", "float32", (0.5, math.nan)).encode(8) + bytes(8)
    for length in range(len(whole)):
        with pytest.raises((EOFError, ValueError)):
            read(whole[:length], MESSAGE)


@READERS
def test_every_altered_bit_before_the_payload_is_refused(read: Read) -> None:
    start = MessageHead("tag", "float32", (0.5,)).encode(8)
    for at in range(8 * len(start)):
        altered = bytearray(start + bytes(8))
        altered[at // 8] ^= 1 << at % 8
        with pytest.raises((EOFError, ValueError)):
            read(bytes(altered), MESSAGE)


@settings(deadline=None)
@given(st.data())
def test_altered_bytes_before_the_payload_are_refused(data: st.DataObject) -> None:
    start = encode_head({"do": "set", "key": "a"}, 4, REQUEST)
    raw = bytearray(start + b"abcd")
    where = data.draw(st.integers(0, len(start) - 4))
    new = data.draw(st.binary(min_size=1, max_size=4).filter(lambda new: new != raw[where : where + len(new)]))
    raw[where : where + len(new)] = new
    for read in (over_a_connection, in_a_block):
        with pytest.raises((EOFError, ValueError)):
            read(bytes(raw), REQUEST)


def test_a_block_holds_one_frame_and_nothing_else() -> None:
    whole = encode_head({"a": 1}, 3, REQUEST) + b"abc"
    with pytest.raises(ValueError, match=f"a frame of {len(whole)} bytes in a block of {len(whole) + 1}"):
        in_a_block(whole + b"d", REQUEST)


@READERS
@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (PREFIX.pack(0, 80, 0), "a frame of 80"),
        (PREFIX.pack(0, 0, 0), r"a frame of 0 \+ 0 bytes"),
        (PREFIX.pack(0, 16, 101), r"a frame of 16 \+ 101 bytes"),
        (PREFIX.pack(0, 17, 0) + bytes(17), "not a multiple of 16"),
        (PREFIX.pack(0, 16, 0) + b"{}".ljust(16), "does not fit its checksum"),
        (sealed(b"[]"), "no object"),
        (sealed(b"{"), "Expecting"),
        (sealed(b"\xff\xfe"), "codec can't decode"),
    ],
    ids=["long header", "no header", "long payload", "odd header", "checksum", "list", "cut JSON", "bad UTF-8"],
)
def test_what_is_refused_is_said(read: Read, frame: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(frame, SMALL)


@READERS
def test_deep_nesting_is_refused(read: Read) -> None:
    with pytest.raises(ValueError, match="too many nested brackets"):
        read(sealed(b"[" * 200_000), REQUEST)


def test_a_writer_refuses_what_its_reader_would() -> None:
    assert len(encode_head({"a": "x" * 50}, 100, SMALL)) == PREFIX.size + 64
    with pytest.raises(ValueError, match="a frame of 80"):
        encode_head({"a": "x" * 60}, 0, SMALL)
    with pytest.raises(ValueError, match=r"\+ 101 bytes"):
        encode_head({}, 101, SMALL)


NUMBERS = st.lists(st.floats() | st.integers(-(2**53), 2**53).map(float), max_size=5)


@settings(deadline=None)
@given(st.text(max_size=40), st.sampled_from(sorted(ELEMENT_BYTES)), NUMBERS, st.integers(0, 50))
def test_headers_of_messages_come_back(tag: str, dtype: str, numbers: list[float], numel: int) -> None:
    payload_bytes = numel * ELEMENT_BYTES[dtype]
    start = MessageHead(tag, dtype, tuple(numbers)).encode(payload_bytes)
    head, payload = in_a_block(start + bytes(payload_bytes), MESSAGE)
    found = MessageHead.of(head, len(payload))
    assert (found.tag, found.dtype) == (tag, dtype)
    assert [number.hex() for number in found.numbers] == [number.hex() for number in numbers]


GOOD = {"tag": "t", "dtype": "float32", "numbers": [1, 2.5]}


@pytest.mark.parametrize(
    ("change", "payload_bytes"),
    [
        ({"tag": 7}, 0),
        ({"tag": None}, 0),
        ({"dtype": "complex64"}, 0),
        ({"dtype": ["float32"]}, 0),
        ({"dtype": "torch.float32"}, 0),
        ({"numbers": None}, 0),
        ({"numbers": "12"}, 0),
        ({"numbers": [1, "2"]}, 0),
        ({"numbers": [10**400]}, 0),
        ({}, 6),
    ],
    ids=str,
)
def test_malformed_messages_are_refused(change: dict[str, Any], payload_bytes: int) -> None:
    assert MessageHead.of(GOOD, 8) == MessageHead("t", "float32", (1.0, 2.5))
    with pytest.raises(ValueError, match=r"."):
        MessageHead.of({**GOOD, **change}, payload_bytes)
    for name in GOOD:
        with pytest.raises(ValueError, match=name):
            MessageHead.of({key: value for key, value in GOOD.items() if key != name}, 8)


def test_the_layout_is_as_documented() -> None:
    raw = MessageHead("t", "uint8", (1.0,)).encode(3)
    assert raw[4:8] == (len(raw) - 16).to_bytes(4, "little")
    assert raw[8:16] == (3).to_bytes(8, "little")
    assert json.loads(raw[16:]) == {"tag": "t", "dtype": "uint8", "numbers": [1.0]}
    assert raw[:16] + raw[16:] == sealed(raw[16:], 3)
    assert in_a_block(END, MESSAGE) == ({}, b"")
