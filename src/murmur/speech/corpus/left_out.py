"""The one form of messages about things that are left out: how many, the first three by name, and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from murmur.core.counted import NAMED, are, counted


def left_out(kind: str, reasons: Sequence[tuple[str, str]], of: int | None = None) -> str:
    """Return `2 of 40 utterances are left out: a, b: no transcript`.

    Args:
        kind: one of the things, such as "utterance".
        reasons: names and reasons of those left out.
        of: number of all of them, with those left out.
    """
    count = len(reasons)
    total = counted(count, kind) if of is None else f"{count} of {counted(of, kind)}"
    groups = [(why, [name for name, _ in own]) for why, own in groupby(reasons[:NAMED], lambda each: each[1])]
    if len({why for _, why in reasons}) == 1:
        more = f" and {count - NAMED} more" if count > NAMED else ""
        named = f"{', '.join(groups[0][1])}{more}: {groups[0][0]}"
    else:
        more = f"; and {count - NAMED} more" if count > NAMED else ""
        named = "; ".join(f"{', '.join(names)}: {why}" for why, names in groups) + more
    return f"{total} {are(count)} left out: {named}"
