"""Any strategy with compressed vectors: bfloat16 and float16 take half the bytes, int8 a quarter.

A `Compression` is a pair of pure functions: encode(x) is sent, D(x) = decode(encode(x)) arrives, D(D(x)) = D(x):

    float32, bfloat16, float16    the nearest number of that type (float16 saturates at 65504)
    int8                          s round(x / s), one scale s = max |x| / 127 for every 256 elements

A `CompressedGroup` applies one to its verbs:

    mean      m = D(e + sum_i n_i D(x_i + e_i) / sum_i n_i); rounding residuals e, e_i are added at the next call
    mix       w_i + sum_j T_ij (D(w_j) - D(w_i)): the own vector decoded too, or the mean of all weights would drift
    post      D(x) arrives

A vector may be declared to have sections of different meaning, such as weights and moments: no block then crosses a
boundary of sections, and the numbers at its end, such as counts of steps, are sent in full. Error feedback: Seide et
al. 2014, Karimireddy et al. 2019 (arXiv 1901.09847). Differences need none: w_i itself keeps the residual.

Evaluation, checkpoints and the first and last exchange of a run keep full precision, but a mean that trained the models
has been through the compression. At one learner nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from murmur.core.facts import FactsOfInner, check_only_layer
from murmur.core.group import Group, GroupAround, Message, weighted_mean
from murmur.core.learner import Learner, Strategy
from murmur.strategies.kavg import KAVG


class Compression(Protocol):
    """Encoder and decoder of vectors. Nan stays nan, so that a failed run cannot look successful."""

    def encode(self, x: Tensor) -> Tensor:
        """Encode the vector x (P,) as a new one-dimensional tensor on the same device."""

    def decode(self, code: Tensor, like: Tensor) -> Tensor:
        """Decode `code` to a vector with the shape, type and device of `like`.

        Raises:
            ValueError: `code` does not encode a vector of that length.
        """


@dataclass(frozen=True)
class Cast:
    """Elements rounded to type `dtype`."""

    dtype: torch.dtype

    def encode(self, x: Tensor) -> Tensor:
        limit = torch.finfo(self.dtype).max
        # Finite values stay finite: their residual can be sent later. Infinity must stay visible.
        kept = x if self.dtype != torch.float16 else torch.where(x.isinf(), x, x.clamp(-limit, limit))
        return kept.to(self.dtype, copy=True).flatten()

    def decode(self, code: Tensor, like: Tensor) -> Tensor:
        if code.numel() != like.numel() or code.dtype != self.dtype:
            raise ValueError(_mismatch(code, like, f"{like.numel()} elements of {self.dtype}"))
        return code.to(like.device, like.dtype, copy=True).view(like.shape)


@dataclass(frozen=True)
class BlockInt8:
    """Eight bits per element and one float32 scale for every `block` elements; the scales come first."""

    block: int = 256

    def encode(self, x: Tensor) -> Tensor:
        blocks = self._blocks(x.numel())
        rows = pad(x.flatten().float(), (0, blocks * self.block - x.numel())).view(blocks, self.block)
        scales = rows.abs().amax(1) / 127 if blocks else rows.new_empty(0)
        levels = torch.where(scales > 0, scales, torch.ones_like(scales))[:, None]
        steps = (rows / levels).round_().clamp_(-127, 127).nan_to_num_(0.0).to(torch.int8)
        return torch.cat([scales.view(torch.uint8), steps.view(torch.uint8).flatten()[: x.numel()]])

    def decode(self, code: Tensor, like: Tensor) -> Tensor:
        count, head = like.numel(), 4 * self._blocks(like.numel())
        if code.numel() != head + count or code.dtype != torch.uint8:
            raise ValueError(_mismatch(code, like, f"{head + count} bytes"))
        # A copy first: a view as float32 needs an aligned start, which a received buffer need not have.
        scales = code[:head].clone().view(torch.float32).to(like.dtype)
        steps = code[head:].view(torch.int8).to(like.dtype)
        each = scales.repeat_interleave(self.block)[:count]
        return (steps * each).to(like.device).view(like.shape)

    def _blocks(self, numel: int) -> int:
        return -(-numel // self.block)


def _mismatch(code: Tensor, like: Tensor, wanted: str) -> str:
    return (
        f"a message of {code.numel()} elements of {code.dtype} is not a vector of {like.numel()} ({wanted} expected):"
        " do all learners use the same compression and model?"
    )


COMPRESSIONS: Mapping[str, Compression] = {
    "float32": Cast(torch.float32),
    "bfloat16": Cast(torch.bfloat16),
    "float16": Cast(torch.float16),
    "int8": BlockInt8(),
}
AS_IS, SINGLE, DOUBLE = 0.0, 4.0, 8.0  # type of a posted vector before compression: not compressed, float32, float64
TYPES = {torch.float32: SINGLE, torch.float64: DOUBLE}
DTYPES = {kind: dtype for dtype, kind in TYPES.items()}
MEAN = "mean in a format"
KEPT = "kept"
ALIGNMENT = 256  # elements: the parts of a mean begin at multiples, so that no block of a compression crosses them


@dataclass(frozen=True)
class Sections:
    """Lengths of the sections of a vector that are compressed apart, and of the numbers after them, sent in full."""

    lengths: tuple[int, ...]
    numbers: int

    @property
    def numel(self) -> int:
        return sum(self.lengths) + self.numbers

    def apart(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sections, each but the last with zeros up to whole blocks, and the numbers."""
        *sections, last, numbers = torch.split(x, [*self.lengths, self.numbers])
        return torch.cat([*(pad(section, (0, -len(section) % ALIGNMENT)) for section in sections), last]), numbers

    def joined(self, padded: Tensor, numbers: Tensor) -> Tensor:
        """Return the vector of what `apart` returned."""
        *first, last = self.lengths
        pieces = torch.split(padded, [*(length + -length % ALIGNMENT for length in first), last])
        return torch.cat([*(piece[:n] for piece, n in zip(pieces, self.lengths, strict=True)), numbers])

    def encode(self, x: Tensor, form: Compression) -> Tensor:
        """Encode the vector, with the bytes of the numbers at the end."""
        padded, numbers = self.apart(x)
        code = form.encode(padded)
        return torch.cat([code, numbers.contiguous().view(code.dtype)])

    def decode(self, code: Tensor, like: Tensor, form: Compression) -> Tensor:
        """Decode `code` to a vector like `like`. Raises as `Compression.decode` does."""
        padded, numbers = self.apart(torch.empty_like(like))
        end = max(0, code.numel() - numbers.numel() * like.element_size() // code.element_size())
        sections = form.decode(code[:end], padded)
        # A copy first: a view as a wider type needs an aligned start.
        return self.joined(sections, code[end:].clone().view(like.dtype).to(like.device))


class CompressedGroup(GroupAround):
    """The learners of `inner`, with compressed means and messages; all members must use the same compression.

    Broadcasts, counters and `start_sum` are those of `inner`. The bytes of a mean are those of an allreduce: every
    member sums one part of the vector and sends it to the others. Means of one length share their rounding residuals:
    average vectors of different meaning in different parts of a `split`.

    Args:
        inner: Group that sends.
        form: Compression.
        kept: Store of the rounding residuals, under names that begin with `path`; a resumed run needs it.
        path: Prefix of those names.
        sections: Sections declared so far, by length of the vector.

    Attributes:
        sent_bytes: Bytes of the compressed vectors that this member has sent so far.
    """

    def __init__(
        self,
        inner: Group,
        form: Compression,
        kept: MutableMapping[str, Tensor] | None = None,
        path: str = KEPT,
        sections: dict[int, Sections] | None = None,
    ) -> None:
        super().__init__(inner)
        self.form, self.adds_beside = form, False
        self.sent_bytes = 0
        self._kept: MutableMapping[str, Tensor] = {} if kept is None else kept
        self._path, self._splits = path, 0
        self._sections = {} if sections is None else sections

    def declare_sections(self, lengths: Sequence[int], numbers: int) -> None:
        sections = Sections(tuple(lengths), numbers)
        self._sections[sections.numel] = sections

    async def mean_with(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        sections = self._sections.get(x.numel())
        if sections is None:
            return await self._compressed_mean(x, weights, f"{x.numel()}")
        padded, numbers = sections.apart(x)
        mean = await self._compressed_mean(padded, weights, f"sections of {x.numel()}")
        return sections.joined(mean, await self.inner.mean_with(numbers, weights) if len(numbers) else numbers)

    async def _compressed_mean(self, x: Tensor, weights: Sequence[float], name: str) -> Tensor:
        part = -(-x.numel() // (self.size * ALIGNMENT)) * ALIGNMENT
        bounds = [(min(r * part, x.numel()), min((r + 1) * part, x.numel())) for r in range(self.size)]
        start, end = bounds[self.rank]
        given = self._give(x, bounds, f"{self._path} given {name}") if weights[self.rank] > 0 else x
        mean = torch.empty_like(x)
        if start < end:
            mean[start:end] = await self._add_up(
                given[start:end], weights, f"{self._path} added {end - start} of {name}"
            )
        for r, (a, b) in enumerate(bounds):
            if r != self.rank and a < b:
                mean[a:b] = self.form.decode((await self.inner.recv(r, MEAN)).x, x[a:b])
        return mean

    def _give(self, x: Tensor, bounds: Sequence[tuple[int, int]], name: str) -> Tensor:
        """Send every member its part of x; return x as it arrives."""
        sent = self._owing(name, x)
        for r, (a, b) in enumerate(bounds):
            if r != self.rank and a < b:
                self._send(self.form.encode(sent[a:b]), r)
        return self._keep(name, sent)

    async def _add_up(self, own: Tensor, weights: Sequence[float], name: str) -> Tensor:
        """Compute the mean of this member's part of all vectors and send it to the others."""
        parts = []
        for r, weight in enumerate(weights):
            if r == self.rank or weight == 0:
                parts.append(own)  # a placeholder for weight 0: it is not read
            else:
                parts.append(self.form.decode((await self.inner.recv(r, MEAN)).x, own))
        added = self._owing(name, weighted_mean(parts, weights))
        code = self.form.encode(added)
        for r in range(self.size):
            if r != self.rank:
                self._send(code, r)
        return self._keep(name, added)

    def _owing(self, name: str, x: Tensor) -> Tensor:
        kept = self._kept.get(name)
        return x if kept is None else x + kept

    def _keep(self, name: str, sent: Tensor) -> Tensor:
        """Return `sent` as it arrives; keep the residual for the next mean."""
        arrived = self.form.decode(self.form.encode(sent), sent) if sent.dtype in TYPES else sent
        self._kept[name] = sent - arrived
        return arrived

    def _send(self, code: Tensor, to: int) -> None:
        self.sent_bytes += code.numel() * code.element_size()
        self.inner.post(code, to, MEAN)

    @property
    def plain(self) -> Group:
        return self.inner

    def as_sent(self, x: Tensor) -> Tensor:
        return self._decode(self._encode(x), x) if x.dtype in TYPES else x

    def _encode(self, x: Tensor) -> Tensor:
        sections = self._sections.get(x.numel())
        return self.form.encode(x) if sections is None else sections.encode(x, self.form)

    def _decode(self, code: Tensor, like: Tensor) -> Tensor:
        sections = self._sections.get(like.numel())
        return self.form.decode(code, like) if sections is None else sections.decode(code, like, self.form)

    def post(self, x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        kind = TYPES.get(x.dtype, AS_IS)
        code = x if kind == AS_IS else self._encode(x)
        self.sent_bytes += code.numel() * code.element_size()
        self.inner.post(code, to, tag, (*header, kind, float(x.numel())))

    def _read(self, message: Message) -> Message:
        *header, kind, numel = message.header
        if kind == AS_IS:
            return message._replace(header=tuple(header))
        like = torch.empty(int(numel), dtype=DTYPES[kind], device=message.x.device)
        return Message(self._decode(message.x, like), message.source, tuple(header))

    async def recv(self, source: int | None = None, tag: str = "") -> Message:
        return self._read(await self.inner.recv(source, tag))

    async def poll(self, tag: str, seconds: float) -> Message | None:
        message = await self.inner.poll(tag, seconds)
        return None if message is None else self._read(message)

    def split(self, parts: Sequence[Sequence[int]]) -> CompressedGroup | None:
        part = self.inner.split(parts)
        self._splits += 1
        if part is None:
            return None
        path = f"{self._path}/{self._splits}"
        return CompressedGroup(part, self.form, self._kept, path, self._sections)

    def among(self, ranks: Sequence[int], name: str) -> CompressedGroup:
        part = self.inner.among(ranks, name)
        return CompressedGroup(part, self.form, self._kept, f"{self._path}/{name}", self._sections)


@dataclass(frozen=True)
class Compressed(FactsOfInner):
    """`strategy` over a group with vectors in `compression`: float32, bfloat16, float16 or int8."""

    strategy: Strategy = field(default_factory=KAVG)
    compression: str = "bfloat16"

    def __post_init__(self) -> None:
        check_only_layer(self)
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"there is no compression {self.compression!r}; there are {', '.join(COMPRESSIONS)}")

    async def __call__(self, me: Learner) -> None:
        me.group = CompressedGroup(me.group, COMPRESSIONS[self.compression], me.outer)
        await self.strategy(me)
        me.group = me.group.plain  # the group of leaders, if the strategy has formed super-learners

    @property
    def inner(self) -> Strategy:
        return self.strategy
