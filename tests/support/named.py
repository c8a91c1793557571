"""Names of test cases: a value's repr without addresses, so that all processes of a test run collect equal names."""

from __future__ import annotations

import re


def named(value: object) -> str:
    """Return `repr(value)` with functions by their names alone."""
    return re.sub(r"<function ([\w.<>]+) at 0x[0-9a-f]+>", r"\1", repr(value))
