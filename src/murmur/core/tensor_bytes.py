"""Bytes of tensors of any type: comparison by digests and copies between learners, in blocks of bounded memory.

A tensor is cut by its shape alone, so that learners whose strides differ cut it alike. A tensor whose elements share
memory (an expanded one) is written through its distinct elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from murmur.core.group import Group, WorldMismatch

BLOCK_BYTES = 16 << 20
DIGEST_BYTES = 6  # exact as a number of a message


def components(x: Tensor) -> list[Tensor]:
    """Return the dense tensors that make up a tensor: several for a quantised or sparse one, else x itself."""
    x = x.detach()
    if x.is_quantized:
        if x.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            return [x.int_repr(), torch.tensor([x.q_scale(), x.q_zero_point()], dtype=torch.float64)]
        return [x.int_repr(), x.q_per_channel_scales(), x.q_per_channel_zero_points()]
    if x.layout == torch.strided:
        return [x]
    if x.layout == torch.sparse_coo:
        whole = x.coalesce()
        return [whole.indices(), whole.values()]
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [x.crow_indices(), x.col_indices(), x.values()]
    return [x.ccol_indices(), x.row_indices(), x.values()]


def is_dense(x: Tensor) -> bool:
    """True if a tensor is neither quantised nor sparse."""
    return x.layout == torch.strided and not x.is_quantized


def to_bytes(x: Tensor) -> Tensor:
    """Return the elements of a dense tensor, in their order, as a vector of bytes on the host; it may share memory."""
    plain = x.detach().resolve_conj().resolve_neg()
    return plain.cpu().contiguous().reshape(-1).view(torch.uint8)


def from_bytes(raw: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return the tensor that `to_bytes` has made a vector of."""
    return torch.empty(raw.numel(), dtype=torch.uint8).copy_(raw).view(dtype).reshape(tuple(shape))


def write(x: Tensor, values: Tensor) -> None:
    """Copy values into a tensor in place; one that is expanded gets each distinct element once."""
    one = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())
    with torch.no_grad():
        x.detach()[one].copy_(values[one])


def pieces(x: Tensor, limit_bytes: int = BLOCK_BYTES) -> Iterator[Tensor]:
    """Cut a dense tensor into views of at most `limit_bytes`, in the order of its elements."""
    if x.numel() * x.element_size() <= limit_bytes or x.dim() == 0:
        yield x
        return
    row_bytes = x.numel() * x.element_size() // len(x)
    if row_bytes > limit_bytes:
        for row in x:
            yield from pieces(row, limit_bytes)
    else:
        yield from torch.split(x, limit_bytes // row_bytes)


def digest(x: Tensor) -> float:
    """Return a number that is equal for tensors of equal type, shape and bytes, and for practically no others."""
    found = blake2b(f"{x.dtype} {tuple(x.shape)} {x.layout}".encode(), digest_size=DIGEST_BYTES)
    for part in components(x):
        for piece in pieces(part):
            found.update(to_bytes(piece).numpy().data)
    return float(int.from_bytes(found.digest(), "little"))


async def take_over_first(group: Group, named: Sequence[tuple[str, Tensor]]) -> list[float]:
    """Give all learners the tensors of learner 0, of which only those that differ are sent; return their digests.

    Raises:
        WorldMismatch: A quantised or sparse tensor differs; names it.
    """
    digests = [digest(x) for _, x in named]
    said = await group.share_numbers(torch.empty(0), digests)
    differs = [any(row[i] != said[0][i] for row in said) for i in range(len(named))]
    sent = [both for both, other in zip(named, differs, strict=True) if other]
    for name, x in sent:
        if not is_dense(x):
            raise WorldMismatch(f"{name} differs between learners, and a tensor of its kind is not sent: make it equal")
    await send([x for _, x in sent], group, 0)
    return list(said[0])


async def send(tensors: Sequence[Tensor], group: Group, root: int) -> None:
    """Set dense tensors, of equal shapes and types on all learners, to those of one learner, in blocks."""
    block: list[Tensor] = []
    for piece in (piece for x in tensors for piece in pieces(x.detach())):
        if block and _bytes([*block, piece]) > BLOCK_BYTES:
            await _send_block(block, group, root)
            block = []
        block.append(piece)
    if block:
        await _send_block(block, group, root)


def _bytes(block: Sequence[Tensor]) -> int:
    return sum(piece.numel() * piece.element_size() for piece in block)


async def _send_block(block: Sequence[Tensor], group: Group, root: int) -> None:
    mine = group.rank == root
    raw = torch.cat([to_bytes(piece) for piece in block]) if mine else torch.empty(_bytes(block), dtype=torch.uint8)
    raw = await group.broadcast(raw, root)
    if mine:
        return
    for piece, part in zip(block, torch.split(raw, [_bytes([piece]) for piece in block]), strict=True):
        write(piece, from_bytes(part, piece.dtype, piece.shape))
