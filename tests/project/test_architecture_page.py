"""docs/architecture.md: its generated block is up to date, and its paths exist."""

from __future__ import annotations

import re

from tests.project.architecture_page import ANYTHING, MAY_IMPORT, PAGE, PAGES, WHAT, level
from tests.project.generated_block import ROOT, outdated

LEAST_ROWS = 25


def test_the_layers_are_up_to_date() -> None:
    assert outdated(PAGES) == [], "run: python -m tests.project.architecture_page"


def test_every_package_is_described() -> None:
    assert set(WHAT) == set(MAY_IMPORT) | ANYTHING


def test_imports_point_to_lower_rows() -> None:
    upward = [
        (package, other)
        for package, below in MAY_IMPORT.items()
        for other in below
        if level(other if other in MAY_IMPORT else other.split(".")[0]) >= level(package)
    ]
    assert upward == []


def test_the_paths_of_the_table_of_changes_exist() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## To change X, open Y")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (?!change \|)(?!---)(.+?) \| (.+) \|$", section, re.MULTILINE)
    assert len(rows) >= LEAST_ROWS
    missing = []
    for change, places in rows:
        paths = re.findall(r"`([\w@-]*[./][\w./@-]*)`", places)
        assert paths, f"no path for {change}"
        missing += [path for path in paths if not (ROOT / path).exists() and not (ROOT / "src/murmur" / path).exists()]
    assert missing == []
