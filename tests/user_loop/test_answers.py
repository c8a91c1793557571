"""Consensus in the middle of a loop, with learners that answer late, wrongly or not at all."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.buffers import Buffers, digest, pack
from murmur.core.flat import Layout
from murmur.core.group import Message, PeerLost
from murmur.core.learner import Strategy
from murmur.core.membership import View
from murmur.core.weights import Weights
from murmur.core.world import Seat
from murmur.strategies import BMUF, KAVG, SyncSGD
from murmur.user_loop.consensus import Answers
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words, loss_of, net, optimizer_of, state


class Scripted:
    """Group of two; each poll returns the next of learner 1's answers, `messages`."""

    rank, size = 0, 2

    def __init__(self, messages: list[Message], restarts: bool = False) -> None:
        self.messages, self.restarts = messages, restarts
        self.membership, self.incarnation, self.posted = self, 0, 0

    def view(self) -> View:
        return View(0, {0: 0, 1: self.incarnation})

    def count(self, counter: str, amount: int = 0) -> int:
        return amount

    def post(self, *message: object) -> None:
        self.posted += 1

    async def poll(self, tag: str, seconds: float) -> Message | None:
        if self.restarts and self.incarnation == 0:  # learner 1 has read the question, and is started again
            self.incarnation = 1
            return None
        return self.messages.pop(0) if self.messages and self.posted > self.incarnation else None


def asked(model: nn.Module, messages: list[Message], restarts: bool = False) -> tuple[Weights, Any]:
    layout, buffers = Layout.trainable(model), Buffers(model, {})
    buffers.begin({name: digest(x) for name, x in model.named_buffers()})
    weights = Weights(layout)
    loop: Any = SimpleNamespace(weights=weights)
    source: Any = SimpleNamespace(layout=layout)
    group: Any = Scripted(messages, restarts)
    return weights, Answers(group, loop, buffers).in_place(source, lambda: range(2), 0.05)


def answers(weight: float, mean: float, number: int) -> list[Message]:
    """Return learner 1's answers to a question: weights, and the buffer that it has changed."""
    x = torch.full((2,), mean)
    both = torch.full((4,), weight), pack({"running_mean": x})
    return [Message(part, 1, (float(number), float(kind))) for kind, part in enumerate(both)]


def test_answers_to_an_earlier_question_are_passed_over() -> None:
    model = nn.BatchNorm1d(2)
    late, fresh = answers(100.0, 100.0, 0), answers(3.0, 7.0, 1)
    weights, consensus = asked(model, [*late, *fresh])
    with consensus:
        assert model.weight.tolist() == [2.0, 2.0]  # of 1 and 3
        assert model.bias.tolist() == [1.5, 1.5]  # of 0 and 3
        assert model.running_mean is not None
        assert model.running_mean.tolist() == [3.5, 3.5]  # of 0 and 7
        assert weights.snapshot().tolist() == [1.0, 1.0, 0.0, 0.0]  # as averaging beside the loop sees them
        weights.add_(torch.ones(4))
    assert model.weight.tolist() == [1.0, 1.0]
    assert model.running_mean.tolist() == [0.0, 0.0]
    assert weights.snapshot().tolist() == [2.0, 2.0, 1.0, 1.0]


def test_a_learner_that_was_started_again_is_asked_again() -> None:
    model = nn.BatchNorm1d(2)
    _, consensus = asked(model, answers(3.0, 3.0, 1), restarts=True)
    with consensus:
        assert model.weight.tolist() == [2.0, 2.0]


def test_a_learner_that_does_not_answer_is_named() -> None:
    kept = [Message(torch.full((4,), 3.0), 1, (1.0, 0.0))]  # weights, but no buffers
    with pytest.raises(PeerLost, match=r"learners \[1\] did not send their weights within 0.05 s"):
        asked(nn.BatchNorm1d(2), kept)[1].__enter__()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(3), BMUF(2)], ids=named)
def test_changes_of_the_weights_after_a_consensus_stay(strategy: Strategy, size: int) -> None:
    """A loop that bounds its weights after each step ends equal, whether it looks at the consensus or not."""

    def end(looks: bool) -> list[Tensor]:
        def body(seat: Seat) -> Tensor:
            model = net(0)
            with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
                for n in range(7):
                    loss_of(model, size * n + me.rank).backward()
                    me.step()
                    with me.consensus() if looks else nullcontext(), torch.no_grad():
                        model.inner.bias.add_(looks)  # of the consensus alone
                    with torch.no_grad():
                        model.inner.weight.clamp_(-0.1, 0.1)
            return state(model)

        return ThreadWorld(size, 20.0).run(Words(body))  # type: ignore[arg-type, return-value]

    assert all(torch.equal(a, b) for a, b in zip(end(looks=True), end(looks=False), strict=True))


@pytest.mark.parametrize("size", [1, 2])
def test_own_buffers_stand_beside_the_mean(size: int) -> None:
    """A learner that looks at the mean gives its own buffers to another learner that asks, and to its saved state."""
    turn = Barrier(size)

    def body(seat: Seat) -> tuple[Tensor, bool]:
        model = net(0)
        with murmur.join(KAVG(3), model, optimizer_of(model), seat=seat) as me:
            for n in range(4):
                loss_of(model, size * n + me.rank).backward()
                me.step()
            before = me.state_dict()
            turn.wait(20)
            if me.rank == 1:
                turn.wait(20)
            with me.consensus():
                found, kept = state(model), me.state_dict()
                if me.rank == 0 and size == 2:
                    turn.wait(20)  # learner 1 asks while this one looks
                    turn.wait(20)
            if me.rank == 1:
                turn.wait(20)
            same = [torch.equal(before["buffers"][0][name], x) for name, x in kept["buffers"][0].items()]
            return found, torch.equal(before["weights"], kept["weights"]) and len(same) == 3 and all(same)

    ends: Any = ThreadWorld(size, 20.0).run(Words(body))
    assert all(torch.equal(mean, ends[0][0]) for mean, _ in ends)
    assert all(kept for _, kept in ends)
