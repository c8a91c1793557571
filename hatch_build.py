"""Metadata of the distribution that follow from one address: links of README.md, and the project's addresses.

A package page has no files beside it, so relative links of README.md become addresses of the release's tag.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<text>(?P<picture>!?)\[[^]]*\])\((?P<target>(?![a-z]+:|#)[^)\s]+)\)")


def absolute(markdown: str, address: str, tag: str) -> str:
    """Return a text with its relative links as addresses of a tag; pictures lead to the file, links to its page."""
    return LINK.sub(
        lambda m: f"{m['text']}({address}/{'raw' if m['picture'] else 'blob'}/{tag}/{m['target']})",
        markdown,
    )


class Addresses(MetadataHookInterface):
    """The hook that hatchling calls for each build, with the table of pyproject.toml that names it."""

    def update(self, metadata: dict[str, Any]) -> None:
        address, tag = self.config["address"], f"v{metadata['version']}"
        text = absolute((Path(self.root) / "README.md").read_text(encoding="utf-8"), address, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {
            "Homepage": address,
            "Source": address,
            "Documentation": f"{address}/tree/{tag}/docs",
            "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
            **self.config["papers"],
        }
