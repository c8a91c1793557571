"""Counts, nouns and names in messages."""

from __future__ import annotations

from collections.abc import Sequence

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
