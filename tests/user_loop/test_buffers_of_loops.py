"""Buffers of all kinds in a user loop of several learners: what each learner has at the end, and in a consensus."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import murmur
from murmur.core.buffers import SMALL
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, ASGD, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.worlds.threads import ThreadGroup, ThreadWorld
from tests.support.named import named
from tests.support.pool import Pool, PooledWorld
from tests.support.user_loops import Words

STRATEGIES = [SyncSGD(), KAVG(2), DelayByOne(), ADPSGD(), SuperLearners(KAVG(2), 2), SuperLearners(ADPSGD(), 1)]
INF = float("inf")
BIG = 2**60 + 1
Change = Callable[[nn.Module, int], None]


class Holder(nn.Module):
    """A linear model with buffers."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        for number, (name, x) in enumerate(buffers.items()):
            self.register_buffer(name, x, persistent=number % 2 == 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def ends(
    strategy: Strategy,
    make: Callable[[int], nn.Module],
    change: Change,
    rules: Mapping[str, Any] | None = None,
    size: int = 2,
) -> list[dict[str, Tensor]]:
    """Return the buffers of each learner at the end; `change` changes those of a model in each of four steps."""

    def body(seat: Seat) -> dict[str, Tensor]:
        model, rank = make(seat.group.rank), seat.group.rank
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with murmur.join(strategy, model, optimizer, seat=seat, buffers=rules) as me:
            for n in range(4):
                change(model, rank)
                model(torch.full((3, 2), 1.0 + n + rank)).square().mean().backward()
                me.step()
        return {name: x.clone() for name, x in model.named_buffers()}

    return ThreadWorld(size, 20.0).run(Words(body))  # type: ignore[arg-type, return-value]


def holder(rank: int) -> Holder:
    return Holder(
        mask=torch.triu(torch.full((3, 3), -INF), 1),
        hole=torch.tensor([1.0, float("nan")]),
        mean=torch.full((2,), float(rank)),  # learner 0's are those of all at the start
        narrow=torch.zeros(2, dtype=torch.bfloat16),
        wave=torch.zeros(2, dtype=torch.complex64),
        count=torch.tensor(BIG),
        table=torch.arange(3) + rank,
        flag=torch.tensor(False),
        code=torch.zeros(3, dtype=torch.uint8),
        nothing=torch.empty(0),
        grown=torch.zeros(1),
        sparse=torch.eye(2).to_sparse(),
    )


def change_all(model: Any, rank: int) -> None:
    model.mask[0, 1 + rank] = rank
    model.mean += 1 + rank
    model.narrow += 1 + rank
    model.wave += 1j * (1 + rank)
    model.count += 1 + 2 * rank
    model.table += 1 + rank
    model.flag = torch.tensor(rank == 0)
    model.code += 1 + rank
    model.grown = torch.cat([model.grown, torch.ones(1 + rank)])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_each_kind_has_its_rule(strategy: Strategy) -> None:
    found = ends(strategy, holder, change_all)
    nodes = strategy == SuperLearners(KAVG(2), 2)  # the members of one node: all is the leader's
    for end in found:
        assert end["mask"].tolist() == [[0.0, 0.0, -INF], [0.0, 0.0, -INF], [0.0, 0.0, 0.0]]
        assert end["hole"][0] == 1
        assert end["mean"].tolist() == [4.0 if nodes else 6.0] * 2
        assert end["narrow"].tolist() == [4.0 if nodes else 6.0] * 2
        assert end["wave"].tolist() == [4j if nodes else 6j] * 2
        assert int(end["count"]) == BIG + (4 if nodes else 8)
        assert end["table"].tolist() == [4, 5, 6]
        assert bool(end["flag"])
        assert end["code"].tolist() == [4, 4, 4]
        assert end["grown"].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
        assert torch.equal(end["sparse"].to_dense(), torch.eye(2))


@dataclass(frozen=True)
class AllKinds:
    """Loop in which a learner's buffers of all kinds change, with a frozen tensor, in a process of its own."""

    strategy: Strategy

    async def __call__(self, seat: Seat) -> dict[str, Any]:
        model, rank = holder(seat.group.rank), seat.group.rank
        model.frozen = nn.Parameter(torch.full((300, 3), rank, dtype=torch.uint8), requires_grad=False)
        optimizer = torch.optim.SGD(model.linear.parameters(), 0.01)
        with murmur.join(self.strategy, model, optimizer, seat=seat) as me:
            for n in range(5):
                if n == 2:
                    if rank == 1:
                        with contextlib.suppress(MemoryError), me.last_backward():
                            raise MemoryError("this minibatch is left out")
                    continue
                with me.last_backward():
                    model(torch.full((3, 2), 1.0 + n)).square().mean().backward()
                change_all(model, rank)
                me.step()
                with torch.inference_mode(), me.consensus():
                    pass
        tensors = [*model.named_parameters(), *model.named_buffers()]
        return {name: x.tolist() for name, x in tensors if x.layout == torch.strided}


@pytest.mark.processes
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
def test_processes_agree(strategy: Strategy, pool: Pool) -> None:
    first, last = PooledWorld(pool, 2).run(AllKinds(strategy))
    for end in (first, last):
        assert end["mean"] == [6.0, 6.0]
        assert end["mask"][0] == [0.0, 0.0, -INF]
        assert end["count"] == BIG + 8
        assert end["code"] == [4, 4, 4]
        assert end["grown"] == [0.0, 1.0, 1.0, 1.0, 1.0]
        assert end["frozen"] == [[0] * 3] * 300
        assert end["linear.weight"] == first["linear.weight"]


@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=named)
def test_rules_by_name_count(strategy: Strategy) -> None:
    rules = {"mean": "own", "t*": "mean", "count": "first", "n*": "first"}
    for rank, end in enumerate(ends(strategy, holder, change_all, rules)):
        assert end["mean"].tolist() == [4.0 + 4 * rank] * 2
        assert end["table"].tolist() == [6, 7, 8]
        assert int(end["count"]) == BIG + 4
        assert end["narrow"].tolist() == [4.0, 4.0]


def test_learners_with_other_rules_do_not_begin() -> None:
    def body(seat: Seat) -> None:
        model = holder(0)
        rules: Any = {"mean": "own" if seat.group.rank else "mean"}
        with murmur.join(KAVG(2), model, torch.optim.SGD(model.parameters(), 0.1), seat=seat, buffers=rules):
            pass

    with pytest.raises(murmur.core.group.WorldMismatch, match="the rules of buffers of learners \\[1\\] differs"):
        ThreadWorld(2, 20.0).run(Words(body))


class OwnNorm(nn.Module):
    """A linear model with spectral norm written by hand, as older programs have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.diag(torch.tensor([1.0, 0.98, 0.5]))[:, :2].contiguous())
        self.register_buffer("u", nn.functional.normalize(torch.ones(3), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            v = nn.functional.normalize(self.weight.t() @ self.u, dim=0)
            self.u.copy_(nn.functional.normalize(self.weight @ v, dim=0))
        return x @ (self.weight / (self.u @ self.weight @ v)).t()


def normed(kind: str) -> Callable[[int], nn.Module]:
    def make(_: int) -> nn.Module:
        linear = nn.Linear(2, 3)
        with torch.no_grad():
            linear.weight.copy_(torch.diag(torch.tensor([1.0, 0.98, 0.5]))[:, :2])
        if kind == "by hand":
            return OwnNorm()
        return parametrizations.spectral_norm(linear) if kind == "new" else nn.utils.spectral_norm(linear)

    return make


@pytest.mark.parametrize("kind", ["new", "old", "by hand"])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
def test_singular_vectors_stay_a_pair(strategy: Strategy, kind: str) -> None:
    """Learner 1's vectors have the other sign: the same pair, but a mean of both is zero."""

    def change(model: nn.Module, rank: int) -> None:
        for x in model.buffers():
            x.copy_(x.abs() * (1 - 2 * rank))

    first, last = ends(strategy, normed(kind), change)
    for name, x in first.items():
        assert torch.equal(x, last[name])
        assert float(x.norm()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("strategy", [KAVG(2), ADPSGD()], ids=named)
def test_a_consensus_has_the_rules_too(strategy: Strategy) -> None:
    def body(seat: Seat) -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
        model = holder(seat.group.rank)
        with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.0), seat=seat) as me:
            change_all(model, me.rank)
            model(torch.ones(3, 2)).sum().backward()
            me.step()
            before = [x.clone() for x in model.buffers() if x.layout == torch.strided]
            seat.group.count("stepped", 1)
            while seat.group.count("stepped") < 2:
                pass
            with me.consensus():
                found = {name: x.clone() for name, x in model.named_buffers()}
            after = [x.clone() for x in model.buffers() if x.layout == torch.strided]
            seat.group.count("looked", 1)
            while seat.group.count("looked") < 2:
                pass
        return found, before, after

    for found, before, after in ThreadWorld(2, 20.0).run(Words(body)):  # type: ignore[misc]
        assert found["mean"].tolist() == [1.5, 1.5]
        assert int(found["count"]) == BIG + 2
        assert found["mask"][0].tolist() == [0.0, 0.0, -INF]
        assert found["grown"].tolist() == [0.0, 1.0]
        assert found["table"].tolist() == [1, 2, 3]
        assert all(torch.equal(x, y) or x.isnan().any() for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD(), ASGD()], ids=named)
def test_constants_are_not_sent(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the start, where they are compared, nor in a consensus or at the end."""
    sent: list[int] = []
    for verb in ("broadcast", "post", "mean_with", "start_sum"):
        plain = getattr(ThreadGroup, verb)

        def counted(group: ThreadGroup, x: Tensor, *given: Any, plain: Any = plain) -> Any:
            sent.append(x.numel() * x.element_size())
            return plain(group, x, *given)

        monkeypatch.setattr(ThreadGroup, verb, counted)

    def body(seat: Seat) -> Tensor:
        model = Holder(table=torch.zeros(SMALL + 9), mask=torch.zeros(2, SMALL), mean=torch.zeros(2))
        model.frozen = nn.Parameter(torch.zeros(8 * SMALL, dtype=torch.uint8), requires_grad=False)
        optimizer = torch.optim.SGD(model.linear.parameters(), 0.1)
        with murmur.join(strategy, model, optimizer, seat=seat) as me:
            for _ in range(4):
                model.mean += me.rank
                model(torch.ones(1, 2)).sum().backward()
                me.step()
                with me.consensus():
                    pass
        return model.mean.clone()

    first, last = ThreadWorld(2, 20.0).run(Words(body))
    assert torch.equal(first, last)  # type: ignore[arg-type]
    assert max(sent) < 9000  # the terms of the block


@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=named)
def test_large_buffers_that_change_are_agreed_on(strategy: Strategy) -> None:
    """A table of codes, written through `.data`; one learner alone writes another, and a third is assigned anew."""

    def make(_: int) -> Holder:
        return Holder(codes=torch.zeros(SMALL + 1), mine=torch.zeros(SMALL + 1), anew=torch.zeros(SMALL + 1))

    def change(model: Any, rank: int) -> None:
        model.codes.data.add_(1 + rank)
        model.mine[0] += rank
        model.anew = model.anew + 2 * rank

    for end in ends(strategy, make, change):
        assert torch.equal(end["codes"], torch.full((SMALL + 1,), 6.0))
        assert end["mine"][:2].tolist() == [2.0, 0.0]
        assert end["anew"][5] == 4.0


@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=named)
def test_values_that_are_nowhere_finite_do_not_spoil_others(strategy: Strategy) -> None:
    def change(model: Any, rank: int) -> None:
        model.mean += 1 + rank
        model.other.fill_(float("nan") if rank else INF)

    for end in ends(strategy, lambda _: Holder(mean=torch.zeros(2), other=torch.zeros(2)), change):
        assert end["mean"].tolist() == [6.0, 6.0]
        assert end["other"].tolist() == [INF, INF]


def test_a_mean_of_other_shapes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ends(KAVG(2), holder, change_all)
    assert [r.getMessage() for r in caplog.records] == [
        "grown has no mean over the learners: all take that of learner 0"
    ]


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
def test_shared_and_overlapping_buffers(strategy: Strategy) -> None:
    def make(_: int) -> nn.Module:
        model, whole = Holder(whole=torch.zeros(4)), torch.zeros(4)
        model.whole = whole
        model.part = nn.Module()
        model.part.register_buffer("same", whole)
        model.part.register_buffer("view", whole[1:3])
        model.register_buffer("wide", torch.zeros(1).expand(3))
        model.register_buffer("of_weight", model.linear.weight.detach()[0])
        return model

    def change(model: Any, rank: int) -> None:
        model.whole += 1 + rank

    for end in ends(strategy, make, change):
        assert end["whole"].tolist() == [6.0] * 4
        assert end["part.view"].tolist() == [6.0] * 2
        assert end["wide"].tolist() == [0.0] * 3


@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=named)
def test_a_resumed_loop_has_all_its_buffers(strategy: Strategy) -> None:
    def body(seat: Seat) -> bool:
        model = holder(0)
        with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.1), seat=seat) as me:
            change_all(model, me.rank)
            model(torch.ones(1, 2)).sum().backward()
            me.step()
            saved = me.state_dict()
            kept = {name: x.clone() for name, x in model.named_buffers()}
        again = holder(0)
        with murmur.join(strategy, again, torch.optim.SGD(again.parameters(), 0.1), seat=seat) as me:
            me.load_state_dict(saved)
            found = dict(again.named_buffers())
            same = [torch.equal(found[name], x) for name, x in kept.items() if name not in ("hole", "sparse")]
        return all(same) and len(same) == 10

    assert all(ThreadWorld(2, 20.0).run(Words(body)))
