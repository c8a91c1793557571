"""Digests and copies of tensors of any type, in blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from murmur.core import tensor_bytes
from murmur.core.group import WorldMismatch
from murmur.core.tensor_bytes import digest, from_bytes, pieces, take_over_first, to_bytes
from murmur.core.world import Seat
from murmur.worlds.threads import ThreadGroup, ThreadWorld

X = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5) - 60


def test_a_digest_is_of_elements_shape_and_type() -> None:
    same = [X.clone(), X.to(memory_format=torch.channels_last), X.transpose(1, 3).contiguous().transpose(1, 3)]
    assert {digest(x) for x in same} == {digest(X)}
    others = [X, -X, X.double(), X.reshape(6, 4, 5), X.flip(0), X.to_sparse(), X.to(torch.complex64), X[:0]]
    assert len({digest(x) for x in others}) == len(others)
    assert digest(torch.tensor(0.0)) != digest(torch.tensor(-0.0))


@pytest.mark.parametrize("limit", [4, 12, 20, 100, 10**6])
def test_pieces_are_all_elements_in_order(limit: int) -> None:
    for x in (X, X.to(memory_format=torch.channels_last), X[0, 0, 0, 0], X[:, :, :0]):
        found = list(pieces(x, limit))
        assert all(piece.numel() * 4 <= limit for piece in found)
        assert torch.equal(torch.cat([piece.flatten() for piece in found]), x.flatten())
        assert torch.equal(from_bytes(to_bytes(x), x.dtype, x.shape), x)


def tensors(rank: int) -> list[tuple[str, Tensor]]:
    """Return tensors that differ between learners, in storages of all kinds."""
    x = X + 100 * rank
    return [
        ("contiguous", x.clone()),
        ("strides of its own", x.to(memory_format=torch.channels_last if rank else torch.contiguous_format)),
        ("transposed", x[0, 0].t().clone().t()),
        ("expanded", torch.full((1, 3), float(rank)).expand(4, 3)),
        ("part", torch.zeros(4, 4)[:, ::2].add_(rank)),
        *((str(dtype), torch.tensor([rank, 1]).to(dtype)) for dtype in (torch.bool, torch.uint8, torch.complex64)),
        ("exact", torch.tensor(2**60 + 1 + rank)),
        ("bfloat16", torch.tensor([0.1, rank], dtype=torch.bfloat16)),
        ("8 bits", torch.tensor([0.5, rank]).to(torch.float8_e5m2)),
        ("equal", torch.ones(50_000, dtype=torch.uint8)),
        ("equal nan", torch.full((9,), float("nan"))),
        ("equal and sparse", torch.eye(3).to_sparse()),
        ("equal and quantised", torch.quantize_per_channel(X[0, 0], torch.ones(4), torch.zeros(4), 0, torch.qint8)),
    ]


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_learners_take_over_what_differs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_bytes, "BLOCK_BYTES", block)
    monkeypatch.setattr(pieces, "__defaults__", (block,))
    sent: list[int] = []
    plain = ThreadGroup.broadcast

    async def counted(group: ThreadGroup, x: Tensor, root: int = 0) -> Tensor:
        sent.append(x.numel())
        return await plain(group, x, root)

    monkeypatch.setattr(ThreadGroup, "broadcast", counted)

    async def main(seat: Seat) -> list[tuple[str, Tensor]]:
        mine = tensors(seat.group.rank)
        digests = await take_over_first(seat.group, mine)
        assert digests == [digest(x) for _, x in tensors(0)]
        return mine

    for mine in ThreadWorld(3, 20.0).run(main):
        for (name, x), (_, wanted) in zip(mine, tensors(0), strict=True):
            assert digest(x) == digest(wanted), name
    assert max(sent) <= block
    assert sum(sent) < 3 * 1200  # nothing of what was equal


@pytest.mark.parametrize("kind", ["sparse", "quantised"])
def test_a_tensor_that_cannot_be_sent_is_named(kind: str) -> None:
    async def main(seat: Seat) -> None:
        x = torch.eye(2) + seat.group.rank
        other = x.to_sparse() if kind == "sparse" else torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
        await take_over_first(seat.group, [("graph", other)])

    with pytest.raises(WorldMismatch, match="graph differs between learners"):
        ThreadWorld(2, 20.0).run(main)
