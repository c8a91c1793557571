"""Uses of a joined loop that cannot work: each is refused, with its remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.strategies import BMUF, KAVG, Compressed, SyncSGD
from murmur.worlds.threads import ThreadSeat
from tests.support.user_loops import loss_of, net, optimizer_of, state


def joined(model: Any = None) -> murmur.Joined:
    model = net(0) if model is None else model
    return murmur.join(SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.1))


@pytest.mark.parametrize(
    "use",
    [
        lambda me: me.step(),
        lambda me: me.last_backward().__enter__(),
        lambda me: me.consensus().__enter__(),
        lambda me: me.progress,
        lambda me: me.state_dict(),
        lambda me: me.load_state_dict({}),
    ],
    ids=["step", "last_backward", "consensus", "progress", "state_dict", "load_state_dict"],
)
def test_a_use_before_the_block_names_the_block(use: Any) -> None:
    with pytest.raises(RuntimeError, match=r"came before the block: write `with murmur.join\(...\) as me:`"):
        use(joined())


@pytest.mark.parametrize(
    "use",
    [lambda me: me.step(), lambda me: me.last_backward().__enter__(), lambda me: me.consensus().__enter__()],
    ids=["step", "last_backward", "consensus"],
)
def test_a_use_after_the_block_is_refused(use: Any) -> None:
    model = net(0)
    with joined(model) as me:
        loss_of(model, 0).backward()
        me.step()
    loss_of(model, 1).backward()
    with pytest.raises(RuntimeError, match=r"came after the block of .*, whose model is final"):
        use(me)
    assert model.inner.weight.grad is not None
    assert me.progress.minibatches == 1
    with pytest.raises(RuntimeError, match=r"call murmur.join again"), me:
        pass


@pytest.mark.parametrize(
    "use",
    [lambda me: me.step(), lambda me: me.last_backward().__enter__(), lambda me: me.load_state_dict({})],
    ids=["step", "last_backward", "load_state_dict"],
)
def test_training_on_the_consensus_is_refused(use: Any) -> None:
    model = net(0)
    with joined(model) as me:
        with me.consensus() as consensus:
            loss_of(consensus, 0).backward()
            with pytest.raises(
                RuntimeError, match=r"came inside consensus\(\), .*: evaluate there, and move it behind"
            ):
                use(me)
        me.step()


@pytest.mark.parametrize("strategy", [KAVG, "KAVG", None])
def test_what_is_no_strategy_is_refused(strategy: Any) -> None:
    model = net(0)
    with pytest.raises(TypeError, match=r"^('?KAVG'?|None) is not a strategy: give an instance .* KAVG\(K=8\)"):
        murmur.join(strategy, model, optimizer_of(model))


def test_a_closure_is_refused() -> None:
    model = net(0)
    with joined(model) as me, pytest.raises(TypeError, match=r"not a closure: compute the gradients first"):
        me.step(lambda: loss_of(model, 0).backward())  # type: ignore[arg-type]


@pytest.mark.parametrize("beside", [False, True])
def test_samples_belong_to_the_last_backward_pass(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadSeat, "overlaps", beside)
    model = net(0)
    with joined(model) as me:
        with me.last_backward():
            loss_of(model, 0).backward()
        with pytest.raises(ValueError, match=r"call last_backward\(samples=64\), and step\(\) without samples"):
            me.step(samples=64)
        me.step()
        with me.last_backward(samples=64):
            loss_of(model, 1).backward()
        me.step(samples=64)


def test_complex_parameters_are_refused_unless_frozen() -> None:
    model = nn.ParameterDict({"re": nn.Parameter(torch.ones(2)), "phase": nn.Parameter(torch.ones(2) * 1j)})
    with pytest.raises(ValueError, match=r"phase is complex.*view_as_real.*view_as_complex"):
        joined(model)
    with pytest.raises(ValueError, match="phase is complex"):
        Layout.trainable(model)
    model["phase"].requires_grad_(False)
    joined(model)


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match=r"0 makes sparse gradients.*sparse=False"):
        joined(nn.Sequential(nn.Embedding(4, 3, sparse=True)))
    table = nn.Embedding(4, 3)
    with joined(table) as me:
        nn.functional.embedding(torch.tensor([1]), table.weight, sparse=True).sum().backward()
        with pytest.raises(RuntimeError, match=r"the gradient of weight is sparse.*sparse=False"):
            me.step()
        table.weight.grad = None


def test_parameters_that_come_later_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with murmur.join(SyncSGD(), model, optimizer) as me:
        model[0].requires_grad_(True)
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(
            RuntimeError, match=r"0.weight was frozen .*: add and unfreeze .*, or end the block .* again"
        ):
            me.step()
    model.zero_grad()
    with murmur.join(SyncSGD(), model, optimizer) as me:
        model(torch.ones(1, 2)).sum().backward()
        me.step()
        model.append(nn.Linear(1, 1))
        optimizer.add_param_group({"params": model[2].parameters()})
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(
            RuntimeError, match=r"did not have when the loop joined, .*: add and unfreeze .* join again"
        ):
            me.step()


def test_parameters_frozen_in_the_block_are_refused() -> None:
    """An average of weights would change them, or outer momentum. Between two steps they may be switched off."""
    model = net(0)
    with murmur.join(KAVG(2), model, optimizer_of(model)) as me:
        model.outer.requires_grad_(False)
        loss_of(model, 0).backward()
        with pytest.raises(
            RuntimeError, match=r"outer.weight was trainable .* is frozen now, .*: freeze it before the block .* again"
        ):
            me.step()
        model.outer.requires_grad_(True)
        loss_of(model, 0).backward()
        me.step()
    before = model.inner.weight.detach().clone()
    model.inner.requires_grad_(False)
    with murmur.join(KAVG(2), model, optimizer_of(model)) as me:
        loss_of(model, 1).backward()
        me.step()
    assert torch.equal(model.inner.weight, before)


@pytest.mark.filterwarnings("error:Seems like `optimizer.step:UserWarning")
@pytest.mark.parametrize("others", [0, 1], ids=["none before", "one before"])
def test_a_scheduler_may_be_made_where_steps_are_routed(others: int) -> None:
    """The run is that of the plain loop, and so is what the optimizer does after the block."""

    def run(routes: bool) -> tuple[Tensor, float]:
        model = net(0)
        optimizer = optimizer_of(model)
        schedulers: list[Any] = [torch.optim.lr_scheduler.StepLR(optimizer, 3) for _ in range(others)]

        def steps(numbers: range) -> None:
            for n in numbers:
                optimizer.zero_grad()

                def closure(n: int = n) -> Tensor:
                    loss = loss_of(model, n)
                    loss.backward()
                    return loss

                optimizer.step(closure)  # type: ignore[arg-type]
                for scheduler in schedulers:
                    scheduler.step()

        def make_and_step() -> None:
            schedulers.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
            steps(range(5))

        if routes:
            with murmur.join(KAVG(2), model, optimizer) as me, murmur.routed(me):
                make_and_step()
                assert me.progress.minibatches > 0  # the strategy took the steps
        else:
            make_and_step()
        steps(range(5, 8))
        return state(model), float(optimizer.param_groups[0]["lr"])

    (end, rate), (wanted, same) = run(routes=True), run(routes=False)
    assert torch.equal(end, wanted)
    assert rate == same


def test_a_state_without_weights_is_refused() -> None:
    model = net(0)
    with joined(model) as me, pytest.raises(ValueError, match=r"the state has no weights.*give that of state_dict"):
        me.load_state_dict({"optimizer": me.optimizer.state_dict(), "strategy": {}, "steps": 3})


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize(
    ("strategy", "model", "optimizer", "told"),
    [
        (BMUF(2), net(0), sgd, "one of KAVG, and this loop has the strategy BMUF"),
        (Compressed(KAVG(2)), net(0), sgd, "one of KAVG, and .* the strategy Compressed of KAVG"),
        (KAVG(2), net(0), adam, "one of SGD, and this loop has the optimizer Adam"),
        (KAVG(2), nn.Linear(6, 3), adam, "one of SGD"),
        (KAVG(2), nn.Linear(6, 3), sgd, r"another model: it has inner.weight of shape \(8, 6\) where .* weight of"),
        (KAVG(2), nn.Linear(6, 8), sgd, "it has unused.weight of .* where this loop has no further parameter"),
    ],
)
def test_a_state_of_another_kind_is_refused(
    strategy: Strategy, model: nn.Module, optimizer: Callable[[Any], torch.optim.Optimizer], told: str
) -> None:
    """The loop can then begin anew: nothing has been loaded."""
    other = net(0)
    with murmur.join(KAVG(2), other, sgd(other)) as me:
        saved = me.state_dict()
    before = state(model)
    with murmur.join(strategy, model, optimizer(model)) as me:
        with pytest.raises(ValueError, match=told):
            me.load_state_dict(saved)
        assert torch.equal(state(model), before)
        model(torch.ones(4, 6)).sum().backward()
        me.step()
    assert not torch.equal(state(model), before)


def test_settings_may_change_from_a_state_on() -> None:
    model = net(0)
    with murmur.join(KAVG(4), model, optimizer_of(model)) as me:
        loss_of(model, 0).backward()
        me.step()
        saved = me.state_dict()
    model = net(1)
    with murmur.join(KAVG(2), model, optimizer_of(model)) as me:
        me.load_state_dict(saved)
        assert me.steps == 1


@pytest.mark.parametrize("part", ["weights", "origin", "optimizer", "claims", "counters", "round"])
def test_a_state_that_lacks_a_part_is_refused(part: str) -> None:
    model = net(0)
    with murmur.join(KAVG(2), model, optimizer_of(model)) as me:
        saved = {name: value for name, value in me.state_dict().items() if name != part}
        with pytest.raises(ValueError, match=f"the state has no {part}, but .*give that of state_dict"):
            me.load_state_dict(saved)
