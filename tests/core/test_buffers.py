"""Rules of buffers, and what learners agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from murmur.core import buffers
from murmur.core.buffers import (
    SMALL,
    Buffers,
    digest,
    from_bytes,
    mean_of,
    mean_of_integers,
    pack,
    pieces,
    rules_of,
    take_over_first,
    to_bytes,
    unpack,
)
from murmur.core.flat import Layout
from murmur.core.group import WorldMismatch
from murmur.core.world import Seat
from murmur.worlds.threads import ThreadGroup, ThreadWorld

INF, NAN = float("inf"), float("nan")
KINDS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "running mean": (lambda: torch.zeros(3), "mean"),
    "running variance": (lambda: torch.ones(3), "mean"),
    "one number": (lambda: torch.ones(()), "mean"),
    "one feature": (lambda: torch.ones(1), "mean"),
    "covariance": (lambda: torch.eye(3), "mean"),
    "bfloat16": (lambda: torch.zeros(3, dtype=torch.bfloat16), "mean"),
    "complex": (lambda: torch.zeros(3, dtype=torch.complex64), "mean"),
    "empty": (lambda: torch.empty(0, 3), "mean"),
    "counter": (lambda: torch.tensor(2**60 + 1), "mean"),
    "short counter": (lambda: torch.tensor(3, dtype=torch.int16), "mean"),
    "causal mask": (lambda: torch.triu(torch.full((3, 3), -INF), 1), "first"),
    "minima": (lambda: torch.full((3,), INF), "first"),
    "unknown": (lambda: torch.tensor([1.0, NAN]), "first"),
    "complex nan": (lambda: torch.tensor([1.0, complex(0, NAN)]), "first"),
    "unit vector": (lambda: nn.functional.normalize(torch.arange(5.0), dim=0), "first"),
    "unit column": (lambda: nn.functional.normalize(torch.arange(5.0), dim=0)[:, None].double(), "first"),
    "table of numbers": (lambda: torch.arange(5), "first"),
    "place in a queue": (lambda: torch.zeros(1, dtype=torch.long), "first"),
    "random state": (lambda: torch.zeros(16, dtype=torch.uint8), "first"),
    "byte": (lambda: torch.tensor(1, dtype=torch.uint8), "first"),
    "flag": (lambda: torch.tensor(True), "first"),
    "boolean mask": (lambda: torch.ones(3, dtype=torch.bool), "first"),
    "8-bit floating point": (lambda: torch.zeros(3).to(torch.float8_e4m3fn), "first"),
    "quantised": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "own"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "own"),
}


def holding(*buffers: Tensor) -> nn.Module:
    model = nn.Linear(2, 2)
    for number, x in enumerate(buffers):
        model.register_buffer(f"b{number}", x, persistent=number % 2 == 0)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_the_rule_of_a_buffer(kind: str) -> None:
    make, rule = KINDS[kind]
    assert rules_of(holding(make()), {}) == {"b0": rule}
    buffers = Buffers(holding(make()), {})
    buffers.begin({"b0": digest(make())})
    assert buffers.changes(exact=True) == {}
    assert [place.name for place in buffers.places] == ([] if rule == "own" else ["b0"])


def test_vectors_of_spectral_norm_are_of_the_first() -> None:
    old, new = nn.utils.spectral_norm(nn.Linear(1, 3)), nn.utils.parametrizations.spectral_norm(nn.Conv1d(2, 3, 1))
    model = nn.ModuleDict({"old": old, "new": new, "norm": nn.BatchNorm1d(3)})
    with torch.no_grad():
        new.parametrizations.weight[0]._u.mul_(3)  # whatever its length
    assert rules_of(model, {}) == {
        **dict.fromkeys(("old.weight_u", "old.weight_v"), "first"),
        **dict.fromkeys(("new.parametrizations.weight.0._u", "new.parametrizations.weight.0._v"), "first"),
        **dict.fromkeys(("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"), "mean"),
    }


def test_buffers_in_one_memory_have_one_rule() -> None:
    whole = torch.tensor([0.0, 0.0, -INF])
    model = holding(whole, whole[:2], torch.zeros(2))
    model.register_buffer("of_weight", model.weight.detach()[0])
    assert rules_of(model, {}) == {"b0": "first", "b1": "first", "b2": "mean", "of_weight": "own"}


def test_rules_by_name() -> None:
    model = nn.ModuleDict({"a": holding(torch.zeros(2), torch.arange(3)), "b": holding(torch.zeros(2))})
    named = {"a.b1": "mean", "a.*": "own", "*.b0": "first"}
    assert rules_of(model, named) == {"a.b0": "own", "a.b1": "mean", "b.b0": "first"}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"b.b1": "own"}, r"the model has no buffer 'b\.b1'; did you mean 'b\.b0'\?"),
        ({"*.mask": "own"}, r"the model has no buffer '\*\.mask'; "),
        ({"a.b0": "owns"}, "'a.b0' has the rule 'owns'; did you mean 'own'"),
        ({"a.b1": "mean"}, "a.b1 of torch.bool has no mean"),
        ({"a.b2": "first"}, "a.b2 is quantised or sparse"),
    ],
)
def test_other_rules_are_refused(named: Any, message: str) -> None:
    other = torch.eye(2).to_sparse_csr()
    model = nn.ModuleDict({"a": holding(torch.zeros(2), torch.tensor([True]), other), "b": holding(torch.zeros(2))})
    with pytest.raises(ValueError, match=message):
        rules_of(model, named)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_the_mean_of_integers_is_exact(numbers: list[int]) -> None:
    mean = int(mean_of_integers([torch.tensor(n) for n in numbers]))
    whole, rest = divmod(sum(numbers), len(numbers))
    twice = 2 * rest - len(numbers)
    assert mean == whole + (twice > 0 or (twice == 0 and whole % 2 == 1))


def test_means_leave_out_what_is_not_finite_and_keep_types() -> None:
    narrow = torch.tensor([1.0, 256.0], dtype=torch.bfloat16)
    assert mean_of([narrow, narrow + 2, narrow * NAN]).tolist() == [2.0, 256.0]
    assert mean_of([narrow, narrow]).dtype == torch.bfloat16
    assert mean_of([torch.tensor([1j]), torch.tensor([3j])]).tolist() == [2j]


def test_a_mean_needs_one_shape_and_a_finite_value() -> None:
    model = holding(torch.zeros(2), torch.zeros(2), torch.zeros(2))
    buffers = Buffers(model, {})
    buffers.begin({name: digest(x) for name, x in model.named_buffers()})
    bad, x = torch.full((2,), NAN), torch.ones(2)
    found = buffers.combined([(0.0, {"b0": 9 * x}), (1.0, {"b0": torch.ones(3), "b1": bad}), (2.0, {"b0": x})])
    assert found["b0"].tolist() == [1.0, 1.0, 1.0]  # of the first that trained
    assert found["b1"].tolist() == [0.0, 0.0]  # learner 2 has left it as it was
    assert "b2" not in found


@pytest.mark.parametrize("kind", [kind for kind, (_, rule) in KINDS.items() if rule != "own"])
def test_packed_tensors_are_the_same_bytes(kind: str) -> None:
    x = KINDS[kind][0]()
    weight, found = unpack(pack({"a": x.expand(2, *x.shape), "b": x}, 0.25))
    assert weight == 0.25
    assert digest(found["b"]) == digest(x)
    assert digest(found["a"]) == digest(x.expand(2, *x.shape))


def test_a_large_constant_is_not_copied_between_steps() -> None:
    model = holding(torch.zeros(SMALL + 1), torch.zeros(2), torch.zeros(SMALL + 1))
    buffers = Buffers(model, {})
    buffers.begin({name: digest(x) for name, x in model.named_buffers()})
    buffers.keep()
    assert buffers._saved[1].numel == 2
    model.b2[5] = 1.0  # changed in place
    buffers.keep()
    assert buffers._saved[1].numel == SMALL + 3
    model.b2.fill_(NAN)
    assert buffers.spoiled
    buffers.restore()
    assert model.b2[5] == 1.0
    assert not buffers.spoiled


def test_a_large_buffer_that_changes_unseen_is_found() -> None:
    """Writes through `.data` do not count as changes of the tensor."""
    for written, exact in ((slice(None), False), (slice(SMALL // 2, SMALL // 2 + 99), False), (slice(7, 8), True)):
        model = holding(torch.zeros(SMALL + 1))
        buffers = Buffers(model, {})
        buffers.begin({"b0": digest(model.b0)})
        model.b0.data[written] = 1.0
        assert list(buffers.changes(exact)) == ["b0"]


def test_buffers_are_put_in_place_if_they_keep_their_shape() -> None:
    shared = torch.zeros(3)
    model = holding(shared, torch.zeros(1).expand(4), torch.zeros(2))
    inner = nn.Module()
    inner.register_buffer("other_name", shared)
    model.inner = inner
    buffers = Buffers(model, {})
    buffers.begin(None)
    buffers.put({"b0": torch.ones(3), "b1": torch.full((4,), 2.0), "b2": torch.ones(5), "unknown": torch.ones(1)})
    assert model.b0 is shared
    assert shared.tolist() == [1.0, 1.0, 1.0]
    assert model.b1.tolist() == [2.0] * 4
    assert model.b2.tolist() == [1.0] * 5
    buffers.put({"b0": torch.ones(4)})
    assert inner.other_name is model.b0
    assert Layout.buffers(model).numel == 4 + 4 + 5


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
    monkeypatch.setattr(buffers, "BLOCK_BYTES", block)
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
