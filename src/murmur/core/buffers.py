"""Rules by which learners agree on the buffers of a model, when they agree on its weights.

    "mean"     mean over the learners: running statistics; counters, rounded
    "first"    the value of the first learner that trained: what no mean of values stands for
    "own"      each learner keeps its own

Without a rule by name, a buffer has the first rule that fits:

| buffer | rule |
|---|---|
| quantised or sparse, or in the memory of a parameter | "own" |
| vectors of the power iteration of spectral norm, other vectors of length 1 | "first" |
| a single integer (a counter) | "mean" |
| other integers, booleans, 8-bit floating point | "first" |
| floating point or complex with infinite or NaN elements at the start (a mask) | "first" |
| other floating point or complex | "mean" |

A buffer that no learner has changed since the start is left alone, whatever its rule. One whose shapes differ between
learners, or whose values are nowhere finite, has no mean: it is that of the first learner.

Tensors of any type are compared by digests of their bytes and copied between learners in blocks of bounded memory. They
are cut by their shape alone, so that learners whose strides differ cut them alike. A tensor whose elements share memory
(an expanded one) is written through its distinct elements.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from hashlib import blake2b
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from murmur.core.errors import nearest
from murmur.core.flat import Layout, is_finite
from murmur.core.group import Group, WorldMismatch, weighted_mean
from murmur.core.shards import own_part
from murmur.core.torch_private import spectral_vectors, version_of

Rule = Literal["mean", "first", "own"]
RULES: tuple[Rule, ...] = get_args(Rule)
SMALL = 1 << 16  # elements up to which a buffer is compared as a whole; BatchNorm changes its own unnoticed
SAMPLED = 1 << 12  # elements of a larger one that are compared
BLOCK_BYTES = 16 << 20
DIGEST_BYTES = 6  # exact as a number of a message


def check_rules(named: Mapping[str, str]) -> None:
    """Raise ValueError if a rule given by name does not exist, or these are no rules by name."""
    if not isinstance(named, Mapping):
        raise ValueError(f"buffers must map names or patterns to rules, such as {{'*.mask': 'own'}}, got {named!r}")
    for name, rule in named.items():
        if rule not in RULES:
            raise ValueError(f"buffers: {name!r} has the rule {rule!r}{nearest(str(rule), RULES)}")


def rules_of(model: nn.Module, named: Mapping[str, str]) -> dict[str, Rule]:
    """Return the rule of each buffer of a model.

    Args:
        model: The model at the start.
        named: Rules by the names of buffers or by patterns (`*.mask`), of which the first that fits counts.

    Raises:
        ValueError: A rule is unknown, a name fits no buffer, or a buffer cannot have the rule; names it.
    """
    check_rules(named)
    buffers = dict(model.named_buffers())
    for pattern in named:
        if not any(fnmatchcase(name, pattern) for name in buffers):
            raise ValueError(f"buffers: the model has no buffer {pattern!r}{nearest(pattern, list(buffers))}")
    weights = {own_part(p).untyped_storage().data_ptr() for p in model.parameters() if is_dense(p) and p.numel()}
    powers = spectral_vectors(model)
    found: dict[str, Rule] = {}
    free: dict[str, Tensor] = {}
    for name, x in buffers.items():
        if is_lazy(x):
            raise ValueError(f"{name} has no shape yet, as its module is lazy: call the model once before")
        rule = next((rule for pattern, rule in named.items() if fnmatchcase(name, pattern)), None)
        if rule is None:
            free[name] = x
        else:
            _check_possible(name, x, rule)
        found[name] = rule or _rule_of(x, name in powers, weights)  # type: ignore[assignment]
    return found | _in_one_memory(found, free)


def _rule_of(x: Tensor, is_power: bool, weights: set[int]) -> Rule:
    if not is_dense(x) or (x.numel() and x.untyped_storage().data_ptr() in weights):
        return "own"
    if is_power or not _has_mean(x):
        return "first"
    if not (x.is_floating_point() or x.is_complex()):
        return "mean" if x.dim() == 0 and x.element_size() > 1 else "first"
    return "first" if _is_unit_vector(x) or not all(_is_finite(piece) for piece in pieces(x)) else "mean"


def _in_one_memory(found: Mapping[str, Rule], buffers: Mapping[str, Tensor]) -> dict[str, Rule]:
    """Return the rule "first" for buffers that share memory with one of this rule."""
    memory = {name: x.untyped_storage().data_ptr() for name, x in buffers.items() if is_dense(x) and x.numel()}
    firsts = {where for name, where in memory.items() if found[name] == "first"}
    return {name: "first" for name, where in memory.items() if where in firsts}


def _is_unit_vector(x: Tensor) -> bool:
    one_line = x.numel() > 1 and max(x.shape) == x.numel()
    return one_line and math.isclose(float(torch.linalg.vector_norm(x.detach().abs().float())), 1.0, abs_tol=1e-3)


def _has_mean(x: Tensor) -> bool:
    return x.dtype != torch.bool and (x.element_size() > 1 or not x.is_floating_point())


def _check_possible(name: str, x: Tensor, rule: str) -> None:
    if rule != "own" and not is_dense(x):
        raise ValueError(f"buffers: {name} is quantised or sparse and is not sent: its rule can only be 'own'")
    if rule == "mean" and not _has_mean(x):
        raise ValueError(f"buffers: {name} of {x.dtype} has no mean: choose 'first' or 'own'")


def _is_finite(x: Tensor) -> bool:
    return is_finite(torch.view_as_real(x) if x.is_complex() else x)


@dataclass(eq=False)
class BufferPlace:
    """Place of a buffer in its model, and its value at the start.

    Attributes:
        name: Name of the buffer in the model.
        holders: Modules that have it, and its name there.
        rule: Its rule.
        first: The tensor at the start.
        version: Changes of that tensor in place until the start.
        sample: Bytes of a small one, or of some elements of a large one, at the start.
        digest: Digest of a large one at the start; None if learners did not begin equal.
        estimate: True for floating-point values, finite at the start, which a bad minibatch may spoil.
    """

    name: str
    holders: Sequence[tuple[nn.Module, str]]
    rule: Rule
    first: Tensor
    version: int
    sample: Tensor
    digest: float | None
    estimate: bool

    @property
    def now(self) -> Tensor | None:
        """The present tensor; None if the model has removed it."""
        module, key = self.holders[0]
        return getattr(module, key, None)

    @property
    def small(self) -> bool:
        """True if a change is found by comparing the whole."""
        return self.first.numel() <= SMALL

    def touched(self, x: Tensor) -> bool:
        """True if it is small, another tensor than at the start, or changed in place: it may have another value."""
        return self.small or x is not self.first or version_of(x) != self.version

    def reshaped(self, x: Tensor) -> bool:
        return x.shape != self.first.shape or x.dtype != self.first.dtype

    def changed(self, x: Tensor, exact: bool) -> bool:
        """True if its bytes are not those of the start. Of a large one a sample is compared, or the digest too."""
        if self.digest is None or self.reshaped(x) or not torch.equal(_sample(x), self.sample):
            return True
        return not self.small and (exact or self.touched(x)) and digest(x) != self.digest

    def at_start(self) -> Tensor | None:
        """Return its value at the start; None for a large one that has changed, of which no copy was kept."""
        if self.small:
            return from_bytes(self.sample, self.first.dtype, self.first.shape)
        now = self.now
        return None if now is None or self.changed(now, exact=True) else now

    def put(self, value: Tensor) -> None:
        """Set it: in place, or as a new tensor if its shape or type changes."""
        now = self.now
        if now is None or now.shape != value.shape or now.is_inference() or self.reshaped(value):
            new = value.to(device=self.first.device, copy=True)
            for module, key in self.holders:
                setattr(module, key, new)
        else:
            write(now, value.to(now.device))


def _sample(x: Tensor) -> Tensor:
    """Return the bytes of a small tensor, and those of some elements of a large one."""
    if x.numel() <= SMALL:
        return to_bytes(x)
    places = torch.arange(0, x.numel(), x.numel() // SAMPLED, device=x.device)
    return to_bytes(x.detach()[torch.unravel_index(places, x.shape)])


Values = dict[str, Tensor]


class Buffers:
    """The buffers that a model has at the start, their rules, and their changes since.

    Attributes:
        rules: Rule of each buffer, by name; some are given by names or patterns, as for `rules_of`.
        places: Those that are not each learner's own.
    """

    def __init__(self, model: nn.Module, named: Mapping[str, str]) -> None:
        self.model = model
        self.rules = rules_of(model, named)
        self.places: list[BufferPlace] = []
        self._saved: tuple[list[BufferPlace], Layout, Tensor] = ([], Layout([]), torch.empty(0))
        self._every: list[BufferPlace] = []

    def begin(self, digests: Mapping[str, float] | None) -> Buffers:
        """Take the present values as those of the start, with digests if all learners began equal."""
        holders: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in self.model.modules():
            for key, x in module.named_buffers(recurse=False):
                holders.setdefault(id(x), []).append((module, key))
        self._every = [
            BufferPlace(
                *(name, holders[id(x)], self.rules[name], x, version_of(x)),
                sample=_sample(x).clone() if is_dense(x) else torch.empty(0),
                digest=None if digests is None else digests[name],
                estimate=is_dense(x) and x.is_floating_point() and _has_mean(x) and is_finite(x.detach()),
            )
            for name, x in self.model.named_buffers()
        ]
        self.places = [place for place in self._every if place.rule != "own"]
        self.keep()
        return self

    def keep(self) -> None:
        """Keep the estimates between two minibatches, to undo what a bad one does to them; constants cost nothing."""
        found = self._estimates()
        _, layout, room = self._saved
        if list(map(id, layout.tensors)) == list(map(id, found.values())):
            layout.gather(room)
        else:
            layout = Layout(found.values())
            self._saved = ([*found], layout, layout.gather())

    @property
    def spoiled(self) -> bool:
        return any(not is_finite(x.detach()) for x in self._estimates().values())

    def _estimates(self) -> dict[BufferPlace, Tensor]:
        found = ((place, place.now) for place in self._every if place.estimate)
        return {place: x for place, x in found if x is not None and place.touched(x)}

    def restore(self) -> None:
        """Set the estimates to the values that `keep` has kept."""
        places, layout, values = self._saved
        for place, x, value in zip(places, layout.tensors, layout.views(values), strict=True):
            place.put(value.to(x.dtype))

    def changes(self, exact: bool, instead: Mapping[str, Tensor] = MappingProxyType({})) -> Values:
        """Return the tensors of the buffers that have changed since the start, by name.

        Args:
            exact: Compare all elements of large ones.
            instead: Tensors that count in place of the present ones.
        """
        found = [(place, instead.get(place.name, place.now)) for place in self.places]
        return {place.name: x for place, x in found if x is not None and place.changed(x, exact)}

    def present(self, named: Mapping[str, Tensor]) -> Values:
        """Return the present tensors of these buffers and of all that `loose` returns, by name."""
        found = {place.name: place.now for place in self._every if place.name in named}
        return self.loose() | {name: x for name, x in found.items() if x is not None}

    def loose(self) -> Values:
        """Return the present tensors of all dense buffers that may have changed since the start, by name."""
        found = [(place, place.now) for place in self._every]
        return {place.name: x for place, x in found if x is not None and is_dense(x) and place.touched(x)}

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Set buffers by name; a name that the model does not have is left out."""
        for place in self._every:
            if place.name in values:
                place.put(values[place.name])

    def agree(self, values: Mapping[str, Tensor]) -> None:
        """Set the buffers on which learners have agreed; changes of the others here alone are undone."""
        for place in self.places:
            now = None if place.digest is None else place.now  # a learner that came late has begun with other values
            if place.name in values or now is None or not place.changed(now, exact=False):
                continue
            if (start := place.at_start()) is not None:
                place.put(start)
        self.put(values)

    def combined(self, given: Sequence[tuple[float, Values]]) -> Values:
        """Return the buffers that learners agree on, given the weight and the changed buffers of each."""
        counted = [both for both in given if both[0] > 0] or [(1.0, values) for _, values in given]
        found: Values = {}
        for place in self.places:
            changed = [values[place.name] for _, values in counted if place.name in values]
            if not changed:
                continue
            start = place.at_start()
            all_ = [x for _, values in counted if (x := values.get(place.name, start)) is not None]
            found[place.name] = mean_of(all_) if place.rule == "mean" and has_mean(all_) else changed[0]
        return found


def has_mean(xs: Sequence[Tensor]) -> bool:
    """True if values of one buffer have one shape and type, and some are finite."""
    alike = len({(x.shape, x.dtype) for x in xs}) == 1
    return alike and (not _is_real(xs[0]) or any(_is_finite(x) for x in xs))


def _is_real(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def mean_of(xs: Sequence[Tensor]) -> Tensor:
    """Return the mean of the finite ones of several tensors; of integers the rounded one, exact to the last digit."""
    if not _is_real(xs[0]):
        return mean_of_integers(xs)
    wide = torch.promote_types(xs[0].dtype, torch.float32)
    finite = [x.detach().to(wide) for x in xs if _is_finite(x)]
    return weighted_mean(finite, [1.0] * len(finite)).to(xs[0].dtype)


def mean_of_integers(xs: Sequence[Tensor]) -> Tensor:
    """Return the mean of integer tensors, rounded to the nearest integer, halves to the even one."""
    columns = zip(*(x.flatten().tolist() for x in xs), strict=True)
    means = [round(Fraction(sum(column), len(xs))) for column in columns]
    return torch.tensor(means, dtype=xs[0].dtype).reshape(xs[0].shape).to(xs[0].device)


def pack(values: Mapping[str, Tensor], weight: float = 1.0) -> Tensor:
    """Return dense tensors by name, and the weight of a learner, as a vector of bytes."""
    heads = [[name, str(x.dtype).removeprefix("torch."), list(x.shape)] for name, x in values.items()]
    head = json.dumps({"weight": weight, "tensors": heads}).encode()
    start = torch.frombuffer(bytearray(len(head).to_bytes(8, "little") + head), dtype=torch.uint8)
    return torch.cat([start, *(to_bytes(x) for x in values.values())])


def unpack(raw: Tensor) -> tuple[float, Values]:
    """Return the weight and the tensors that `pack` has packed, on the host."""
    raw = raw.cpu()
    end = 8 + int.from_bytes(bytes(raw[:8].tolist()), "little")
    head = json.loads(bytes(raw[8:end].tolist()))
    values: Values = {}
    for name, dtype_name, shape in head["tensors"]:
        dtype = getattr(torch, dtype_name)
        size = math.prod(shape) * dtype.itemsize
        values[name] = from_bytes(raw[end : end + size], dtype, shape)
        end += size
    return float(head["weight"]), values


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
