"""What a caller can cause and mend, in words; nothing here needs torch, so a message costs no seconds."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


class SettingError(ValueError):
    """A setting names something that is not there, or gives a value that does not fit."""


class DamagedCheckpoint(RuntimeError):
    """A file of a checkpoint is not what was written."""


class IncompleteRun(RuntimeError):
    """A run has come to its end without having computed every minibatch of its budget exactly once."""


def nearest(word: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown word: the nearest known one, or all that there are."""
    by_lower = {k.lower(): k for k in known}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.4)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else (f"; there are {', '.join(known)}" if known else "")
