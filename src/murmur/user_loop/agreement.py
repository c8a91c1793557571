"""Checks before the first step: the strategy fits a user loop, and all learners agree on what they run."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor, nn

from murmur.core.facts import Facts, FactsOfInner
from murmur.core.flat import Layout
from murmur.core.group import Group, WorldMismatch
from murmur.core.learner import Strategy
from murmur.core.moments import Moments
from murmur.engine.experiment import describe
from murmur.engine.optimizer_fit import warn_of_optimizer
from murmur.user_loop.source import Plan


def check_joinable(strategy: Strategy, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Check that the strategy leaves minibatches to the loop, and that the optimizer steps the model and no more.

    Raises:
        TypeError: The strategy is a class, or none at all.
        ValueError: The strategy assigns minibatches, or the optimizer holds other parameters too, or not all that are
            trainable, or it calls the model by itself.
    """
    if isinstance(strategy, type) or not callable(strategy):
        name = getattr(strategy, "__name__", repr(strategy))
        raise TypeError(f"{name} is not a strategy: give an instance with its settings, such as KAVG(K=8)")
    if Facts.of(strategy).assigns_minibatches:
        inner = f": join {strategy.inner}" if isinstance(strategy, FactsOfInner) else ""
        raise ValueError(f"{strategy} assigns minibatches, but here every loop has its own loader{inner}")
    own = {id(p) for p in model.parameters()}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    strange = len(held - own)
    if strange:
        raise ValueError(
            f"the optimizer holds {strange} tensors that are not parameters of the model, and would not be averaged:"
            " join an nn.ModuleList of all trained modules"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
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
            f"the optimizer does not hold {len(loose)} trainable parameters of the model, {loose[0]} for one. Give it"
            " those to be trained as a further parameter group, and freeze the others with requires_grad_(False):"
            " a second optimizer would change weights that the strategy replaces"
        )
    warn_of_optimizer(strategy, Moments(optimizer, Layout.trainable(model)))


def terms(
    strategy: Strategy, model: nn.Module, optimizer: torch.optim.Optimizer, plan: Plan, rules: Mapping[str, str]
) -> dict[str, str]:
    """Return the terms that must be equal on all learners, by name."""
    tensors = [f"{n} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in model.named_parameters()]
    tensors += [f"{n} {tuple(b.shape)} {b.dtype}" for n, b in model.named_buffers()]
    groups = [len(group["params"]) for group in optimizer.param_groups]
    return {
        "murmur": _version(),
        "torch": str(torch.__version__),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "strategy": str(describe(strategy)),
        "plan": str((plan.total_steps, plan.samples_per_step)),
        "optimizer": f"{type(optimizer).__qualname__} with parameter groups of {groups}",
        "model": "; ".join(tensors),
        "rules of buffers": str(dict(rules)),
    }


def _version() -> str:
    try:
        return version("murmur")
    except PackageNotFoundError:
        return "source"


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


async def _text_of_first(group: Group, text: str) -> str:
    raw = _numbers(text)
    length = int(await group.broadcast(torch.tensor([len(raw)])))
    padded = torch.zeros(length, dtype=torch.long)
    padded[: min(length, len(raw))] = raw[:length]
    return bytes((await group.broadcast(padded)).tolist()).decode()


def _numbers(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.long)


def _around(text: str, other: str, width: int = 80) -> str:
    """Return the part of a text at its first difference from another one."""
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, same - width // 2)
    return text[start : start + width]
