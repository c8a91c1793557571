"""Consensus in the middle of a loop, with learners that answer late, wrongly or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from murmur.core.flat import Layout
from murmur.core.group import Message, PeerLost
from murmur.core.weights import Weights
from murmur.user_loop.answers import Answers


class Scripted:
    """Group of two; each poll returns the next of learner 1's answers, `messages`."""

    rank, size = 0, 2

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def post(self, *message: object) -> None:
        pass

    async def poll(self, tag: str, seconds: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None


def asked(model: nn.Module, messages: list[Message]) -> tuple[Weights, Any]:
    layout, buffers = Layout.trainable(model), Layout.buffers(model)
    weights = Weights(layout)
    loop: Any = SimpleNamespace(weights=weights)
    source: Any = SimpleNamespace(layout=layout)
    group: Any = Scripted(messages)
    return weights, Answers(group, loop, lambda: buffers).in_place(source, lambda: range(2), 0.05)


def test_answers_to_an_earlier_question_are_passed_over() -> None:
    model = nn.BatchNorm1d(2)
    late = [Message(torch.full((4,), 100.0), 1, (0.0, kind)) for kind in range(2)]
    fresh = [Message(torch.full((4,), 3.0 + 4 * kind), 1, (1.0, kind)) for kind in range(2)]
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


def test_a_learner_that_does_not_answer_is_named() -> None:
    kept = [Message(torch.full((4,), 3.0), 1, (1.0, 0.0))]  # weights, but no buffers
    with pytest.raises(PeerLost, match=r"learners \[1\] did not send their weights within 0.05 s"):
        asked(nn.BatchNorm1d(2), kept)[1].__enter__()
