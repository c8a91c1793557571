"""Blocks of a document that a script writes: the text between two HTML comment markers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def with_block(text: str, name: str, block: str) -> str:
    """Return a document with new contents between `<!-- begin NAME -->` and `<!-- end NAME -->`.

    Raises:
        ValueError: the document does not hold the two markers exactly once.
    """
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the document needs one line {begin.strip()} and one line {end.strip()}")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{block.strip()}\n\n{end}{after}"


def with_blocks(page: Path, blocks: Mapping[str, str]) -> str:
    """Return the text of a page with all its generated blocks written anew."""
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = with_block(text, name, block)
    return text


def rewrite(pages: Mapping[Path, Mapping[str, str]]) -> None:
    """Write the pages {path: {block: text}} and print the paths of those that changed."""
    for page, blocks in pages.items():
        new = with_blocks(page, blocks)
        if new != page.read_text(encoding="utf-8"):
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")


def outdated(pages: Mapping[Path, Mapping[str, str]]) -> list[str]:
    """Return the paths of pages whose generated blocks are not up to date."""
    return [
        str(page.relative_to(ROOT))
        for page, blocks in pages.items()
        if with_blocks(page, blocks) != page.read_text(encoding="utf-8")
    ]


def table(*rows: tuple[str, ...]) -> str:
    """Return a Markdown table; the first row holds the headings."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
