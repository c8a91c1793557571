"""Checks before the first step: the strategy fits a user loop, and all learners agree on what they run."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from hashlib import blake2b

import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.core.facts import Facts, layers
from murmur.core.flat import Layout
from murmur.core.group import Group, WorldMismatch
from murmur.core.learner import Strategy
from murmur.core.moments import Moments
from murmur.engine.experiment import describe
from murmur.engine.source import warn_of_optimizer
from murmur.run.folder.provenance import versions
from murmur.user_loop.optimizer_list import each_of, name_of
from murmur.user_loop.source import Plan

BEFORE = "add and unfreeze parameters before the block of murmur.join, or end the block on all learners and join again"

FREEZE = "freeze it before the block of murmur.join, or end the block on all learners and join again"


def check_joinable(strategy: Strategy, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Check that the strategy leaves minibatches to the loop, and that the optimizer steps the model and no more."""
    if isinstance(strategy, type) or not callable(strategy):
        name = getattr(strategy, "__name__", repr(strategy))
        raise TypeError(f"{name} is not a strategy: give an instance with its settings, such as KAVG(K=8)")
    if Facts.of(strategy).assigns_minibatches:
        free = [layer for layer in layers(strategy) if not Facts.of(layer).assigns_minibatches]
        remedy = f": join {free[0]}" if free else ""
        raise ValueError(f"{strategy} assigns minibatches, but here every loop has its own loader{remedy}")
    own = {id(p) for p in model.parameters()}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    strange = len(held - own)
    if strange:
        raise ValueError(
            f"the optimizer holds {strange} tensors that are not parameters of the model, and would not be averaged:"
            " join an nn.ModuleList of all trained modules"
        )
    if any(isinstance(one, torch.optim.LBFGS) for one in each_of(optimizer)):
        raise ValueError("LBFGS calls the model by itself (a closure): it cannot be joined; use another optimizer")
    for name, part in model.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad:
            raise ValueError(
                f"{name or 'the model'} makes sparse gradients, but vectors of gradients are dense: make the embedding"
                " with sparse=False"
            )
    loose = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if loose:
        raise ValueError(
            f"the optimizer does not hold {len(loose)} trainable parameters of the model, {loose[0]} for one: freeze"
            " those that are not trained with requires_grad_(False), and give the others as a further parameter group,"
            " or join a list of all optimizers"
        )
    warn_of_optimizer(strategy, Moments(optimizer, Layout.trainable(model)))


class Joinable:
    """Parameters of a model and its optimizer when their loop joins, which must stay the same."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._known = {id(p) for p in model.parameters()}

    def check(self) -> None:
        """Check that the same parameters are trainable as at the start, and that gradients are dense."""
        if any(id(p) not in self._known for group in self._optimizer.param_groups for p in group["params"]):
            raise RuntimeError(
                "the optimizer has parameters that the model did not have when the loop joined, and they would not be"
                f" averaged: {BEFORE}"
            )
        for name, p in self._trainable:
            if not p.requires_grad:
                raise RuntimeError(
                    f"{name} was trainable when the loop joined and is frozen now, but averaging would still change it:"
                    f" {FREEZE}"
                )
            if p.grad is not None and p.grad.layout != torch.strided:
                raise RuntimeError(
                    f"the gradient of {name} is sparse, but vectors of gradients are dense: make the embedding with"
                    " sparse=False"
                )
        for name, p in self._frozen:
            if p.grad is not None:
                raise RuntimeError(f"{name} was frozen when the loop joined and has a gradient now: {BEFORE}")


def terms(
    strategy: Strategy,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    rules: Mapping[str, str],
    recorded: bool,
) -> dict[str, str]:
    tensors = [f"{n} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in model.named_parameters()]
    tensors += [f"{n} {tuple(b.shape)} {b.dtype}" for n, b in model.named_buffers()]
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return {
        "murmur": versions(("murmur",))["murmur"],
        "torch": str(torch.__version__),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "strategy": str(describe(strategy)),
        "plan": str((plan.total_steps, plan.samples_per_step)),
        "optimizer": f"{name_of(optimizer)} with parameter groups of {groups}",
        "model": "; ".join(tensors),
        "rules of buffers": str(dict(rules)),
        "folder of records": "given" if recorded else "none",
    }


async def agree(group: Group, device: torch.device, mine: Mapping[str, str]) -> None:
    """Compare the terms of all learners with those of learner 0.

    Raises:
        WorldMismatch: Some learner's terms differ. Raised on every learner; names the learners, terms and differences.
    """
    names = sorted(mine)
    differs = torch.zeros(len(names), group.size, device=device)
    for row, name in enumerate(names):
        first = await _text_of_first(group, mine[name])
        if first != mine[name]:
            differs[row, group.rank] = 1
            theirs = (name, first)
    found = await group.mean(differs)
    if bool(found.any()):
        whose = {names[row]: found[row].nonzero().flatten().tolist() for row in range(len(names)) if found[row].any()}
        said = "; ".join(f"the {name} of learners {who} differs from learner 0's" for name, who in whose.items())
        if bool(differs.any()):
            name, text = theirs
            said += f" (here {_around(mine[name], text)!r}, there {_around(text, mine[name])!r})"
        raise WorldMismatch(f"learner {group.rank}: {said}: start every learner with the same program and versions")


def note_terms(group: Group, mine: Mapping[str, str]) -> None:
    """Leave the terms that all have agreed on for loops that come late."""
    if group.rank == 0:
        group.count(_of_run(mine), 1)


def check_late(group: Group, strategy: Strategy, mine: Mapping[str, str]) -> None:
    """Check that a loop that comes late fits those of the others: its vectors would end their exchanges.

    Raises:
        ValueError: It is added to a strategy that takes no new learners.
        WorldMismatch: It has other terms.
    """
    if group.rank >= group.size and not Facts.of(strategy).accepts_new_learners:
        raise ValueError(f"{strategy} accepts no new learners (accepts_new_learners)")
    if group.count(_of_run(mine)) == 0:
        raise WorldMismatch(
            f"learner {group.rank} comes late and differs from the others in one of {', '.join(sorted(mine))}: start it"
            " with the same program and versions"
        )


def _of_run(terms: Mapping[str, str]) -> str:
    return f"terms {blake2b(repr(sorted(terms.items())).encode(), digest_size=16).hexdigest()}"


def check_first(group: Group, what: str, mine: object) -> None:
    """Check a setting of the first step, without a wait: the learner that comes last to it finds a difference.

    Raises:
        SettingError: Another learner has another one.
    """
    same = f"learners with {what}={mine}"
    group.count(same, 1)
    if group.count(f"learners with {what}", 1) > group.count(same):
        raise SettingError(
            f"learner {group.rank} has {what}={mine} in its first step, and another learner a different one: set"
            " the same on all learners"
        )


async def _text_of_first(group: Group, text: str) -> str:
    raw = _numbers(text)
    length = int(await group.broadcast(torch.tensor([len(raw)])))
    padded = torch.zeros(length, dtype=torch.long)
    padded[: min(length, len(raw))] = raw[:length]
    return bytes((await group.broadcast(padded)).tolist()).decode()


def _numbers(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.long)


def _around(text: str, other: str, width: int = 80) -> str:
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, same - width // 2)
    return text[start : start + width]
