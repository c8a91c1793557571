"""The tables of strategies in docs/strategies.md, and the code in README.md, are up to date and complete."""

from __future__ import annotations

import re
from dataclasses import fields

from murmur.core.facts import Facts
from murmur.strategies import ALL
from tests.project.generated_block import outdated
from tests.project.strategies_page import EQUATIONS, MEANINGS, PAGE, PAGES, REMARKS


def test_the_tables_are_up_to_date() -> None:
    assert outdated(PAGES) == [], "run: python -m tests.project.strategies_page"


def test_every_strategy_and_every_fact_has_its_text() -> None:
    assert set(EQUATIONS) == set(ALL)
    assert set(REMARKS) <= set(ALL)
    assert set(MEANINGS) == {f.name for f in fields(Facts)}


def test_every_strategy_has_a_section() -> None:
    sections = set(re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(ALL) <= sections
