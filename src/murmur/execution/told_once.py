"""Messages that a command repeats for many recordings: told once, and counted."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SHOWN = 3
KIND = "murmur_kind"  # attributes of a log record: the kind of its message, and the decision about it
PASSES = "murmur_passes"


@dataclass
class _Kind:
    """Messages of one kind: how often each of those shown came, the number of others, and the last of them."""

    shown: dict[str, int] = field(default_factory=dict)
    others: int = 0
    last: str = ""


class ToldOnce:
    """Decides which messages are told: each text once, and of each kind the first three texts.

    Args:
        tell: function that tells the counts at the end, one line each.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._kinds: dict[str, _Kind] = {}

    def is_new(self, text: str, kind: str = "") -> bool:
        """Count a message; return True if it is to be told. Its kind is its text without digits by default."""
        known = self._kinds.setdefault(kind or re.sub(r"\d", "", text), _Kind())
        if text in known.shown:
            known.shown[text] += 1
            return False
        if len(known.shown) < SHOWN:
            known.shown[text] = 1
            return True
        known.others, known.last = known.others + 1, text
        return False

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about a warning of the log, once for all handlers; other levels pass."""
        if record.levelno != logging.WARNING:
            return True
        if not hasattr(record, PASSES):
            template = str(getattr(record, KIND, record.msg))
            kind = template if re.search(r"[a-z]{3}", re.sub(r"%[\w.]+", "", template)) else ""
            setattr(record, PASSES, self.is_new(record.getMessage(), kind))
        return bool(getattr(record, PASSES))

    def end(self) -> None:
        """Tell the counts of the messages that were not told each time."""
        kinds, self._kinds = self._kinds, {}
        for kind in kinds.values():
            for text, count in kind.shown.items():
                if count > 1:
                    self._tell(f"{count} times in all: {text}")
            if kind.others:
                self._tell(f"{kind.others} more like this: {kind.last}")


@contextmanager
def told_once(tell: Callable[[str], None]) -> Iterator[ToldOnce]:
    """Tell each warning of the log once until the block ends, then the counts by `tell`."""
    told = ToldOnce(tell)
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(told)
    try:
        yield told
    finally:
        for handler in handlers:
            handler.removeFilter(told)
        told.end()
