"""Counts, nouns and names in messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

NAMED = 3


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: "1 utterance", "0 utterances", "3 entries"."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def are(number: int) -> str:
    """Return the verb of a count: "is" or "are"."""
    return "is" if number == 1 else "are"


def named(names: Sequence[str]) -> str:
    """Return the first three names: "a, b, c, ..."."""
    return f"{', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}"


def left_out(reasons: Mapping[str, str], of: int = 0, noun: str = "utterance") -> str:
    """Return the message about items that are left out, {name: reason}: count, reasons, the first three names.

    `of` is the number of all items, if the message is to tell it.

    Of several reasons the most frequent come first, each with its count.
    """
    counts = Counter(reasons.values()).most_common()
    told = [why for why, _ in counts] if len(counts) == 1 else [f"{why}: {count}" for why, count in counts]
    names = list(reasons)
    more = "; ..." if len(told) > NAMED else ""
    count = f"{len(names)} of {counted(of, noun)}" if of else counted(len(names), noun)
    return f"{count} {are(len(names))} left out ({'; '.join(told[:NAMED])}{more}): {named(names)}"
