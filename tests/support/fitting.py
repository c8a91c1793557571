"""Optimizers that fit a strategy."""

from dataclasses import replace

from murmur.core.facts import Facts
from murmur.engine.optim.optimizer import SGD


def fitting(strategy: object, optimizer: SGD) -> SGD:
    """The optimizer, without momentum if the strategy needs plain SGD."""
    return replace(optimizer, momentum=0.0) if Facts.of(strategy).needs_plain_sgd else optimizer
