"""Names of test cases: a value's repr without addresses, so that all processes of a test run collect the same names."""

from __future__ import annotations

import re


def named(value: object) -> str:
    """`repr(value)`, in which a function is its name alone."""
    return re.sub(r"<function ([\w.<>]+) at 0x[0-9a-f]+>", r"\1", repr(value))
