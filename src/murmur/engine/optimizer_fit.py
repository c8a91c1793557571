"""Warning about an optimizer that does not fit the strategy."""

from __future__ import annotations

import logging

from murmur.core.facts import Facts
from murmur.core.moments import Moments

log = logging.getLogger(__name__)


def warn_of_optimizer(strategy: object, moments: Moments) -> None:
    """Warn if a strategy has an equation for plain SGD, and the optimizer keeps moments."""
    if Facts.of(strategy).needs_plain_sgd and moments.kept:
        log.warning(
            "%s is for plain SGD, but %s has momentum or other moments of its own, and training may diverge: train with"
            " SGD(lr=...) without momentum, or take a strategy for any optimizer, such as ADPSGD",
            *(strategy, type(moments.optimizer).__name__),
        )
