"""Messages: every vector arrives with its bits, over a connection and as a block, and is copied nowhere on the way."""

from __future__ import annotations

import socket
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from murmur.worlds.process.messages import DTYPES, Closed, encode, from_block, receive, to_block
from murmur.worlds.process.wire_format import END, MESSAGE, PIECE_BYTES, encode_head, send_frame

SIZES = st.integers(0, 40) | st.sampled_from([PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
VECTORS = st.tuples(st.sampled_from(sorted(DTYPES)), SIZES)
NUMBERS = st.lists(st.floats(), max_size=4)


def vector(name: str, num_bytes: int) -> Tensor:
    """A vector of about this many bytes with every value of a byte, nan among its elements."""
    raw = torch.arange(num_bytes, dtype=torch.int64).mul(167).to(torch.uint8)
    return raw[: num_bytes // DTYPES[name].itemsize * DTYPES[name].itemsize].view(DTYPES[name])


def bits(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.numel() else torch.empty(0, dtype=torch.uint8)


def over_a_connection(x: Tensor, tag: str, numbers: list[float]) -> tuple[str, Tensor, tuple[float, ...]]:
    here, there = socket.socketpair()
    with here, there:
        sender = Thread(target=send_frame, args=(here, *encode(x, tag, numbers)))
        sender.start()
        try:
            head, found = receive(there)
            return head.tag, found, head.numbers
        finally:
            sender.join()


@settings(deadline=None)
@given(VECTORS, st.text(max_size=30), NUMBERS)
def test_messages_keep_every_bit(kind: tuple[str, int], tag: str, numbers: list[float]) -> None:
    x = vector(*kind)
    for got_tag, got, got_numbers in (over_a_connection(x, tag, numbers), from_block(to_block(x, tag, numbers))):
        assert (got_tag, got.dtype, got.shape) == (tag, x.dtype, x.shape)
        assert [number.hex() for number in got_numbers] == [number.hex() for number in numbers]
        assert torch.equal(bits(got), bits(x))
        assert got.data_ptr() % x.element_size() == 0


def test_a_block_is_the_bytes_of_a_connection() -> None:
    x = torch.arange(5.0)
    head, payload = encode(x, "tag", (1.0,))
    assert to_block(x, "tag", (1.0,)).tobytes() == head + bytes(payload)


def test_a_vector_is_sent_from_its_own_memory_and_used_where_it_lies() -> None:
    x = torch.zeros(10)
    _, payload = encode(x, "tag", ())
    x[0] = 1.0
    assert np.frombuffer(payload, np.float32)[0] == 1.0
    block = to_block(x, "tag", ())
    _, got, _ = from_block(block)
    block[-4:] = np.frombuffer(np.float32(7.0).tobytes(), np.uint8)
    assert got[-1] == 7.0


def test_an_altered_block_is_refused() -> None:
    block = to_block(torch.ones(3), "tag", (1.0,))
    for at in range(block.size - 12):
        altered = block.copy()
        altered[at] ^= 1
        with pytest.raises(ValueError, match=r"."):
            from_block(altered)
    for length in range(block.size):
        with pytest.raises(ValueError, match=r"."):
            from_block(block[:length])


@pytest.mark.parametrize("x", [torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.int32)], ids=str)
def test_other_types_are_refused_by_the_sender(x: Tensor) -> None:
    with pytest.raises(ValueError, match="a vector of 'torch"):
        encode(x, "tag", ())


def test_a_stream_has_an_end() -> None:
    here, there = socket.socketpair()
    with here, there:
        send_frame(here, *encode(torch.ones(2), "tag", ()))
        here.sendall(END)
        assert receive(there)[1].tolist() == [1.0, 1.0]
        with pytest.raises(Closed):
            receive(there)
        here.sendall(encode_head({}, 4, MESSAGE) + bytes(4))
        with pytest.raises(ValueError, match="tag is None"):
            receive(there)
