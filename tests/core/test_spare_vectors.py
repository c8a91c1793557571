"""Memory of large vectors is used again, and only when nothing shares it."""

from __future__ import annotations

import gc

import pytest
import torch

from murmur.core.spare_vectors import LEAST_BYTES, MOST_SPARE, SpareVectors

N = LEAST_BYTES // 4


def test_memory_is_used_again_when_no_tensor_shares_it() -> None:
    spare = SpareVectors(N, torch.float32)
    x = spare.take().fill_(1.0)
    place, part = x.data_ptr(), x[3:5].view(2, 1)
    del x
    assert spare.take().data_ptr() != place  # a view is left
    assert part.tolist() == [[1.0], [1.0]]
    del part
    found = [spare.take() for _ in range(2)]
    assert place in [each.data_ptr() for each in found]
    assert found[0].data_ptr() != found[1].data_ptr()


@pytest.mark.parametrize("numel", [N, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_vectors_have_their_length_and_type(numel: int, dtype: torch.dtype) -> None:
    x = SpareVectors(numel, dtype).take()
    assert (x.shape, x.dtype, x.data_ptr() % 64) == ((numel,), dtype, 0)


def test_a_few_vectors_keep_their_memory() -> None:
    spare = SpareVectors(N, torch.float32)
    many = [spare.take() for _ in range(MOST_SPARE + 2)]
    del many
    gc.collect()
    assert len(spare._spare) == MOST_SPARE
