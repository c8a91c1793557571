"""Number formats of training."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from murmur.speech.tasks import chunk_learning as precision
from murmur.speech.tasks.chunk_learning import products_in


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    precision._fast_here.cache_clear()
    yield
    precision._fast_here.cache_clear()


@pytest.mark.parametrize("fast", [True, False])
def test_a_processor_without_bfloat16_computes_in_float32(
    fast: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once; a GPU is not asked."""
    monkeypatch.setattr(precision, "has_fast_bfloat16", lambda: fast)
    x = torch.randn(3, 3)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            with products_in("bfloat16", "cpu"):
                assert (x @ x).dtype == (torch.bfloat16 if fast else torch.float32)
            with products_in("float32", "cpu"):
                assert (x @ x).dtype == torch.float32
    assert caplog.text.count("no instructions for bfloat16") == (0 if fast else 1)
