"""The page of public names, docs/public_names.md: each name with its module and the first line of its docstring.

python -m tests.project.public_names_page    # writes the page
"""

from __future__ import annotations

import inspect
from pathlib import Path

import murmur

PAGE = Path(__file__).parents[2] / "docs" / "public_names.md"
HEAD = """# Public names

These names are imported from `murmur` itself, such as `from murmur import KAVG, join`. A name is imported when it is
first used, so `import murmur` costs nothing. Everything else is imported from its module.
"""
KINDS = {
    "Strategies": ("strategies",),
    "Worlds": ("worlds.",),
    "Training engine": ("engine.",),
    "Training loops of one's own": ("user_loop.", "core.stop_signals"),
    "Kernel: what a strategy sees": ("core.learner", "core.facts", "core.group", "core.world"),
    "Mixing matrices": ("core.mixing",),
    "Errors": ("core.errors",),
}


def first_line(name: str) -> str:
    """The first sentence of a name's docstring, on one line."""
    value = getattr(murmur, name)
    if name == "Strategy":
        return "A coroutine function of one learner, `async def strategy(me)`."
    if name == "STOPPED_STATUS":
        return f"Exit status of a program that has ended on request and can go on, {value}."
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def kind_of(name: str) -> str:
    """The section of a name: the one of the longest prefix of its module."""
    home = murmur.HOMES[name]
    found = [(len(prefix), kind) for kind, prefixes in KINDS.items() for prefix in prefixes if home.startswith(prefix)]
    return max(found)[1]


def page() -> str:
    """The text of the page."""
    sections = []
    for kind in KINDS:
        rows = [
            f"| `{name}` | {first_line(name)} | `murmur.{murmur.HOMES[name]}` |"
            for name in sorted(murmur.__all__, key=str.lower)
            if kind_of(name) == kind
        ]
        sections.append("\n".join([f"## {kind}", "", "| name | what it is | module |", "|---|---|---|", *rows]))
    return "\n\n".join([HEAD.rstrip(), *sections]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
